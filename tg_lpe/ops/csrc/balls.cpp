// Compute polynomials of a sparse symmetric matrix around each node of a large graph, at the node and at its edges.
//
// The entry of column j of Phi_t at j sums over walks of t steps from j back to j, which visit no node farther than
// t / 2. So a column needs only the ball around its node, and in layer t of L the rows up to min(t, L - t) edges away.
// Nodes are numbered by distance, so these rows come first. Four filters are computed together: their matrices have
// the same pattern.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t LANES = 4;                       // filters that are computed together
constexpr int64_t PARTS = 64, BACKWARD_PARTS = 8;  // parts of the nodes; in the backward pass each sums its gradients

// The nodes around a node, nearest first, found so far up to `start.size() - 2` edges away.
struct Ball {
    std::vector<int32_t> number, nodes;  // number[i]: position of node i in nodes, -1 if absent
    std::vector<int64_t> start;          // level d is nodes[start[d]] to nodes[start[d + 1] - 1]

    explicit Ball(int64_t num_nodes) : number(num_nodes, -1) {}

    void begin(int32_t center) {
        for (const int32_t i : nodes) number[i] = -1;
        nodes.assign(1, center);
        number[center] = 0;
        start.assign({0, 1});
    }
    int64_t num_levels() const { return int64_t(start.size()) - 1; }
    bool complete() const { return start.back() == start[start.size() - 2]; }  // the last level is empty

    template <typename F>
    void add_level(Rows& rows, F see) {
        const int64_t end = start.back();
        for (int64_t at = start[start.size() - 2]; at < end; ++at) {
            const int64_t stop = rows.crow[nodes[at] + 1];
            for (int64_t p = rows.crow[nodes[at]]; p < stop; ++p) {
                const int32_t j = rows.col[p];
                if (number[j] < 0) {
                    number[j] = int32_t(nodes.size());
                    nodes.push_back(j);
                }
                see(p, number[j]);
            }
        }
        start.push_back(int64_t(nodes.size()));
    }
};

struct OrdersArguments {
    int64_t num_nodes, num_edges, max_order, max_visits;
    const int64_t *tail, *head;  // [num_edges]
    int64_t* orders;             // [num_nodes]
    int64_t num_threads;
};

int ball_orders(const OrdersArguments& a) {
    Rows rows{a.num_nodes, a.num_edges};
    if (!rows.fill(a.tail, a.head, a.num_threads)) return MALFORMED;
    in_ranges(a.num_nodes, PARTS, a.num_threads, [&](auto each) {
        Ball ball(a.num_nodes);
        each([&](int64_t, int64_t begin, int64_t end) {
            for (int64_t j = begin; j < end; ++j) {
                ball.begin(int32_t(j));
                int64_t visits = rows.degree(j), order = std::min<int64_t>(2, a.max_order);
                while (order < a.max_order) {
                    ball.add_level(rows, [](int64_t, int32_t) {});
                    if (ball.complete()) {
                        order = a.max_order;
                        break;
                    }
                    int64_t at = ball.start[ball.num_levels() - 1];
                    for (; at < ball.start.back() && visits <= a.max_visits; ++at) visits += rows.degree(ball.nodes[at]);
                    if (visits > a.max_visits) break;
                    order = std::min(order + 2, a.max_order);
                }
                a.orders[j] = order;
            }
        });
    });
    return OK;
}

template <typename T>
struct BallArguments {
    const T* adjacency;                  // [num_filters, num_edges]
    const int64_t *tail, *head, *orders; // [num_edges] twice, [num_nodes]
    int64_t num_nodes, num_edges, num_filters, num_layers;
    double alpha, gamma;
    T *nodes, *edges;                    // [num_nodes or num_edges, num_filters * num_layers]; edges may be null
    const T *grad_nodes, *grad_edges;    // as nodes and edges
    T* grad_adjacency;                   // as adjacency; null in the forward pass
    int64_t num_threads;
};

// Compute the columns of four filters, one ball after the other.
template <typename T>
struct Worker {
    typedef T Line __attribute__((vector_size(LANES * sizeof(T)), aligned(sizeof(T)), may_alias));

    const BallArguments<T>& a;
    Rows& rows;
    T* entries;             // of these filters, row by row, [2 num_edges, LANES]
    T* gradient;            // [2 num_edges, LANES]; null in the forward pass
    int64_t filter, lanes;  // the first filter, and their number
    Ball ball{a.num_nodes};
    std::vector<int64_t> row, first;  // row i of the ball: entries row[i] to row[i + 1] - 1, from first[i] on
    std::vector<int32_t> col, owned;  // owned: entries of the first row whose edges are read in this column
    std::vector<T> memory;            // the entries, their gradient, three layers of gradients, Phi_0 .. Phi_L
    T *value = nullptr, *value_gradient = nullptr, *h = nullptr, *phi = nullptr;
    int64_t size = 0, order = 0;

