// Sort a list of edges into distinct undirected edges, and these into the adjacency matrix as CSR, by counting in
// linear time, for batches of molecules and for graphs of a hundred million edges; and multiply by the Laplacian.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int INTERFACE = 15;  // version of the structures that tg_lpe/ops/ fills in

constexpr int64_t SHARED = 1 << 20;       // directed edges from which on threads share a list
constexpr int64_t FAR = 48, NEAR = 24;    // directed edges by which counters, and the entries at them, are prefetched
constexpr int64_t AHEAD = 96;             // entries of the adjacency by which rows are prefetched
constexpr int64_t SHORT = 24;             // entries of a row up to which insertion sort is fastest

struct List {
    int64_t num_nodes, num_directed;
    const int64_t *row, *col;
    int64_t small(int64_t e) const { return std::min(row[e], col[e]); }
    int64_t large(int64_t e) const { return std::max(row[e], col[e]); }
};

// Sort the entries of a row.
template <typename Entry>
void sort_row(Entry* first, Entry* last) {
    if (last - first > SHORT) {
        std::sort(first, last);
        return;
    }
    for (Entry* at = first + 1; at < last; ++at) {
        const Entry own = *at;
        Entry* to = at;
        for (; to > first && to[-1] > own; --to) *to = to[-1];
        *to = own;
    }
}

// The larger end of an entry; entries of 64 bits hold the number of the directed edge in their lower half.
inline int64_t head_of(uint32_t entry) { return entry; }
inline int64_t head_of(uint64_t entry) { return int64_t(entry >> 32); }

// See undirected_edges below. Each thread owns a range of nodes, with their counters and entries.
template <typename Entry>
int64_t merge(const List& list, int64_t* tail, int64_t* head, int64_t* index, int64_t* counts, int64_t* num_loops,
              int64_t num_threads) {
    const int64_t n = list.num_nodes, m = list.num_directed;
    const int64_t parts = m < SHARED ? 1 : std::max<int64_t>(1, std::min(num_threads, n));
    const auto bound = [&](int64_t part) { return part * n / parts; };
    Buffer<int64_t> start(n + 1);  // start of each row among the entries
    Buffer<Entry> entries(m);
    in_parallel(parts, [&](int64_t part) {
        const int64_t low = bound(part), high = bound(part + 1);
        std::fill(&start[low], &start[0] + high, int64_t(0));
        for (int64_t e = 0; e < m; ++e) {
            const int64_t i = list.small(e);
            if (i >= low && i < high && list.row[e] != list.col[e]) ++start[i];
        }
    });
    starts_from_counts(&start[0], n);
    std::vector<int64_t> ends(parts + 1);  // ends of the parts' entries: `start` moves on while rows are filled
    for (int64_t part = 0; part <= parts; ++part) ends[part] = start[bound(part)];
    std::vector<int64_t> distinct(parts, 0);
    in_parallel(parts, [&](int64_t part) {
        const int64_t low = bound(part), high = bound(part + 1);
        const bool far_apart = m >= SHARED;
        for (int64_t e = 0; e < m; ++e) {
            if (far_apart && e + FAR < m) {
                const int64_t far = list.small(e + FAR), near = list.small(e + NEAR);
                if (far >= low && far < high) __builtin_prefetch(&start[far], 1);
                if (near >= low && near < high) __builtin_prefetch(&entries[0] + start[near], 1);
            }
            const int64_t i = list.small(e);
            if (i < low || i >= high || list.row[e] == list.col[e]) continue;
            const int64_t j = list.large(e);
            if constexpr (std::is_same<Entry, uint64_t>::value)
                entries[start[i]++] = uint64_t(j) << 32 | uint64_t(e);
            else
                entries[start[i]++] = Entry(j);
        }
        // start[i] is now the end of row i.
        for (int64_t i = low, first = ends[part]; i < high; first = start[i++]) {
            sort_row(&entries[0] + first, &entries[0] + start[i]);
            for (int64_t p = first; p < start[i]; ++p)
                distinct[part] += p == first || head_of(entries[p]) != head_of(entries[p - 1]);
        }
    });
    std::vector<int64_t> offset(parts + 1, 0);
    for (int64_t part = 0; part < parts; ++part) offset[part + 1] = offset[part] + distinct[part];
    in_parallel(parts, [&](int64_t part) {
        int64_t at = offset[part] - 1;
        for (int64_t i = bound(part), first = ends[part]; i < bound(part + 1); first = start[i++]) {
            const int64_t before = at;
            for (int64_t p = first; p < start[i]; ++p) {
                const int64_t j = head_of(entries[p]);
                if (p == first || j != head_of(entries[p - 1])) {
                    tail[++at] = i;
                    head[at] = j;
                }
                if constexpr (std::is_same<Entry, uint64_t>::value) index[entries[p] & 0xffffffffu] = at;
            }
            counts[i] = at - before;
        }
    });
    const int64_t num_edges = offset[parts];
    in_parallel(parts, [&](int64_t part) {
        const int64_t low = bound(part), high = bound(part + 1);
        for (int64_t e = 0; e < num_edges; ++e)
            if (head[e] >= low && head[e] < high) ++counts[head[e]];
    });
    *num_loops = m - ends[parts];
    if (index && *num_loops)
        for (int64_t e = 0; e < m; ++e)
            if (list.row[e] == list.col[e]) index[e] = -1;
    return num_edges;
}

