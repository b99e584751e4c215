// Multiply matrices of which one is tall, as in linear maps of the rows of a batch and their gradients.
//
// A tile of the result stays in registers during its sums. Each entry is summed in the same order at any position, so
// the result of a row depends neither on other rows nor on the number of threads.

#include <algorithm>
#include <cstdint>

#include "common.h"

using namespace tg_lpe;

namespace {

constexpr int64_t INNER = 128;                // terms of a sum at a time: their rows of `b` stay in the L1 cache
constexpr int64_t WORTH_A_THREAD = 1 << 24;   // multiplications

template <typename T>
struct ProductArguments {
    int64_t num_rows, num_inner, num_columns;
    int64_t row_step, inner_step;   // of a
    int64_t b_inner_step, b_column_step;
    const T *a, *b, *bias;          // bias: [num_columns], or null
    T* out;                         // [num_rows, num_columns]
    int64_t num_threads;
};

template <typename T, int64_t BYTES>
struct Tile {
    static constexpr int64_t LANES = BYTES / int64_t(sizeof(T)), WIDTH = BYTES == 64 ? 4 : 2, ROWS = 6;
    static constexpr int64_t COLUMNS = LANES * WIDTH;
    typedef T V __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
};

// Sum `count` terms for ROWS rows of a tile, in memory of COLUMNS columns a row.
template <typename T, int64_t BYTES, int64_t ROWS>
INLINE void sum_terms(const T* a, int64_t row_step, int64_t inner_step, const T* b, int64_t count, T* sums) {
    typedef Tile<T, BYTES> P;
    typedef typename P::V V;
    V sum[ROWS][P::WIDTH] = {};
    for (int64_t k = 0; k < count; ++k) {
        const V* const row = reinterpret_cast<const V*>(b + k * P::COLUMNS);
#pragma GCC unroll 8
        for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
            for (int64_t w = 0; w < P::WIDTH; ++w) sum[r][w] += a[r * row_step + k * inner_step] * row[w];
    }
    std::memcpy(sums, sum, sizeof(sum));
}

// Copy `count` rows of b in a tile's columns; the last tile may have fewer columns.
template <typename T, int64_t BYTES>
INLINE void pack(const ProductArguments<T>& s, int64_t inner, int64_t count, int64_t column, int64_t columns, T* panel) {
    constexpr int64_t COLUMNS = Tile<T, BYTES>::COLUMNS;
    std::fill_n(panel, columns < COLUMNS ? count * COLUMNS : 0, T(0));
    const T* const from = s.b + inner * s.b_inner_step + column * s.b_column_step;
    if (s.b_column_step == 1) {
        for (int64_t k = 0; k < count; ++k) std::copy_n(from + k * s.b_inner_step, columns, panel + k * COLUMNS);
    } else {
        for (int64_t c = 0; c < columns; ++c)
            for (int64_t k = 0; k < count; ++k)
                panel[k * COLUMNS + c] = from[k * s.b_inner_step + c * s.b_column_step];
    }
}

// Compute rows begin..end-1 of the result.
template <typename T, int64_t BYTES>
INLINE void rows_of_product(const ProductArguments<T>& s, int64_t begin, int64_t end, T* panel) {
    typedef Tile<T, BYTES> P;
    alignas(64) T sums[P::ROWS * P::COLUMNS];
    for (int64_t column = 0; column < s.num_columns; column += P::COLUMNS) {
        const int64_t columns = std::min(P::COLUMNS, s.num_columns - column);
        for (int64_t r = begin; r < end; ++r)
            for (int64_t c = column; c < column + columns; ++c) s.out[r * s.num_columns + c] = s.bias ? s.bias[c] : T(0);
        for (int64_t inner = 0; inner < s.num_inner; inner += INNER) {
            const int64_t count = std::min(INNER, s.num_inner - inner);
            pack<T, BYTES>(s, inner, count, column, columns, panel);
            for (int64_t i = begin; i < end; i += P::ROWS) {
                const int64_t rows = std::min(P::ROWS, end - i);
                const T* const a = s.a + i * s.row_step + inner * s.inner_step;
                if (rows == P::ROWS) {
                    sum_terms<T, BYTES, P::ROWS>(a, s.row_step, s.inner_step, panel, count, sums);
                } else {
                    for (int64_t r = 0; r < rows; ++r)
                        sum_terms<T, BYTES, 1>(a + r * s.row_step, 0, s.inner_step, panel, count, sums + r * P::COLUMNS);
                }
                for (int64_t r = 0; r < rows; ++r) {
                    T* const out = s.out + (i + r) * s.num_columns + column;
                    for (int64_t c = 0; c < columns; ++c) out[c] += sums[r * P::COLUMNS + c];
                }
            }
        }
    }
}

template <typename T>
int product(const ProductArguments<T>& s) {
    const int64_t work = s.num_rows * s.num_inner * s.num_columns;
    const int64_t parts =
        std::max<int64_t>(1, std::min({s.num_threads, work / WORTH_A_THREAD, s.num_rows / 6}));
    in_parallel(parts, [&](int64_t part) {
        Buffer<T> panel(INNER * 64);
        BY_REGISTERS(rows_of_product, T)(s, part * s.num_rows / parts, (part + 1) * s.num_rows / parts, &panel[0]);
    });
    return OK;
}

}  // namespace

// MKL uses AVX-512 only on Intel's processors, and is as fast there.
extern "C" __attribute__((visibility("default"))) int tg_lpe_products_are_faster() {
#if defined(__x86_64__)
    return processor() == AVX512 && !__builtin_cpu_is("intel");
#else
    return 0;
#endif
}
EXPORT(product, ProductArguments)
