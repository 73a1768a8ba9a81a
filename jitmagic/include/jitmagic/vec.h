// jm::Vec<T, N>: N lanes of T. The contract between the C++ renderer and the headers of this folder.
//
// HEADERS (each includes what it needs; "math.h" has the whole pointwise table)
//   dtype.h     bf16, f16, convert<U>(scalar), traits
//   isa.h       register width, the few instructions that have no operator
//   vec.h       this file: types, memory, conversion, masks; includes ops.h
//   ops.h       arithmetic, comparison, rounding, logic, bits
//   math.h      exp … lgamma (math_float.h, math_double.h: the vectorised ones)
//   reduce.h    horizontal reductions, compensated sums
//   parallel.h  parallel_for over torch's threads
//   gemm.h      small and medium fp32 matrix products
//   random.h    Philox4x32-10
// FLAGS -O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=off -std=c++17 -shared -fPIC.
//   Correct for any -march; without AVX2 + FMA or NEON the math functions call libm lane by lane.
// COMPILERS g++ from 10 on, clang++ from 14 on.
//
// TYPES
//   T: float double int8_t … int64_t uint8_t … uint64_t bool, bf16 f16 for storage only (load,
//   store, where, convert: compute in float), and f8 (float8_e4m3fn: load, convert to float). N: a power of two >= 2. Use ONE N for all dtypes of a
//   loop: lanes<float> (16 / 8 / 4), twice that to overlap long chains, or lanes<double> where all
//   is double. A Vec larger than a register is a pair of halves; smaller ones are fine too.
//   Vec<bool, N> IS the mask type (alias Mask<N>): comparisons give it, `where` takes it,
//   & | ^ ~ work on it; in memory it is one byte a lane.
// MEMORY (no alignment needed; nothing outside the n valid lanes is read or written)
//   Vec<T,N> x;  Vec<T,N>(scalar)                 broadcast, implicit
//   iota<T,N>(start = 0)                          start, start + 1, …
//   Vec<T,N>::load(p)  load(p, n)  load(p, n, fill)   lanes from n on are fill (0); n >= N: all
//   v.store(p)  v.store(p, n)
//   v.stream(p)                                   non-temporal; a plain store where p is unaligned
//   Vec<T,N>::gather(p, index)  gather(p, index, mask)  gather(p, index, mask, fill)
//   Vec<T,N>::strided(p, stride)  strided(p, stride, n)  strided(p, stride, n, fill)
//   v.scatter(p, index)  v.scatter(p, index, mask)  v.scatter_strided(p, stride[, n])
//   v[i] reads a lane (slow);  v.lo()  v.hi()  join(lo, hi);  index: Vec<int64_t, N>
// CONVERSION
//   convert<U>(vec or scalar): to bf16 and f16 nearest even, float to int truncates, to bool is
//   != 0, from bool 1 or 0.  reinterpret<U>(v): the same bits.
// MASKS
//   first_n<N>(n)  where(mask, a, b)  any(m)  all(m)  bits(m): uint64_t, lane i is bit i
// OPERATIONS jm::NAME for scalars and Vec, named and defined as in torch. Both arguments have the
//   same type: broadcast and convert first.
//   numbers: add sub mul neg abs sign square relu minimum maximum (NaN wins) fmin fmax (NaN loses)
//     eq ne lt le gt ge logical_and logical_or logical_xor logical_not (all -> bool) where
//     floor ceil round trunc isnan isinf isfinite signbit floordiv remainder fmod pow
//   reals: truediv fma (a * b + c rounded once) sqrt rsqrt reciprocal frac copysign nextafter hypot
//     exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh
//     acosh atanh erf erfc erfinv lgamma sigmoid logaddexp
//   integers and bool: bitwise_and bitwise_or bitwise_xor bitwise_not; integers: lshift rshift
//   Integers wrap; on bool add is or, mul is and. INTEGER DIVISION BY ZERO GIVES 0 HERE AND RAISES
//   IN EAGER: the lowering keeps divisions by what may be 0 in ATen, or tests any(eq(d, 0)) first.
//   + - * / and unary - are operators too, with a scalar on either side; & | ^ ~ on ints and masks.
#pragma once
#include "isa.h"

