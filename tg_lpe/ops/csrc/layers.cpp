// Compute all layers of the linear transformer with a fixed incidence matrix, eq. (16), on a batch of any size.
//
// A layer is Phi^T <- M Phi^T + W (S Phi)^T with M = I + W^R + W^V-times-Gram terms. It runs row by row: a node's new
// row needs its row, its neighbours' rows, and the k x k Gram matrix of the whole graph. The Gram matrix of the new rows
// is summed while they are written, and the next layer's matrices include the normalisation of columns. So a layer
// passes over Phi once: it reads the adjacency and Phi, and writes Phi.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t AHEAD = 96;  // entries of the adjacency by which neighbours are prefetched
constexpr int64_t TILE = 64;   // rows whose Gram matrix is summed in the type of Phi, then added in double
// Rows of small graphs, times layers: some milliseconds. In a training step, threads of torch spin on the cores while
// they wait for their next task, and a second thread slows down smaller work.
constexpr int64_t WORTH_A_THREAD = 1 << 18;

// A row of Phi as one vector, of any alignment.
template <typename T, int64_t W>
struct Row {
    typedef T type __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
};

// S of a batch: its rows off the diagonal as CSR, negated, and its diagonal.
template <typename T>
struct Operator {
    const int64_t* crow;
    const int32_t* col;
    const T *value, *diagonal;
};

// A layer's matrices, transposed: out_row = sum over a of in_row[a] * matrix[a]. Only one row if W^V is diagonal.
template <typename T, int64_t W>
struct Weights {
    alignas(64) T mix[W][W], similarity[W][W];
};

// S Phi of one row.
template <typename T, int64_t W>
INLINE void similar_row(const Operator<T>& s, const T* in, int64_t i, T* out) {
    typedef typename Row<T, W>::type V;
    V similar = s.diagonal[i] * *reinterpret_cast<const V*>(in + i * W);
    for (int64_t e = s.crow[i]; e < s.crow[i + 1]; ++e)
        similar -= s.value[e] * *reinterpret_cast<const V*>(in + int64_t(s.col[e]) * W);
    *reinterpret_cast<V*>(out) = similar;
}

// A row of Phi in registers of BYTES: GCC splits wider vectors into single numbers.
template <typename T, int64_t W, int64_t BYTES>
struct Parts {
    static constexpr int64_t LANES = std::min<int64_t>(W, BYTES / int64_t(sizeof(T))), COUNT = W / LANES;
    static constexpr int64_t FREE = BYTES == 64 ? 16 : 8;  // registers for sums
    static constexpr int64_t SUMS = std::clamp<int64_t>(FREE / COUNT, 1, W);  // rows of a Gram matrix in them
    typedef typename Row<T, LANES>::type Lanes;

    static INLINE const Lanes* of(const T* row) { return reinterpret_cast<const Lanes*>(row); }
};

// Add the sum of outer products of `count` consecutive rows.
template <typename T, int64_t W, int64_t BYTES>
INLINE void add_gram(const T* rows, int64_t count, double* gram) {
    typedef Parts<T, W, BYTES> P;
    typedef typename P::Lanes V;
    for (int64_t first = 0; first < W; first += P::SUMS) {
        V sum[P::SUMS][P::COUNT] = {};
        for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 16
            for (int64_t a = 0; a < P::SUMS; ++a)
#pragma GCC unroll 16
                for (int64_t h = 0; h < P::COUNT; ++h)
                    sum[a][h] += rows[i * W + first + a] * P::of(rows + i * W)[h];
        for (int64_t a = 0; a < P::SUMS; ++a)
            for (int64_t b = 0; b < W; ++b) gram[(first + a) * W + b] += double(sum[a][b / P::LANES][b % P::LANES]);
    }
}

