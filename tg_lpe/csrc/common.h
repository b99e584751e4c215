// What the compiled parts share: memory in huge pages, and threads whose failures are not lost.

#pragma once

#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tg_lpe {

// Ask for huge pages for memory that was not touched yet: a third of the time of a large graph went into page faults.
inline void huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t PAGE = uintptr_t(1) << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + PAGE - 1) & ~(PAGE - 1);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + uintptr_t(bytes)) & ~(PAGE - 1);
    if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

// Run `work(part)` for parts 0..num_parts-1, each on a thread of its own where the system gives one. What one of them
// throws is thrown here, after all have ended.
template <typename F>
void in_parallel(int64_t num_parts, F work) {
    std::vector<std::exception_ptr> failures(num_parts);
    const auto guarded = [&](int64_t part) {
        try {
            work(part);
        } catch (...) {
            failures[part] = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    threads.reserve(num_parts);
    for (int64_t part = 1; part < num_parts; ++part) {
        try {
            threads.emplace_back(guarded, part);
        } catch (const std::system_error&) {
            guarded(part);
        }
    }
    guarded(0);
    for (auto& thread : threads) thread.join();
    for (const auto& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

}  // namespace tg_lpe
