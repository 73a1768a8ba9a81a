// Products with a weight that is computed from narrow memory, such as int8 values and their scales:
//     C[m, n] = finish(sum over k of A[m, k] * weight(n, k)).
//
// In: jm::dequantised<Rows>(M, N, groups, each, activations(a, a_m, a_k), weight, finish). Rows is M, or 0 if it
// is known at run time only. k = group * each + position, so that a scale per group is one number:
//     Vec<float, L> weight(int64_t n, int64_t group, int64_t k, auto count)     lanes k … k + count
//     void finish(Vec<float, L> sum, int64_t m, int64_t n, int64_t count)       lanes n … n + count
// A has elements of any floating-point type and any strides.
// Method: few rows of A are dot products with weights that are dequantised in registers, once for
// eight rows; more rows take the tiles of gemm.h, over 32 rows of weights at a time, dequantised into
// memory that stays in the cache. No more of the dequantised weight is ever in memory.
// Invariant: the result does not depend on the number of threads, which split N.
#pragma once
#include "gemm.h"
#include "loop.h"

namespace jm {

template <class T> struct Activations {
    const T* p;
    int64_t m, k;   // strides
};
template <class T> JM_INLINE Activations<T> activations(const T* p, int64_t m, int64_t k) {
    return {p, m, k};
}

namespace detail {

constexpr int64_t few_rows = 32;     // below, dot products are faster (4096 x 4096, AVX-512)
constexpr int64_t panel_rows = 32;   // of weights
constexpr int most_dots = JM_AVX512 || JM_NEON ? 8 : 4;   // rows of A whose sums fit in registers

// A as float rows: itself, or a copy.
template <class T> struct FloatRows {
    const float* p;
    int64_t step;
    float* copy = nullptr;

    FloatRows(const Activations<T>& a, int64_t M, int64_t K) {
        if constexpr (same<T, float>)
            if (a.k == 1) {
                p = a.p, step = a.m;
                return;
            }
        p = copy = (float*)__builtin_malloc(uint64_t(M * K) * sizeof(float) + 1);
        if (!copy) __builtin_trap();
        step = K;
        parallel_for(M, 1 + 30000 / (K + 1), [&](int64_t begin, int64_t end) {
            for (int64_t m = begin; m < end; ++m)
                for (int64_t k = 0; k < K; k += L) {
                    const T* from = a.p + m * a.m + k * a.k;
                    auto x = a.k == 1 ? Vec<T, L>::load(from, K - k)
                                      : Vec<T, L>::strided(from, a.k, K - k);
                    convert<float>(x).store(copy + m * K + k, K - k);
                }
        });
    }
    FloatRows(const FloatRows&) = delete;
    ~FloatRows() { __builtin_free(copy); }
};

// A weight without the lanes beyond the end, where a scale that is not finite makes NaN of zeros.
JM_INLINE Lanes inside(Lanes w, Full) { return w; }
JM_INLINE Lanes inside(Lanes w, int64_t count) {
    return where(first_n<L>(count), w, Lanes(0.0f));
}

// sums[m * L + r]: row m of A by row n + r of the weight.
template <int R, int M, class W>
JM_APART void weighted_dots(const float* a, int64_t step, int64_t groups, int64_t each,
                            const W& weight, int64_t n, float* sums) {
    Lanes sum[R * M];
#pragma GCC unroll 32
    for (int i = 0; i < R * M; ++i) sum[i] = Lanes(0.0f);
#pragma GCC unroll 1
    for (int64_t g = 0; g < groups; ++g, a += each)
        blocks<L>(each, [&](int64_t k, auto count) JM_BODY {
            Lanes w[R];
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) w[r] = inside(weight(n + r, g, k, count), count);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                Lanes x = load<L>(a + m * step + k, count);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) sum[r * M + m] = fma(w[r], x, sum[r * M + m]);
            }
        });
#pragma GCC unroll 32
    for (int i = 0; i < R * M; ++i) sums[i % M * L + i / M] = hsum(sum[i]);
}

