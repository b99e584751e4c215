// Estimate polynomials of a sparse symmetric matrix on the diagonal and at the edges from random signs.
//
// For each filter, half[0] = V, half[1] = P V, half[s] = alpha P half[s-1] - gamma half[s-2], and layer t is read from
// the Gram matrix of half[t/2] and half[t - t/2]. As many columns of V as fill a cache line go through all layers at a
// time, so that reading a neighbour fetches one line.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t LINE = 64;            // bytes
constexpr int64_t AHEAD = 96;           // entries of the adjacency by which neighbours are prefetched
constexpr int64_t EDGES_AHEAD = 10;     // edges by which all layers of an end are prefetched
constexpr int64_t WORTH_A_THREAD = 1 << 16;  // lines in a pass: with fewer, a second thread makes it slower

// A line of columns, and parts of it.
template <typename T>
struct Columns {
    static constexpr int64_t WIDTH = LINE / sizeof(T), QUARTER = WIDTH / 4;
    typedef T Half __attribute__((vector_size(LINE / 2), may_alias));
    typedef T Quarter __attribute__((vector_size(LINE / 4), may_alias));
};

// Shared by all filters: the sizes, the edges, and the adjacency as CSR.
struct Structure {
    int64_t num_rows, max_nodes, num_edges, num_filters, num_layers, num_probes;
    const int64_t *tail, *head;
    int64_t width = num_filters * num_layers;                   // width of a row of the result
    int64_t depth = num_layers > 1 ? (num_layers + 1) / 2 : 0;  // number of products: the first layer, P, needs none
    Rows rows{num_rows, num_edges};
};

// A filter's product with one line of columns.
template <typename T>
struct Pass {
    const int64_t* crow;
    const int32_t* col;
    const T* value;
    const T *in, *before;    // half[s-1] and half[s-2], [num_rows, WIDTH]; half[s-2] is read if gamma is not zero
    T* out;                  // half[s]; may be half[s-2]
    T* copy;                 // a copy with rows `copy_stride` apart; null if not needed
    int64_t copy_stride;
    T alpha, gamma;
    T *even, *odd;           // sums over columns of half[s]^2 and half[s] half[s-1]; null if not needed
};

inline uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Draw columns first..first+width-1 of the signs of rows begin..end-1, zero in the rest of their lines; see
// counter_signs in tg_lpe/ops/random.py.
template <typename T>
INLINE void draw(uint64_t seed, int64_t max_nodes, int64_t first, int64_t width, int64_t begin, int64_t end, T* signs) {
    constexpr uint64_t WEYL = 0x9E3779B97F4A7C15u;
    for (int64_t i = begin; i < end; ++i) {
        const uint64_t of_row = mixed(uint64_t(i % max_nodes + 1) * WEYL + seed);
        T* const line = signs + i * Columns<T>::WIDTH;
        for (int64_t w = 0; w < Columns<T>::WIDTH; ++w)
            line[w] = w >= width ? 0 : (mixed(of_row + uint64_t(first + w + 1) * WEYL) >> 40) & 1 ? 1 : -1;
    }
}

// Sum a line of columns.
template <typename T>
INLINE T sum_of(const void* line) {
    typedef typename Columns<T>::Quarter Quarter;
    const Quarter* parts = static_cast<const Quarter*>(line);
    const Quarter sums = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    T total = sums[0] + sums[1];
    for (int64_t w = 2; w < Columns<T>::QUARTER; w += 2) total += sums[w] + sums[w + 1];
    return total;
}

// Compute half[s] for rows begin..end-1, a line in registers of BYTES.
template <typename T, int64_t BYTES>
INLINE void product(const Pass<T>& p, int64_t begin, int64_t end) {
    typedef T Values __attribute__((vector_size(BYTES), may_alias));
    constexpr int64_t WIDTH = Columns<T>::WIDTH, PARTS = LINE / BYTES;
    const auto of = [](const T* line) { return reinterpret_cast<const Values*>(line); };
    const int64_t stop = p.crow[end];
    for (int64_t i = begin; i < end; ++i) {
        Values sum[PARTS] = {};
        for (int64_t e = p.crow[i]; e < p.crow[i + 1]; ++e) {
            // Neighbours are scattered over memory: prefetch them.
            if (e + AHEAD < stop) __builtin_prefetch(p.in + int64_t(p.col[e + AHEAD]) * WIDTH);
            const Values* const other = of(p.in + int64_t(p.col[e]) * WIDTH);
#pragma GCC unroll 4
            for (int64_t h = 0; h < PARTS; ++h) sum[h] += p.value[e] * other[h];
        }
        if (p.gamma != 0)
#pragma GCC unroll 4
            for (int64_t h = 0; h < PARTS; ++h) sum[h] = p.alpha * sum[h] - p.gamma * of(p.before + i * WIDTH)[h];
        Values products[PARTS];
        if (p.odd) {
#pragma GCC unroll 4
            for (int64_t h = 0; h < PARTS; ++h) products[h] = sum[h] * of(p.in + i * WIDTH)[h];
            p.odd[i] = sum_of<T>(products);
        }
        if (p.even) {
#pragma GCC unroll 4
            for (int64_t h = 0; h < PARTS; ++h) products[h] = sum[h] * sum[h];
            p.even[i] = sum_of<T>(products);
        }
        std::memcpy(p.out + i * WIDTH, sum, sizeof(sum));
        if (p.copy) std::memcpy(p.copy + i * p.copy_stride, sum, sizeof(sum));
    }
}