// Return whether the batch is sorted and no edge joins two graphs; fill in the first node of each graph.
bool fits_batch(const List& list, const int64_t* batch, int64_t num_graphs, int64_t* ptr) {
    int64_t graph = -1;
    for (int64_t i = 0; i < list.num_nodes; ++i) {
        if (batch[i] < std::max<int64_t>(graph, 0) || batch[i] >= num_graphs) return false;
        while (graph < batch[i]) ptr[++graph] = i;
    }
    while (graph < num_graphs) ptr[++graph] = list.num_nodes;
    for (int64_t e = 0; e < list.num_directed; ++e)
        if (batch[list.row[e]] != batch[list.col[e]]) return false;
    return true;
}

bool in_range(const List& list) {
    uint64_t largest = 0;  // a negative number is large as unsigned
    for (int64_t e = 0; e < list.num_directed; ++e)
        largest = std::max(largest, std::max(uint64_t(list.row[e]), uint64_t(list.col[e])));
    return list.num_directed == 0 || largest < uint64_t(list.num_nodes);
}

// Put an entry of diag(s) A diag(s) into its row.
template <typename T>
struct Entry {
    const T *conductance, *node_scale;
    int32_t* col;
    T* value;

    void ahead(int64_t at) const {
        __builtin_prefetch(col + at, 1);
        __builtin_prefetch(value + at, 1);
    }
    void operator()(int64_t at, int64_t i, int64_t j, int64_t e) const {
        col[at] = int32_t(j);
        value[at] = node_scale[i] * node_scale[j] * (conductance ? conductance[e] : T(1));
    }
};

// Compute diag(d) X - A X for rows begin..end-1, minus the content of `out` if `subtract`. Return false if row pointers
// or columns are invalid; checking them in a separate pass would add a third of the time.
template <typename T>
INLINE bool product_rows(int64_t k, int64_t num_nodes, int64_t num_entries, const int64_t* crow, const int32_t* col,
                         const T* value, const T* diagonal, const T* x, bool subtract, T* out, int64_t begin,
                         int64_t end) {
    const uint32_t limit = uint32_t(std::min<int64_t>(num_nodes, int64_t(1) << 31));  // negative columns are above it
    for (int64_t i = begin; i < end; ++i) {
        if (crow[i] < 0 || crow[i + 1] < crow[i] || crow[i + 1] > num_entries) return false;
        T* __restrict row = out + i * k;
        for (int64_t b = 0; b < k; ++b) row[b] = diagonal[i] * x[i * k + b] - (subtract ? row[b] : T(0));
        for (int64_t e = crow[i]; e < crow[i + 1]; ++e) {
            if (e + AHEAD < num_entries) __builtin_prefetch(x + int64_t(col[e + AHEAD]) * k);
            if (uint32_t(col[e]) >= limit) return false;
            const T* other = x + int64_t(col[e]) * k;
            const T v = value[e];
            for (int64_t b = 0; b < k; ++b) row[b] -= v * other[b];
        }
    }
    return true;
}

