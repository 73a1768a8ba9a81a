// Small and medium fp32 matrix products: C[M,N] = epilogue(A[M,K] B[K,N]), for sizes where a call
// into a BLAS costs as much as the work.
//
// In: jm::gemm<Way>(M, N, K, {a, a_m, a_k}, {b, b_k, b_n}, c, ldc, epilogue, threads = 0), strides
// in elements. A has any strides, B is contiguous along N or along K, C's rows are contiguous.
//     NN                      A {a, lda, 1}    B {b, ldb, 1}
//     NT  linear: x W^T       A {x, ldx, 1}    B {w, 1, ldw}
//     TN  dW = dY^T X         A {dy, 1, ldy}   B {x, ldx, 1}
// Way is the result of gemm_way(M, N, a, b); without it the call chooses. gemm_rows<Way> is for any
// number of rows: few rows use dot products, more use the given Way.
// The epilogue receives each finished Vec before it is stored, its lanes C[m, n … n + count):
//     Vec<float, L> epilogue(Vec<float, L> sum, int64_t m, int64_t n, int64_t count)
// NoEpilogue{}, AddBias{bias} and AddInto{c, ldc} (C += A B) are predefined; a lambda must load with
// `count`. Out: C.
// Invariants: the result does not depend on the number of threads (they split M and N, never K);
// C must not overlap A or B.
//
// products.cpp has the multiplication itself, compiled once per machine and linked to every kernel that
// includes this (runtime/toolchain.py): its tiles take g++ 0.85 s, a product with its epilogue 0.03 s.
// Dot products are compiled with their epilogue only if a kernel has no tiles: next to tiles they are
// another 0.13 s, to save a call of the epilogue for every L columns of the few rows.
#pragma once
#include "parallel.h"
#include "reduce.h"

namespace jm {

struct MatrixA {
    const float* p;
    int64_t m, k;   // strides, as for B below
};
struct MatrixB {
    const float* p;
    int64_t k, n;
};

struct NoEpilogue {
    template <class V> JM_INLINE V operator()(V sum, int64_t, int64_t, int64_t) const {
        return sum;
    }
};
struct AddBias {
    const float* bias;
    template <class V> JM_INLINE V operator()(V sum, int64_t, int64_t n, int64_t count) const {
        return sum + V::load(bias + n, count);
    }
};
struct AddInto {
    const float* c;
    int64_t ldc;
    template <class V> JM_INLINE V operator()(V sum, int64_t m, int64_t n, int64_t count) const {
        return sum + V::load(c + m * ldc + n, count);
    }
};

namespace detail {

constexpr int L = lanes<float>;
using Lanes = Vec<float, L>;

constexpr int64_t thread_grain = 150000;   // multiply-adds that pay for waking a thread

// A block of C.
struct Block {
    int64_t m, rows, n, columns;
};

// The destination of finished sums: `put` receives a block of them, whose rows are `stride` apart,
// padded to whole vectors. Without `put` the sums are stored unchanged.
struct Output {
    float* c;
    int64_t ldc;
    const void* epilogue;
    void (*put)(const Output& out, const float* sums, int64_t stride, Block at);
};

template <class E>
JM_INLINE void put_block(const Output& out, const float* sums, int64_t stride, Block at) {
    const E& epilogue = *(const E*)out.epilogue;
#pragma GCC unroll 1
    for (int64_t i = 0; i < at.rows; ++i) {
        float* c = out.c + (at.m + i) * out.ldc + at.n;
#pragma GCC unroll 1
        for (int64_t j = 0; j < at.columns; j += L) {
            int64_t left = at.columns - j, count = left < L ? left : L;
            Lanes v = epilogue(Lanes::load(sums + i * stride + j), at.m + i, at.n + j, count);
            if (count == L) v.store(c + j);
            else v.store(c + j, count);
        }
    }
}

template <class E> JM_INLINE Output output(float* c, int64_t ldc, const E& epilogue) {
    if constexpr (same<E, NoEpilogue>) return {c, ldc, nullptr, nullptr};
    else return {c, ldc, &epilogue, put_block<E>};
}

// Dot products along K of one row of A with R rows of B^T.
template <int R> __attribute__((noinline)) void dots(const float* a, const float* b, int64_t stride,
                                                     int64_t K, float* sums) {
    Lanes sum[R];
    for (int r = 0; r < R; ++r) sum[r] = Lanes(0.0f);
    int64_t k = 0;
    for (; k + L <= K; k += L) {
        Lanes x = Lanes::load(a + k);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r] = fma(Lanes::load(b + r * stride + k), x, sum[r]);
    }
    if (k < K) {
        Lanes x = Lanes::load(a + k, K - k);
        for (int r = 0; r < R; ++r) sum[r] = fma(Lanes::load(b + r * stride + k, K - k), x, sum[r]);
    }
    for (int r = 0; r < R; ++r) sums[r] = hsum(sum[r]);
}
JM_INLINE void dots_of_row(const float* a, MatrixB b, int64_t n, int64_t count, int64_t K, float* sums) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) dots<4>(a, b.p + (n + i) * b.n, b.n, K, sums + i);
    for (; i < count; ++i) dots<1>(a, b.p + (n + i) * b.n, b.n, K, sums + i);
}
// The whole product, L sums of a row at a time: sink(sums, m, n, count).
template <class Sink> JM_INLINE void gemm_dots(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                                               int threads, const Sink& sink) {
    parallel_region(threads, [&](int part, int parts) {
        Range mine = part_of(N, part, parts, L);
        for (int64_t n = mine.begin; n < mine.end; n += L) {
            int64_t count = mine.end - n < L ? mine.end - n : L;
            for (int64_t m = 0; m < M; ++m) {
                float sums[L] = {};
                dots_of_row(a.p + m * a.m, b, n, count, K, sums);
                sink(sums, m, n, count);
            }
        }
    });
}

}   // namespace detail