// Add the entries of all layers at edges begin..end-1 to those of earlier columns, or to `offset` times P.
template <typename T>
INLINE void read_edges(const Structure& s, const T* half, const T* adjacency, const T* scale, const T* offset,
                       bool first, T* out, int64_t begin, int64_t end) {
    typedef typename Columns<T>::Half Half;
    typedef typename Columns<T>::Quarter Quarter;
    constexpr int64_t QUARTER = Columns<T>::QUARTER, WIDTH = Columns<T>::WIDTH;
    const int64_t run = s.depth * WIDTH, last = s.num_layers - 1;  // last: the number of estimated layers
    Buffer<T> memory(last * QUARTER);
    T* const sums = &memory[0];
    for (int64_t e = begin; e < end; ++e) {
        if (e + EDGES_AHEAD < end) {
            const T* next = half + s.head[e + EDGES_AHEAD] * run;
            for (int64_t slot = 0; slot < s.depth; ++slot) __builtin_prefetch(next + slot * WIDTH);
        }
        const T *from = half + s.tail[e] * run, *to = half + s.head[e] * run;
        const auto add = [&](int64_t a, int64_t b, Half& sum) __attribute__((always_inline)) {
            const Half* x = reinterpret_cast<const Half*>(from + a * WIDTH);
            const Half* y = reinterpret_cast<const Half*>(to + b * WIDTH);
            sum += x[0] * y[0] + x[1] * y[1];
        };
        for (int64_t t = 0; t < last; ++t) {  // layer t + 2
            const int64_t a = t / 2, b = (t + 1) / 2;
            Half sum = {};
            add(a, b, sum);
            if (a != b) add(b, a, sum);
            const Quarter* parts = reinterpret_cast<const Quarter*>(&sum);
            *reinterpret_cast<Quarter*>(sums + t * QUARTER) = parts[0] + parts[1];
        }
        T* entries = out + e * s.width;
        if (first) {
            entries[0] = adjacency[e];
            for (int64_t t = 0; t < last; ++t) entries[t + 1] = offset[t] * adjacency[e];
        }
        for (int64_t t = 0; t < last; ++t) {
            const T* q = sums + t * QUARTER;
            entries[t + 1] += scale[t] * (QUARTER == 2 ? q[0] + q[1] : (q[0] + q[1]) + (q[2] + q[3]));
        }
    }
}

// Add the diagonals of all layers at rows begin..end-1 from the sums of each layer.
template <typename T>
void read_nodes(const Structure& s, const T* diagonals, const T* scale, const T* offset, bool first, T* out,
                int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        T* own = out + i * s.width;
        if (first) {
            own[0] = 0;
            std::copy(offset, offset + s.num_layers - 1, own + 1);
        }
        for (int64_t t = 0; t < s.num_layers - 1; ++t) own[t + 1] += scale[t] * diagonals[t * s.num_rows + i];
    }
}

