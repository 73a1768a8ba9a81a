// Small and medium fp32 matrix products: C[M,N] = epilogue(A[M,K] B[K,N]), for sizes where a call
// into a BLAS costs as much as the work.
//
// In: jm::gemm<Way>(M, N, K, {a, a_m, a_k}, {b, b_k, b_n}, c, ldc, epilogue, threads = 0), strides
// in elements. A has any strides, B is contiguous along N or along K, C's rows are contiguous.
//     NN                      A {a, lda, 1}    B {b, ldb, 1}
//     NT  linear: x W^T       A {x, ldx, 1}    B {w, 1, ldw}
//     TN  dW = dY^T X         A {dy, 1, ldy}   B {x, ldx, 1}
// Way is what gemm_way(M, N, a, b) gives. A caller that knows sizes and strides when it is compiled
// names it, and one method is compiled; without it all three are, and the call chooses.
// The epilogue sees each finished Vec before it is stored, its lanes C[m, n … n + count):
//     Vec<float, L> epilogue(Vec<float, L> sum, int64_t m, int64_t n, int64_t count)
// NoEpilogue{}, AddBias{bias} and AddInto{c, ldc} (C += A B) are ready; a lambda must load with
// `count`. Out: C.
// Invariants: the result does not depend on the number of threads (they split M and N, never K);
// C must not overlap A or B.
//
// Method: one register tile of L rows by L lanes (16 x 16 with AVX-512): L accumulators, per k one
// vector of the "lane" operand and L scalars of the "row" operand broadcast from memory. Where B's
// rows are contiguous they are the lanes. In NT neither operand has lanes, so the smaller one is
// packed, transposed, into panels of L lanes; if that is A, the tile holds C^T and is transposed in
// registers before the epilogue. With few rows of A, NT takes dot products along K instead.
#pragma once
#include "parallel.h"
#include "reduce.h"

