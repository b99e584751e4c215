// Compute eigenvectors of many small symmetric matrices by Householder's reduction to tridiagonal form, then QL with
// implicit shifts. Each inner loop runs along a row of memory. At these sizes LAPACK spends more time on calls than on
// arithmetic. The result of a matrix depends neither on other matrices nor on the number of threads.

#include <cmath>
#include <limits>

#include "common.h"

namespace tg_lpe {
namespace {

constexpr int64_t LANE = 8;         // rows are padded with zeros to a multiple of this
constexpr int64_t WORK = 1 << 15;  // sum of cubes of sizes that is worth a thread
constexpr int MAX_SWEEPS = 60;      // sweeps of QL for one eigenvalue; about two are needed

INLINE int64_t padded(int64_t n) { return (n + LANE - 1) / LANE * LANE; }

// Sum x[i] y[i] for i < n, n a multiple of LANE.
INLINE double dot(const double* x, const double* y, int64_t n) {
    double part[LANE] = {};
    for (int64_t i = 0; i < n; i += LANE)
        for (int64_t l = 0; l < LANE; ++l) part[l] += x[i + l] * y[i + l];
    return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

// Memory for one matrix of n rows.
struct Workspace {
    int64_t n, stride;
    Buffer<double> memory;
    double *a, *q;           // [n, stride]: the matrix and then the reflectors; the rows of Q^T
    double *d, *e, *p, *beta;  // [stride]: diagonal, off-diagonal, a product, 2 / |reflector|^2

    explicit Workspace(int64_t size)
        : n(size), stride(padded(size)), memory(stride, 2 * size + 4), a(&memory[0]), q(a + size * stride),
          d(q + size * stride), e(d + stride), p(e + stride), beta(p + stride) {}
};

// A = Q T Q^T, T tridiagonal with `d` on the diagonal and `e[i]` between i and i + 1.
INLINE void tridiagonalize(Workspace& w) {
    const int64_t n = w.n, stride = w.stride;
    for (int64_t i = n - 1; i > 0; --i) {  // row i becomes the reflector of the leading block of i rows
        double *u = w.a + i * stride, *p = w.p;
        const int64_t width = padded(i);
        w.d[i] = u[i];
        std::fill(u + i, u + stride, 0.0);
        const double last = u[i - 1], rest = dot(u, u, width) - last * last;
        if (!(rest > std::numeric_limits<double>::epsilon() * std::numeric_limits<double>::epsilon() * last * last) ||
            rest < std::numeric_limits<double>::min()) {
            w.e[i - 1] = last;
            w.beta[i] = 0;
            continue;
        }
        const double norm = std::sqrt(rest + last * last), g = last > 0 ? -norm : norm;
        w.e[i - 1] = g;
        u[i - 1] = last - g;
        const double beta = w.beta[i] = 1 / (norm * norm - last * g);
        std::fill(p, p + width, 0.0);
        for (int64_t r = 0; r < i; ++r) {  // p = beta A u; the leading block is stored in full
            const double f = beta * u[r];
            const double* row = w.a + r * stride;
            for (int64_t j = 0; j < width; ++j) p[j] += f * row[j];
        }
        std::fill(p + i, p + width, 0.0);
        const double half = 0.5 * beta * dot(u, p, width);
        for (int64_t j = 0; j < width; ++j) p[j] -= half * u[j];
        for (int64_t r = 0; r < i; ++r) {
            const double f = u[r], h = p[r];
            double* row = w.a + r * stride;
            for (int64_t j = 0; j < width; ++j) row[j] -= f * p[j] + h * u[j];
        }
    }
    w.d[0] = w.a[0];
    std::fill(w.q, w.q + n * stride, 0.0);
    for (int64_t r = 0; r < n; ++r) w.q[r * stride + r] = 1;
    for (int64_t i = 1; i < n; ++i) {
        if (w.beta[i] == 0) continue;
        const double* u = w.a + i * stride;
        for (int64_t r = 0; r < i; ++r) {
            double* row = w.q + r * stride;
            const double f = w.beta[i] * dot(u, row, padded(i));
            for (int64_t j = 0; j < padded(i); ++j) row[j] -= f * u[j];
        }
    }
}

// Write eigenvalues to `d`, eigenvectors to the rows of `q`. Return false without convergence: only if not finite.
INLINE bool diagonalize(Workspace& w) {
    const int64_t n = w.n, stride = w.stride;
    double *d = w.d, *e = w.e;
    e[n - 1] = 0;
    for (int64_t low = 0; low < n; ++low) {
        for (int sweep = 0;; ++sweep) {
            int64_t high = low;
            for (; high < n - 1; ++high) {
                const double size = std::fabs(d[high]) + std::fabs(d[high + 1]);
                if (std::fabs(e[high]) <= std::numeric_limits<double>::epsilon() * size) break;
            }
            if (high == low) break;
            if (sweep == MAX_SWEEPS) return false;
            double g = (d[low + 1] - d[low]) / (2 * e[low]), r = std::sqrt(g * g + 1);
            g = d[high] - d[low] + e[low] / (g + (g >= 0 ? r : -r));
            double s = 1, c = 1, p = 0;
            int64_t i = high - 1;
            for (; i >= low; --i) {
                const double f = s * e[i], b = c * e[i];
                r = std::sqrt(f * f + g * g);
                e[i + 1] = r;
                if (r == 0) {
                    d[i + 1] -= p;
                    e[high] = 0;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                double *upper = w.q + (i + 1) * stride, *lower = w.q + i * stride;
                for (int64_t j = 0; j < stride; ++j) {
                    const double x = upper[j], y = lower[j];
                    upper[j] = s * y + c * x;
                    lower[j] = c * y - s * x;
                }
            }
            if (i >= low) continue;
            d[low] -= p;
            e[low] = g;
            e[high] = 0;
        }
    }
    return true;
}

}  // namespace

struct EigenvectorsArguments {
    int64_t num_matrices, n, count, largest;
    const double* matrices;     // [num_matrices, n, n]
    double *values, *vectors;   // [num_matrices, count], [num_matrices, n, count]
    int64_t num_threads;
};

INLINE bool eigenvectors_of(const EigenvectorsArguments& given, int64_t first, int64_t last) {
    const int64_t n = given.n;
    Workspace w(n);
    std::vector<int64_t> order(n);
    for (int64_t at = first; at < last; ++at) {
        const double* matrix = given.matrices + at * n * n;
        double size = 0;
        bool finite = true;
        for (int64_t i = 0; i < n * n; ++i) {
            size = std::max(size, std::fabs(matrix[i]));
            finite = finite && std::isfinite(matrix[i]);
        }
        if (!finite) return false;
        // Scale the largest entry to about one, so that squares neither overflow nor vanish.
        const int exponent = size > 0 ? std::ilogb(size) + 1 : 0;
        for (int64_t r = 0; r < n; ++r) {
            double* row = w.a + r * w.stride;
            if (exponent > -100 && exponent < 100)
                std::copy(matrix + r * n, matrix + (r + 1) * n, row);
            else
                for (int64_t j = 0; j < n; ++j) row[j] = std::scalbn(matrix[r * n + j], -exponent);
            std::fill(row + n, row + w.stride, 0.0);
        }
        tridiagonalize(w);
        if (!diagonalize(w)) return false;
        if (exponent <= -100 || exponent >= 100)
            for (int64_t i = 0; i < n; ++i) w.d[i] = std::scalbn(w.d[i], exponent);
        for (int64_t i = 0; i < n; ++i) order[i] = i;
        const double* d = w.d;
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t i, int64_t j) { return given.largest ? d[i] > d[j] : d[i] < d[j]; });
        for (int64_t c = 0; c < given.count; ++c) {
            given.values[at * given.count + c] = d[order[c]];
            const double* row = w.q + order[c] * w.stride;
            for (int64_t r = 0; r < n; ++r) given.vectors[(at * n + r) * given.count + c] = row[r];
        }
    }
    return true;
}

// MALFORMED if a matrix is not finite.
int symmetric_eigenvectors(const EigenvectorsArguments& given) {
    const int64_t work = given.num_matrices * given.n * given.n * given.n / WORK;
    const int64_t parts = std::max<int64_t>(1, std::min({given.num_threads, given.num_matrices, work}));
    std::vector<char> done(parts, 0);
    in_parallel(parts, [&](int64_t part) {
        const int64_t first = part * given.num_matrices / parts, last = (part + 1) * given.num_matrices / parts;
        done[part] = on_this_processor<eigenvectors_of>(given, first, last);
    });
    return std::all_of(done.begin(), done.end(), [](char ok) { return ok; }) ? OK : MALFORMED;
}

}  // namespace tg_lpe

EXPORT_FOR(symmetric_eigenvectors, float64, tg_lpe::EigenvectorsArguments)
