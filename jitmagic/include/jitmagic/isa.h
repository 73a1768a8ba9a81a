// The instruction set: the width of a register, and the few instructions for which vector types have no operator.
//
// In: the target macros of the compiler. Out: `native_bytes`, `lanes<T>`, raw register types and
// register-level fma / sqrt / round / scalef / masked memory. <immintrin.h> and <arm_neon.h> are not
// included: they alone cost more to parse than everything here, and the builtins behind them need no header.
// Invariant: each function has a version that works on any target. It goes lane by lane for GCC, which makes one NEON
// instruction of it but not always one of AVX2; clang has builtins for vectors of any target.
#pragma once
#include "dtype.h"

// Whether there are fma and sqrt of vectors of any target (clang from 15 on, or so).
#if JM_CLANG && __has_builtin(__builtin_elementwise_fma) && __has_builtin(__builtin_elementwise_sqrt)
#define JM_ELEMENTWISE 1
#else
#define JM_ELEMENTWISE 0
#endif
// Whether vectors of __fp16 are converted by instructions. (GCC has no such vectors on x86.)
#if JM_NEON || (JM_CLANG && JM_X86 && defined(__F16C__))
#define JM_HALVES 1
#else
#define JM_HALVES 0
#endif
#if JM_X86 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#define JM_AVX512 1
#else
#define JM_AVX512 0
#endif
#if JM_X86 && defined(__AVX2__) && defined(__FMA__)
#define JM_AVX2 1
#else
#define JM_AVX2 0
#endif

namespace jm {

constexpr int native_bytes = JM_AVX512 ? 64 : JM_AVX2 ? 32 : 16;
constexpr bool has_fma = JM_AVX2 || JM_NEON;
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
template <> struct lane_of<f8> {
    using type = uint8_t;
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

#if JM_ELEMENTWISE
template <class R> JM_INLINE R fma(R a, R b, R c) { return __builtin_elementwise_fma(a, b, c); }
template <class R> JM_INLINE R sqrt(R a) { return __builtin_elementwise_sqrt(a); }
#else
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
#endif
template <int How, class R> JM_INLINE R round(R a) {
#if JM_CLANG
    return How == nearest ? __builtin_elementwise_roundeven(a)
           : How == down  ? __builtin_elementwise_floor(a)
           : How == up    ? __builtin_elementwise_ceil(a)
                          : __builtin_elementwise_trunc(a);
#else
    R out = a;
    for (int i = 0; i < count<R>; ++i) out[i] = lane_round<How>(lane<R>(a[i]));
    return out;
#endif
}

// The lanes of a and b at the positions I: as many as there are, half or twice as many.
template <class To, class R, int... I> JM_INLINE To shuffled(R a, R b, seq<I...>) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, I...);
#else  // GCC before 12
    if constexpr (sizeof(To) == sizeof(R)) 
        return __builtin_shuffle(a, b, raw<typename int_of_size<sizeof(a[0])>::type, count<R>>{I...});
    else {
        R both[] = {a, b};
        constexpr int first[] = {I...};
        To out;
        __builtin_memcpy(&out, (const char*)both + first[0] * sizeof(a[0]), sizeof out);
        return out;
    }
#endif
}

// The smaller of limit and x, x where x is NaN (and the larger, likewise).
template <class R> JM_INLINE R at_most(R x, R limit) { return x > limit ? limit : x; }
template <class R> JM_INLINE R at_least(R x, R limit) { return x < limit ? limit : x; }
// Hides the value from the optimiser by an empty asm. clang has no registers for vectors of less than 16 bytes.
template <class R> JM_INLINE void hide(R& v) {
    if constexpr (JM_CLANG && sizeof(R) < 16) asm("" : "+m"(v));
    else asm("" : "+" JM_VECTOR_REGISTER(v));
}

// Whether a bit is set.
template <class R> JM_INLINE bool any_set(R x) {
    if constexpr (sizeof(R) <= 8) return bit_cast<typename int_of_size<sizeof(R)>::unsigned_type>(x) != 0;
    else {
        auto words = (raw<uint64_t, sizeof(R) / 8>)x;
        uint64_t out = 0;
        for (int i = 0; i < count<decltype(words)>; ++i) out |= words[i];
        return out != 0;
    }
}
// Whether some lane is above the limit, or NaN.
template <class R> JM_INLINE bool any_beyond(R x, R limit) { return any_set(~(x <= limit)); }

