// From a list of edges to the distinct undirected edges in order, and from these to the rows of the adjacency matrix:
// counting sorts, linear in the list, for a batch of molecules in one call as for a graph of a hundred million edges.
//
// No Python, no torch: arrays come as pointers, and what they must look like is checked by the caller.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common.h"

using tg_lpe::Buffer;
using tg_lpe::huge_pages;
using tg_lpe::in_parallel;
using tg_lpe::rows_of_edges;

namespace {

enum Status { OK = 0, MALFORMED = 1 };

constexpr int64_t SHARED = 1 << 20;       // listings from which on threads share a list
constexpr int64_t FAR = 48, NEAR = 24;    // listings by which counters, and what they point at, are fetched ahead
constexpr int64_t SHORT = 24;             // entries of a row up to which the simplest sort is the fastest

struct List {
    int64_t num_nodes, num_listed;
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

// The larger end of an entry; entries of 64 bits have the listing that they came from in their lower half.
inline int64_t head_of(uint32_t entry) { return entry; }
inline int64_t head_of(uint64_t entry) { return int64_t(entry >> 32); }

// See tg_lpe_columns below. Each thread owns a range of nodes, and what is counted and placed at them.
template <typename Entry>
int64_t merge(const List& list, int64_t* tail, int64_t* head, int64_t* column, int64_t* counts, int64_t num_threads) {
    const int64_t n = list.num_nodes, m = list.num_listed;
    const int64_t parts = m < SHARED ? 1 : std::max<int64_t>(1, std::min(num_threads, n));
    const auto bound = [&](int64_t part) { return part * n / parts; };
    Buffer<int64_t> start(n + 1);  // of each row among the entries
    Buffer<Entry> entries(m);
    in_parallel(parts, [&](int64_t part) {
        const int64_t low = bound(part), high = bound(part + 1);
        std::fill(&start[low], &start[0] + high, int64_t(0));
        for (int64_t e = 0; e < m; ++e) {
            const int64_t i = list.small(e);
            if (i >= low && i < high && list.row[e] != list.col[e]) ++start[i];
        }
    });
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t own = start[i];
        start[i] = total;
        total += own;
    }
    start[n] = total;
    std::vector<int64_t> ends(parts + 1);  // of the parts' entries: their places are moved on while rows are filled
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
        // start[i] is now where row i ends.
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
                if constexpr (std::is_same<Entry, uint64_t>::value) column[entries[p] & 0xffffffffu] = at;
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
    if (column)
        for (int64_t e = 0; e < m; ++e)
            if (list.row[e] == list.col[e]) column[e] = -1;
    return num_edges;
}

// Whether each graph's nodes and edges are its own; fills in where its nodes begin.
bool fits_batch(const List& list, const int64_t* batch, int64_t num_graphs, int64_t* ptr) {
    int64_t graph = -1;
    for (int64_t i = 0; i < list.num_nodes; ++i) {
        if (batch[i] < std::max<int64_t>(graph, 0) || batch[i] >= num_graphs) return false;
        while (graph < batch[i]) ptr[++graph] = i;
    }
    while (graph < num_graphs) ptr[++graph] = list.num_nodes;
    for (int64_t e = 0; e < list.num_listed; ++e)
        if (batch[list.row[e]] != batch[list.col[e]]) return false;
    return true;
}

bool in_range(const List& list) {
    uint64_t largest = 0;  // what is negative is large
    for (int64_t e = 0; e < list.num_listed; ++e)
        largest = std::max(largest, std::max(uint64_t(list.row[e]), uint64_t(list.col[e])));
    return list.num_listed == 0 || largest < uint64_t(list.num_nodes);
}

// An entry of diag(s) A diag(s), put into its row.
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

// The rows of diag(s) A diag(s), from edges sorted by (tail, head).
template <typename T>
int adjacency(int64_t num_nodes, int64_t num_edges, const int64_t* tail, const int64_t* head, const T* conductance,
              const T* node_scale, int64_t* crow, int32_t* col, T* value, int64_t num_threads) {
    huge_pages(col, 2 * num_edges * int64_t(sizeof(int32_t)));
    huge_pages(value, 2 * num_edges * int64_t(sizeof(T)));
    for (int64_t e = 0; e < num_edges; ++e)
        if (head[e] <= tail[e] || (e > 0 && tail[e] < tail[e - 1])) return MALFORMED;
    const int64_t threads = num_edges < SHARED ? 1 : num_threads;
    const Entry<T> place{conductance, node_scale, col, value};
    return rows_of_edges(num_nodes, num_edges, tail, head, crow, threads, place) ? OK : MALFORMED;
}

}  // namespace

// The distinct undirected edges of a list, without self-loops, sorted by (tail, head), tail < head.
//
// `tail` and `head` have room for num_listed; `column`, where it is given, receives the edge of each listing, -1 at
// self-loops; `counts` the neighbours of each node. With `ptr`, it receives the first node of each graph. Returns
// their number, or -1 if an end is out of range or the batch does not fit, and -2 where memory is short.
extern "C" __attribute__((visibility("default"))) int64_t tg_lpe_columns(
    int64_t num_nodes, int64_t num_listed, const int64_t* row, const int64_t* col, int64_t num_graphs,
    const int64_t* batch, int64_t* ptr, int64_t* tail, int64_t* head, int64_t* column, int64_t* counts,
    int64_t num_threads) try {
    const List list{num_nodes, num_listed, row, col};
    if (!in_range(list) || (ptr && !fits_batch(list, batch, num_graphs, ptr))) return -1;
    return column ? merge<uint64_t>(list, tail, head, column, counts, num_threads)
                  : merge<uint32_t>(list, tail, head, column, counts, num_threads);
} catch (...) {
    return -2;
}

#define EXPORT(T, NAME)                                                                                               \
    extern "C" __attribute__((visibility("default"))) int tg_lpe_adjacency_##NAME(                                    \
        int64_t num_nodes, int64_t num_edges, const int64_t* tail, const int64_t* head, const T* conductance,         \
        const T* node_scale, int64_t* crow, int32_t* col, T* value, int64_t num_threads) try {                        \
        return adjacency<T>(num_nodes, num_edges, tail, head, conductance, node_scale, crow, col, value, num_threads); \
    } catch (...) {                                                                                                   \
        return 2;                                                                                                     \
    }

EXPORT(float, float32)
EXPORT(double, float64)
