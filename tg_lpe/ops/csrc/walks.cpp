// Compute powers of a sparse symmetric matrix on the diagonal and at the edges, through one node after the other.
//
// A walk is counted at b, the node with the lowest number that it visits. Among the nodes from b on, let F_i(z) be the
// series of the walks from i that end when they reach b, and R(z) that of the walks from b that end when they are back.
// The walks from i to j through b have the series F_i F_j / (1 - R) = X_i X_j. X = F / sqrt(1 - R) is computed as F is,
// by products with the matrix, from the series 1 / sqrt(1 - R) at b instead of 1. No term is negative if no entry is. If
// nodes with many neighbours have low numbers, few edges remain for the others. The columns of eight nodes are
// computed together; column l is zero at the nodes before its own.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t LANES = 8;  // columns that are computed together, a line of the cache
typedef double Line __attribute__((vector_size(LANES * sizeof(double)), may_alias));
typedef double Quarter __attribute__((vector_size(LANES * sizeof(double) / 4), may_alias));

struct alignas(LANES * sizeof(double)) Cell {  // a Line by itself is not aligned in std::vector
    Line line;
};

struct WalksArguments {
    int64_t num_nodes, num_edges, num_steps, num_blocks;
    const double* adjacency;           // [num_edges]
    const int64_t *tail, *head;        // [num_edges], sorted, tail < head
    const int64_t* blocks;             // [num_blocks], blocks of eight nodes
    double *nodes, *edges, *seconds;   // [num_nodes or num_edges, num_steps], to be added to, edges may be null; and
    int64_t num_threads;               // the seconds of each block
};

// The series of one block at the nodes around it, nearest first. Level d is start[d] to start[d + 1] - 1.
struct Block {
    const WalksArguments& a;
    Rows& rows;
    std::vector<int32_t> number, nodes;  // number[i]: position of node i in nodes, -1 if absent
    std::vector<int64_t> start, row;     // row i: entries row[i] to row[i + 1] - 1
    std::vector<int32_t> col, edge;
    std::vector<double> value, sums;     // sums: of the nodes, then of the entries with col[p] < i
    std::vector<Cell> series;            // [num_steps + 1, nodes]
    // A walk through level d and back has 2 d steps, or one less across an edge: step t is needed to level reach - t.
    const int64_t reach = a.num_steps + (a.edges != nullptr);

    Block(const WalksArguments& arguments, Rows& matrix) : a(arguments), rows(matrix), number(a.num_nodes, -1) {}

    void add_node(int64_t i) {
        number[i] = int32_t(nodes.size());
        nodes.push_back(int32_t(i));
    }

    void gather(int64_t first) {
        for (const int32_t i : nodes) number[i] = -1;
        nodes.clear(), col.clear(), edge.clear(), value.clear();
        for (int64_t l = 0; l < LANES; ++l) add_node(first + l);
        start.assign({0, LANES}), row.assign(1, 0);
        for (int64_t level = 0; level <= reach / 2; ++level) {
            for (int64_t at = start[level]; at < start[level + 1]; ++at) {
                const int64_t begin = rows.crow[nodes[at]];
                for (int64_t p = rows.crow[nodes[at] + 1]; p-- > begin && rows.col[p] >= first;) {
                    const int32_t j = rows.col[p];
                    if (number[j] < 0 && level < reach / 2) add_node(j);
                    if (number[j] < 0) continue;
                    col.push_back(number[j]), edge.push_back(rows.edge[p]);
                    value.push_back(a.adjacency[rows.edge[p]]);
                }
                row.push_back(int64_t(col.size()));
            }
            start.push_back(int64_t(nodes.size()));
        }
        series.assign((a.num_steps + 1) * nodes.size(), Cell{});
        sums.assign((nodes.size() + (a.edges ? col.size() / 2 : 0)) * a.num_steps, 0.0);
    }

    INLINE void propagate() {
        std::vector<Cell> source(a.num_steps + 1), inverse(source);  // 1 / sqrt(1 - R) and sqrt(1 - R)
        for (int64_t l = 0; l < LANES; ++l) series[l].line[l] = source[0].line[l] = inverse[0].line[l] = 1;
        for (int64_t t = 1; t <= a.num_steps; ++t) {
            Cell* const to = &series[t * nodes.size()];
            const Cell* const from = to - nodes.size();
            const int64_t end = start[std::min({t, reach - t, reach / 2}) + 1];
            for (int64_t i = 0; i < end; ++i) {
                Line sum = {};
                for (int64_t p = row[i]; p < row[i + 1]; ++p) sum += value[p] * from[col[p]].line;
                to[i].line = sum;
            }
            Line products = {}, returned = {};  // returned: R / sqrt(1 - R) = 1 / sqrt(1 - R) - sqrt(1 - R)
            for (int64_t s = 1; s < t; ++s) products -= source[s].line * inverse[t - s].line;
            for (int64_t l = 0; l < LANES; ++l) returned[l] = to[l].line[l];
            inverse[t].line = (products - returned) / 2;
            source[t].line = (products + returned) / 2;
            for (int64_t l = 0; l < LANES; ++l) {
                to[l].line[l] = source[t].line[l];
                for (int64_t later = l + 1; later < LANES; ++later) to[l].line[later] = 0;
            }
        }
    }

