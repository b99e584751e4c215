// Compute attention of each node over its in-neighbours, modulated by edge features.
//
// Edges are sorted by target, and `crow` holds the first edge of each target. `order` sorts them by source, with the
// first of each source in `ccol`. One thread sums the edges of a node in their order. With rows in bfloat16, arithmetic
// is in float32, and each result is rounded once.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t PARTS = 64;  // parts of the nodes

struct Bfloat16 {
    uint16_t bits;
};
template <typename S>
struct Rows8 {
    typedef S Sum;
};
template <>
struct Rows8<Bfloat16> {
    typedef float Sum;
};
template <typename S>
using Sum = typename Rows8<S>::Sum;

// Eight channels of a row.
template <typename T>
struct Eight {
    typedef T type __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <typename S>
using Lanes = typename Eight<Sum<S>>::type;
typedef Eight<uint32_t>::type Bits;
typedef uint16_t HalfBits __attribute__((vector_size(16), aligned(2), may_alias));

template <typename T, typename V>
INLINE void read(const T* from, V& to) {
    to = *reinterpret_cast<const V*>(from);
}
INLINE void read(const Bfloat16* from, Eight<float>::type& to) {
    to = (Eight<float>::type)(__builtin_convertvector(*reinterpret_cast<const HalfBits*>(from), Bits) << 16);
}
template <typename T, typename V>
INLINE void write(T* to, const V& x) {
    *reinterpret_cast<V*>(to) = x;
}
INLINE void write(Bfloat16* to, const Eight<float>::type& x) {
    const Bits bits = (Bits)x, rounded = bits + 0x7fff + (bits >> 16 & 1);
    const Bits kept = x == x ? rounded : Bits{} + 0x7fc00000u;
    *reinterpret_cast<HalfBits*>(to) = __builtin_convertvector(kept >> 16, HalfBits);
}

template <typename V>
INLINE auto sum_of(const V& x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

template <typename S>
struct EdgeAttentionArguments {
    int64_t num_nodes, num_edges, heads, channels;  // channels: of one head
    const int64_t *crow, *source, *ccol, *order, *target;
    const S *query, *key_value, *edge;  // [num_nodes, width], [num_nodes, 2 * width], [num_edges, width]
    double scale, bound, floor;
    S *out, *score;                  // [num_nodes, width], [num_edges, width]
    Sum<S>* weight;                  // [num_edges, heads]; negative if the score was clamped
    const S *grad_out, *grad_score;  // the latter may be null
    S *grad_query, *grad_key_value, *grad_edge;
    Sum<S>* slope;  // [num_edges, 2, heads]: gradients of the logits, and normalised weights
    int64_t num_threads;
};

// Channels of a head, eight at a time: D in all if known when compiled, else 8 to MOST. If their number is no multiple of
// eight, the last eight overlap the eight before, and both get the same values; a sum takes only the FRESH ones.
constexpr int64_t MOST = 128;
#define FOR_CHANNELS _Pragma("GCC unroll 2") for (int64_t b = 0, c = 0; 8 * b < d; ++b, c = std::min(8 * b, d - 8))
#define HEAD(name) Lanes<S> name[((D ? D : MOST) + 7) / 8]
#define FRESH(x) (8 * b == c ? (x) : without_first(x, 8 * b - c))

template <typename V>
INLINE V without_first(V x, int64_t count) {
    typedef decltype(x == x) Index;
    const Index lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return lane < Index{} + std::remove_reference_t<decltype(lane[0])>(count) ? V{} : x;
}

template <typename S, int64_t D>
INLINE void attend(const EdgeAttentionArguments<S>& s, int64_t begin, int64_t end) {
    typedef Sum<S> T;
    const T scale = T(s.scale), bound = T(s.bound);
    const int64_t d = D ? D : s.channels, width = s.heads * d;
    for (int64_t i = begin; i < end; ++i)
        for (int64_t h = 0; h < s.heads; ++h) {
            const int64_t own = i * width + h * d;
            HEAD(query);
            HEAD(sum);
            T total = 0;
            FOR_CHANNELS {
                read(s.query + own + c, query[b]);
                query[b] *= scale;
                sum[b] = Lanes<S>{};
            }
            for (int64_t e = s.crow[i]; e < s.crow[i + 1]; ++e) {
                const int64_t at = e * width + h * d;
                const S* const key = s.key_value + s.source[e] * 2 * width + h * d;
                Lanes<S> x, y, products = {};
                FOR_CHANNELS {
                    read(key + c, x);
                    read(s.edge + at + c, y);
                    x *= query[b] * y;
                    write(s.score + at + c, x);
                    products += FRESH(x);
                }
                const T logit = sum_of(products), weight = std::exp(std::clamp(logit, -bound, bound));
                s.weight[e * s.heads + h] = std::abs(logit) <= bound ? weight : -weight;
                total += weight;
                FOR_CHANNELS {
                    read(key + width + c, x);
                    sum[b] += weight * x;
                }
            }
            const T factor = 1 / std::max(total, T(s.floor));
            FOR_CHANNELS write(s.out + own + c, sum[b] * factor);
        }
}

// Compute gradients of the queries and edges of the targets begin..end-1, and `slope`.
template <typename S, int64_t D>
INLINE void attend_backward(const EdgeAttentionArguments<S>& s, int64_t begin, int64_t end) {
    typedef Sum<S> T;
    const T scale = T(s.scale);
    const int64_t d = D ? D : s.channels, width = s.heads * d;
    for (int64_t i = begin; i < end; ++i)
        for (int64_t h = 0; h < s.heads; ++h) {
            const int64_t own = i * width + h * d;
            HEAD(query);
            HEAD(grad);
            HEAD(sum);
            Lanes<S> x, y, z, products = {};
            FOR_CHANNELS {
                read(s.query + own + c, query[b]);
                read(s.grad_out + own + c, grad[b]);
                read(s.out + own + c, x);
                query[b] *= scale;
                sum[b] = Lanes<S>{};
                products += FRESH(grad[b] * x);
            }
            const T mean = sum_of(products);
            T total = 0;
            for (int64_t e = s.crow[i]; e < s.crow[i + 1]; ++e) total += std::abs(s.weight[e * s.heads + h]);
            for (int64_t e = s.crow[i]; e < s.crow[i + 1]; ++e) {
                const int64_t at = e * width + h * d;
                const S* const key = s.key_value + s.source[e] * 2 * width + h * d;
                products = Lanes<S>{};
                FOR_CHANNELS {
                    read(key + width + c, x);
                    products += FRESH(grad[b] * x);
                }
                const T weight = s.weight[e * s.heads + h], share = std::abs(weight) / total;
                const T slope = weight < 0 ? T(0) : share * (sum_of(products) - mean);
                s.slope[2 * e * s.heads + h] = slope;
                s.slope[(2 * e + 1) * s.heads + h] = share;
                FOR_CHANNELS {
                    read(key + c, x);
                    read(s.edge + at + c, y);
                    z = Lanes<S>{};
                    if (s.grad_score) read(s.grad_score + at + c, z);
                    x *= z + slope;
                    sum[b] += x * y;
                    write(s.grad_edge + at + c, x * query[b]);
                }
            }
            FOR_CHANNELS write(s.grad_query + own + c, sum[b] * scale);
        }
}

// Compute gradients of the keys and values of the sources begin..end-1.
template <typename S, int64_t D>
INLINE void attend_backward_to_sources(const EdgeAttentionArguments<S>& s, int64_t begin, int64_t end) {
    typedef Sum<S> T;
    const T scale = T(s.scale);
    const int64_t d = D ? D : s.channels, width = s.heads * d;
    for (int64_t j = begin; j < end; ++j)
        for (int64_t h = 0; h < s.heads; ++h) {
            HEAD(of_key);
            HEAD(of_value);
            for (int64_t b = 0; 8 * b < d; ++b) of_key[b] = of_value[b] = Lanes<S>{};
            for (int64_t p = s.ccol[j]; p < s.ccol[j + 1]; ++p) {
                const int64_t e = s.order[p], at = e * width + h * d, other = s.target[e] * width + h * d;
                const T slope = s.slope[2 * e * s.heads + h], share = s.slope[(2 * e + 1) * s.heads + h];
                FOR_CHANNELS {
                    Lanes<S> x, y, z = {};
                    read(s.query + other + c, x);
                    read(s.edge + at + c, y);
                    if (s.grad_score) read(s.grad_score + at + c, z);
                    of_key[b] += (z + slope) * x * y;
                    read(s.grad_out + other + c, x);
                    of_value[b] += share * x;
                }
            }
            S* const to = s.grad_key_value + j * 2 * width + h * d;
            FOR_CHANNELS write(to + c, of_key[b] * scale);
            FOR_CHANNELS write(to + width + c, of_value[b]);
        }
}

template <typename S>
bool fits(const EdgeAttentionArguments<S>& s) {
    const auto is_inside = [](const int64_t* index, int64_t count, int64_t limit) {
        return !index || std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < limit; });
    };
    const auto are_starts = [&](const int64_t* start) {
        return !start || (start[0] == 0 && start[s.num_nodes] == s.num_edges && std::is_sorted(start, start + s.num_nodes + 1));
    };
    return are_starts(s.crow) && are_starts(s.ccol) && is_inside(s.source, s.num_edges, s.num_nodes) &&
           is_inside(s.target, s.num_edges, s.num_nodes) && is_inside(s.order, s.num_edges, s.num_edges);
}

