// All layers of the linear transformer with its incidence held fixed, eq. (16), on the edges of a batch of any size.
//
// A layer is Phi^T <- M Phi^T + W (S Phi)^T with M = I + W^R + W^V-times-Gram terms. It is run row by row: a node's new
// row needs its neighbours' rows, its own, and the k x k Gram matrix of the whole graph. The Gram matrix of the new
// rows is summed up while they are written, and columns are brought to length one by the next layer's matrices, so that
// a layer passes over Phi once: it reads the adjacency and Phi, and writes Phi.
//
// No Python, no torch: arrays come as pointers, and what they must look like is checked by the caller.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "common.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

using tg_lpe::huge_pages;
using tg_lpe::in_parallel;

namespace {

constexpr int64_t STREAMED = 1 << 24;  // bytes of Phi from which on no cache keeps it for the next layer
constexpr int64_t AHEAD = 24;        // entries of the adjacency by which neighbours are fetched before they are read
constexpr int64_t ROWS = 2048;       // rows whose Gram matrix is summed up in the type of Phi, before it goes to double

// A row of Phi as one vector, wherever it lies in memory.
template <typename T, int64_t W>
struct Row {
    typedef T type __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
};

// A layer's matrices, transposed: out_row = sum over a of in_row[a] * matrix[a]. One row where W^V is diagonal.
template <typename T, int64_t W>
struct Weights {
    typename Row<T, W>::type mix[W], similarity[W];
};

// S Phi of one row.
template <typename T, int64_t W>
inline __attribute__((always_inline)) void similar_row(const int64_t* crow, const int32_t* col, const T* value,
                                                       const T* diagonal, const T* in, int64_t i, T* out) {
    typedef typename Row<T, W>::type V;
    V similar = diagonal[i] * *reinterpret_cast<const V*>(in + i * W);
    for (int64_t e = crow[i]; e < crow[i + 1]; ++e)
        similar -= value[e] * *reinterpret_cast<const V*>(in + int64_t(col[e]) * W);
    *reinterpret_cast<V*>(out) = similar;
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

// One layer for rows begin..end-1; `gram` receives the sum of outer products of the new rows.
template <typename T, int64_t W, bool DIAGONAL, bool STREAM>
inline __attribute__((always_inline)) void rows_of_layer(const int64_t* crow, const int32_t* col, const T* value,
                                                         const T* diagonal, const T* in, T* out, int64_t begin,
                                                         int64_t end, const Weights<T, W>& w, double* gram) {
    typedef typename Row<T, W>::type V;
    const int64_t stop = crow[end];
    for (int64_t first = begin; first < end; first += ROWS) {
        const int64_t last = first + ROWS < end ? first + ROWS : end;
        V part[W] = {};
        for (int64_t i = first; i < last; ++i) {
            const V own = *reinterpret_cast<const V*>(in + i * W);
            V similar = diagonal[i] * own;
            for (int64_t e = crow[i]; e < crow[i + 1]; ++e) {
                // Neighbours scattered over memory are asked for long before their turn.
                if (e + AHEAD < stop) __builtin_prefetch(in + int64_t(col[e + AHEAD]) * W);
                similar -= value[e] * *reinterpret_cast<const V*>(in + int64_t(col[e]) * W);
            }
            V row;
            if (DIAGONAL) {
                row = w.similarity[0] * similar;
            } else {
                row = similar[0] * w.similarity[0];
#pragma GCC unroll 16
                for (int64_t a = 1; a < W; ++a) row += similar[a] * w.similarity[a];
            }
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a) row += own[a] * w.mix[a];
            store<STREAM>(out + i * W, row);
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a) part[a] += row[a] * row;
        }
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) gram[a * W + b] += double(part[a][b]);
    }
}

