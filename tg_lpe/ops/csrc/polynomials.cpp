// Compute polynomials of the sparse symmetric matrices of a batch of small graphs on the diagonal and at the edges.
//
// For each graph and filter, Phi_0 = I, Phi_1 = P, Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}. The columns of Phi_t
// are independent, here and in the gradient, so a few vector registers of columns at a time go through all layers.
// Their values stay in the L1 cache for graphs of any size.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t ALIGNMENT = 64;
constexpr int64_t MAX_NODES = int64_t(1) << 24, MAX_EDGES = int64_t(1) << 28;  // of a graph: local indices are 32 bits
// Multiplications, some milliseconds of them. In a training step, threads of torch spin on the cores while they wait
// for their next task, and a second thread slows down smaller work.
constexpr double WORTH_A_THREAD = 1e8;
// A larger graph is cut into pieces of this many columns, at most MAX_PIECES, for several threads to share.
constexpr int64_t PIECE = 256, MAX_PIECES = 8;

template <typename Real>
struct PolynomialsArguments {
    const Real* adjacency;                 // [num_filters, num_edges]
    const int64_t *tail, *head, *ptr;      // [num_edges] twice, [num_graphs + 1]
    int64_t num_nodes, num_edges, num_graphs, num_filters, num_layers;
    double alpha, gamma;
    Real *nodes, *edges;                   // [num_nodes or num_edges, num_filters * num_layers], in the forward pass
    const Real *grad_nodes, *grad_edges;   // as nodes and edges, in the backward pass
    Real* grad_adjacency;                  // as adjacency, in the backward pass
    int64_t num_threads;
};

template <typename Real>
struct Job : PolynomialsArguments<Real> {
    bool backward;                         // which pass; pointers to empty arrays may be null
    Real* piece_gradients = nullptr;       // of pieces after the first, [num_pieces - 1, num_filters, num_edges]
};

// A graph, or a piece of its columns; `piece` counts those before it.
struct Graph {
    int64_t first_node, num_nodes, first_edge, num_edges;
    int64_t first_column, end_column, piece;
};

// A graph's matrix as CSR, its nodes and edges numbered from 0, and working memory. Vectors are as long as a register:
// GCC splits longer ones into single numbers.
template <typename Number, int BYTES>
struct Scratch {
    using Real = Number;
    typedef Number Vector __attribute__((vector_size(BYTES)));
    static constexpr int64_t VECTOR_BYTES = BYTES, LANES = BYTES / sizeof(Number);
    static constexpr int64_t MAX_VECTORS = BYTES == 64 ? 2 : 4;  // vectors of columns that are computed together

    int32_t *row, *neighbour, *edge_of, *tail, *head;  // row[i] <= p < row[i + 1]: entry (i, neighbour[p])
    int32_t *read_at, *read_edge;                      // edges whose head is among the current columns
    int64_t num_reads;
    Real* entry;                                       // entry of P at neighbour
    Vector *phi, *h, *product;