template <typename T>
int run(Structure& s, const T* adjacency, uint64_t seed, T alpha, T gamma, T* nodes, T* edges, int64_t num_threads) {
    constexpr int64_t WIDTH = Columns<T>::WIDTH;
    const int64_t n = s.num_rows, m = s.num_edges, num_blocks = s.depth ? (s.num_probes - 1) / WIDTH + 1 : 0;
    const auto threads_for = [&](int64_t lines) {
        return std::max<int64_t>(1, std::min(num_threads, lines / WORTH_A_THREAD));
    };
    const int64_t row_threads = threads_for(n + 2 * m), edge_threads = threads_for(m * s.depth);
    if (!s.rows.fill(s.tail, s.head, row_threads)) return MALFORMED;

    std::vector<int64_t> bound(row_threads + 1, n);  // rows of the threads, with about equally many entries
    bound[0] = 0;
    for (int64_t part = 1, i = 0; part < row_threads; ++part) {
        while (i < n && s.rows.crow[i] + i < part * (2 * m + n) / row_threads) ++i;
        bound[part] = i;
    }
    const auto each_rows = [&](auto work_on) {
        in_parallel(row_threads, [&](int64_t part) { work_on(bound[part], bound[part + 1]); });
    };
    const auto each_edges = [&](auto work_on) {
        in_parallel(edge_threads, [&](int64_t part) {
            work_on(part * m / edge_threads, (part + 1) * m / edge_threads);
        });
    };

    // The next product needs the last two; edges read all layers of their ends, which are stored row by row.
    const int64_t last = s.num_layers - 1, run = s.depth * WIDTH;
    Buffer<T> value(2 * m), signs(n, WIDTH), recent(n, std::min<int64_t>(s.depth, 2) * WIDTH), half(edges ? n : 0, run);
    Buffer<T> diagonals(n, last);
    std::vector<T> scale(last), edge_scale(last), offset(last), edge_offset(last);
    for (int64_t t = 0; t < last; ++t) {  // T_2s = 2 T_s T_s - I, T_2s+1 = 2 T_s T_s+1 - P
        scale[t] = T((gamma != 0 ? 2.0 : 1.0) / double(s.num_probes));
        edge_scale[t] = t % 2 ? scale[t] / 2 : scale[t];
        offset[t] = gamma != 0 && t % 2 == 0 ? -1 : 0;
        edge_offset[t] = gamma != 0 && t % 2 == 1 ? -1 : 0;
    }
    const auto slot = [&](int64_t layer) { return layer < 1 ? &signs[0] : &recent[(layer - 1) % 2 * n * WIDTH]; };
    const auto diagonal = [&](int64_t t) { return t < 2 || t > s.num_layers ? nullptr : &diagonals[(t - 2) * n]; };
    for (int64_t filter = 0; num_blocks == 0 && filter < s.num_filters; ++filter) {
        for (int64_t i = 0; i < n; ++i) nodes[i * s.width + filter] = 0;
        for (int64_t e = 0; edges && e < m; ++e) edges[e * s.width + filter] = adjacency[filter * m + e];
    }
    for (int64_t block = 0; block < num_blocks; ++block) {
        each_rows([&](int64_t begin, int64_t end) {
            on_this_processor<draw<T>>(seed, s.max_nodes, block * WIDTH, s.num_probes - block * WIDTH, begin, end,
                                       &signs[0]);
        });
        for (int64_t filter = 0; filter < s.num_filters; ++filter) {
            const T* own = adjacency + filter * m;
            T *to_nodes = nodes + filter * s.num_layers, *to_edges = edges ? edges + filter * s.num_layers : nullptr;
            each_rows([&](int64_t begin, int64_t end) {
                for (int64_t p = s.rows.crow[begin]; p < s.rows.crow[end]; ++p) value[p] = own[s.rows.edge[p]];
            });
            for (int64_t layer = 1; layer <= s.depth; ++layer) {
                T* const copy = edges ? &half[(layer - 1) * WIDTH] : nullptr;
                const Pass<T> pass{&s.rows.crow[0], &s.rows.col[0],  &value[0],
                                   slot(layer - 1), slot(layer - 2), slot(layer), copy,
                                   run,             alpha,           layer == 1 ? T(0) : gamma,
                                   diagonal(2 * layer), diagonal(2 * layer - 1)};
                each_rows([&](int64_t begin, int64_t end) { BY_REGISTERS(product, T)(pass, begin, end); });
            }
            each_rows([&](int64_t begin, int64_t end) {
                read_nodes<T>(s, &diagonals[0], scale.data(), offset.data(), block == 0, to_nodes, begin, end);
            });
            if (edges)
                each_edges([&](int64_t begin, int64_t end) {
                    on_this_processor<read_edges<T>>(s, &half[0], own, edge_scale.data(), edge_offset.data(),
                                                     block == 0, to_edges, begin, end);
                });
        }
    }
    return OK;
}

template <typename T>
struct EstimatesArguments {
    int64_t num_rows, max_nodes, num_edges, num_filters, num_layers, num_probes;
    const int64_t *tail, *head;  // [num_edges], rows
    const T* adjacency;          // [num_filters, num_edges]
    uint64_t seed;
    double alpha, gamma;
    T *nodes, *edges;            // [num_rows or num_edges, num_filters * num_layers]; edges may be null
    int64_t num_threads;
};

template <typename T>
int estimated_polynomials(const EstimatesArguments<T>& a) {
    Structure s{a.num_rows, a.max_nodes, a.num_edges, a.num_filters, a.num_layers, a.num_probes, a.tail, a.head};
    return run<T>(s, a.adjacency, a.seed, T(a.alpha), T(a.gamma), a.nodes, a.edges, a.num_threads);
}

}  // namespace

EXPORT(estimated_polynomials, EstimatesArguments)
