// Small and medium fp32 matrix products: C[M,N] = epilogue(A[M,K] B[K,N]), for sizes where a call
// into a BLAS costs as much as the work.
//
// In: jm::gemm<Way>(M, N, K, {a, a_m, a_k}, {b, b_k, b_n}, c, ldc, epilogue, threads = 0), strides
// in elements. A has any strides, B is contiguous along N or along K, C's rows are contiguous.
//     NN                      A {a, lda, 1}    B {b, ldb, 1}
//     NT  linear: x W^T       A {x, ldx, 1}    B {w, 1, ldw}
//     TN  dW = dY^T X         A {dy, 1, ldy}   B {x, ldx, 1}
// Way is what gemm_way(M, N, a, b) gives. A caller that knows sizes and strides when it is compiled
// names it, and one method is compiled; without it all three are, and the call chooses. gemm_rows<Way>
// is for any number of rows: few of them are dot products, more go by the Way named.
// The epilogue sees each finished Vec before it is stored, its lanes C[m, n … n + count):
//     Vec<float, L> epilogue(Vec<float, L> sum, int64_t m, int64_t n, int64_t count)
// NoEpilogue{}, AddBias{bias} and AddInto{c, ldc} (C += A B) are ready; a lambda must load with
// `count`. Out: C.
// Invariants: the result does not depend on the number of threads (they split M and N, never K);
// C must not overlap A or B.
//
// Method: register tiles of accumulators; per k one or two vectors of the "lane" operand, and of the
// "row" operand one scalar per row, broadcast from memory. Where B's rows are contiguous they are
// the lanes, in tiles of 12 rows by 2 vectors (with AVX-512), which without an epilogue are stored
// straight to C: where K is small that is most of the rest. In NT neither operand has lanes, so the
// smaller one is packed, transposed, into panels; if that is A, the tile (L rows, one vector) holds
// C^T and is transposed in registers before the epilogue. With few rows of A, NT takes dot products
// along K instead.
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

