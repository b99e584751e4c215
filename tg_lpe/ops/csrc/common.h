// Shared by the compiled operations: exports and status codes, versions for newer processors, threads, and
// the adjacency matrix of a list of edges as CSR.
//
// Conventions: no Python, no torch. Each exported function takes a pointer to one structure of 64-bit fields, which
// tg_lpe/ops/ has checked and filled in, and returns a Status. Exceptions do not leave a function. `num_threads` is
// torch's number of threads; small work uses fewer. The number of threads never changes a result.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#define INLINE inline __attribute__((always_inline))

// Functions that are compiled once for each processor().
#if defined(__x86_64__)
#define TARGET_AVX2 __attribute__((target("avx2,fma")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma")))
#endif

// `int tg_lpe_NAME_float32(NAME##Arguments<float>*)` and the same for double, from `int tg_lpe::NAME(Arguments<T>&)`.
#define EXPORT(NAME, ARGUMENTS)                                                                     \
    EXPORT_FOR(NAME, float32, ARGUMENTS<float>)                                                     \
    EXPORT_FOR(NAME, float64, ARGUMENTS<double>)
#define EXPORT_FOR(NAME, DTYPE, ARGUMENTS)                                                          \
    extern "C" __attribute__((visibility("default"))) int tg_lpe_##NAME##_##DTYPE(ARGUMENTS* given) { \
        return tg_lpe::guarded([&] { return NAME(*given); });                                       \
    }

namespace tg_lpe {

enum Status { OK = 0, MALFORMED = 1, NO_MEMORY = 2 };

// The only errors inside are lack of memory or of threads.
template <typename F>
int guarded(F work) {
    try {
        return work();
    } catch (...) {
        return NO_MEMORY;
    }
}

enum Processor { ANY, AVX2, AVX512 };

inline Processor found_processor() {
#if defined(__x86_64__)
    const char* name = std::getenv("TG_LPE_INSTRUCTIONS");  // "any" and "avx2" disable newer instructions
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return ANY;
    if (name && !std::strcmp(name, "any")) return ANY;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    return wide && !(name && !std::strcmp(name, "avx2")) ? AVX512 : AVX2;
#else
    return ANY;
#endif
}

inline Processor processor() {
    static const Processor found = found_processor();
    return found;
}

#if defined(__x86_64__)
template <auto FUNCTION, typename... A>
TARGET_AVX2 auto on_avx2(A&&... arguments) {
    return FUNCTION(arguments...);
}

template <auto FUNCTION, typename... A>
TARGET_AVX512 auto on_avx512(A&&... arguments) {
    return FUNCTION(arguments...);
}
#endif

// Call a function that is always inlined, compiled for the instructions of this processor.
template <auto FUNCTION, typename... A>
auto on_this_processor(A&&... arguments) {
#if defined(__x86_64__)
    switch (processor()) {
        case AVX512: return on_avx512<FUNCTION>(arguments...);
        case AVX2: return on_avx2<FUNCTION>(arguments...);
        default: break;
    }
#endif
    return FUNCTION(arguments...);
}

// Likewise for `FUNCTION<..., BYTES>`, whose vectors are as long as a register.
#define BY_REGISTERS(FUNCTION, ...) \
    tg_lpe::by_registers<FUNCTION<__VA_ARGS__, 16>, FUNCTION<__VA_ARGS__, 32>, FUNCTION<__VA_ARGS__, 64>>

template <auto OF_16, auto OF_32, auto OF_64, typename... A>
void by_registers(A&&... arguments) {
#if defined(__x86_64__)
    switch (processor()) {
        case AVX512: return on_avx512<OF_64>(arguments...);
        case AVX2: return on_avx2<OF_32>(arguments...);
        default: break;
    }
#endif
    OF_16(arguments...);
}

// Uninitialised memory, aligned to a cache line.
template <typename T>
struct Buffer {
    std::unique_ptr<T[], void (*)(void*)> memory{nullptr, std::free};

    explicit Buffer(int64_t rows, int64_t width = 1) {
        void* found = nullptr;
        int64_t size, bytes;
        if (__builtin_mul_overflow(rows, width, &size) || __builtin_mul_overflow(size, int64_t(sizeof(T)), &bytes) ||
            posix_memalign(&found, 64, size_t(std::max<int64_t>(bytes, 1))))
            throw std::bad_alloc();
        memory.reset(static_cast<T*>(found));
    }
    T& operator[](int64_t i) { return memory[i]; }
};

// Run `work(part)` for parts 0..num_parts-1, each on a separate thread if the system allows it. An exception of a part
// is rethrown after all parts have ended.
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

// Run `work(part, begin, end)` on ranges of the nodes; a free thread takes the next range.
template <typename F>
void in_ranges(int64_t num_nodes, int64_t num_parts, int64_t num_threads, F thread) {
    constexpr int64_t WORTH_A_THREAD = 1 << 9;  // nodes
    std::atomic<int64_t> next{0};
    in_parallel(std::max<int64_t>(1, std::min(num_threads, num_nodes / WORTH_A_THREAD)), [&](int64_t) {
        thread([&](auto work) {
            for (int64_t part; (part = next++) < num_parts;)
                work(part, part * num_nodes / num_parts, (part + 1) * num_nodes / num_parts);
        });
    });
}

// Turn the number of entries of each of n rows into the start of each row; the n-th entry receives the total.
inline void starts_from_counts(int64_t* counts, int64_t n) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t own = counts[i];
        counts[i] = total;
        total += own;
    }
    counts[n] = total;
}