    static Line& line(T* at, int64_t i) { return *reinterpret_cast<Line*>(at + i * LANES); }
    T* layer(int64_t t) { return phi + (gradient ? t : t % 2) * size * LANES; }
    int64_t end_of(int64_t level) { return ball.start[std::min(level + 1, ball.num_levels())]; }
    int64_t reach(int64_t t) { return std::min(t, order - t); }
    bool outwards(int64_t t) { return 2 * t <= order; }

    // Levels 0 .. (L - 1) / 2 have rows in the matrix; the level after them only columns.
    void gather(int64_t j) {
        order = a.orders[j];
        ball.begin(int32_t(j));
        row.assign(1, 0), first.clear(), col.clear(), owned.clear();
        for (int64_t level = 0; level <= (order - 1) / 2 && !ball.complete(); ++level) {
            const int64_t begin = ball.start[level], end = ball.start[level + 1];
            ball.add_level(rows, [&](int64_t, int32_t i) { col.push_back(i); });
            for (int64_t at = begin; at < end; ++at) {
                first.push_back(rows.crow[ball.nodes[at]]);
                row.push_back(row.back() + rows.degree(ball.nodes[at]));
            }
        }
        for (int32_t p = 0; p < row[1]; ++p) {  // each edge in the column of its end with the higher order
            const int64_t other = ball.nodes[col[p]];
            if (a.orders[other] < order || (a.orders[other] == order && j < other)) owned.push_back(p);
        }
        size = int64_t(ball.nodes.size());
        const int64_t num_entries = int64_t(col.size()), layers = gradient ? order + 1 : 2;
        const size_t needed = size_t((2 * num_entries + size * (layers + 3)) * LANES);
        if (memory.size() < needed) memory.resize(needed);
        value = memory.data(), value_gradient = value + num_entries * LANES;
        h = value_gradient + num_entries * LANES, phi = h + 3 * size * LANES;
        for (size_t i = 0; i < first.size(); ++i)
            std::copy_n(entries + first[i] * LANES, (row[i + 1] - row[i]) * LANES, value + row[i] * LANES);
        std::fill_n(phi, LANES, T(1));
        clear_beyond(0);
    }

    void zero(T* to, int64_t begin, int64_t end) {
        if (end > begin) std::memset(static_cast<void*>(to + begin * LANES), 0, size_t((end - begin) * LANES) * sizeof(T));
    }

    // Layer t is zero beyond distance t; clear it as far as the next two steps read it.
    void clear_beyond(int64_t t) { zero(layer(t), end_of(reach(t)), end_of(std::min(t + 2, order - t))); }

    void step(int64_t t) {
        const T alpha = t == 1 ? T(1) : T(a.alpha), gamma = t == 1 ? T(0) : T(a.gamma);
        T *const to = layer(t), *const before = t > 1 ? layer(t - 2) : to, *const from = layer(t - 1);
        if (outwards(t)) {
            const int64_t inner = end_of(t - 1), end = end_of(t);
            if (gamma == 0)
                zero(to, 0, end);
            else
                for (int64_t i = 0; i < end; ++i) line(to, i) = -gamma * line(before, i);
            for (int64_t i = 0; i < inner; ++i) {
                const Line own = alpha * line(from, i);
                for (int64_t p = row[i]; p < row[i + 1]; ++p) line(to, col[p]) += line(value, p) * own;
            }
        } else {
            const int64_t end = end_of(order - t);
            for (int64_t i = 0; i < end; ++i) {
                Line sum = {};
                for (int64_t p = row[i]; p < row[i + 1]; ++p) sum += line(value, p) * line(from, col[p]);
                sum *= alpha;
                if (gamma != 0) sum -= gamma * line(before, i);
                line(to, i) = sum;
            }
        }
        clear_beyond(t);
    }

    // With H_t the derivative by Phi_t: the contributions of step t to H_{t-1}, H_{t-2} and the gradient of P.
    void step_back(int64_t t, T* now, T* last, T* before) {
        const T alpha = t == 1 ? T(1) : T(a.alpha), gamma = t == 1 ? T(0) : T(a.gamma);
        T* const from = layer(t - 1);
        const int64_t end = end_of(reach(t));
        zero(before, 0, end_of(std::min(t, order - t + 2)));
        if (gamma != 0)
            for (int64_t i = 0; i < end; ++i) line(before, i) = -gamma * line(now, i);
        if (outwards(t)) {
            const int64_t inner = end_of(t - 1);
            for (int64_t i = 0; i < inner; ++i) {
                const Line own = line(from, i);
                Line sum = {};
                for (int64_t p = row[i]; p < row[i + 1]; ++p) {
                    const Line h_of = alpha * line(now, col[p]);
                    sum += line(value, p) * h_of;
                    line(value_gradient, p) += own * h_of;
                }
                line(last, i) += sum;
            }
        } else {
            for (int64_t i = 0; i < end; ++i) {
                const Line own = alpha * line(now, i);
                for (int64_t p = row[i]; p < row[i + 1]; ++p) {
                    line(value_gradient, p) += own * line(from, col[p]);
                    line(last, col[p]) += own * line(value, p);
                }
            }
        }
    }