// out[r][…] = sum over k of row r's scalar times C vectors of lanes, one or two. A function of its
// own: its loop needs every register, so it wants to know when the lanes are Packed, C vectors apart.
// `more`: R rows follow these, and are fetched meanwhile. (Nothing is fetched from behind a matrix:
// that memory may be what another thread writes.)
template <int R, int C, bool Packed>
__attribute__((noinline)) void multiply(RowSide rows, LaneSide cols, int64_t K, float* out,
                                        int64_t ldo, bool more) {
    Lanes sum[R * C];   // unrolled wherever it is used, or it would live in memory
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) sum[i] = Lanes(0.0f);
    RowStrides strides(rows.row);
    const char *p = (const char*)rows.p, *p8 = opaque(p + rows.row * 32);
    const float* q = cols.p;
    int64_t step = rows.k * 4, next = Packed ? C * L : cols.k;
    bool fetch = more && rows.k == 1 && rows.row == K;
    const char* ahead = (const char*)(rows.p + (fetch ? R * rows.row : 0));
    int64_t hop = fetch ? R * 4 : 0;
    for (int64_t k = 0; k < K; ++k, p += step, p8 += step, q += next, ahead += hop) {
        __builtin_prefetch(ahead);
        Lanes b0 = Lanes::load(q), b1 = C > 1 ? Lanes::load(q + L) : b0;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            Lanes a(strides.at(r < 8 ? p : p8, r & 7));
            sum[r * C] = fma(a, b0, sum[r * C]);
            if constexpr (C > 1) sum[r * C + 1] = fma(a, b1, sum[r * C + 1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        sum[r * C].store(out + r * ldo);
        if constexpr (C > 1) sum[r * C + 1].store(out + r * ldo + L);
    }
}

// The rows of a tile: as many as leave registers for two vectors of lanes and a scalar.
constexpr int tallest = JM_AVX512 ? 12 : 6;
constexpr int lower(int rows) { return rows > 8 ? 8 : rows > 4 ? 4 : rows / 2; }

// Any number of rows, R at a time, the rest with lower tiles.
template <int R, int C, bool Packed> JM_INLINE void multiply_rows(RowSide rows, LaneSide cols, int64_t K,
                                                     int64_t height, float* out, int64_t ldo) {
#pragma GCC unroll 1
    for (; height >= R; height -= R, out += R * ldo, rows.p += R * rows.row)
        multiply<R, C, Packed>(rows, cols, K, out, ldo, height >= 2 * R);
    if constexpr (R > 1) multiply_rows<lower(R), C, Packed>(rows, cols, K, height, out, ldo);
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
// L rows of L floats, `from_step` apart, turned into L rows that lie `to_step` apart.
__attribute__((noinline)) inline void transpose(float* to, int64_t to_step, const float* from,
                                                int64_t from_step) {
    Lanes t[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) t[i] = Lanes::load(from + i * from_step);
    exchange_all(t);
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) t[i].store(to + i * to_step);
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

// A part of the product: `rows` x `lanes` of C, or of its transpose if Swapped, from (row, lane) on.
struct Area {
    int64_t row, rows, lane, lanes;
};

// Every vector of a block of sums, whose rows are `stride` long, through the epilogue.
template <bool Swapped, class E>
JM_INLINE void put_block(float* sums, int64_t stride, Area at, const Output<E>& out) {
    if constexpr (Swapped) {
        transpose(sums, L, sums, L);
        at = {at.lane, at.lanes, at.row, at.rows};
    }
#pragma GCC unroll 1
    for (int64_t i = 0; i < at.rows; ++i) {
#pragma GCC unroll 1
        for (int64_t j = 0; j < at.lanes; j += L) {
            int64_t left = at.lanes - j;
            Lanes v = Lanes::load(sums + i * stride + j);
            out.put(v, at.row + i, at.lane + j, left < L ? left : L);
        }
    }
}

// All rows of an area, whose lanes are C vectors.
template <bool Swapped, int C, class E> JM_INLINE void multiply_area(RowSide rows, LaneSide cols,
                                                                     int64_t K, Area whole,
                                                                     const Output<E>& out) {
    constexpr int block = Swapped ? L : tallest;
    if constexpr (!Swapped && same<E, NoEpilogue>) {
        if (whole.lanes == C * L) {   // no one needs to see the sums: they go where they belong
            float* c = out.c + whole.row * out.ldc + whole.lane;
            multiply_rows<block, C, Swapped>(rows, cols, K, whole.rows, c, out.ldc);
            return;
        }
    }
    alignas(64) float sums[block * C * L];
#pragma GCC unroll 1
    for (int64_t done = 0; done < whole.rows; done += block) {
        int64_t left = whole.rows - done, height = left < block ? left : block;
        RowSide at{rows.p + done * rows.row, rows.row, rows.k};
        multiply_rows<block, C, Swapped>(at, cols, K, height, sums, C * L);
        put_block<Swapped>(sums, C * L, {whole.row + done, height, whole.lane, whole.lanes}, out);
    }
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

struct Shape {
    int64_t rows, lanes, K;
};

// How the lane operand reaches the tiles: contiguous along its lanes, or along K (then it is
// packed, transposed).
struct LaneOperand {
    const float* p;
    int64_t lane, k;   // strides, one of them 1
};

constexpr int64_t thread_grain = 150000;   // multiply-adds that pay for waking a thread
constexpr int64_t pack_from = 4;   // tiles per panel from which a plain copy of a panel pays

// panel[k][l] = x[(first + l) * stride + k], zero beyond `count` lanes; `width` floats per k, and k
// up to K rounded up to L.
__attribute__((noinline)) inline void pack_transposed(float* panel, int64_t width, const float* x,
                                                      int64_t stride, int64_t count, int64_t K) {
    for (int64_t first = 0; first < width; first += L) {
        const float* from = x + first * stride;
        float* to = panel + first;
        for (int64_t k = 0; k < K; k += L, from += L, to += L * width) {
            if (K - k >= L && count - first >= L) {
                transpose(to, width, from, stride);
                continue;
            }
            for (int64_t l = 0; l < L; ++l) {
                Lanes row = first + l >= count ? Lanes(0.0f)
                                               : Lanes::load(from + l * stride, K - k);
                row.store(to + l * width);
            }
            transpose(to, width, to, width);
        }
    }
}
__attribute__((noinline)) inline void pack_rows(float* panel, int64_t width, const float* x,
                                                int64_t stride, int64_t count, int64_t K) {
    for (int64_t k = 0; k < K; ++k) {
        for (int64_t l = 0; l < width; l += L) {
            const float* from = x + k * stride + l;
            Lanes row = count - l >= L ? Lanes::load(from) : Lanes::load(from, count - l);
            row.store(panel + k * width + l);
        }
    }
}
__attribute__((noinline)) inline LaneSide panel_of(LaneOperand x, int64_t first, int64_t count,
                                                   int64_t width, Shape s) {
    const float* from = x.p + first * x.lane;
    if (x.lane == 1 && s.rows < pack_from * tallest && count == width) return {from, x.k};
    float* panel = scratch((s.K + L) * width);
    if (x.lane == 1) pack_rows(panel, width, from, x.k, count, s.K);
    else pack_transposed(panel, width, from, x.lane, count, s.K);
    return {panel, width};
}

// Panels of `wide` vectors cover the lanes, the last one narrower where one vector of lanes is left.
// The work is a line of units, one per row and vector, panel by panel, of which threads take equal
// parts: each packs the panels it meets for itself (a panel that another core wrote is slower to
// read than to pack), and nobody waits.
template <bool Swapped, class E>
JM_INLINE void gemm_tiles(Shape s, RowSide rows, LaneOperand x, const Output<E>& out, int threads) {
    constexpr int wide = Swapped ? 1 : 2, align = Swapped ? L : 4;
    int64_t vectors = (s.lanes + L - 1) / L;
    parallel_region(threads, [&](int part, int parts) {
        Range units = part_of(vectors * s.rows, part, parts, align * wide);
        while (units.begin < units.end) {
            int64_t panel = units.begin / (wide * s.rows), v = panel * wide, start = v * s.rows;
            int64_t each = vectors - v < wide ? vectors - v : wide, lane = v * L;
            int64_t first = (units.begin - start) / each, last = (units.end - start) / each;
            if (last > s.rows) last = s.rows;
            int64_t lanes = s.lanes - lane < each * L ? s.lanes - lane : each * L;
            LaneSide cols = panel_of(x, lane, lanes, each * L, s);
            RowSide at{rows.p + first * rows.row, rows.row, rows.k};
            Area area{first, last - first, lane, lanes};
            if (each == wide) multiply_area<Swapped, wide>(at, cols, s.K, area, out);
            else multiply_area<Swapped, 1>(at, cols, s.K, area, out);
            units.begin = start + last * each;
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

template <Way W, class E> inline void gemm_rows(int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                                                float* c, int64_t ldc, const E& epilogue) {
    if (M < detail::L / 2) gemm<Way::Dots>(M, N, K, a, b, c, ldc, epilogue);
    else gemm<W == Way::Dots ? Way::Swapped : W>(M, N, K, a, b, c, ldc, epilogue);
}

}   // namespace jm