// Compute one layer for rows begin..end-1; `gram` receives the sum of outer products of the new rows.
template <typename T, int64_t W, int64_t BYTES, bool DIAGONAL>
INLINE void rows_of_layer(const Operator<T>& s, const T* in, T* out, int64_t begin, int64_t end,
                          const Weights<T, W>& w, double* gram) {
    const auto [crow, col, value, diagonal] = s;
    typedef Parts<T, W, BYTES> P;
    typedef typename P::Lanes V;
    const int64_t stop = crow[end];
    alignas(64) T tile[TILE * W];
    for (int64_t first = begin; first < end; first += TILE) {
        const int64_t last = std::min(first + TILE, end);
        for (int64_t i = first; i < last; ++i) {
            const T* const own = in + i * W;
            V similar[P::COUNT], row[P::COUNT];
#pragma GCC unroll 16
            for (int64_t h = 0; h < P::COUNT; ++h) similar[h] = diagonal[i] * P::of(own)[h];
            for (int64_t e = crow[i]; e < crow[i + 1]; ++e) {
                // Neighbours are scattered over memory: prefetch them.
                if (e + AHEAD < stop) __builtin_prefetch(in + int64_t(col[e + AHEAD]) * W);
                const V* const other = P::of(in + int64_t(col[e]) * W);
#pragma GCC unroll 16
                for (int64_t h = 0; h < P::COUNT; ++h) similar[h] -= value[e] * other[h];
            }
#pragma GCC unroll 16
            for (int64_t h = 0; h < P::COUNT; ++h) row[h] = DIAGONAL ? P::of(w.similarity[0])[h] * similar[h] : V{};
            if (!DIAGONAL) {
                T each[W];
                std::memcpy(each, similar, sizeof(each));
#pragma GCC unroll 16
                for (int64_t a = 0; a < W; ++a)
#pragma GCC unroll 16
                    for (int64_t h = 0; h < P::COUNT; ++h) row[h] += each[a] * P::of(w.similarity[a])[h];
            }
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a)
#pragma GCC unroll 16
                for (int64_t h = 0; h < P::COUNT; ++h) row[h] += own[a] * P::of(w.mix[a])[h];
            std::memcpy(tile + (i - first) * W, row, sizeof(row));
#pragma GCC unroll 16
            for (int64_t h = 0; h < P::COUNT; ++h) reinterpret_cast<V*>(out + i * W)[h] = row[h];
        }
        add_gram<T, W, BYTES>(tile, last - first, gram);
    }
}

// Shared by all layers: the operator, and the weights of each layer.
template <typename T>
struct Problem {
    Operator<T> s;
    int64_t num_layers;
    const T* residual;    // [L, W, W], I + W^R
    const T* similarity;  // [L, W, W], beta_3 alpha^Q alpha^K W^V times the layer's scale
    const T* left;        // [L, W, W], beta_4 W^V; for diagonal weights, the factor of each entry of the Gram matrix
    const T* right;       // [L, W, W], W^Q^T W^K; not read for diagonal weights
    bool diagonal_weights, normalize;
    double floor;         // columns no longer than this are not normalised
};

template <typename T>
struct LayersArguments {
    int64_t width, num_nodes, num_entries, num_layers, num_graphs;
    const int64_t* ptr;
    Operator<T> s;
    const T *residual, *similarity, *left, *right;  // [num_layers, width, width]
    const double* later;                            // [num_graphs]
    int64_t diagonal_weights, normalize;
    double norm_floor;
    const T* phi;                                   // [num_nodes, width]
    T *one, *two, *out;                             // [num_nodes, width]; out is the one that the last layer writes
    int64_t num_threads;

    Problem<T> problem() const {
        return {s, num_layers, residual, similarity, left, right, diagonal_weights != 0, normalize != 0, norm_floor};
    }
};

template <typename T>
struct TrainingArguments {
    int64_t num_nodes, num_entries, num_layers, num_graphs;
    const int64_t* ptr;
    Operator<T> s;
    const T *residual, *similarity, *left;  // [num_layers, 8, 8]
    const double* later;                    // [num_graphs]
    double norm_floor;
    const T* phi;                           // [num_nodes, 8]
    T* chain;                               // [num_layers, num_nodes, 8], the new Phi
    T* gram;                                // [num_graphs, num_layers, 8, 8], of the Phi that it was computed from
    T* norm;                                // [num_graphs, num_layers, 8], of its columns before normalisation; zero
                                            // for columns not normalised
    const T* grad_out;                      // [num_nodes, 8]; from here on in the backward pass only
    T *grad_phi, *grad_residual, *grad_similarity, *grad_left;
    int64_t num_threads;

    Problem<T> problem() const {
        return {s, num_layers, residual, similarity, left, nullptr, true, true, norm_floor};
    }
};