// What all layers share: the operator's rows, and the weights of each layer.
template <typename T>
struct Problem {
    const int64_t* crow;
    const int32_t* col;
    const T* value;
    const T* diagonal;
    int64_t num_layers;
    const T* residual;    // [L, W, W], I + W^R
    const T* similarity;  // [L, W, W], beta_3 alpha^Q alpha^K W^V times the layer's own scale
    const T* left;        // [L, W, W], beta_4 W^V; where the weights are diagonal, what multiplies the Gram matrix
    const T* right;       // [L, W, W], W^Q^T W^K; not read where the weights are diagonal
    bool diagonal_weights, normalize;
    double floor;         // columns no longer than this are left as they are
    const T* readout;     // [out_channels, W]
    int64_t out_channels;
};

// The matrices of a layer from the Gram matrix of `in`, whose columns have yet to be multiplied by `scale`.
template <typename T, int64_t W>
void prepare(const Problem<T>& p, int64_t layer, const double* gram, const double* scale, double factor,
             Weights<T, W>& w) {
    const T *residual = p.residual + layer * W * W, *similarity = p.similarity + layer * W * W;
    const T *left = p.left + layer * W * W, *right = p.right + layer * W * W;
    double full[W * W], half[W * W], mix[W * W];
    for (int64_t a = 0; a < W; ++a)
        for (int64_t b = 0; b < W; ++b) full[a * W + b] = scale[a] * scale[b] * gram[a * W + b];
    if (p.diagonal_weights) {
        for (int64_t a = 0; a < W * W; ++a) mix[a] = double(residual[a]) + double(left[a]) * full[a];
    } else {
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) {
                half[a * W + b] = 0;
                for (int64_t c = 0; c < W; ++c) half[a * W + b] += double(left[a * W + c]) * full[c * W + b];
            }
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) {
                mix[a * W + b] = residual[a * W + b];
                for (int64_t c = 0; c < W; ++c) mix[a * W + b] += half[a * W + c] * double(right[c * W + b]);
            }
    }
    for (int64_t a = 0; a < W; ++a)
        for (int64_t b = 0; b < W; ++b) {
            w.mix[a][b] = T(mix[b * W + a] * scale[a]);
            if (!p.diagonal_weights) w.similarity[a][b] = T(double(similarity[b * W + a]) * scale[a] * factor);
        }
    if (p.diagonal_weights)
        for (int64_t b = 0; b < W; ++b) w.similarity[0][b] = T(double(similarity[b * W + b]) * scale[b] * factor);
}

template <typename T, int64_t W>
inline __attribute__((always_inline)) void gram_of_rows(const T* in, int64_t begin, int64_t end, double* gram) {
    typedef typename Row<T, W>::type V;
    for (int64_t first = begin; first < end; first += ROWS) {
        const int64_t last = first + ROWS < end ? first + ROWS : end;
        V part[W] = {};
        for (int64_t i = first; i < last; ++i) {
            const V row = *reinterpret_cast<const V*>(in + i * W);
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a) part[a] += row[a] * row;
        }
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) gram[a * W + b] += double(part[a][b]);
    }
}

template <typename T, int64_t W>
CLONES void gram_of(const T* in, int64_t begin, int64_t end, double* gram) {
    gram_of_rows<T, W>(in, begin, end, gram);
}

template <typename T, int64_t W>
CLONES void layer_of(const Problem<T>& p, const T* in, T* out, int64_t begin, int64_t end, const Weights<T, W>& w,
                     bool stream, double* gram) {
    const auto &[crow, col, value, diagonal] = std::tie(p.crow, p.col, p.value, p.diagonal);
    if (p.diagonal_weights && stream) {
        rows_of_layer<T, W, true, true>(crow, col, value, diagonal, in, out, begin, end, w, gram);
#if defined(__SSE2__)
        _mm_sfence();  // streamed stores are seen by other threads in any order without it
#endif
    } else if (p.diagonal_weights)
        rows_of_layer<T, W, true, false>(crow, col, value, diagonal, in, out, begin, end, w, gram);
    else
        rows_of_layer<T, W, false, false>(crow, col, value, diagonal, in, out, begin, end, w, gram);
}