namespace jm {

template <class T, int N> struct Vec;
template <int N> using Mask = Vec<bool, N>;
template <int N> JM_INLINE uint64_t bits(Mask<N> m);
template <class T, int N> struct Halves {
    Vec<T, N / 2> lo, hi;
};

namespace detail {
template <class H, int Start, class R, int... I> JM_INLINE H slice(R v, seq<I...>) {
    return reg::shuffled<H>(v, v, seq<(Start + I)...>{});
}
template <class T> JM_INLINE uint8_t* bytes_of(T* p) { return (uint8_t*)p; }
template <class T> JM_INLINE const uint8_t* bytes_of(const T* p) { return (const uint8_t*)p; }
// Whether AVX-512 gathers and scatters by one instruction for eight lanes. Lane by lane, each with a test, 16 lanes are
// as many branches: g++ 12 took 0.54 s for the backward of two index_selects, now 0.42 s. Strided addresses are read
// faster by 16 loads (49 us for 100 000 floats, 95 by gathers), if all lanes are valid.
template <class T, int N> constexpr bool by_index = JM_AVX512 && N >= 8 && sizeof(T) >= 4;
JM_INLINE uint64_t first_bits(int64_t n);
template <int N> JM_INLINE Vec<int64_t, N> strides(int64_t stride);
}   // namespace detail

// One element of memory. A bool there may be any byte, true unless 0: in C++ reading another byte as bool is undefined.
template <class T> JM_INLINE T element(const T* p, int64_t index) {
    if constexpr (is_bool<T>) return detail::bytes_of(p)[index] != 0;
    else return p[index];
}

template <class T, int N> struct Vec {
    static_assert(N >= 2 && (N & (N - 1)) == 0, "the number of lanes is a power of two");
    using lane = lane_t<T>;
    static constexpr bool wide = N * sizeof(lane) > native_bytes;
    using storage = typename pick_type<wide, Halves<T, N>, raw<lane, N>>::type;
    storage v;

    Vec() = default;
    JM_INLINE Vec(storage s) : v(s) {}
    JM_INLINE Vec(T x) {
        if constexpr (wide) v = {Vec<T, N / 2>(x), Vec<T, N / 2>(x)};
        else
            v = as_lane(x) -
                storage{};   // minus, not plus: exact for -0, and the compiler knows it
    }
    static JM_INLINE lane as_lane(T x) {
        if constexpr (is_stored<T>) return x.bits;
        else if constexpr (is_bool<T>) return -lane(x);
        else return x;
    }
    static JM_INLINE T from_lane(lane x) {
        if constexpr (is_stored<T>) return {x};
        else if constexpr (is_bool<T>) return x != 0;
        else return x;
    }

    JM_INLINE auto lo() const {
        if constexpr (wide) return v.lo;
        else return Vec<T, N / 2>(detail::slice<raw<lane, N / 2>, 0>(v, seq_to<N / 2>{}));
    }
    JM_INLINE auto hi() const {
        if constexpr (wide) return v.hi;
        else return Vec<T, N / 2>(detail::slice<raw<lane, N / 2>, N / 2>(v, seq_to<N / 2>{}));
    }
    JM_INLINE T operator[](int i) const {
        if constexpr (wide) return i < N / 2 ? v.lo[i] : v.hi[i - N / 2];
        else return from_lane(v[i]);
    }

    static JM_INLINE Vec load(const T* p);
    static JM_INLINE Vec load(const T* p, int64_t n, T fill = T{});
    static JM_INLINE Vec load_lanes(const T* p, uint64_t bits, T fill);
    static JM_INLINE Vec gather_lanes(const T* p, Vec<int64_t, N> index, uint64_t bits, T fill);
    JM_INLINE void scatter_lanes(T* p, Vec<int64_t, N> index, uint64_t bits) const;
    JM_INLINE void store(T* p) const;
    JM_INLINE void store(T* p, int64_t n) const;
    JM_INLINE void stream(T* p) const;

    static JM_INLINE Vec gather(const T* p, Vec<int64_t, N> index) {
        if constexpr (detail::by_index<T, N>) return gather_lanes(p, index, ~uint64_t(0), T{});
        T lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = element(p, index[i]);
        return load(lanes);
    }
    static JM_INLINE Vec gather(const T* p, Vec<int64_t, N> index, Mask<N> mask, T fill = T{}) {
        if constexpr (detail::by_index<T, N>) return gather_lanes(p, index, bits(mask), fill);
        T lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = mask[i] ? element(p, index[i]) : fill;
        return load(lanes);
    }
    static JM_INLINE Vec strided(const T* p, int64_t stride) {
        T lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = element(p, i * stride);
        return load(lanes);
    }
    static JM_INLINE Vec strided(const T* p, int64_t stride, int64_t n, T fill = T{}) {
        if constexpr (detail::by_index<T, N>)
            return gather_lanes(p, detail::strides<N>(stride), detail::first_bits(n), fill);
        T lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = i < n ? element(p, i * stride) : fill;
        return load(lanes);
    }
    JM_INLINE void scatter(T* p, Vec<int64_t, N> index) const {
        if constexpr (detail::by_index<T, N>) return scatter_lanes(p, index, ~uint64_t(0));
        for (int i = 0; i < N; ++i) p[index[i]] = (*this)[i];
    }
    JM_INLINE void scatter(T* p, Vec<int64_t, N> index, Mask<N> mask) const {
        if constexpr (detail::by_index<T, N>) return scatter_lanes(p, index, bits(mask));
        for (int i = 0; i < N; ++i)
            if (mask[i]) p[index[i]] = (*this)[i];
    }
    JM_INLINE void scatter_strided(T* p, int64_t stride, int64_t n = N) const {
        if constexpr (detail::by_index<T, N>)
            return scatter_lanes(p, detail::strides<N>(stride), detail::first_bits(n));
        for (int i = 0; i < N; ++i)
            if (i < n) p[i * stride] = (*this)[i];
    }

    friend JM_INLINE Vec operator+(Vec a, Vec b) { return add(a, b); }
    friend JM_INLINE Vec operator-(Vec a, Vec b) { return sub(a, b); }
    friend JM_INLINE Vec operator*(Vec a, Vec b) { return mul(a, b); }
    friend JM_INLINE Vec operator/(Vec a, Vec b) { return truediv(a, b); }
    friend JM_INLINE Vec operator-(Vec a) { return neg(a); }
    friend JM_INLINE Vec operator&(Vec a, Vec b) { return bitwise_and(a, b); }
    friend JM_INLINE Vec operator|(Vec a, Vec b) { return bitwise_or(a, b); }
    friend JM_INLINE Vec operator^(Vec a, Vec b) { return bitwise_xor(a, b); }
    friend JM_INLINE Vec operator~(Vec a) { return bitwise_not(a); }
};

template <class T, int N> JM_INLINE Vec<T, 2 * N> join(Vec<T, N> lo, Vec<T, N> hi) {
    using W = Vec<T, 2 * N>;
    if constexpr (W::wide) return W(typename W::storage{lo, hi});
    else return W(reg::shuffled<typename W::storage>(lo.v, hi.v, seq_to<2 * N>{}));
}

template <class T, int N> JM_INLINE Vec<T, N> iota(T start = T(0)) {
    T lanes[N];
    for (int i = 0; i < N; ++i) lanes[i] = T(i);
    return add(Vec<T, N>::load(lanes), Vec<T, N>(start));
}

template <int N> JM_INLINE Vec<int64_t, N> detail::strides(int64_t stride) {
    return mul(iota<int64_t, N>(), Vec<int64_t, N>(stride));
}

// --- masks ---------------------------------------------------------------------------------------

namespace detail {
// A comparison of lanes of any size as a mask of 32-bit lanes, and back.
template <class R, int N> JM_INLINE Vec<bool, N> mask_from(R bits) {
    return Vec<bool, N>(reg::converted<raw<int32_t, N>>(bits));
}
template <class T, int N> JM_INLINE raw<signed_of<lane_t<T>>, N> mask_for(Vec<bool, N> m) {
    return reg::converted<raw<signed_of<lane_t<T>>, N>>(m.v);
}
template <class T, int N> constexpr bool split = Vec<T, N>::wide || Vec<bool, N>::wide;
}   // namespace detail

template <class T, int N> JM_INLINE Vec<T, N> where(Vec<bool, N> m, Vec<T, N> a, Vec<T, N> b) {
    if constexpr (detail::split<T, N>)
        return join(where(m.lo(), a.lo(), b.lo()), where(m.hi(), a.hi(), b.hi()));
    else return Vec<T, N>(detail::mask_for<T, N>(m) ? a.v : b.v);
}

template <int N> JM_INLINE Mask<N> first_n(int64_t n) {
    if constexpr (Mask<N>::wide) {
        return join(first_n<N / 2>(n), first_n<N / 2>(n - N / 2));
    } else {
        int32_t lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = i;
        int32_t limit = n < N ? int32_t(n) : N;
        return Mask<N>(Vec<int32_t, N>::load(lanes).v < limit);
    }
}

template <int N> JM_INLINE uint64_t bits(Mask<N> m) {
    if constexpr (Mask<N>::wide) return bits(m.lo()) | bits(m.hi()) << (N / 2);
#if JM_AVX512
    else if constexpr (N == 16) return __builtin_ia32_cvtd2mask512(m.v);
#endif
#if JM_AVX2
    else if constexpr (N == 8) return uint32_t(__builtin_ia32_movmskps256((f32x8)m.v));
#endif
#if JM_X86
    else if constexpr (N == 4) return uint32_t(__builtin_ia32_movmskps((f32x4)m.v));
#endif
    else {
        uint64_t out = 0;
        for (int i = 0; i < N; ++i) out |= uint64_t(m.v[i] & 1) << i;
        return out;
    }
}
template <int N> JM_INLINE bool any(Mask<N> m) {
    if constexpr (JM_X86) return bits(m) != 0;
    else if constexpr (Mask<N>::wide) return any(m.lo()) || any(m.hi());
    else return reg::any_set(m.v);
}
template <int N> JM_INLINE bool all(Mask<N> m) {
    if constexpr (!JM_X86) return !any(~m);
    return bits(m) == (N == 64 ? ~uint64_t(0) : (uint64_t(1) << (N & 63)) - 1);
}

// --- conversion ----------------------------------------------------------------------------------

namespace detail {
template <int N> JM_INLINE Vec<float, N> widen(Vec<bf16, N> a) {
    return Vec<float, N>((raw<float, N>)(reg::converted<raw<uint32_t, N>>(a.v) << 16));
}
template <int N> JM_INLINE Vec<bf16, N> to_bf16(Vec<float, N> a) {
    using U = raw<uint32_t, N>;
    U u = (U)a.v, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
    return Vec<bf16, N>(reg::converted<raw<uint16_t, N>>(a.v != a.v ? quiet : rounded));
}
template <int N> JM_INLINE Vec<float, N> widen(Vec<f16, N> a) {
#if JM_AVX512
    if constexpr (N == 16)
        return Vec<float, N>(__builtin_ia32_vcvtph2ps512_mask((raw<short, 16>)a.v, f32x16{},
                                                              reg::all16, reg::current));
#endif
#if JM_HALVES
    if constexpr (N >= 4)
        return Vec<float, N>(__builtin_convertvector((raw<__fp16, N>)a.v, raw<float, N>));
#elif JM_AVX2 && defined(__F16C__)
    if constexpr (N == 8) return Vec<float, N>(__builtin_ia32_vcvtph2ps256((raw<short, 8>)a.v));
#endif
    using U = raw<uint32_t, N>;
    using F = raw<float, N>;
    U h = __builtin_convertvector(a.v, U), sign = (h & 0x8000) << 16, rest = (h & 0x7fff) << 13;
    F scaled = (F)rest * 0x1p112f;
    return Vec<float, N>((F)((rest >= 0x0f800000u ? rest + 0x70000000u : (U)scaled) | sign));
}
template <int N> JM_INLINE Vec<float, N> widen(Vec<f8, N> a) {
    using H = raw<uint16_t, N>;
    H b = __builtin_convertvector(a.v, H);
    auto v = widen(Vec<f16, N>((b & 0x80) << 8 | (b & 0x7f) << 7)).v * 256.0f;
    // 480 and -480 stand for NaN.
    return Vec<float, N>(v * v == 230400.0f ? v * __builtin_nanf("") : v);
}
template <int N> JM_INLINE Vec<f16, N> to_f16(Vec<float, N> a) {
#if JM_AVX512
    if constexpr (N == 16)
        return Vec<f16, N>((raw<uint16_t, 16>)__builtin_ia32_vcvtps2ph512_mask(
            a.v, 0, raw<short, 16>{}, reg::all16));
#endif
#if JM_HALVES
    if constexpr (N >= 4)
        return Vec<f16, N>((raw<uint16_t, N>)__builtin_convertvector(a.v, raw<__fp16, N>));
#elif JM_AVX2 && defined(__F16C__)
    if constexpr (N == 8) return Vec<f16, N>((raw<uint16_t, 8>)__builtin_ia32_vcvtps2ph256(a.v, 0));
#endif
    f16 out[N];
    for (int i = 0; i < N; ++i) out[i] = jm::to_f16(a.v[i]);
    return Vec<f16, N>::load(out);
}
}   // namespace detail

template <class U, class T, int N> JM_INLINE Vec<U, N> convert(Vec<T, N> a) {
    if constexpr (same<U, T>) return a;
    else if constexpr (detail::split<T, N> || detail::split<U, N> ||
                       ((is_stored<T> || is_half<U>) && Vec<float, N>::wide))
        return join(convert<U>(a.lo()), convert<U>(a.hi()));
    else if constexpr (is_stored<T>) return convert<U>(detail::widen(a));
    else if constexpr (is_bool<U>) return detail::mask_from<raw<signed_of<T>, N>, N>(a.v != T(0));
    else if constexpr (same<U, bf16>) return detail::to_bf16(convert<float>(a));
    else if constexpr (same<U, f16>) return detail::to_f16(convert<float>(a));
    else if constexpr (is_bool<T>) return where(a, Vec<U, N>(U(1)), Vec<U, N>(U(0)));
    else if constexpr ((is_real<T> && sizeof(U) < 4) || (is_real<U> && sizeof(T) < 4))
        return convert<U>(convert<int32_t>(a));
    else {
        if constexpr (JM_CLANG && is_real<T> && is_int<U>) reg::hide(a.v);   // out of range is undefined, not computed
        raw<U, N> v = reg::converted<raw<U, N>>(a.v);
        if constexpr (is_real<T> && is_int<U>) reg::hide(v);   // as in truncated
        return Vec<U, N>(v);
    }
}

template <class U, class T, int N> JM_INLINE Vec<U, N> reinterpret(Vec<T, N> a) {
    static_assert(sizeof(lane_t<U>) == sizeof(lane_t<T>), "reinterpret keeps the lane size");
    if constexpr (Vec<T, N>::wide) return join(reinterpret<U>(a.lo()), reinterpret<U>(a.hi()));
    else return Vec<U, N>((typename Vec<U, N>::storage)a.v);
}

// --- memory --------------------------------------------------------------------------------------

template <class T, int N> JM_INLINE Vec<T, N> Vec<T, N>::load(const T* p) {
    if constexpr (is_bool<T>) return convert<bool>(Vec<uint8_t, N>::load(detail::bytes_of(p)));
    else if constexpr (wide) return join(Vec<T, N / 2>::load(p), Vec<T, N / 2>::load(p + N / 2));
    else {
        storage s;
        __builtin_memcpy(&s, p, sizeof s);
        return Vec(s);
    }
}

template <class T, int N> JM_INLINE Vec<T, N> Vec<T, N>::load(const T* p, int64_t n, T fill) {
    if constexpr (is_bool<T>)
        return convert<bool>(Vec<uint8_t, N>::load(detail::bytes_of(p), n, uint8_t(fill)));
    else if constexpr (wide && JM_AVX512) {  // masked lanes may be outside of memory
        constexpr int H = N / 2;
        return join(Vec<T, H>::load(p, n, fill), Vec<T, H>::load(p + H, n - H, fill));
    } else if constexpr (wide) {
        constexpr int H = N / 2;
        auto low = Vec<T, H>::load(p, n, fill);
        return join(low, n > H ? Vec<T, H>::load(p + H, n - H, fill) : Vec<T, H>(fill));
    } else if constexpr (detail::lane_masks<storage>) {
        using I = detail::as_ints<storage>;
        return Vec((storage)detail::masked_load(p, detail::first_bits(n), (I)Vec(fill).v));
    } else {
        T lanes[N];
        Vec(fill).store(lanes);
        __builtin_memcpy(lanes, p, sizeof(T) * uint64_t(n < N ? n : N));
        return load(lanes);
    }
}

// Masked lanes may be outside of memory.
template <class T, int N> JM_INLINE Vec<T, N> Vec<T, N>::load_lanes(const T* p, uint64_t bits, T fill) {
    if constexpr (is_bool<T>)
        return convert<bool>(Vec<uint8_t, N>::load_lanes(detail::bytes_of(p), bits, uint8_t(fill)));
    else if constexpr (wide) {
        constexpr int H = N / 2;
        return join(Vec<T, H>::load_lanes(p, bits, fill), Vec<T, H>::load_lanes(p + H, bits >> H, fill));
    } else if constexpr (detail::lane_masks<storage>) {
        using I = detail::as_ints<storage>;
        return Vec((storage)detail::masked_load(p, bits, (I)Vec(fill).v));
    } else {
        T lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = bits >> i & 1 ? element(p, i) : fill;
        return load(lanes);
    }
}

// Of lanes with equal indexes the last is written, as by a loop.
#if JM_AVX512
template <class T, int N>
JM_INLINE Vec<T, N> Vec<T, N>::gather_lanes(const T* p, Vec<int64_t, N> index, uint64_t bits, T fill) {
    using Index = raw<long long, 8>;
    if constexpr (N > 8) {
        constexpr int H = N / 2;
        return join(Vec<T, H>::gather_lanes(p, index.lo(), bits, fill),
                    Vec<T, H>::gather_lanes(p, index.hi(), bits >> H, fill));
    } else if constexpr (sizeof(T) == 8)
        return Vec((storage)__builtin_ia32_gatherdiv8di((Index)Vec(fill).v, p, (Index)index.v, bits, 8));
    else
        return Vec((storage)__builtin_ia32_gatherdiv16si((raw<int, 8>)Vec(fill).v, p, (Index)index.v, bits, 4));
}
template <class T, int N>
JM_INLINE void Vec<T, N>::scatter_lanes(T* p, Vec<int64_t, N> index, uint64_t bits) const {
    using Index = raw<long long, 8>;
    if constexpr (N > 8) {
        lo().scatter_lanes(p, index.lo(), bits);
        hi().scatter_lanes(p, index.hi(), bits >> (N / 2));
    } else if constexpr (sizeof(T) == 8) __builtin_ia32_scatterdiv8di(p, bits, (Index)index.v, (Index)v, 8);
    else __builtin_ia32_scatterdiv16si(p, bits, (Index)index.v, (raw<int, 8>)v, 4);
}
#endif

template <class T, int N> JM_INLINE void Vec<T, N>::store(T* p) const {
    if constexpr (is_bool<T>) convert<uint8_t>(*this).store(detail::bytes_of(p));
    else if constexpr (wide) {
        v.lo.store(p);
        v.hi.store(p + N / 2);
    } else __builtin_memcpy(p, &v, sizeof v);
}

template <class T, int N> JM_INLINE void Vec<T, N>::store(T* p, int64_t n) const {
    if constexpr (is_bool<T>) convert<uint8_t>(*this).store(detail::bytes_of(p), n);
    else if constexpr (wide) {
        v.lo.store(p, n);
        if (JM_AVX512 || n > N / 2) v.hi.store(p + N / 2, n - N / 2);
    } else if constexpr (detail::lane_masks<storage>) {
        using I = detail::as_ints<storage>;
        detail::masked_store(p, detail::first_bits(n), (I)v);
    } else {
        T lanes[N];
        store(lanes);
        __builtin_memcpy(p, lanes, sizeof(T) * uint64_t(n < N ? n : N));
    }
}

template <class T, int N> JM_INLINE void Vec<T, N>::stream(T* p) const {
    if constexpr (wide) {
        v.lo.stream(p);
        v.hi.stream(p + N / 2);
    } else {
#if JM_X86
        if constexpr (!is_bool<T> && sizeof(storage) >= 16) {
            if (((uintptr_t)p & (sizeof(storage) - 1)) == 0) {
#if JM_CLANG
                return __builtin_nontemporal_store(v, (storage*)p);
#else
#if JM_AVX512
                if constexpr (sizeof(storage) == 64)
                    return __builtin_ia32_movntps512((float*)p, (f32x16)v);
#endif
#if JM_AVX2
                if constexpr (sizeof(storage) == 32)
                    return __builtin_ia32_movntps256((float*)p, (f32x8)v);
#endif
                if constexpr (sizeof(storage) == 16)
                    return __builtin_ia32_movntps((float*)p, (f32x4)v);
#endif
            }
        }
#endif
        store(p);
    }
}

}   // namespace jm

#include "ops.h"   // a Vec is of no use without its operations