// Compute the matrices of a layer from the Gram matrix of `in`, whose columns are not yet multiplied by `scale`.
template <typename T, int64_t W>
INLINE void prepare(const Problem<T>& p, int64_t layer, const double* gram, const double* scale, double factor,
                    Weights<T, W>& w) {
    const T *residual = p.residual + layer * W * W, *similarity = p.similarity + layer * W * W;
    const T *left = p.left + layer * W * W, *right = p.right + layer * W * W;
    double full[W * W], half[W * W], mix[W * W];
    for (int64_t a = 0; a < W; ++a)
        for (int64_t b = 0; b < W; ++b) full[a * W + b] = scale[a] * scale[b] * gram[a * W + b];
    if (p.diagonal_weights) {
        // Entries with weight zero may be infinite.
        for (int64_t a = 0; a < W * W; ++a)
            mix[a] = double(residual[a]) + (left[a] == 0 ? 0.0 : double(left[a]) * full[a]);
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

template <typename T, int64_t W, int64_t BYTES>
INLINE void gram_of_rows(const T* in, int64_t begin, int64_t end, double* gram) {
    for (int64_t first = begin; first < end; first += TILE)
        add_gram<T, W, BYTES>(in + first * W, std::min(TILE, end - first), gram);
}

template <typename T, int64_t W, int64_t BYTES>
INLINE void layer_of(const Problem<T>& p, const T* in, T* out, int64_t begin, int64_t end, const Weights<T, W>& w,
                     double* gram) {
    if (p.diagonal_weights)
        rows_of_layer<T, W, BYTES, true>(p.s, in, out, begin, end, w, gram);
    else
        rows_of_layer<T, W, BYTES, false>(p.s, in, out, begin, end, w, gram);
}

// Compute all layers of the graph with rows first..last-1 on `num_threads` threads, and scale the columns of the last into `out`.
template <typename T, int64_t W>
void run_graph(const Problem<T>& p, int64_t first, int64_t last, double later, const T* phi, T* one, T* two, T* out,
               int64_t num_threads) {
    constexpr int64_t CHUNK = 1 << 13;  // rows whose Gram matrix is summed together, for any number of threads
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
    each_chunk([&](int64_t begin, int64_t end, double* sum) {
        BY_REGISTERS(gram_of_rows, T, W)(in, begin, end, sum);
    });
    std::fill(scale, scale + W, 1.0);
    for (int64_t layer = 0; layer < p.num_layers; ++layer) {
        on_this_processor<prepare<T, W>>(p, layer, gram, scale, layer ? later : 1.0, w);
        each_chunk([&](int64_t begin, int64_t end, double* sum) {
            BY_REGISTERS(layer_of, T, W)(p, in, one, begin, end, w, sum);
        });
        if (p.normalize)
            for (int64_t b = 0; b < W; ++b) {
                const double norm = std::sqrt(gram[b * W + b]);
                scale[b] = norm > p.floor ? 1.0 / norm : 1.0;
            }
        in = one;
        std::swap(one, two);
    }
    each_chunk([&](int64_t begin, int64_t end, double*) {
        for (int64_t i = begin; i < end; ++i)
            for (int64_t b = 0; b < W; ++b) out[i * W + b] = in[i * W + b] * T(scale[b]);
    });
}

template <typename T, int64_t W>
void run(const LayersArguments<T>& a) {
    const Problem<T> p = a.problem();
    const auto run_one = [&](int64_t g, int64_t num_threads) {
        run_graph<T, W>(p, a.ptr[g], a.ptr[g + 1], a.later[g], a.phi, a.one, a.two, a.out, num_threads);
    };
    constexpr int64_t SMALL = 1 << 15;  // rows from which on the threads share a graph
    std::vector<int64_t> small;
    for (int64_t g = 0; g < a.num_graphs; ++g) {
        if (a.ptr[g + 1] - a.ptr[g] >= SMALL)
            run_one(g, a.num_threads);
        else if (a.ptr[g + 1] > a.ptr[g])
            small.push_back(g);
    }
    const int64_t count = int64_t(small.size()), worth = a.num_nodes * a.num_layers / WORTH_A_THREAD;
    const int64_t threads = std::max<int64_t>(1, std::min({a.num_threads, count, worth}));
    in_parallel(threads, [&](int64_t part) {
        for (int64_t i = part * count / threads; i < (part + 1) * count / threads; ++i) run_one(small[i], 1);
    });
}

// Compute the layers of one graph, with diagonal weights and normalised columns.
template <typename T, int64_t W>
INLINE void graph_forward(const TrainingArguments<T>& s, const Problem<T>& p, int64_t graph) {
    typedef typename Row<T, W>::type V;
    const int64_t first = s.ptr[graph], last = s.ptr[graph + 1];
    double gram[W * W] = {}, one[W];
    std::fill(one, one + W, 1.0);
    Weights<T, W> w;
    BY_REGISTERS(gram_of_rows, T, W)(s.phi, first, last, gram);
    const T* in = s.phi;
    for (int64_t layer = 0; layer < p.num_layers; ++layer) {
        const int64_t at = graph * p.num_layers + layer;
        T *const own_gram = s.gram + at * W * W, *const norm = s.norm + at * W;
        T* const out = s.chain + layer * s.num_nodes * W;
        for (int64_t a = 0; a < W * W; ++a) own_gram[a] = T(gram[a]);
        on_this_processor<prepare<T, W>>(p, layer, gram, one, layer ? s.later[graph] : 1.0, w);
        std::fill(gram, gram + W * W, 0.0);
        BY_REGISTERS(layer_of, T, W)(p, in, out, first, last, w, gram);
        double scale[W];
        V factor;
        for (int64_t b = 0; b < W; ++b) {
            const double length = std::sqrt(gram[b * W + b]);
            norm[b] = T(length > p.floor ? length : 0.0);
            scale[b] = length > p.floor ? 1.0 / length : 1.0;
            factor[b] = T(scale[b]);
        }
        for (int64_t i = first; i < last; ++i) *reinterpret_cast<V*>(out + i * W) *= factor;
        for (int64_t a = 0; a < W; ++a)
            for (int64_t b = 0; b < W; ++b) gram[a * W + b] *= scale[a] * scale[b];
        in = out;
    }
}

// Sums of the gradients by the weights of all layers, in double precision.
template <int64_t W>
struct WeightGradients {
    std::vector<double> residual, similarity, left;  // [L, W, W], [L, W], [L, W, W]

    explicit WeightGradients(int64_t num_layers = 0)
        : residual(num_layers * W * W), similarity(num_layers * W), left(num_layers * W * W) {}
};

// Compute the gradients of one graph's layers from the gradient by its last Phi.
//
// With G = z^T z, M = R + L * G, y = z M^T + (S z) diag(s) and z' = y / |y|, column by column: one pass over the rows
// of each layer for the gradients by y and by the weights, and one for the gradient by z.
template <typename T, int64_t W>
INLINE void graph_backward(const TrainingArguments<T>& s, const Problem<T>& p, int64_t graph, std::vector<T>& scratch,
                           WeightGradients<W>& sums) {
    typedef typename Row<T, W>::type V;
    const int64_t first = s.ptr[graph], last = s.ptr[graph + 1];
    T* const grad_phi = s.grad_phi;
    const auto row = [](const T* x, int64_t i) { return reinterpret_cast<const V*>(x + i * W); };
    scratch.resize(2 * (last - first) * W);
    T* const scaled = scratch.data() - first * W;  // gradient by S z, indexed by the nodes of the batch
    T* const by_y = scaled + (last - first) * W;
    std::memcpy(grad_phi + first * W, s.grad_out + first * W, (last - first) * W * sizeof(T));
    V along = {};  // sum over rows of the gradient by the new Phi times that Phi
    const T* next = s.chain + (p.num_layers - 1) * s.num_nodes * W;
    for (int64_t i = first; i < last; ++i) along += *row(grad_phi, i) * *row(next, i);
    for (int64_t layer = p.num_layers - 1; layer >= 0; --layer) {
        const int64_t of_graph = graph * p.num_layers + layer;
        const T* const z = layer ? next - s.num_nodes * W : s.phi;
        const T *gram = s.gram + of_graph * W * W, *norm = s.norm + of_graph * W, *left = p.left + layer * W * W;
        const double factor = layer ? s.later[graph] : 1.0;
        V inverse, projected, scale, mix[W], symmetric[W];
        for (int64_t b = 0; b < W; ++b) {
            inverse[b] = norm[b] > 0 ? 1 / norm[b] : T(1);
            projected[b] = norm[b] > 0 ? along[b] : T(0);
            scale[b] = T(double(p.similarity[layer * W * W + b * W + b]) * factor);
        }
        V by_mix[W] = {}, by_scale = {};
        for (int64_t i = first; i < last; ++i) {
            const V own = *row(z, i), g = (*row(grad_phi, i) - projected * *row(next, i)) * inverse;
            *reinterpret_cast<V*>(by_y + i * W) = g;
            *reinterpret_cast<V*>(scaled + i * W) = g * scale;
            V similar;
            similar_row<T, W>(p.s, z, i, reinterpret_cast<T*>(&similar));
            by_scale += g * similar;
#pragma GCC unroll 16
            for (int64_t b = 0; b < W; ++b) by_mix[b] += g[b] * own;
        }
        for (int64_t b = 0; b < W; ++b) {
            sums.similarity[layer * W + b] += factor * double(by_scale[b]);
            for (int64_t a = 0; a < W; ++a) {
                const int64_t at = b * W + a;
                sums.residual[layer * W * W + at] += double(by_mix[b][a]);
                sums.left[layer * W * W + at] += double(by_mix[b][a]) * double(gram[at]);
                mix[b][a] = p.residual[layer * W * W + at] + left[at] * gram[at];
                symmetric[b][a] = by_mix[b][a] * left[at] + by_mix[a][b] * left[a * W + b];
            }
        }
        along = V{};
        for (int64_t i = first; i < last; ++i) {  // g M + S (g diag(s)) + z (by G + its transpose)
            const V own = *row(z, i), g = *row(by_y, i);
            V sum;
            similar_row<T, W>(p.s, scaled, i, reinterpret_cast<T*>(&sum));
#pragma GCC unroll 16
            for (int64_t a = 0; a < W; ++a) sum += g[a] * mix[a] + own[a] * symmetric[a];
            *reinterpret_cast<V*>(grad_phi + i * W) = sum;
            along += sum * own;
        }
        next = z;
    }
}

constexpr int64_t TOGETHER = 32;  // graphs whose gradients are summed together, for any number of threads

// Run `work(chunk, graph)` for all graphs with nodes; those of a chunk run one after the other.
template <typename T, typename F>
void each_graph(const TrainingArguments<T>& s, F work) {
    const int64_t num_chunks = (s.num_graphs + TOGETHER - 1) / TOGETHER;
    const int64_t worth = s.num_nodes * s.num_layers / WORTH_A_THREAD;
    const int64_t threads = std::max<int64_t>(1, std::min({s.num_threads, num_chunks, worth}));
    in_parallel(threads, [&](int64_t part) {
        for (int64_t c = part * num_chunks / threads; c < (part + 1) * num_chunks / threads; ++c)
            for (int64_t graph = c * TOGETHER; graph < std::min(s.num_graphs, (c + 1) * TOGETHER); ++graph)
                if (s.ptr[graph + 1] > s.ptr[graph]) work(c, graph);
    });
}

template <typename T, int64_t W>
void run_forward(const TrainingArguments<T>& s) {
    const Problem<T> p = s.problem();
    each_graph(s, [&](int64_t, int64_t graph) { on_this_processor<graph_forward<T, W>>(s, p, graph); });
}

template <typename T, int64_t W>
void run_backward(const TrainingArguments<T>& s) {
    const Problem<T> p = s.problem();
    std::vector<WeightGradients<W>> sums((s.num_graphs + TOGETHER - 1) / TOGETHER, WeightGradients<W>(s.num_layers));
    std::vector<std::vector<T>> scratch(sums.size());
    each_graph(s, [&](int64_t chunk, int64_t graph) {
        on_this_processor<graph_backward<T, W>>(s, p, graph, scratch[chunk], sums[chunk]);
    });
    WeightGradients<W> total(s.num_layers);
    for (const auto& own : sums) {
        for (size_t a = 0; a < own.residual.size(); ++a) total.residual[a] += own.residual[a];
        for (size_t a = 0; a < own.left.size(); ++a) total.left[a] += own.left[a];
        for (size_t a = 0; a < own.similarity.size(); ++a) total.similarity[a] += own.similarity[a];
    }
    std::copy(total.residual.begin(), total.residual.end(), s.grad_residual);
    std::copy(total.left.begin(), total.left.end(), s.grad_left);
    std::copy(total.similarity.begin(), total.similarity.end(), s.grad_similarity);
}

// Return whether the first nodes of the graphs ascend from 0 to the number of nodes.
bool ascend(const int64_t* ptr, int64_t num_graphs, int64_t num_nodes) {
    if (num_graphs < 0 || ptr[0] != 0 || ptr[num_graphs] != num_nodes) return false;
    for (int64_t g = 0; g < num_graphs; ++g)
        if (ptr[g + 1] < ptr[g]) return false;
    return true;
}

// Return whether the pointers of graphs and rows are valid.
template <typename A>
bool is_well_formed(const A& a) {
    return ascend(a.ptr, a.num_graphs, a.num_nodes) &&
           are_rows(a.num_nodes, a.num_entries, a.s.crow, a.s.col, a.num_threads);
}

template <typename T>
int layers(const LayersArguments<T>& a) {
    if (!is_well_formed(a)) return MALFORMED;
    a.width == 8 ? run<T, 8>(a) : run<T, 16>(a);
    return OK;
}

template <typename T>
int layers_forward(const TrainingArguments<T>& a) {
    if (!is_well_formed(a)) return MALFORMED;
    run_forward<T, 8>(a);
    return OK;
}

template <typename T>
int layers_backward(const TrainingArguments<T>& a) {
    if (!is_well_formed(a)) return MALFORMED;
    run_backward<T, 8>(a);
    return OK;
}

}  // namespace

EXPORT(layers, LayersArguments)
EXPORT(layers_forward, TrainingArguments)
EXPORT(layers_backward, TrainingArguments)