// The read-out of columns that have yet to be multiplied by `scale`.
template <typename T, int64_t W>
inline __attribute__((always_inline)) void read_rows(const Problem<T>& p, const T* in, const double* scale, T* out,
                                                     int64_t begin, int64_t end) {
    typedef typename Row<T, W>::type V;
    if (p.out_channels <= W) {
        V matrix[W] = {};
        for (int64_t a = 0; a < W; ++a)
            for (int64_t c = 0; c < p.out_channels; ++c) matrix[a][c] = T(double(p.readout[c * W + a]) * scale[a]);
        for (int64_t i = begin; i < end; ++i) {
            const V row = *reinterpret_cast<const V*>(in + i * W);
            V read = row[0] * matrix[0];
#pragma GCC unroll 16
            for (int64_t a = 1; a < W; ++a) read += row[a] * matrix[a];
            if (p.out_channels == W)
                *reinterpret_cast<V*>(out + i * W) = read;
            else
                std::memcpy(out + i * p.out_channels, &read, p.out_channels * sizeof(T));
        }
        return;
    }
    for (int64_t i = begin; i < end; ++i)
        for (int64_t c = 0; c < p.out_channels; ++c) {
            double sum = 0;
            for (int64_t a = 0; a < W; ++a) sum += double(p.readout[c * W + a]) * scale[a] * double(in[i * W + a]);
            out[i * p.out_channels + c] = T(sum);
        }
}

template <typename T, int64_t W>
CLONES void read_of(const Problem<T>& p, const T* in, const double* scale, T* out, int64_t begin, int64_t end) {
    read_rows<T, W>(p, in, scale, out, begin, end);
}

// All layers of the graph with rows first..last-1, by `num_threads` threads, and their read-out into `out`.
template <typename T, int64_t W>
void run_graph(const Problem<T>& p, int64_t first, int64_t last, double later, const T* phi, T* one, T* two, T* out,
               int64_t num_threads) {
    const bool stream = (last - first) * W * int64_t(sizeof(T)) >= STREAMED;
    constexpr int64_t CHUNK = 8 * ROWS;  // of rows: Gram matrices are summed chunk by chunk, whatever the threads
    const int64_t num_chunks = (last - first + CHUNK - 1) / CHUNK;
    num_threads = std::min(num_threads, num_chunks);
    std::vector<double> grams(num_chunks * W * W);
    double gram[W * W], scale[W];
    Weights<T, W> w;
    auto each_chunk = [&](auto work) {
        std::fill(grams.begin(), grams.end(), 0.0);
        in_parallel(num_threads, [&](int64_t part) {
            const int64_t begin = part * num_chunks / num_threads, end = (part + 1) * num_chunks / num_threads;
            for (int64_t c = begin; c < end; ++c)
                work(first + c * CHUNK, std::min(last, first + (c + 1) * CHUNK), grams.data() + c * W * W);
        });
        std::fill(gram, gram + W * W, 0.0);
        for (int64_t c = 0; c < num_chunks; ++c)
            for (int64_t a = 0; a < W * W; ++a) gram[a] += grams[c * W * W + a];
    };
    const T* in = phi;
    each_chunk([&](int64_t begin, int64_t end, double* sum) { gram_of<T, W>(in, begin, end, sum); });
    std::fill(scale, scale + W, 1.0);
    for (int64_t layer = 0; layer < p.num_layers; ++layer) {
        prepare<T, W>(p, layer, gram, scale, layer ? later : 1.0, w);
        each_chunk([&](int64_t begin, int64_t end, double* sum) {
            layer_of<T, W>(p, in, one, begin, end, w, stream, sum);
        });
        if (p.normalize)
            for (int64_t b = 0; b < W; ++b) {
                const double norm = std::sqrt(gram[b * W + b]);
                scale[b] = norm > p.floor ? 1.0 / norm : 1.0;
            }
        in = one;
        std::swap(one, two);
    }
    each_chunk([&](int64_t begin, int64_t end, double*) { read_of<T, W>(p, in, scale, out, begin, end); });
}

