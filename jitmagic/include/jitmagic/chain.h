// Products one after the other, each thread with rows of its own all the way: what a stack of
// linear layers is.
//
//     X1 = e1(A B1),  X2 = e2(X1 B2),  …,  C = e(Xn B)
//
// In: jm::chain(M, {a, a_m, a_k}, link(N1, K1, {b1, b_k, b_n}, e1), …,
//               last(N, K, {b, b_k, b_n}, c, ldc, e)), strides in elements. A is contiguous along m
// or along k, the B have any strides, C's rows are contiguous. K1 is A's width, K2 is N1, and so on.
// An epilogue of a link sees a vector of finished sums, its lanes one column n of some rows:
//     Vec<float, L> e1(Vec<float, L> sums, int64_t n)
// that of the last product is as gemm's. Out: C; the results between stay in the threads' scratch.
// Invariants: as gemm.h; lanes beyond M hold values that are computed and never stored.
//
// jm::chain_rows, of the same arguments, is for any number of rows: few do not fill the lanes, so
// they are dot products along K where A and the B lie so, layer by layer.
//
// Method: gemm.h's tile for C^T. L rows of A are the lanes, packed, transposed, into a panel; what
// a tile leaves behind (L columns of all lanes) is a piece of the next product's panel as it
// stands, so that nothing is packed, turned or waited for between products.
#pragma once
#include "gemm.h"

namespace jm {

template <class E> struct Link {
    int64_t N, K;
    MatrixB b;
    E epilogue;
};
template <class E> struct Last {
    int64_t N, K;
    MatrixB b;
    detail::Output<E> out;
};
template <class E> JM_INLINE Link<E> link(int64_t N, int64_t K, MatrixB b, E epilogue) {
    return {N, K, b, epilogue};
}
template <class E>
JM_INLINE Last<E> last(int64_t N, int64_t K, MatrixB b, float* c, int64_t ldc, const E& epilogue) {
    return {N, K, b, {c, ldc, epilogue}};
}

namespace detail {

// The rows [m, m + count) of what follows A, whose panel is given; `free` is scratch behind it.
template <class E>
JM_INLINE void follow(const float* panel, float*, int64_t m, int64_t count, const Last<E>& step) {
    multiply_area<true, 1>({step.b.p, step.b.n, step.b.k}, {panel, L}, step.K,
                           {0, step.N, m, count}, step.out);
}
template <class E, class... Rest>
JM_INLINE void follow(const float* panel, float* free, int64_t m, int64_t count,
                      const Link<E>& step, const Rest&... rest) {
    RowSide rows{step.b.p, step.b.n, step.b.k};
#pragma GCC unroll 1
    for (int64_t n = 0; n < step.N; n += L, rows.p += L * rows.row) {
        int64_t left = step.N - n, height = left < L ? left : L;
        float* sums = free + n * L;
        if (left >= L) multiply<L, 1, true>(rows, {panel, L}, step.K, sums, L, left >= 2 * L);
        else multiply_rows<lower(L), 1, true>(rows, {panel, L}, step.K, left, sums, L);
#pragma GCC unroll 1
        for (int64_t i = 0; i < height; ++i)
            step.epilogue(Lanes::load(sums + i * L), n + i).store(sums + i * L);
    }
    follow(free, free + step.N * L, m, count, rest...);
}

// The same of few rows, `stride` apart: a layer's columns are shared out to threads. The sums of a
// column are turned into a vector for its epilogue, and back into rows.
template <class E> JM_INLINE void follow_rows(const float* x, int64_t stride, float*, int64_t M,
                                              const Last<E>& step) {
    int team = threads_for(M * step.N * (step.K + 16), thread_grain);
    gemm_dots(M, step.N, step.K, {x, stride, 1}, step.b, step.out, team);
}
template <class E, class... Rest>
JM_INLINE void follow_rows(const float* x, int64_t stride, float* free, int64_t M,
                           const Link<E>& step, const Rest&... rest) {
    constexpr int R = 4;
    int team = threads_for(M * step.N * (step.K + 16), thread_grain);
    parallel_region(team, [&](int part, int parts) {
        Range mine = part_of(step.N, part, parts, L);
        for (int64_t n = mine.begin; n < mine.end; n += R) {
            int64_t count = mine.end - n < R ? mine.end - n : R;
            const float* b = step.b.p + n * step.b.n;
            alignas(64) float columns[R * L] = {};
            for (int64_t m = 0; m < M; ++m) {
                float sums[R];
                if (count == R) dots<R>(x + m * stride, b, step.b.n, step.K, sums);
                else
                    for (int64_t i = 0; i < count; ++i)
                        dots<1>(x + m * stride, b + i * step.b.n, step.b.n, step.K, sums + i);
                for (int64_t i = 0; i < count; ++i) columns[i * L + m] = sums[i];
            }
            for (int64_t i = 0; i < count; ++i) {
                float* column = columns + i * L;
                step.epilogue(Lanes::load(column), n + i).store(column);
                for (int64_t m = 0; m < M; ++m) free[m * step.N + n + i] = column[m];
            }
        }
    });
    follow_rows(free, step.N, free + M * step.N, M, rest...);
}

// Columns of what lies between the products, and what a row costs in gemm's units.
template <class E> constexpr int64_t widths(const Last<E>&) {
    return 0;
}
template <class E, class... Rest>
constexpr int64_t widths(const Link<E>& step, const Rest&... rest) {
    return step.N + widths(rest...);
}
template <class... Steps> constexpr int64_t row_work(const Steps&... steps) {
    return (... + (steps.N * (steps.K + 16)));
}

}   // namespace detail

template <class First, class... Rest>
inline void chain(int64_t M, MatrixA a, const First& first, const Rest&... rest) {
    using namespace detail;
    int64_t panels = (M + L - 1) / L, K = first.K;
    int threads = threads_for(M * row_work(first, rest...), thread_grain);
    parallel_region(threads < panels ? threads : int(panels), [&](int part, int parts) {
        Range mine = part_of(panels, part, parts);
        float* panel = scratch((K + L + widths(first, rest...)) * L);
        for (int64_t p = mine.begin; p < mine.end; ++p) {
            int64_t m = p * L, count = M - m < L ? M - m : L;
            const float* from = a.p + m * a.m;
            if (a.k == 1) pack_transposed(panel, L, from, a.m, count, K);
            else pack_rows(panel, L, from, a.k, count, K);
            follow(panel, panel + (K + L) * L, m, count, first, rest...);
        }
    });
}

template <class First, class... Rest>
inline void chain_rows(int64_t M, MatrixA a, const First& first, const Rest&... rest) {
    using namespace detail;
    bool along = a.k == 1 && first.b.k == 1 && (... && (rest.b.k == 1));
    if (M >= L / 2 || !along) return chain(M, a, first, rest...);
    follow_rows(a.p, a.m, scratch(M * widths(first, rest...)), M, first, rest...);
}

}   // namespace jm