// The method of a product: dot products along K, tiles of C, or tiles of its transpose.
enum class Way { Dots, Swapped, Plain };

constexpr Way gemm_way(int64_t M, int64_t N, MatrixA a, MatrixB b) {
    if (b.n == 1 || a.k != 1) return Way::Plain;
    return M < detail::L / 2 ? Way::Dots : M <= N ? Way::Swapped : Way::Plain;
}

namespace detail {
// Computes tiles of C, or of its transpose if swapped.
__attribute__((visibility("hidden"))) void tiles(bool swapped, int64_t M, int64_t N, int64_t K,
                                                 MatrixA a, MatrixB b, const Output& out,
                                                 int threads);
// Computes dot products if the rows are few, else tiles.
__attribute__((visibility("hidden"))) void tiles_or_dots(bool swapped, int64_t M, int64_t N,
                                                         int64_t K, MatrixA a, MatrixB b,
                                                         const Output& out, int threads);
}

template <Way W, class E> JM_INLINE void gemm(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                                              float* c, int64_t ldc, const E& epilogue,
                                              int threads = 0) {
    using namespace detail;
    int team = threads_for(M * N * (K + 16), thread_grain, threads);
    if constexpr (W == Way::Dots) {
        Output out{c, ldc, &epilogue, nullptr};
        gemm_dots(M, N, K, a, b, team, [&](const float* sums, int64_t m, int64_t n, int64_t count) {
            put_block<E>(out, sums, L, {m, 1, n, count});
        });
    } else tiles(W == Way::Swapped, M, N, K, a, b, output(c, ldc, epilogue), team);
}

template <class E> inline void gemm(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b, float* c,
                                    int64_t ldc, const E& epilogue, int threads = 0) {
    switch (gemm_way(M, N, a, b)) {
    case Way::Dots: return gemm<Way::Dots>(M, N, K, a, b, c, ldc, epilogue, threads);
    case Way::Swapped: return gemm<Way::Swapped>(M, N, K, a, b, c, ldc, epilogue, threads);
    case Way::Plain: return gemm<Way::Plain>(M, N, K, a, b, c, ldc, epilogue, threads);
    }
}

template <Way W, class E> inline void gemm_rows(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                                                float* c, int64_t ldc, const E& epilogue) {
    using namespace detail;
    int team = threads_for(M * N * (K + 16), thread_grain);
    tiles_or_dots(W != Way::Plain, M, N, K, a, b, output(c, ldc, epilogue), team);
}

}   // namespace jm