template <typename T, int64_t W>
void run(const Problem<T>& p, int64_t num_graphs, const int64_t* ptr, const double* later, const T* phi, T* one, T* two,
         T* out, int64_t num_threads) {
    const int64_t total = num_graphs ? ptr[num_graphs] : 0;
    huge_pages(one, total * W * int64_t(sizeof(T)));
    huge_pages(two, total * W * int64_t(sizeof(T)));
    huge_pages(out, total * p.out_channels * int64_t(sizeof(T)));
    constexpr int64_t SMALL = 1 << 15;  // rows from which on the threads share a graph
    std::vector<int64_t> small;
    for (int64_t g = 0; g < num_graphs; ++g) {
        if (ptr[g + 1] - ptr[g] >= SMALL)
            run_graph<T, W>(p, ptr[g], ptr[g + 1], later[g], phi, one, two, out, num_threads);
        else if (ptr[g + 1] > ptr[g])
            small.push_back(g);
    }
    const int64_t count = int64_t(small.size());
    const int64_t rows = num_graphs ? ptr[num_graphs] - ptr[0] : 0;
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>({num_threads, count, rows / 4096}));
    in_parallel(threads, [&](int64_t part) {
        for (int64_t i = part * count / threads; i < (part + 1) * count / threads; ++i)
            run_graph<T, W>(p, ptr[small[i]], ptr[small[i] + 1], later[small[i]], phi, one, two, out, 1);
    });
}

template <typename T>
int layers(int64_t width, const Problem<T>& p, int64_t num_graphs, const int64_t* ptr, const double* later,
           const T* phi, T* one, T* two, T* out, int64_t num_threads) {
    switch (width) {
        case 8: run<T, 8>(p, num_graphs, ptr, later, phi, one, two, out, num_threads); return 0;
        case 16: run<T, 16>(p, num_graphs, ptr, later, phi, one, two, out, num_threads); return 0;
        default: return 1;
    }
}

// Where the gradients by the weights of all layers are summed up, in double precision.
template <int64_t W>
struct WeightGradients {
    std::vector<double> residual, similarity, left;  // [L, W, W], [L, W], [L, W, W]

    explicit WeightGradients(int64_t num_layers = 0)
        : residual(num_layers * W * W), similarity(num_layers * W), left(num_layers * W * W) {}
};