    int64_t node_layers() { return std::min(order, a.num_layers); }
    int64_t edge_layers() { return std::min(order - 1, a.num_layers); }
    int64_t at_node(int64_t t) { return (ball.nodes[0] * a.num_filters + filter) * a.num_layers + t - 1; }
    int64_t at_edge(int64_t p, int64_t t) {
        return (rows.edge[first[0] + p] * a.num_filters + filter) * a.num_layers + t - 1;
    }

    void forward(int64_t j) {
        gather(j);
        for (int64_t t = 1; t <= a.num_layers; ++t) {
            if (t <= order) step(t);
            const T* now = layer(t);
            for (int64_t f = 0; f < lanes; ++f)
                a.nodes[at_node(t) + f * a.num_layers] = t <= node_layers() ? now[f] : T(0);
            if (!a.edges) continue;
            for (const int32_t p : owned)
                for (int64_t f = 0; f < lanes; ++f)
                    a.edges[at_edge(p, t) + f * a.num_layers] = t <= edge_layers() ? now[col[p] * LANES + f] : T(0);
        }
    }

    void backward(int64_t j) {
        gather(j);
        const int64_t last = node_layers();
        for (int64_t t = 1; t < last; ++t) step(t);
        zero(value_gradient, 0, int64_t(col.size()));
        zero(h, 0, 3 * size);
        const auto slot = [&](int64_t t) { return h + (t + 3) % 3 * size * LANES; };
        for (int64_t t = last; t > 0; --t) {
            T* const now = slot(t);
            for (int64_t f = 0; f < lanes; ++f) now[f] += a.grad_nodes[at_node(t) + f * a.num_layers];
            if (a.grad_edges && t <= edge_layers())
                for (const int32_t p : owned)
                    for (int64_t f = 0; f < lanes; ++f)
                        now[col[p] * LANES + f] += a.grad_edges[at_edge(p, t) + f * a.num_layers];
            step_back(t, now, slot(t - 1), slot(t - 2));
        }
        for (size_t i = 0; i < first.size(); ++i)
            for (int64_t p = row[i]; p < row[i + 1]; ++p) line(gradient, first[i] + p - row[i]) += line(value_gradient, p);
    }
};

template <typename T>
int ball_polynomials(const BallArguments<T>& a) {
    Rows rows{a.num_nodes, a.num_edges};
    if (!rows.fill(a.tail, a.head, a.num_threads)) return MALFORMED;
    for (int64_t j = 0; j < a.num_nodes; ++j)
        if (a.orders[j] < 1 || a.orders[j] > a.num_layers + 1) return MALFORMED;
    const bool is_backward = a.grad_adjacency != nullptr;
    const int64_t num_parts = is_backward ? BACKWARD_PARTS : PARTS, all = 2 * a.num_edges * LANES;
    Buffer<T> entries(all), gradients(is_backward ? num_parts : 0, all);
    for (int64_t filter = 0; filter < a.num_filters; filter += LANES) {
        const int64_t lanes = std::min(LANES, a.num_filters - filter);
        for (int64_t p = 0; p < 2 * a.num_edges; ++p)
            for (int64_t f = 0; f < LANES; ++f)
                entries[p * LANES + f] = f < lanes ? a.adjacency[(filter + f) * a.num_edges + rows.edge[p]] : T(0);
        in_ranges(a.num_nodes, num_parts, a.num_threads, [&](auto each) {
            Worker<T> worker{a, rows, &entries[0], nullptr, filter, lanes};
            each([&](int64_t part, int64_t begin, int64_t end) {
                if (is_backward) {
                    worker.gradient = &gradients[part * all];
                    std::fill_n(worker.gradient, all, T(0));
                }
                for (int64_t j = begin; j < end; ++j) is_backward ? worker.backward(j) : worker.forward(j);
            });
        });
        if (!is_backward) continue;
        for (int64_t f = 0; f < lanes; ++f) std::fill_n(a.grad_adjacency + (filter + f) * a.num_edges, a.num_edges, T(0));
        for (int64_t p = 0; p < 2 * a.num_edges; ++p)
            for (int64_t f = 0; f < lanes; ++f) {
                T sum = 0;
                for (int64_t part = 0; part < num_parts; ++part) sum += gradients[part * all + p * LANES + f];
                a.grad_adjacency[(filter + f) * a.num_edges + rows.edge[p]] += sum;
            }
    }
    return OK;
}

}  // namespace

EXPORT_FOR(ball_orders, int64, OrdersArguments)
EXPORT(ball_polynomials, BallArguments)