// Columns n … n + count (at most L) of the rows of A from m on, B at a time, then B / 2.
template <int Rows, int B, class W, class F>
JM_INLINE void weighted_columns(const float* a, int64_t step, int64_t m, int64_t M, int64_t groups,
                                int64_t each, const W& weight, int64_t n, int64_t count,
                                const F& finish) {
    constexpr int R = B < most_dots ? 4 : 2;
    if constexpr (!Rows || Rows >= most_dots || Rows & B) {
#pragma GCC unroll 1
        for (; M - m >= B; m += B) {
            alignas(64) float sums[B * L] = {};
            const float* from = a + m * step;
            int64_t r = 0;
            for (; r + R <= count; r += R)
                weighted_dots<R, B>(from, step, groups, each, weight, n + r, sums + r);
            for (; r < count; ++r)
                weighted_dots<1, B>(from, step, groups, each, weight, n + r, sums + r);
            for (int i = 0; i < B; ++i) finish(Lanes::load(sums + i * L), m + i, n, count);
        }
    }
    if constexpr (B > 1)
        weighted_columns<Rows, B / 2>(a, step, m, M, groups, each, weight, n, count, finish);
}

template <class F> struct Finish {
    const F& finish;
    int64_t n;   // the first column
};
template <class F>
void put_finished(const Output& out, const float* sums, int64_t stride, Block at) {
    const auto& [finish, n] = *(const Finish<F>*)out.epilogue;
    for (int64_t i = 0; i < at.rows; ++i)
        for (int64_t j = 0; j < at.columns; j += L) {
            int64_t left = at.columns - j;
            finish(Lanes::load(sums + i * stride + j), at.m + i, n + at.n + j, left < L ? left : L);
        }
}

// All rows of A by the weight's rows n … n + count (at most panel_rows), dequantised into `panel`.
template <class W, class F>
void weighted_panel(const float* a, int64_t step, int64_t M, int64_t groups, int64_t each,
                    const W& weight, int64_t n, int64_t count, float* panel, const F& finish) {
    int64_t K = groups * each;
    for (int64_t r = 0; r < count; ++r) {
        float* to = panel + r * K;
        for (int64_t g = 0; g < groups; ++g, to += each) {
            blocks<L>(each, [&](int64_t k, auto count) JM_BODY {
                store(to + k, weight(n + r, g, k, count), count);
            });
        }
    }
    Finish<F> target{finish, n};
    tiles(M <= count, M, count, K, {a, step, 1}, {panel, 1, K},
          {nullptr, 0, &target, put_finished<F>}, 1);
}

}   // namespace detail

template <int64_t Rows, class T, class W, class F>
inline void dequantised(int64_t M, int64_t N, int64_t groups, int64_t each, const Activations<T>& x,
                        const W& weight, const F& finish) {
    using namespace detail;
    constexpr bool always_few = Rows && Rows < few_rows, never_few = Rows >= few_rows;
    const int64_t K = groups * each;
    const FloatRows<T> a(x, M, K);
    parallel_region(threads_for(M * N * (K + 16), thread_grain), [&](int part, int parts) {
        Range mine = part_of(N, part, parts, L);
        if constexpr (!never_few)
            if (always_few || M < few_rows) {
                constexpr int rows = always_few ? Rows : 0;
                for (int64_t n = mine.begin; n < mine.end; n += L) {
                    int64_t count = mine.end - n < L ? mine.end - n : L;
                    weighted_columns<rows, most_dots>(a.p, a.step, 0, M, groups, each, weight, n,
                                                      count, finish);
                }
                return;
            }
        if constexpr (!always_few) {
            float* panel = (float*)__builtin_malloc(uint64_t(panel_rows * K) * sizeof(float) + 1);
            if (!panel) __builtin_trap();
            for (int64_t n = mine.begin; n < mine.end; n += panel_rows) {
                int64_t count = mine.end - n < panel_rows ? mine.end - n : panel_rows;
                weighted_panel(a.p, a.step, M, groups, each, weight, n, count, panel, finish);
            }
            __builtin_free(panel);
        }
    });
}

}   // namespace jm