    INLINE void load(int64_t i, int64_t level, Cell* x) {
        for (int64_t t = level; t <= std::min(a.num_steps, reach - level); ++t) x[t] = series[t * nodes.size() + i];
    }

    // Sum the products of two series, which begin with the steps first_x and first_y, over the columns.
    INLINE void multiply(const Cell* x, int64_t first_x, const Cell* y, int64_t first_y, double* out) {
        for (int64_t t = std::max<int64_t>(1, first_x + first_y); t <= a.num_steps; ++t) {
            Line sum = {};
            for (int64_t s = first_x; x == y ? 2 * s < t : s <= t - first_y; ++s) sum += x[s].line * y[t - s].line;
            if (x == y) sum += t % 2 ? sum : sum + x[t / 2].line * x[t / 2].line;
            const Quarter* const parts = reinterpret_cast<const Quarter*>(&sum);
            const Quarter quarter = (parts[0] + parts[1]) + (parts[2] + parts[3]);
            out[t - 1] = quarter[0] + quarter[1];
        }
    }

    INLINE void read() {
        std::vector<Cell> x(a.num_steps + 1), y(x);
        double *at_node = sums.data(), *at_edge = at_node + nodes.size() * a.num_steps;
        for (int64_t level = 0; level <= reach / 2; ++level)
            for (int64_t i = start[level]; i < start[level + 1]; ++i, at_node += a.num_steps) {
                load(i, level, x.data());
                multiply(x.data(), level, x.data(), level, at_node);
                for (int64_t p = row[i]; a.edges && p < row[i + 1]; ++p) {
                    if (col[p] > i) continue;
                    const int64_t other = level - (col[p] < start[level]);
                    load(col[p], other, y.data());
                    multiply(x.data(), level, y.data(), other, at_edge);
                    at_edge += a.num_steps;
                }
            }
    }

    void add() {
        const double* from = sums.data();
        const auto add_row = [&](double* to) {
            for (int64_t t = 0; t < a.num_steps; ++t) to[t] += *from++;
        };
        for (const int32_t i : nodes) add_row(a.nodes + i * a.num_steps);
        if (!a.edges) return;
        for (int64_t i = 0; i < int64_t(nodes.size()); ++i)
            for (int64_t p = row[i]; p < row[i + 1]; ++p)
                if (col[p] < i) add_row(a.edges + edge[p] * a.num_steps);
    }
};

INLINE void compute(Block& block) {
    block.propagate();
    block.read();
}

// Blocks are added in their order, so that the number of threads does not change a sum.
struct Turn {
    std::atomic<int64_t>& now;
    const int64_t own;
    void wait() const {
        while (now != own) std::this_thread::yield();
    }
    ~Turn() {
        wait();
        ++now;
    }
};

int walks(const WalksArguments& a) {
    for (int64_t k = 0; k < a.num_blocks; ++k)
        if (a.blocks[k] < 0 || a.blocks[k] >= a.num_nodes / LANES) return MALFORMED;
    const auto ends = [&](int64_t e) { return std::pair(a.tail[e], a.head[e]); };
    for (int64_t e = 0; e < a.num_edges; ++e)
        if (a.tail[e] >= a.head[e] || (e && ends(e) <= ends(e - 1))) return MALFORMED;
    Rows rows{a.num_nodes, a.num_edges};
    if (!rows.fill(a.tail, a.head, a.num_threads)) return MALFORMED;
    std::atomic<int64_t> next{0}, now{0};
    in_parallel(std::max<int64_t>(1, std::min(a.num_threads, a.num_blocks)), [&](int64_t) {
        Block block(a, rows);
        for (int64_t k; (k = next++) < a.num_blocks;) {
            const Turn turn{now, k};
            const auto begin = std::chrono::steady_clock::now();
            block.gather(a.blocks[k] * LANES);
            on_this_processor<compute>(block);
            a.seconds[k] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            turn.wait();
            block.add();
        }
    });
    return OK;
}

}  // namespace

EXPORT_FOR(walks, float64, WalksArguments)