struct UndirectedEdgesArguments {
    int64_t num_nodes, num_directed, num_graphs;
    const int64_t *row, *col, *batch;                // [num_directed] both, [num_nodes] or null for a single graph
    int64_t *tail, *head;                            // [num_directed], of which the first num_edges are written
    int64_t *index;                                  // [num_directed] or null
    int64_t *neighbour_counts, *ptr;                 // [num_nodes], [num_graphs + 1] or null
    int64_t num_threads;
    int64_t num_edges, num_loops, max_nodes;         // results
};

// Find the distinct undirected edges of a list, without self-loops, sorted by (tail, head), tail < head; the undirected
// edge of each directed edge, -1 for self-loops; the number of neighbours of each node; the first node of each graph.
int undirected_edges(UndirectedEdgesArguments& a) {
    const List list{a.num_nodes, a.num_directed, a.row, a.col};
    if (!in_range(list) || (a.ptr && !fits_batch(list, a.batch, a.num_graphs, a.ptr))) return MALFORMED;
    a.max_nodes = a.ptr ? 0 : a.num_nodes;
    for (int64_t g = 0; a.ptr && g < a.num_graphs; ++g) a.max_nodes = std::max(a.max_nodes, a.ptr[g + 1] - a.ptr[g]);
    const auto run = a.index ? merge<uint64_t> : merge<uint32_t>;
    a.num_edges = run(list, a.tail, a.head, a.index, a.neighbour_counts, &a.num_loops, a.num_threads);
    return OK;
}

template <typename T>
struct AdjacencyArguments {
    int64_t num_nodes, num_edges;
    const int64_t *tail, *head;  // [num_edges]
    const T* conductance;        // [num_edges], or null for all ones
    const T* node_scale;         // s, [num_nodes]
    int64_t* crow;               // [num_nodes + 1]
    int32_t* col;                // [2 num_edges]
    T* value;                    // [2 num_edges]
    int64_t num_threads;
};

// Write diag(s) A diag(s) as CSR, from edges sorted by (tail, head).
template <typename T>
int adjacency_rows(const AdjacencyArguments<T>& a) {
    for (int64_t e = 0; e < a.num_edges; ++e)
        if (a.head[e] <= a.tail[e] || (e > 0 && a.tail[e] < a.tail[e - 1])) return MALFORMED;
    const int64_t threads = a.num_edges < SHARED ? 1 : a.num_threads;
    const Entry<T> place{a.conductance, a.node_scale, a.col, a.value};
    return rows_of_edges(a.num_nodes, a.num_edges, a.tail, a.head, a.crow, threads, place) ? OK : MALFORMED;
}

template <typename T>
struct LaplacianArguments {
    int64_t num_nodes, num_entries, k;
    const int64_t* crow;
    const int32_t* col;
    const T *value, *diagonal, *x;  // x: [num_nodes, k]
    T* out;                         // [num_nodes, k]
    int64_t subtract;               // whether to subtract the content of out
    int64_t num_threads;
};

template <typename T>
int laplacian(const LaplacianArguments<T>& a) {
    if (a.crow[0] != 0 || a.crow[a.num_nodes] != a.num_entries) return MALFORMED;
    const int64_t work = (a.num_nodes + a.num_entries) * a.k;
    const int64_t parts = std::max<int64_t>(1, std::min(a.num_threads, work >> 18));
    std::vector<char> well_formed(parts);
    in_parallel(parts, [&](int64_t part) {
        well_formed[part] = on_this_processor<product_rows<T>>(
            a.k, a.num_nodes, a.num_entries, a.crow, a.col, a.value, a.diagonal, a.x, a.subtract != 0, a.out,
            part * a.num_nodes / parts, (part + 1) * a.num_nodes / parts);
    });
    return std::all_of(well_formed.begin(), well_formed.end(), [](char ok) { return ok; }) ? OK : MALFORMED;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int tg_lpe_interface() { return INTERFACE; }
extern "C" __attribute__((visibility("default"))) int tg_lpe_processor() { return processor(); }
EXPORT_FOR(undirected_edges, int64, UndirectedEdgesArguments)
EXPORT(adjacency_rows, AdjacencyArguments)
EXPORT(laplacian, LaplacianArguments)