#if JM_AVX2 && !JM_ELEMENTWISE
JM_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
JM_INLINE f64x4 fma(f64x4 a, f64x4 b, f64x4 c) { return __builtin_ia32_vfmaddpd256(a, b, c); }
JM_INLINE f32x4 fma(f32x4 a, f32x4 b, f32x4 c) { return __builtin_ia32_vfmaddps(a, b, c); }
JM_INLINE f64x2 fma(f64x2 a, f64x2 b, f64x2 c) { return __builtin_ia32_vfmaddpd(a, b, c); }
#endif
// GCC from 15 on makes a comparison and a blend of them, and merges these with others: a maximum of columns took 1.6 times
// as long as with vmaxps. The result is hidden from it.
template <class R> JM_INLINE R as_one(R v) {
#if !JM_CLANG && __GNUC__ >= 15
    hide(v);
#endif
    return v;
}
#define JM_ORDERED(R, KIND, ARGUMENTS) \
    JM_INLINE R at_most(R x, R limit) { return as_one(__builtin_ia32_min##KIND ARGUMENTS); } \
    JM_INLINE R at_least(R x, R limit) { return as_one(__builtin_ia32_max##KIND ARGUMENTS); }
#if JM_X86
JM_ORDERED(f32x4, ps, (limit, x))
#endif
#if JM_AVX2
JM_ORDERED(f32x8, ps256, (limit, x))
JM_ORDERED(f64x4, pd256, (limit, x))
JM_INLINE bool any_beyond(f32x8 x, f32x8 limit) {
    return __builtin_ia32_movmskps256((f32x8) ~(x <= limit)) != 0;
}
#endif
#if JM_AVX2 && !JM_CLANG
JM_INLINE f32x8 sqrt(f32x8 a) { return __builtin_ia32_sqrtps256(a); }
JM_INLINE f64x4 sqrt(f64x4 a) { return __builtin_ia32_sqrtpd256(a); }
template <int How> JM_INLINE f32x8 round(f32x8 a) { return __builtin_ia32_roundps256(a, How); }
template <int How> JM_INLINE f64x4 round(f64x4 a) { return __builtin_ia32_roundpd256(a, How); }
template <int How> JM_INLINE f32x4 round(f32x4 a) { return __builtin_ia32_roundps(a, How); }
template <int How> JM_INLINE f64x2 round(f64x2 a) { return __builtin_ia32_roundpd(a, How); }
#endif
#if JM_X86 && !JM_CLANG
JM_INLINE f32x4 sqrt(f32x4 a) { return __builtin_ia32_sqrtps(a); }
JM_INLINE f64x2 sqrt(f64x2 a) { return __builtin_ia32_sqrtpd(a); }
#endif

#if JM_AVX512
constexpr uint16_t all16 = 0xffff;
constexpr uint8_t all8 = 0xff;
constexpr int current = 4;   // the current rounding direction
JM_INLINE bool any_beyond(f32x16 x, f32x16 limit) {
    return __builtin_ia32_cmpps512_mask(x, limit, 6, all16, current) != 0;
}
#if !JM_ELEMENTWISE
JM_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return __builtin_ia32_vfmaddps512_mask(a, b, c, all16, current);
}
JM_INLINE f64x8 fma(f64x8 a, f64x8 b, f64x8 c) {
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, all8, current);
}
#endif
#if JM_CLANG
JM_ORDERED(f32x16, ps512, (limit, x, current))
JM_ORDERED(f64x8, pd512, (limit, x, current))
#else
JM_ORDERED(f32x16, ps512_mask, (limit, x, x, all16, current))
JM_ORDERED(f64x8, pd512_mask, (limit, x, x, all8, current))
#endif
#if !JM_CLANG
JM_INLINE f32x16 sqrt(f32x16 a) { return __builtin_ia32_sqrtps512_mask(a, a, all16, current); }
JM_INLINE f64x8 sqrt(f64x8 a) { return __builtin_ia32_sqrtpd512_mask(a, a, all8, current); }
template <int How> JM_INLINE f32x16 round(f32x16 a) {
    return __builtin_ia32_rndscaleps_mask(a, How, a, all16, current);
}
template <int How> JM_INLINE f64x8 round(f64x8 a) {
    return __builtin_ia32_rndscalepd_mask(a, How, a, all8, current);
}
#endif
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
#undef JM_ORDERED

// Converts lanes to another type by one instruction if there is one: for lanes that change their size g++ 12 makes four
// from __builtin_convertvector, and sixty if 16 bytes become floats.
template <class To, class From> JM_INLINE To converted(From a) {
#if JM_AVX512 && !JM_CLANG
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

// --- masked memory -------------------------------------------------------------------------------

namespace detail {
#if JM_AVX512
// The first n lanes as bits: for a tail they are computed once, outside of the enclosing loops.
JM_INLINE uint64_t first_bits(int64_t n) {
    return __builtin_ia32_bzhi_di(~uint64_t(0), n < 0 ? 0 : n < 64 ? n : 64);
}
#if JM_CLANG
#define JM_CHOICE(BLEND, bits, a, b) __builtin_ia32_select##BLEND(bits, a, b)
#else
#define JM_CHOICE(BLEND, bits, a, b) __builtin_ia32_blendm##BLEND##_mask(b, a, bits)
#endif
// Compilers take a pointer to lanes or to vectors here.
struct Address {
    const void* p;
    template <class T> JM_INLINE operator T*() const { return (T*)p; }
};
#define JM_MASKED(BYTES, SUFFIX, BLEND, C, BITS) \
    JM_INLINE raw<C, BYTES / sizeof(C)> masked_load(const void* p, uint64_t bits, \
                                                    raw<C, BYTES / sizeof(C)> fill) { \
        return __builtin_ia32_loaddqu##SUFFIX##_mask(Address{p}, fill, BITS(bits)); \
    } \
    JM_INLINE void masked_store(void* p, uint64_t bits, raw<C, BYTES / sizeof(C)> v) { \
        __builtin_ia32_storedqu##SUFFIX##_mask(Address{p}, v, BITS(bits)); \
    } \
    JM_INLINE raw<C, BYTES / sizeof(C)> chosen(uint64_t bits, raw<C, BYTES / sizeof(C)> a, \
                                               raw<C, BYTES / sizeof(C)> b) { \
        return JM_CHOICE(BLEND, BITS(bits), a, b); \
    }
JM_MASKED(64, qi512, b_512, char, uint64_t)
JM_MASKED(64, hi512, w_512, short, uint32_t)
JM_MASKED(64, si512, d_512, int, uint16_t)
JM_MASKED(64, di512, q_512, long long, uint8_t)
JM_MASKED(32, qi256, b_256, char, uint32_t)
JM_MASKED(32, hi256, w_256, short, uint16_t)
JM_MASKED(32, si256, d_256, int, uint8_t)
JM_MASKED(32, di256, q_256, long long, uint8_t)
JM_MASKED(16, qi128, b_128, char, uint16_t)
JM_MASKED(16, hi128, w_128, short, uint8_t)
JM_MASKED(16, si128, d_128, int, uint8_t)
JM_MASKED(16, di128, q_128, long long, uint8_t)
#undef JM_MASKED
#undef JM_CHOICE
template <int BYTES> struct int_lane;
template <> struct int_lane<1> { using type = char; };
template <> struct int_lane<2> { using type = short; };
template <> struct int_lane<4> { using type = int; };
template <> struct int_lane<8> { using type = long long; };
template <class R> using as_ints = raw<typename int_lane<sizeof(R{}[0])>::type, reg::count<R>>;
template <class R> constexpr bool lane_masks = sizeof(R) >= 16;
#else
template <class R> constexpr bool lane_masks = false;
JM_INLINE uint64_t first_bits(int64_t n);
template <class R> R masked_load(const void* p, uint64_t bits, R fill);
template <class R> void masked_store(void* p, uint64_t bits, R v);
template <class R> R chosen(uint64_t bits, R a, R b);
template <class R> using as_ints = R;
#endif
}   // namespace detail

}   // namespace jm