namespace jm {

struct MatrixA {
    const float* p;
    int64_t m, k;   // strides, as those of B below
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

// What the register tile reads: `rows` are broadcast, `lanes` are loaded as vectors.
struct RowSide {
    const float* p;
    int64_t row, k;
};
struct LaneSide {
    const float* p;
    int64_t k;
};

// Rows 0…7 of a tile from one base and four strides in registers, rows 8…15 from a second base:
// left to itself the compiler keeps sixteen offsets, most of them in memory, and loads one per
// multiplication. `opaque` stops it from taking the strides apart again.
template <class T> JM_INLINE T opaque(T x) {
    asm("" : "+r"(x));
    return x;
}
struct RowStrides {
    int64_t one, three, five, seven;   // in bytes
    JM_INLINE explicit RowStrides(int64_t row)
        : one(opaque(row * 4)),
          three(opaque(row * 12)),
          five(opaque(row * 20)),
          seven(opaque(row * 28)) {}
    JM_INLINE float at(const char* p, int r) const {
        const char* from = r == 0   ? p
                           : r == 1 ? p + one
                           : r == 2 ? p + one * 2
                           : r == 3 ? p + three
                           : r == 4 ? p + one * 4
                           : r == 5 ? p + five
                           : r == 6 ? p + three * 2
                                    : p + seven;
        return *(const float*)from;
    }
};

// sums[r][…] = sum over k of row r's scalar times the lanes. A function of its own: its loop needs
// every register.
template <int R>
__attribute__((noinline)) void multiply(RowSide rows, LaneSide cols, int64_t K, float* sums) {
    Lanes sum[R];
    for (int r = 0; r < R; ++r) sum[r] = Lanes(0.0f);
    RowStrides strides(rows.row);
    const char *p = (const char*)rows.p, *p8 = opaque(p + rows.row * 32);
    const float* q = cols.p;
    int64_t step = rows.k * 4;
    for (int64_t k = 0; k < K; ++k, p += step, p8 += step, q += cols.k) {
        Lanes b = Lanes::load(q);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            sum[r] = fma(Lanes(strides.at(r < 8 ? p : p8, r & 7)), b, sum[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r].store(sums + r * L);
}

// Lane l of row r <-> lane r of row l, by log2(L) exchanges of blocks.
template <int D, int... I> JM_INLINE void exchange(Lanes& a, Lanes& b, seq<I...>) {
    auto low = __builtin_shufflevector(a.v, b.v, ((I & D) ? L + I - D : I)...);
    auto high = __builtin_shufflevector(a.v, b.v, ((I & D) ? L + I : I + D)...);
    a = Lanes(low);
    b = Lanes(high);
}
template <int D = 1> JM_INLINE void exchange_all(Lanes (&t)[L]) {
    if constexpr (D < L) {
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i)
            if (!(i & D)) exchange<D>(t[i], t[i + D], seq_to<L>{});
        exchange_all<2 * D>(t);
    }
}
// L rows of L floats, in place.
__attribute__((noinline)) inline void transpose(float* block) {
    Lanes t[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) t[i] = Lanes::load(block + i * L);
    exchange_all(t);
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) t[i].store(block + i * L);
}

template <class E> struct Output {
    float* c;
    int64_t ldc;
    const E& epilogue;
    JM_INLINE void put(Lanes v, int64_t m, int64_t n, int64_t count) const {
        v = epilogue(v, m, n, count);
        if (count >= L) v.store(c + m * ldc + n);
        else v.store(c + m * ldc + n, count);
    }
};

// One tile of up to L rows: C[row…, col…] or, if Swapped, its transpose C[col…, row…].
template <bool Swapped, class E> JM_INLINE void tile(RowSide rows, LaneSide cols, int64_t K,
                                                     int64_t row, int64_t height, int64_t col,
                                                     int64_t width, const Output<E>& out) {
    alignas(64) float sums[L * L];
    RowSide at = rows;
    int64_t done = 0;
    auto take = [&](auto multiply_some, int64_t count) {
        multiply_some(at, cols, K, sums + done * L);
        at.p += count * rows.row;
        done += count;
    };
    if (height == L) take(multiply<L>, L);
    else {   // the rest by halves
        if (L > 8 && height & 8) take(multiply<8>, 8);
        if (L > 4 && height & 4) take(multiply<4>, 4);
        if (height & 2) take(multiply<2>, 2);
        if (height & 1) take(multiply<1>, 1);
    }
    if constexpr (Swapped) transpose(sums);
    int64_t count = Swapped ? width : height, lanes_used = Swapped ? height : width;
    int64_t m = Swapped ? col : row, n = Swapped ? row : col;
#pragma GCC unroll 1
    for (int64_t i = 0; i < count; ++i) out.put(Lanes::load(sums + i * L), m + i, n, lanes_used);
}

// Scratch that a thread keeps: packing must not pay for fresh pages at each call.
struct Scratch {
    float* p = nullptr;
    int64_t size = 0;
    float* get(int64_t n) {
        if (n > size) {
            __builtin_free(p);
            p = (float*)__builtin_malloc(uint64_t(n) * sizeof(float) + 64);
            size = p ? n : 0;
            if (!p) __builtin_trap();
        }
        return (float*)(((uintptr_t)p + 63) & ~uintptr_t(63));
    }
    ~Scratch() { __builtin_free(p); }
};
JM_INLINE float* scratch(int64_t n) {
    static thread_local Scratch s;
    return s.get(n);
}

// panel[k][l] = x[(first + l) * stride + k], zero beyond `count` lanes; written in blocks of L
// rows, so the panel has K rounded up to L
__attribute__((noinline)) inline void pack_transposed(float* panel, const float* x, int64_t stride,
                                                      int64_t count, int64_t K) {
    for (int64_t k = 0; k < K; k += L, panel += L * L) {
        for (int64_t l = 0; l < L; ++l) {
            const float* from = x + l * stride + k;
            Lanes row = l >= count   ? Lanes(0.0f)
                        : K - k >= L ? Lanes::load(from)
                                     : Lanes::load(from, K - k);
            row.store(panel + l * L);
        }
        transpose(panel);
    }
}
__attribute__((noinline)) inline void pack_rows(float* panel, const float* x, int64_t stride,
                                                int64_t count, int64_t K) {
    for (int64_t k = 0; k < K; ++k) {
        if (count >= L) Lanes::load(x + k * stride).store(panel + k * L);
        else Lanes::load(x + k * stride, count).store(panel + k * L);
    }
}

struct Shape {
    int64_t rows, cols, K;
};   // cols: extent along lanes

// How the lane operand reaches the tiles: contiguous along its lanes, or along K (then every panel
// is packed, transposed).
struct LaneOperand {
    const float* p;
    int64_t lane, k;   // strides, one of them 1
};

constexpr int64_t thread_grain = 150000;   // multiply-adds that pay for waking a thread
constexpr int64_t pack_from = 4;   // tiles per panel from which a plain copy of a panel pays

__attribute__((noinline)) inline LaneSide panel_of(LaneOperand x, int64_t first, int64_t count,
                                                   int64_t K, int64_t tall) {
    const float* from = x.p + first * x.lane;
    if (x.lane == 1 && tall < pack_from && count >= L) return {from, x.k};
    float* panel = scratch((K + L) * L);
    if (x.lane == 1) pack_rows(panel, from, x.k, count, K);
    else pack_transposed(panel, from, x.lane, count, K);
    return {panel, L};
}

// Tiles are numbered panel by panel and split evenly: a thread packs the panels it meets for
// itself, and nobody waits.
template <bool Swapped, class E>
JM_INLINE void gemm_tiles(Shape s, RowSide rows, LaneOperand x, const Output<E>& out, int threads) {
    int64_t tall = (s.rows + L - 1) / L, wide = (s.cols + L - 1) / L;
    parallel_region(threads, [&](int part, int parts) {
        Range units = part_of(tall * wide, part, parts);
        int64_t last_panel = -1;
        LaneSide cols{};
        for (int64_t u = units.begin; u < units.end; ++u) {
            int64_t j = u / tall, i = u % tall, count = s.cols - j * L, left = s.rows - i * L;
            if (j != last_panel) cols = panel_of(x, j * L, count, s.K, tall);
            last_panel = j;
            RowSide at{rows.p + i * L * rows.row, rows.row, rows.k};
            tile<Swapped>(at, cols, s.K, i * L, left < L ? left : L, j * L, count < L ? count : L,
                          out);
        }
    });
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
template <class E> JM_INLINE void gemm_dots(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                                            const Output<E>& out, int threads) {
    parallel_region(threads, [&](int part, int parts) {
        Range mine = part_of(N, part, parts, L);
        for (int64_t n = mine.begin; n < mine.end; n += L) {
            int64_t count = mine.end - n < L ? mine.end - n : L;
            for (int64_t m = 0; m < M; ++m) {
                float sums[L] = {};
                int64_t i = 0;
                for (; i + 4 <= count; i += 4)
                    dots<4>(a.p + m * a.m, b.p + (n + i) * b.n, b.n, K, sums + i);
                for (; i < count; ++i)
                    dots<1>(a.p + m * a.m, b.p + (n + i) * b.n, b.n, K, sums + i);
                out.put(Lanes::load(sums), m, n, count);
            }
        }
    });
}

}   // namespace detail

// How a product is computed; see Method above.
enum class Way { Dots, Swapped, Plain };

constexpr Way gemm_way(int64_t M, int64_t N, MatrixA a, MatrixB b) {
    if (b.n == 1 || a.k != 1) return Way::Plain;
    return M < detail::L / 2 ? Way::Dots : M <= N ? Way::Swapped : Way::Plain;
}

template <Way W, class E> inline void gemm(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                                           float* c, int64_t ldc, const E& epilogue,
                                           int threads = 0) {
    using namespace detail;
    Output<E> out{c, ldc, epilogue};
    int team = threads_for(M * N * (K + 16), thread_grain, threads);
    if constexpr (W == Way::Dots) gemm_dots(M, N, K, a, b, out, team);
    else if constexpr (W == Way::Swapped)
        gemm_tiles<true>({N, M, K}, {b.p, b.n, b.k}, {a.p, a.m, a.k}, out, team);
    else gemm_tiles<false>({M, N, K}, {a.p, a.m, a.k}, {b.p, b.n, b.k}, out, team);
}

template <class E> inline void gemm(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b, float* c,
                                    int64_t ldc, const E& epilogue, int threads = 0) {
    switch (gemm_way(M, N, a, b)) {
    case Way::Dots: return gemm<Way::Dots>(M, N, K, a, b, c, ldc, epilogue, threads);
    case Way::Swapped: return gemm<Way::Swapped>(M, N, K, a, b, c, ldc, epilogue, threads);
    case Way::Plain: return gemm<Way::Plain>(M, N, K, a, b, c, ldc, epilogue, threads);
    }
}

}   // namespace jm