// Whether the row pointers ascend from 0 to `num_entries`, and all columns are in range.
inline bool are_rows(int64_t num_nodes, int64_t num_entries, const int64_t* crow, const int32_t* col,
                     int64_t num_threads) {
    if (crow[0] != 0 || crow[num_nodes] != num_entries) return false;
    const int64_t parts = std::max<int64_t>(1, std::min(num_threads, (num_nodes + num_entries) >> 18));
    const uint32_t limit = uint32_t(std::min<int64_t>(num_nodes, int64_t(1) << 31));  // negative columns are above it
    std::vector<int64_t> wrong(parts, 0);
    in_parallel(parts, [&](int64_t part) {
        int64_t here = 0;
        uint32_t far = 0;
        for (int64_t i = part * num_nodes / parts; i < (part + 1) * num_nodes / parts; ++i) here |= crow[i + 1] < crow[i];
        for (int64_t e = part * num_entries / parts; e < (part + 1) * num_entries / parts; ++e)
            far |= uint32_t(col[e]) >= limit;
        wrong[part] = here | far;
    });
    for (const int64_t found : wrong)
        if (found) return false;
    return true;
}

// Fill the rows of a symmetric matrix that has two entries for each edge: `crow` receives the start of each row, and
// `place(at, i, j, e)` is called for the entry (i, j) of edge e. A row is in the order of the edges, which is the order
// of its columns if edges are sorted by (tail, head), tail < head. Each thread owns a range of rows. Return false if an
// edge does not join two different nodes.
template <typename F>
bool rows_of_edges(int64_t num_nodes, int64_t num_edges, const int64_t* tail, const int64_t* head, int64_t* crow,
                   int64_t num_threads, F place) {
    constexpr int64_t APART = 1 << 20, FAR = 48, NEAR = 24;  // edges from which on threads prefetch, and by how many
    const int64_t parts = std::max<int64_t>(1, std::min({num_threads, num_nodes, (num_nodes + num_edges) >> 16}));
    const auto bound = [&](int64_t part) { return part * num_nodes / parts; };
    std::vector<int64_t> wrong(parts, 0);
    in_parallel(parts, [&](int64_t part) {
        const int64_t low = bound(part), high = bound(part + 1);
        std::fill(crow + low, crow + high, int64_t(0));
        for (int64_t e = 0; e < num_edges; ++e) {
            const int64_t i = tail[e], j = head[e];
            wrong[part] += i < 0 || j < 0 || i >= num_nodes || j >= num_nodes || i == j;
            if (i >= low && i < high) ++crow[i];
            if (j >= low && j < high) ++crow[j];
        }
    });
    for (const int64_t count : wrong)
        if (count) return false;
    starts_from_counts(crow, num_nodes);
    Buffer<int64_t> next(num_nodes);
    in_parallel(parts, [&](int64_t part) {
        const int64_t low = bound(part), high = bound(part + 1);
        std::copy(crow + low, crow + high, &next[0] + low);
        const auto mine = [&](int64_t i) { return i >= low && i < high; };
        for (int64_t e = 0; e < num_edges; ++e) {
            if (num_edges >= APART && e + FAR < num_edges) {
                const int64_t far = head[e + FAR], near = head[e + NEAR];
                if (mine(far)) __builtin_prefetch(&next[far], 1);
                if (mine(near)) place.ahead(next[near]);
            }
            if (mine(tail[e])) place(next[tail[e]]++, tail[e], head[e], e);
            if (mine(head[e])) place(next[head[e]]++, head[e], tail[e], e);
        }
    });
    return true;
}

// A matrix as CSR: entry p belongs to edge[p] and lies in column col[p].
struct Rows {
    int64_t num_nodes, num_edges;
    Buffer<int64_t> crow{num_nodes + 1};
    Buffer<int32_t> col{2 * num_edges}, edge{2 * num_edges};

    struct Place {
        int32_t *col, *edge;
        void ahead(int64_t at) const {
            __builtin_prefetch(col + at, 1);
            __builtin_prefetch(edge + at, 1);
        }
        void operator()(int64_t at, int64_t, int64_t j, int64_t e) const {
            col[at] = int32_t(j);
            edge[at] = int32_t(e);
        }
    };
    bool fill(const int64_t* tail, const int64_t* head, int64_t num_threads) {
        return rows_of_edges(num_nodes, num_edges, tail, head, &crow[0], num_threads, Place{&col[0], &edge[0]});
    }
    int64_t degree(int64_t i) { return crow[i + 1] - crow[i]; }
};

}  // namespace tg_lpe