// The gradients of one graph's layers, diagonal weights and normalised columns, from that by its last Phi.
//
// With G = z^T z, M = R + L * G, y = z M^T + (S z) diag(s) and z' = y / |y|, column by column, all z are computed anew
// and kept in `chain`; then back through them.
template <typename T, int64_t W>
inline __attribute__((always_inline)) void graph_backward(const Problem<T>& p, int64_t first, int64_t last,
                                                          double later, const T* phi, const T* grad_out, T* grad_phi,
                                                          std::vector<T>& chain, WeightGradients<W>& sums) {
    typedef typename Row<T, W>::type V;
    const int64_t n = last - first, size = n * W;
    chain.resize((p.num_layers + 3) * size);
    T* const z0 = chain.data();
    T* const g = z0 + (p.num_layers + 1) * size;     // by z, then by y
    T* const other = g + size;                       // S z, or g diag(s)
    std::vector<double> norms(p.num_layers * W);
    const auto similar = [&](const T* x, T* out) __attribute__((always_inline)) {  // S x, x and out numbered from the graph's first row
        const T* shifted = x - first * W;
        for (int64_t i = first; i < last; ++i)
            similar_row<T, W>(p.crow, p.col, p.value, p.diagonal, shifted, i, out + (i - first) * W);
    };
    const auto outer = [&](const T* x, const T* y, double* out) __attribute__((always_inline)) {  // out[a][b] = sum over rows of x[a] y[b]
        V part[W] = {};
        for (int64_t i = 0; i < n; ++i) {
            const V xi = *reinterpret_cast<const V*>(x + i * W), yi = *reinterpret_cast<const V*>(y + i * W);
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a) part[a] += xi[a] * yi;
        }
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) out[a * W + b] = double(part[a][b]);
    };
    // out_b (+)= sum over a of x_a matrix[a][b]
    const auto times = [&](const T* x, const double* matrix, T* out, bool add) __attribute__((always_inline)) {
        V rows[W] = {};
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) rows[a][b] = T(matrix[a * W + b]);
        for (int64_t i = 0; i < n; ++i) {
            const V xi = *reinterpret_cast<const V*>(x + i * W);
            V sum = add ? *reinterpret_cast<const V*>(out + i * W) : V{};
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a) sum += xi[a] * rows[a];
            *reinterpret_cast<V*>(out + i * W) = sum;
        }
    };
    double gram[W * W], mix[W * W], scale[W];
    const auto layer_matrices = [&](int64_t layer, const T* z) __attribute__((always_inline)) {
        const T *residual = p.residual + layer * W * W, *left = p.left + layer * W * W;
        outer(z, z, gram);
        for (int64_t a = 0; a < W * W; ++a) mix[a] = double(residual[a]) + double(left[a]) * gram[a];
        for (int64_t b = 0; b < W; ++b)
            scale[b] = double(p.similarity[layer * W * W + b * W + b]) * (layer ? later : 1.0);
    };

    std::memcpy(z0, phi + first * W, size * sizeof(T));
    for (int64_t layer = 0; layer < p.num_layers; ++layer) {
        const T* z = z0 + layer * size;
        T* next = z0 + (layer + 1) * size;
        layer_matrices(layer, z);
        similar(z, other);
        double transposed[W * W];
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) transposed[a * W + b] = mix[b * W + a];
        times(z, transposed, next, false);
        double square[W] = {};
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < W; ++b) {
                const T y = next[i * W + b] + T(scale[b]) * other[i * W + b];
                next[i * W + b] = y;
                square[b] += double(y) * double(y);
            }
        T inverse[W];
        for (int64_t b = 0; b < W; ++b) {
            const double norm = std::sqrt(square[b]);
            norms[layer * W + b] = norm > p.floor ? norm : 0.0;  // zero: left as it is
            inverse[b] = T(norm > p.floor ? 1.0 / norm : 1.0);
        }
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < W; ++b) next[i * W + b] *= inverse[b];
    }

    std::memcpy(g, grad_out + first * W, size * sizeof(T));
    for (int64_t layer = p.num_layers - 1; layer >= 0; --layer) {
        const T *z = z0 + layer * size, *next = z + size;
        layer_matrices(layer, z);
        double along[W] = {};
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < W; ++b) along[b] += double(g[i * W + b]) * double(next[i * W + b]);
        T inverse[W], projected[W];
        for (int64_t b = 0; b < W; ++b) {
            const double norm = norms[layer * W + b];
            inverse[b] = T(norm > 0 ? 1.0 / norm : 1.0);
            projected[b] = T(norm > 0 ? along[b] : 0.0);
        }
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < W; ++b)
                g[i * W + b] = (g[i * W + b] - projected[b] * next[i * W + b]) * inverse[b];  // by y
        // By the weights.
        similar(z, other);
        const double factor = layer ? later : 1.0;
        for (int64_t b = 0; b < W; ++b) {
            double sum = 0;
            for (int64_t i = 0; i < n; ++i) sum += double(g[i * W + b]) * double(other[i * W + b]);
            sums.similarity[layer * W + b] += factor * sum;
        }
        double by_mix[W * W], by_gram[W * W];
        outer(g, z, by_mix);  // [b][a]: of y_b by z_a
        for (int64_t a = 0; a < W * W; ++a) {
            sums.residual[layer * W * W + a] += by_mix[a];
            sums.left[layer * W * W + a] += by_mix[a] * gram[a];
            by_gram[a] = by_mix[a] * double(p.left[layer * W * W + a]);
        }
        // By z: g M + S (g diag(s)) + z (by_gram + by_gram^T).
        T* const scaled = const_cast<T*>(next);  // the next z is not read again
        for (int64_t i = 0; i < n; ++i)
            for (int64_t b = 0; b < W; ++b) scaled[i * W + b] = g[i * W + b] * T(scale[b]);
        similar(scaled, other);
        times(g, mix, other, true);
        double symmetric[W * W];
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) symmetric[a * W + b] = by_gram[a * W + b] + by_gram[b * W + a];
        times(z, symmetric, other, true);
        std::memcpy(g, other, size * sizeof(T));
    }
    std::memcpy(grad_phi + first * W, g, size * sizeof(T));
}