    // Lay out all arrays in one block of memory, and return its size; memory = nullptr asks for the size alone.
    int64_t lay_out(char* memory, int64_t n, int64_t m, int64_t num_layers, bool backward) {
        int64_t used = 0;
        auto take = [&](auto*& pointer, int64_t count) {
            pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + used);
            used += (count * int64_t(sizeof(*pointer)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        };
        take(row, n + 1), take(neighbour, 2 * m), take(edge_of, 2 * m), take(tail, m), take(head, m);
        take(read_at, m), take(read_edge, m), take(entry, 2 * m);
        take(phi, n * MAX_VECTORS * (backward ? num_layers : 2));
        take(h, backward ? 2 * n * MAX_VECTORS : 0), take(product, backward ? m * MAX_VECTORS : 0);
        return used;
    }
};

template <typename S>
INLINE void list_neighbours(const Job<typename S::Real>& job, const Graph& graph, S& s) {
    const int64_t n = graph.num_nodes, m = graph.num_edges;
    std::memset(s.row, 0, (n + 1) * sizeof(int32_t));
    for (int64_t e = 0; e < m; ++e) {
        s.tail[e] = int32_t(job.tail[graph.first_edge + e] - graph.first_node);
        s.head[e] = int32_t(job.head[graph.first_edge + e] - graph.first_node);
        ++s.row[s.tail[e]], ++s.row[s.head[e]];
    }
    int32_t end = 0;
    for (int64_t i = 0; i <= n; ++i) end = s.row[i] += end;  // end of each row; rows are filled from their ends
    for (int64_t e = m - 1; e >= 0; --e) {
        const int32_t up = --s.row[s.tail[e]], low = --s.row[s.head[e]];
        s.neighbour[up] = s.head[e], s.neighbour[low] = s.tail[e];
        s.edge_of[up] = s.edge_of[low] = int32_t(e);
    }
}

// out = P z - gamma * out, entry by entry of P.
template <typename S, int NV>
INLINE void multiply(int64_t n, const S& s, const typename S::Vector* __restrict z, typename S::Real gamma,
                     typename S::Vector* __restrict out) {
    using Real = typename S::Real;
    using Vector = typename S::Vector;
    const int32_t* __restrict neighbour = s.neighbour;
    const Real* __restrict entry = s.entry;
    for (int64_t i = 0; i < n; ++i) {
        Vector sum[NV];
        for (int v = 0; v < NV; ++v) sum[v] = Vector{};
        for (int32_t p = s.row[i]; p < s.row[i + 1]; ++p) {
            const Vector* of = z + int64_t(neighbour[p]) * NV;
            for (int v = 0; v < NV; ++v) sum[v] += entry[p] * of[v];
        }
        Vector* to = out + i * NV;
        if (gamma != 0)
            for (int v = 0; v < NV; ++v) sum[v] -= gamma * to[v];
        for (int v = 0; v < NV; ++v) to[v] = sum[v];
    }
}

// Set the entries of one filter's P, and the current columns of Phi_0 and Phi_1.
template <typename S, int NV>
INLINE void start(const Job<typename S::Real>& job, const Graph& graph, S& s, int64_t filter, int64_t first_column,
                  typename S::Vector* identity, typename S::Vector* matrix) {
    using Real = typename S::Real;
    constexpr int64_t WIDTH = NV * S::LANES;
    const int64_t n = graph.num_nodes;
    const Real* adjacency = job.adjacency + filter * job.num_edges + graph.first_edge;
    std::memset(static_cast<void*>(matrix), 0, n * NV * S::VECTOR_BYTES);
    Real* phi = reinterpret_cast<Real*>(matrix);
    for (int64_t i = 0; i < n; ++i)
        for (int32_t p = s.row[i]; p < s.row[i + 1]; ++p) {
            const Real entry = adjacency[s.edge_of[p]];
            const uint64_t column = uint64_t(s.neighbour[p] - first_column);
            if (column < uint64_t(WIDTH)) phi[i * WIDTH + int64_t(column)] = entry;
            s.entry[p] = Real(job.alpha) * entry;
        }
    if (job.gamma == 0) return;
    std::memset(static_cast<void*>(identity), 0, n * NV * S::VECTOR_BYTES);
    for (int64_t i = first_column; i < std::min(n, first_column + WIDTH); ++i)
        reinterpret_cast<Real*>(identity)[i * WIDTH + i - first_column] = 1;
}

template <typename S, int NV>
INLINE void forward(const Job<typename S::Real>& job, const Graph& graph, S& s, int64_t first_column) {
    using Real = typename S::Real;
    using Vector = typename S::Vector;
    constexpr int64_t WIDTH = NV * S::LANES;
    const int64_t n = graph.num_nodes, stride = job.num_filters * job.num_layers;
    const int64_t num_columns = std::min(n - first_column, WIDTH);
    for (int64_t filter = 0; filter < job.num_filters; ++filter) {
        Vector *before = s.phi, *now = s.phi + n * NV;
        start<S, NV>(job, graph, s, filter, first_column, before, now);
        Real* nodes = job.nodes + (graph.first_node + first_column) * stride + filter * job.num_layers;
        Real* edges = job.edges + graph.first_edge * stride + filter * job.num_layers;
        for (int64_t layer = 0;;) {
            const Real* phi = reinterpret_cast<const Real*>(now);
            const Real* diagonal = phi + first_column * WIDTH;
            for (int64_t i = 0; i < num_columns; ++i) nodes[i * stride + layer] = diagonal[i * (WIDTH + 1)];
            for (int64_t r = 0; r < s.num_reads; ++r) edges[s.read_edge[r] * stride + layer] = phi[s.read_at[r]];
            if (++layer == job.num_layers) break;
            multiply<S, NV>(n, s, now, job.gamma, before);
            std::swap(before, now);
        }
    }
}

// With H_t the derivative by Phi_t, H_{t-1} = G_{t-1} + alpha P H_t - gamma H_{t+1}, and dP sums alpha H_t Phi_{t-1} at
// its nonzeros. Phi is recomputed, which is faster than storing it.
template <typename S, int NV>
INLINE void backward(const Job<typename S::Real>& job, const Graph& graph, S& s, int64_t first_column) {
    using Real = typename S::Real;
    using Vector = typename S::Vector;
    constexpr int64_t LANES = S::LANES, WIDTH = NV * LANES;
    const int64_t n = graph.num_nodes, m = graph.num_edges, stride = job.num_filters * job.num_layers;
    const int64_t num_columns = std::min(n - first_column, WIDTH), last = job.num_layers - 1;
    for (int64_t filter = 0; filter < job.num_filters; ++filter) {
        // Phi_t is at s.phi + t * n * NV, for t < T; with T = 1, Phi_1 is neither stored nor needed.
        Vector* first = last ? s.phi + n * NV : s.h;
        start<S, NV>(job, graph, s, filter, first_column, s.phi, first);
        for (int64_t t = 2; t <= last; ++t) {
            Vector* phi = s.phi + t * n * NV;
            if (job.gamma != 0) std::memcpy(static_cast<void*>(phi), phi - 2 * n * NV, n * NV * S::VECTOR_BYTES);
            multiply<S, NV>(n, s, phi - n * NV, job.gamma, phi);
        }
        Vector *later = s.h, *now = s.h + n * NV;
        std::memset(static_cast<void*>(s.h), 0, 2 * n * NV * S::VECTOR_BYTES);
        std::memset(static_cast<void*>(s.product), 0, m * NV * S::VECTOR_BYTES);
        const Real* nodes = job.grad_nodes + (graph.first_node + first_column) * stride + filter * job.num_layers;
        const Real* edges = job.grad_edges + graph.first_edge * stride + filter * job.num_layers;
        for (int64_t layer = last;; --layer) {
            Real* h = reinterpret_cast<Real*>(now);
            Real* diagonal = h + first_column * WIDTH;
            for (int64_t i = 0; i < num_columns; ++i) diagonal[i * (WIDTH + 1)] += nodes[i * stride + layer];
            for (int64_t r = 0; r < s.num_reads; ++r) h[s.read_at[r]] += edges[s.read_edge[r] * stride + layer];
            if (layer == 0) break;
            const Vector* __restrict phi = s.phi + layer * n * NV;
            for (int64_t e = 0; e < m; ++e) {
                const int64_t i = int64_t(s.tail[e]) * NV, j = int64_t(s.head[e]) * NV;
                Vector* to = s.product + e * NV;
                for (int v = 0; v < NV; ++v) to[v] += now[i + v] * phi[j + v] + now[j + v] * phi[i + v];
            }
            multiply<S, NV>(n, s, now, job.gamma, later);
            std::swap(later, now);
        }
        // Phi_1 = P itself.
        const Real* h = reinterpret_cast<const Real*>(now);
        Real* of_piece =
            graph.piece ? job.piece_gradients + (graph.piece - 1) * job.num_filters * job.num_edges : job.grad_adjacency;
        Real* grad = of_piece + filter * job.num_edges + graph.first_edge;
        for (int64_t e = 0; e < m; ++e) {
            Vector sum = s.product[e * NV];
            for (int v = 1; v < NV; ++v) sum += s.product[e * NV + v];
            Real total = 0;
            for (int64_t lane = 0; lane < LANES; ++lane) total += sum[lane];
            total *= Real(job.alpha);
            const uint64_t i = uint64_t(s.tail[e] - first_column), j = uint64_t(s.head[e] - first_column);
            if (j < uint64_t(WIDTH)) total += h[s.tail[e] * WIDTH + int64_t(j)];
            if (i < uint64_t(WIDTH)) total += h[s.head[e] * WIDTH + int64_t(i)];
            grad[e] = first_column > graph.first_column ? grad[e] + total : total;
        }
    }
}

template <typename S, int NV>
INLINE void columns(const Job<typename S::Real>& job, const Graph& graph, S& s, int64_t first_column) {
    constexpr int64_t WIDTH = NV * S::LANES;
    s.num_reads = 0;
    for (int64_t e = 0; e < graph.num_edges; ++e) {
        const uint64_t column = uint64_t(s.head[e] - first_column);
        if (column >= uint64_t(WIDTH)) continue;
        s.read_at[s.num_reads] = int32_t(s.tail[e] * WIDTH + int64_t(column));
        s.read_edge[s.num_reads++] = int32_t(e);
    }
    if (job.backward)
        backward<S, NV>(job, graph, s, first_column);
    else
        forward<S, NV>(job, graph, s, first_column);
}

template <typename Real, int BYTES>
INLINE void run(const Job<Real>& job, const Graph* begin, const Graph* end, int64_t n, int64_t m) {
    using S = Scratch<Real, BYTES>;
    S s;
    Buffer<char> memory(s.lay_out(nullptr, n, m, job.num_layers, job.backward));
    s.lay_out(&memory[0], n, m, job.num_layers, job.backward);
    for (const Graph* graph = begin; graph != end; ++graph) {
        list_neighbours(job, *graph, s);
        for (int64_t column = graph->first_column; column < graph->end_column;) {
            const int64_t left = (graph->end_column - column + S::LANES - 1) / S::LANES;
            const int64_t taken = std::min(left, S::MAX_VECTORS);
            if (taken == 1)
                columns<S, 1>(job, *graph, s, column);
            else if (taken == 2)
                columns<S, 2>(job, *graph, s, column);
            if constexpr (S::MAX_VECTORS == 4) {
                if (taken == 3)
                    columns<S, 3>(job, *graph, s, column);
                else if (taken == 4)
                    columns<S, 4>(job, *graph, s, column);
            }
            column += taken * S::LANES;
        }
    }
}

// Cut the batch into its graphs. Return false if an edge leaves its graph or the pointers do not ascend.
template <typename Real>
bool cut(const Job<Real>& job, std::vector<Graph>& graphs) {
    const int64_t *ptr = job.ptr, *tail = job.tail, *head = job.head;
    int64_t e = 0;
    if (job.num_graphs <= 0) return job.num_graphs == 0 && job.num_nodes == 0 && job.num_edges == 0;
    graphs.reserve(job.num_graphs);
    if (ptr[0] != 0 || ptr[job.num_graphs] != job.num_nodes) return false;
    for (int64_t g = 0; g < job.num_graphs; ++g) {
        const int64_t first = ptr[g], end = ptr[g + 1], first_edge = e;
        if (first < 0 || end < first || end > job.num_nodes || end - first > MAX_NODES) return false;
        for (; e < job.num_edges && tail[e] < end; ++e)
            if (tail[e] < first || head[e] < first || head[e] >= end || tail[e] == head[e]) return false;
        if (e - first_edge > MAX_EDGES) return false;
        if (end > first) graphs.push_back({first, end - first, first_edge, e - first_edge, 0, end - first, 0});
    }
    return e == job.num_edges;
}

// Cut large graphs into pieces of multiples of PIECE columns, independently of the number of threads, so that the
// result does not depend on it. Return the largest number of pieces of a graph.
int64_t cut_columns(std::vector<Graph>& graphs) {
    std::vector<Graph> pieces;
    pieces.reserve(graphs.size());
    int64_t most = 1;
    for (const Graph& graph : graphs) {
        const int64_t blocks = (graph.num_nodes + PIECE - 1) / PIECE, count = std::min(MAX_PIECES, blocks);
        most = std::max(most, count);
        for (int64_t k = 0; k < count; ++k) {
            pieces.push_back(graph);
            pieces.back().piece = k;
            pieces.back().first_column = k * blocks / count * PIECE;
            pieces.back().end_column = std::min(graph.num_nodes, (k + 1) * blocks / count * PIECE);
        }
    }
    graphs.swap(pieces);
    return most;
}

template <typename Real>
int run_batch(Job<Real> job) {
    std::vector<Graph> graphs;
    if (!cut(job, graphs)) return MALFORMED;
    if (graphs.empty()) return OK;
    const int64_t all = job.num_filters * job.num_edges, later = (cut_columns(graphs) - 1) * (job.backward ? all : 0);
    Buffer<Real> gradients(later);
    std::fill_n(&gradients[0], later, Real(0));  // a graph may have fewer pieces than another
    job.piece_gradients = &gradients[0];
    std::vector<double> work(graphs.size() + 1, 0.0);  // work of all graphs before each
    for (size_t g = 0; g < graphs.size(); ++g)
        work[g + 1] = work[g] + double(graphs[g].num_nodes + 2 * graphs[g].num_edges) *
                                    double(graphs[g].end_column - graphs[g].first_column);
    const double multiplications = work.back() * double(job.num_filters * job.num_layers) * (job.backward ? 4 : 1);
    const double useful = std::min(double(job.num_threads), multiplications / WORTH_A_THREAD);
    const size_t num_parts = std::max<size_t>(1, std::min<size_t>(size_t(useful), graphs.size()));

    // One thread computes a piece, so the number of threads does not change the result.
    struct Part {
        const Graph *begin, *end;
        int64_t n, m;  // sizes of the largest
    };
    std::vector<Part> parts(num_parts);
    size_t g = 0;
    for (size_t k = 0; k < num_parts; ++k) {
        Part& part = parts[k];
        part.begin = part.end = graphs.data() + g;
        const double until = work.back() * double(k + 1) / double(num_parts);
        part.n = part.m = 0;
        for (; g < graphs.size() && (k + 1 == num_parts || work[g + 1] <= until); ++g, ++part.end) {
            part.n = std::max(part.n, graphs[g].num_nodes);
            part.m = std::max(part.m, graphs[g].num_edges);
        }
    }
    in_parallel(int64_t(num_parts), [&](int64_t k) {
        const Part& p = parts[k];
        BY_REGISTERS(run, Real)(job, p.begin, p.end, p.n, p.m);
    });
    for (int64_t i = 0; i < later; ++i) job.grad_adjacency[i % all] += gradients[i];
    return OK;
}

template <typename T>
int matrix_polynomials(const PolynomialsArguments<T>& a) {
    return run_batch(Job<T>{a, false});
}

template <typename T>
int matrix_polynomials_backward(const PolynomialsArguments<T>& a) {
    return run_batch(Job<T>{a, true});
}

}  // namespace

EXPORT(matrix_polynomials, PolynomialsArguments)
EXPORT(matrix_polynomials_backward, PolynomialsArguments)
