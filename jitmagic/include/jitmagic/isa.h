// The instruction set: the width of a register, and the few instructions for which GCC's vector
// extension has no operator.
//
// In: the target macros of the compiler. Out: `native_bytes`, `lanes<T>`, raw register types and
// register-level fma / sqrt / round / scalef / mantissa / exponent. <immintrin.h> is not included: it
// alone costs more to parse than everything here, and the builtins behind it need no header.
// Invariant: each function has a lane-by-lane version that works on any target.
#pragma once
#include "dtype.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define JM_X86 1
#define JM_VECTOR_REGISTER "x"
#else
#define JM_X86 0
#ifdef __aarch64__
#define JM_VECTOR_REGISTER "w"
#else
#define JM_VECTOR_REGISTER "m"
#endif
#endif
#if JM_X86 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#define JM_AVX512 1
#else
#define JM_AVX512 0
#endif
#if JM_X86 && defined(__AVX2__) && defined(__FMA__)
#define JM_FMA 1
#else
#define JM_FMA 0
#endif

namespace jm {

constexpr int native_bytes = JM_AVX512 ? 64 : JM_FMA ? 32 : 16;
template <class T> constexpr int lanes = native_bytes / int(sizeof(T));

// The type of one lane in a register of T: halves are stored as bits, bool as a 32-bit mask (0 or -1).
template <class T> struct lane_of {
    using type = T;
};
template <> struct lane_of<bf16> {
    using type = uint16_t;
};
template <> struct lane_of<f16> {
    using type = uint16_t;
};
template <> struct lane_of<bool> {
    using type = int32_t;
};
template <class T> using lane_t = typename lane_of<T>::type;

template <class T, int N> struct raw_of {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N> using raw = typename raw_of<T, N>::type;

using f32x16 = raw<float, 16>;
using f32x8 = raw<float, 8>;
using f32x4 = raw<float, 4>;
using f64x8 = raw<double, 8>;
using f64x4 = raw<double, 4>;
using f64x2 = raw<double, 2>;

template <int... I> struct seq {};
#if defined(__clang__)
template <class T, T... I> using seq_from = seq<I...>;
template <int N> using seq_to = __make_integer_seq<seq_from, int, N>;
#else
template <int N> using seq_to = seq<__integer_pack(N)...>;
#endif

namespace reg {

template <class R> constexpr int count = sizeof(R) / sizeof(R{}[0]);
template <class R> using lane = typename pick_type<sizeof(R{}[0]) == 4, float, double>::type;

// Any target: lane by lane.
JM_INLINE float lane_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
JM_INLINE double lane_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
JM_INLINE float lane_sqrt(float a) { return __builtin_sqrtf(a); }
JM_INLINE double lane_sqrt(double a) { return __builtin_sqrt(a); }
enum rounding {
    nearest = 8,
    down = 9,
    up = 10,
    zero = 11
};   // the immediates of vroundps, without exceptions
template <int How, class T> JM_INLINE T lane_round(T a) {
    if constexpr (same<T, float>) {
        return How == nearest ? __builtin_rintf(a)
               : How == down  ? __builtin_floorf(a)
               : How == up    ? __builtin_ceilf(a)
                              : __builtin_truncf(a);
    } else {
        return How == nearest ? __builtin_rint(a)
               : How == down  ? __builtin_floor(a)
               : How == up    ? __builtin_ceil(a)
                              : __builtin_trunc(a);
    }
}

template <class R> JM_INLINE R fma(R a, R b, R c) {
    R out = c;
    for (int i = 0; i < count<R>; ++i)
        out[i] = lane_fma(lane<R>(a[i]), lane<R>(b[i]), lane<R>(c[i]));
    return out;
}
template <class R> JM_INLINE R sqrt(R a) {
    R out = a;
    for (int i = 0; i < count<R>; ++i) out[i] = lane_sqrt(lane<R>(a[i]));
    return out;
}
template <int How, class R> JM_INLINE R round(R a) {
    R out = a;
    for (int i = 0; i < count<R>; ++i) out[i] = lane_round<How>(lane<R>(a[i]));
    return out;
}

// The smaller of limit and x, x where x is NaN (and the larger, likewise).
template <class R> JM_INLINE R at_most(R x, R limit) { return x > limit ? limit : x; }
template <class R> JM_INLINE R at_least(R x, R limit) { return x < limit ? limit : x; }
// Whether some lane is above the limit, or NaN.
template <class R> JM_INLINE bool any_beyond(R x, R limit) {
    bool out = false;
    for (int i = 0; i < count<R>; ++i) out |= !(x[i] <= limit[i]);
    return out;
}

#if JM_FMA
JM_INLINE f32x8 at_most(f32x8 x, f32x8 limit) { return __builtin_ia32_minps256(limit, x); }
JM_INLINE f32x8 at_least(f32x8 x, f32x8 limit) { return __builtin_ia32_maxps256(limit, x); }
JM_INLINE f64x4 at_most(f64x4 x, f64x4 limit) { return __builtin_ia32_minpd256(limit, x); }
JM_INLINE f64x4 at_least(f64x4 x, f64x4 limit) { return __builtin_ia32_maxpd256(limit, x); }
JM_INLINE bool any_beyond(f32x8 x, f32x8 limit) {
    return __builtin_ia32_movmskps256((f32x8) ~(x <= limit)) != 0;
}
JM_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
JM_INLINE f64x4 fma(f64x4 a, f64x4 b, f64x4 c) { return __builtin_ia32_vfmaddpd256(a, b, c); }
JM_INLINE f32x4 fma(f32x4 a, f32x4 b, f32x4 c) { return __builtin_ia32_vfmaddps(a, b, c); }
JM_INLINE f64x2 fma(f64x2 a, f64x2 b, f64x2 c) { return __builtin_ia32_vfmaddpd(a, b, c); }
JM_INLINE f32x8 sqrt(f32x8 a) { return __builtin_ia32_sqrtps256(a); }
JM_INLINE f64x4 sqrt(f64x4 a) { return __builtin_ia32_sqrtpd256(a); }
template <int How> JM_INLINE f32x8 round(f32x8 a) { return __builtin_ia32_roundps256(a, How); }
template <int How> JM_INLINE f64x4 round(f64x4 a) { return __builtin_ia32_roundpd256(a, How); }
template <int How> JM_INLINE f32x4 round(f32x4 a) { return __builtin_ia32_roundps(a, How); }
template <int How> JM_INLINE f64x2 round(f64x2 a) { return __builtin_ia32_roundpd(a, How); }
#endif
#if JM_X86
JM_INLINE f32x4 at_most(f32x4 x, f32x4 limit) { return __builtin_ia32_minps(limit, x); }
JM_INLINE f32x4 at_least(f32x4 x, f32x4 limit) { return __builtin_ia32_maxps(limit, x); }
JM_INLINE f32x4 sqrt(f32x4 a) { return __builtin_ia32_sqrtps(a); }
JM_INLINE f64x2 sqrt(f64x2 a) { return __builtin_ia32_sqrtpd(a); }
#endif

#if JM_AVX512
constexpr uint16_t all16 = 0xffff;
constexpr uint8_t all8 = 0xff;
constexpr int current = 4;   // the current rounding direction
JM_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return __builtin_ia32_vfmaddps512_mask(a, b, c, all16, current);
}
JM_INLINE f64x8 fma(f64x8 a, f64x8 b, f64x8 c) {
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, all8, current);
}
JM_INLINE f32x16 at_most(f32x16 x, f32x16 limit) {
    return __builtin_ia32_minps512_mask(limit, x, x, all16, current);
}
JM_INLINE f32x16 at_least(f32x16 x, f32x16 limit) {
    return __builtin_ia32_maxps512_mask(limit, x, x, all16, current);
}
JM_INLINE f64x8 at_most(f64x8 x, f64x8 limit) {
    return __builtin_ia32_minpd512_mask(limit, x, x, all8, current);
}
JM_INLINE f64x8 at_least(f64x8 x, f64x8 limit) {
    return __builtin_ia32_maxpd512_mask(limit, x, x, all8, current);
}
JM_INLINE bool any_beyond(f32x16 x, f32x16 limit) {
    return __builtin_ia32_cmpps512_mask(x, limit, 6, all16, current) != 0;
}
JM_INLINE f32x16 sqrt(f32x16 a) { return __builtin_ia32_sqrtps512_mask(a, a, all16, current); }
JM_INLINE f64x8 sqrt(f64x8 a) { return __builtin_ia32_sqrtpd512_mask(a, a, all8, current); }
template <int How> JM_INLINE f32x16 round(f32x16 a) {
    return __builtin_ia32_rndscaleps_mask(a, How, a, all16, current);
}
template <int How> JM_INLINE f64x8 round(f64x8 a) {
    return __builtin_ia32_rndscalepd_mask(a, How, a, all8, current);
}
// a * 2^floor(b), rounded once, whatever the exponents.
JM_INLINE f32x16 scalef(f32x16 a, f32x16 b) {
    return __builtin_ia32_scalefps512_mask(a, b, a, all16, current);
}
JM_INLINE f64x8 scalef(f64x8 a, f64x8 b) {
    return __builtin_ia32_scalefpd512_mask(a, b, a, all8, current);
}
JM_INLINE f32x8 scalef(f32x8 a, f32x8 b) { return __builtin_ia32_scalefps256_mask(a, b, a, all8); }
JM_INLINE f64x4 scalef(f64x4 a, f64x4 b) { return __builtin_ia32_scalefpd256_mask(a, b, a, all8); }
JM_INLINE f32x4 scalef(f32x4 a, f32x4 b) { return __builtin_ia32_scalefps128_mask(a, b, a, all8); }
JM_INLINE f64x2 scalef(f64x2 a, f64x2 b) { return __builtin_ia32_scalefpd128_mask(a, b, a, all8); }
#endif

// Converts lanes to another type by one instruction if there is one: for lanes that change their size g++ 12 makes four
// from __builtin_convertvector, and sixty if 16 bytes become floats.
template <class To, class From> JM_INLINE To converted(From a) {
#if JM_AVX512
    using i32x8 = raw<int32_t, 8>;
    constexpr bool to_words = same<To, raw<int32_t, 16>> || same<To, raw<uint32_t, 16>>;
    constexpr bool of_words = same<From, raw<int32_t, 16>> || same<From, raw<uint32_t, 16>>;
    if constexpr (same<To, f64x8> && same<From, f32x8>)
        return __builtin_ia32_cvtps2pd512_mask(a, To{}, all8, current);
    else if constexpr (same<To, f64x8> && same<From, i32x8>)
        return __builtin_ia32_cvtdq2pd512_mask(a, To{}, all8);
    else if constexpr (same<To, raw<int64_t, 8>> && same<From, i32x8>)
        return (To)__builtin_ia32_pmovsxdq512_mask(a, raw<long long, 8>{}, all8);
    else if constexpr (same<To, i32x8> && same<From, raw<int64_t, 8>>)
        return (To)__builtin_ia32_pmovqd512_mask((raw<long long, 8>)a, raw<int, 8>{}, all8);
    else if constexpr (to_words && same<From, raw<uint16_t, 16>>)
        return (To)__builtin_ia32_pmovzxwd512_mask((raw<short, 16>)a, raw<int, 16>{}, all16);
    else if constexpr (to_words && same<From, raw<int16_t, 16>>)
        return (To)__builtin_ia32_pmovsxwd512_mask((raw<short, 16>)a, raw<int, 16>{}, all16);
    else if constexpr (to_words && same<From, raw<uint8_t, 16>>)
        return (To)__builtin_ia32_pmovzxbd512_mask((raw<char, 16>)a, raw<int, 16>{}, all16);
    else if constexpr (to_words && same<From, raw<int8_t, 16>>)
        return (To)__builtin_ia32_pmovsxbd512_mask((raw<char, 16>)a, raw<int, 16>{}, all16);
    else if constexpr (of_words && same<To, raw<uint16_t, 16>>)
        return (To)__builtin_ia32_pmovdw512_mask((raw<int, 16>)a, raw<short, 16>{}, all16);
    else
#endif
        return __builtin_convertvector(a, To);
}

}   // namespace reg
}   // namespace jm