template <typename T, int64_t W>
CLONES void backward_of(const Problem<T>& p, int64_t first, int64_t last, double later, const T* phi,
                        const T* grad_out, T* grad_phi, std::vector<T>& chain, WeightGradients<W>& sums) {
    graph_backward<T, W>(p, first, last, later, phi, grad_out, grad_phi, chain, sums);
}

template <typename T, int64_t W>
void layers_backward(const Problem<T>& p, int64_t num_graphs, const int64_t* ptr, const double* later, const T* phi,
                     const T* grad_out, T* grad_phi, T* grad_residual, T* grad_similarity, T* grad_left,
                     int64_t num_threads) {
    constexpr int64_t CHUNK = 32;  // graphs whose gradients are summed in one place, whatever the threads
    const int64_t num_chunks = (num_graphs + CHUNK - 1) / CHUNK;
    std::vector<WeightGradients<W>> sums(num_chunks);
    const int64_t rows = num_graphs ? ptr[num_graphs] : 0;
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>({num_threads, num_chunks, rows / 1024}));
    in_parallel(threads, [&](int64_t part) {
        std::vector<T> chain;
        for (int64_t c = part * num_chunks / threads; c < (part + 1) * num_chunks / threads; ++c) {
            sums[c] = WeightGradients<W>(p.num_layers);
            for (int64_t graph = c * CHUNK; graph < std::min(num_graphs, (c + 1) * CHUNK); ++graph)
                if (ptr[graph + 1] > ptr[graph])
                    backward_of<T, W>(p, ptr[graph], ptr[graph + 1], later[graph], phi, grad_out, grad_phi, chain,
                                      sums[c]);
        }
    });
    WeightGradients<W> total(p.num_layers);
    for (const auto& own : sums) {
        for (size_t a = 0; a < own.residual.size(); ++a) total.residual[a] += own.residual[a];
        for (size_t a = 0; a < own.left.size(); ++a) total.left[a] += own.left[a];
        for (size_t a = 0; a < own.similarity.size(); ++a) total.similarity[a] += own.similarity[a];
    }
    std::copy(total.residual.begin(), total.residual.end(), grad_residual);
    std::copy(total.left.begin(), total.left.end(), grad_left);
    std::copy(total.similarity.begin(), total.similarity.end(), grad_similarity);
}

// diag(d) X - A X for rows begin..end-1.
template <typename T>
inline __attribute__((always_inline)) void product_rows(int64_t k, const int64_t* crow, const int32_t* col,
                                                        const T* value, const T* diagonal, const T* x, T* out,
                                                        int64_t begin, int64_t end) {
    const int64_t stop = crow[end];
    for (int64_t i = begin; i < end; ++i) {
        T* __restrict row = out + i * k;
        for (int64_t b = 0; b < k; ++b) row[b] = diagonal[i] * x[i * k + b];
        for (int64_t e = crow[i]; e < crow[i + 1]; ++e) {
            if (e + AHEAD < stop) __builtin_prefetch(x + int64_t(col[e + AHEAD]) * k);
            const T* other = x + int64_t(col[e]) * k;
            const T v = value[e];
            for (int64_t b = 0; b < k; ++b) row[b] -= v * other[b];
        }
    }
}

