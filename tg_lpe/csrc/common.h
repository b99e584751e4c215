// What the compiled parts share: versions for newer processors, memory in huge pages, rows stored past the caches, and
// threads whose failures are not lost.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
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

// Rows that are not read again soon go past the caches: they need not be fetched before they are overwritten.
template <bool STREAM, typename T, typename V>
inline __attribute__((always_inline)) void store(T* to, const V& row) {
#if defined(__SSE2__)
    if (STREAM) {
        __m128i parts[sizeof(V) / 16];
        std::memcpy(parts, &row, sizeof(V));
        for (size_t i = 0; i < sizeof(V) / 16; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
        return;
    }
#endif
    *reinterpret_cast<V*>(to) = row;
}

// Memory that is not filled with zeros before it is written, in huge pages; begins where a line of the cache does.
template <typename T>
struct Buffer {
    std::unique_ptr<T[], void (*)(void*)> memory{nullptr, std::free};

    explicit Buffer(int64_t size) {
        void* found = nullptr;
        if (posix_memalign(&found, 64, size_t(std::max<int64_t>(size, 1)) * sizeof(T))) throw std::bad_alloc();
        memory.reset(static_cast<T*>(found));
        huge_pages(found, size * int64_t(sizeof(T)));
    }
    T& operator[](int64_t i) { return memory[i]; }
};

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
