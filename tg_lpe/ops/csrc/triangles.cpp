// Sum over the triangles of each edge: entries of products of two sparse symmetric matrices at the edges.
//
// The end with more neighbours marks them, and the neighbours of the other end are looked up among the marks. So the
// time for an edge grows with the degree of its end of lower degree only. Four filters are computed together.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t LANES = 4;   // filters that are computed together
constexpr int64_t PARTS = 64;  // parts of the nodes
constexpr int64_t EDGES_A_THREAD = 1 << 13;

template <typename T>
struct TriangleArguments {
    int64_t num_nodes, num_edges, num_filters;
    const int64_t *tail, *head;  // [num_edges]
    const T *a, *b;              // [num_filters, num_edges]
    T* out;                      // [num_filters, num_edges]
    int64_t num_threads;
};

// Interleave the values of up to four filters from `filter` on, edge by edge.
template <typename T>
void gather(const TriangleArguments<T>& s, const T* from, int64_t filter, T* to) {
    const int64_t lanes = std::min(LANES, s.num_filters - filter);
    for (int64_t e = 0; e < s.num_edges; ++e)
        for (int64_t f = 0; f < LANES; ++f) to[e * LANES + f] = f < lanes ? from[(filter + f) * s.num_edges + e] : T(0);
}

template <typename T>
int triangle_products(const TriangleArguments<T>& s) {
    typedef T Line __attribute__((vector_size(LANES * sizeof(T)), aligned(sizeof(T))));
    Rows rows{s.num_nodes, s.num_edges};
    if (!rows.fill(s.tail, s.head, s.num_threads)) return MALFORMED;
    const bool are_same = s.a == s.b;
    Buffer<T> first(s.num_edges * LANES), second(are_same ? 0 : s.num_edges * LANES);
    const auto line = [](T* values, int64_t e) -> Line& { return *reinterpret_cast<Line*>(values + e * LANES); };
    for (int64_t filter = 0; filter < s.num_filters; filter += LANES) {
        const int64_t lanes = std::min(LANES, s.num_filters - filter);
        gather(s, s.a, filter, &first[0]);
        if (!are_same) gather(s, s.b, filter, &second[0]);
        T *const a = &first[0], *const b = are_same ? a : &second[0];
        in_ranges(s.num_nodes, PARTS, std::min(s.num_threads, s.num_edges / EDGES_A_THREAD), [&](auto each) {
            std::vector<int32_t> edge_to(s.num_nodes, -1);
            each([&](int64_t, int64_t begin, int64_t end) {
                for (int64_t u = begin; u < end; ++u) {
                    for (int64_t p = rows.crow[u]; p < rows.crow[u + 1]; ++p) edge_to[rows.col[p]] = rows.edge[p];
                    for (int64_t p = rows.crow[u]; p < rows.crow[u + 1]; ++p) {
                        const int64_t v = rows.col[p], e = rows.edge[p];
                        if (rows.degree(v) > rows.degree(u) || (rows.degree(v) == rows.degree(u) && v > u)) continue;
                        Line sum = {};
                        for (int64_t q = rows.crow[v]; q < rows.crow[v + 1]; ++q) {
                            const int64_t to_u = edge_to[rows.col[q]], to_v = rows.edge[q];
                            if (to_u >= 0) sum += line(a, to_u) * line(b, to_v) + line(b, to_u) * line(a, to_v);
                        }
                        for (int64_t f = 0; f < lanes; ++f) s.out[(filter + f) * s.num_edges + e] = sum[f];
                    }
                    for (int64_t p = rows.crow[u]; p < rows.crow[u + 1]; ++p) edge_to[rows.col[p]] = -1;
                }
            });
        });
    }
    return OK;
}

}  // namespace

EXPORT(triangle_products, TriangleArguments)