template <typename T>
CLONES void product_of(int64_t k, const int64_t* crow, const int32_t* col, const T* value, const T* diagonal,
                       const T* x, T* out, int64_t begin, int64_t end) {
    product_rows<T>(k, crow, col, value, diagonal, x, out, begin, end);
}

template <typename T>
void product(int64_t num_nodes, int64_t k, const int64_t* crow, const int32_t* col, const T* value, const T* diagonal,
             const T* x, T* out, int64_t num_threads) {
    const int64_t work = (num_nodes + crow[num_nodes]) * k;
    num_threads = std::max<int64_t>(1, std::min(num_threads, work >> 18));
    in_parallel(num_threads, [&](int64_t part) {
        product_of<T>(k, crow, col, value, diagonal, x, out, part * num_nodes / num_threads,
                      (part + 1) * num_nodes / num_threads);
    });
}

}  // namespace

#define EXPORT(T, NAME)                                                                                               \
    extern "C" __attribute__((visibility("default"))) int tg_lpe_laplacian_##NAME(                                    \
        int64_t num_nodes, int64_t k, const int64_t* crow, const int32_t* col, const T* value, const T* diagonal,     \
        const T* x, T* out, int64_t num_threads) try {                                                                \
        product<T>(num_nodes, k, crow, col, value, diagonal, x, out, num_threads);                                    \
        return 0;                                                                                                     \
    } catch (...) {                                                                                                   \
        return 2;                                                                                                     \
    }                                                                                                                 \
    extern "C" __attribute__((visibility("default"))) int tg_lpe_layers_##NAME(                                       \
        int64_t width, int64_t num_layers, int64_t num_graphs, const int64_t* ptr, const int64_t* crow,               \
        const int32_t* col, const T* value, const T* diagonal, const T* residual, const T* similarity, const T* left, \
        const T* right, const T* readout, const double* later, int64_t out_channels, int64_t diagonal_weights,        \
        int64_t normalize, double floor, const T* phi, T* one, T* two, T* out, int64_t num_threads) try {             \
        Problem<T> p{crow, col,   value,                 diagonal,       num_layers, residual, similarity,            \
                     left, right, diagonal_weights != 0, normalize != 0, floor,      readout,  out_channels};         \
        return layers<T>(width, p, num_graphs, ptr, later, phi, one, two, out, num_threads);                          \
    } catch (...) {                                                                                                   \
        return 2;                                                                                                     \
    }

#define EXPORT_BACKWARD(T, NAME)                                                                                      \
    extern "C" __attribute__((visibility("default"))) int tg_lpe_layers_backward_##NAME(                              \
        int64_t num_layers, int64_t num_graphs, const int64_t* ptr, const int64_t* crow, const int32_t* col,          \
        const T* value, const T* diagonal, const T* residual, const T* similarity, const T* left,                     \
        const double* later, double floor, const T* phi, const T* grad_out, T* grad_phi, T* grad_residual,            \
        T* grad_similarity, T* grad_left, int64_t num_threads) try {                                                  \
        Problem<T> p{crow, col,     value, diagonal, num_layers, residual, similarity,                                \
                     left, nullptr, true,  true,     floor,      nullptr,  0};                                        \
        layers_backward<T, 8>(p, num_graphs, ptr, later, phi, grad_out, grad_phi, grad_residual, grad_similarity,     \
                              grad_left, num_threads);                                                                \
        return 0;                                                                                                     \
    } catch (...) {                                                                                                   \
        return 2;                                                                                                     \
    }

EXPORT_BACKWARD(float, float32)
EXPORT_BACKWARD(double, float64)
EXPORT(float, float32)
EXPORT(double, float64)