// Run a function of a range of nodes on all nodes, compiled for the width of a head.
#define FOR_ALL_NODES(FUNCTION)                                                                         \
    in_ranges(s.num_nodes, PARTS, s.num_threads, [&](auto each) {                                       \
        each([&](int64_t, int64_t begin, int64_t end) {                                                 \
            switch (s.channels) {                                                                       \
                case 8: return on_this_processor<FUNCTION<S, 8>>(s, begin, end);                        \
                case 12: return on_this_processor<FUNCTION<S, 12>>(s, begin, end);                      \
                case 13: return on_this_processor<FUNCTION<S, 13>>(s, begin, end);                      \
                case 16: return on_this_processor<FUNCTION<S, 16>>(s, begin, end);                      \
                default: return on_this_processor<FUNCTION<S, 0>>(s, begin, end);                       \
            }                                                                                           \
        });                                                                                             \
    })

template <typename S>
int edge_attention(const EdgeAttentionArguments<S>& s) {
    if (!fits(s) || s.channels < 8 || s.channels > MOST) return MALFORMED;
    if (!s.grad_out) {
        FOR_ALL_NODES(attend);
        return OK;
    }
    FOR_ALL_NODES(attend_backward);
    FOR_ALL_NODES(attend_backward_to_sources);
    return OK;
}

}  // namespace

EXPORT(edge_attention, EdgeAttentionArguments)
EXPORT_FOR(edge_attention, bfloat16, EdgeAttentionArguments<Bfloat16>)
