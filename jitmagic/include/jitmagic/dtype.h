// Element types of generated kernels.
//
// In: the dtypes of torch as C++ types. Out: `bf16` and `f16` (storage only: convert to float,
// compute, convert back), `f8`, float8_e4m3fn (only read: convert to float), traits, and `convert<U>(x)` between scalars. Invariant: float -> bf16/f16
// rounds to nearest even, NaN stays NaN, overflow goes to infinity, as torch does. float -> integer
// truncates; out of range is unspecified but never traps. anything -> bool is x != 0.
#pragma once
#include <stdint.h>

#ifdef __x86_64__
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
#ifdef __aarch64__
#define JM_NEON 1
#else
#define JM_NEON 0
#endif
#ifdef __clang__
#define JM_CLANG 1
#else
#define JM_CLANG 0
#endif

#define JM_INLINE inline __attribute__((always_inline))
#define JM_NOINLINE __attribute__((noinline, cold))   // for paths that are rarely taken

namespace jm {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct f8 {
    uint8_t bits;
};

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <bool C, class T = int> struct only_if {};
template <class T> struct only_if<true, T> {
    using type = T;
};
template <bool C, class T = int> using when = typename only_if<C, T>::type;
template <bool C, class A, class B> struct pick_type {
    using type = A;
};
template <class A, class B> struct pick_type<false, A, B> {
    using type = B;
};

template <class T> constexpr bool is_real = same<T, float> || same<T, double>;
template <class T> constexpr bool is_half = same<T, bf16> || same<T, f16>;
// A type of bits that are converted to float before anything is computed.
template <class T> constexpr bool is_stored = is_half<T> || same<T, f8>;
template <class T> constexpr bool is_bool = same<T, bool>;
template <class T> constexpr bool is_int =
    same<T, int8_t> || same<T, uint8_t> || same<T, int16_t> || same<T, uint16_t> ||
    same<T, int32_t> || same<T, uint32_t> || same<T, int64_t> || same<T, uint64_t>;
template <class T> constexpr bool is_unsigned = is_int<T> && T(-1) > T(0);
template <> inline constexpr bool is_unsigned<bf16> = false;
template <> inline constexpr bool is_unsigned<f16> = false;
template <class T> constexpr bool is_number = is_real<T> || is_int<T>;   // has arithmetic
template <class T> constexpr bool is_scalar = is_number<T> || is_bool<T>;

template <int Bytes> struct int_of_size;
template <> struct int_of_size<1> {
    using type = int8_t;
    using unsigned_type = uint8_t;
};
template <> struct int_of_size<2> {
    using type = int16_t;
    using unsigned_type = uint16_t;
};
template <> struct int_of_size<4> {
    using type = int32_t;
    using unsigned_type = uint32_t;
};
template <> struct int_of_size<8> {
    using type = int64_t;
    using unsigned_type = uint64_t;
};
template <class T> using signed_of = typename int_of_size<sizeof(T)>::type;
template <class T> using unsigned_of = typename int_of_size<sizeof(T)>::unsigned_type;

template <class To, class From> JM_INLINE To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To out;
    __builtin_memcpy(&out, &x, sizeof out);
    return out;
}

JM_INLINE float widen(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

JM_INLINE bf16 to_bf16(float x) {
    uint32_t u = bit_cast<uint32_t>(x);
    if (x != x) return {uint16_t((u >> 16) | 0x40)};
    return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

JM_INLINE float widen(f16 x) {
    // Shift exponent and mantissa into float's place; the multiplication by 2^112 rebiases,
    // denormals included.
    uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = uint32_t(x.bits & 0x7fff) << 13;
    float scaled = bit_cast<float>(rest) * 0x1p112f;
    uint32_t out = rest >= 0x0f800000u ? (rest + 0x70000000u) : bit_cast<uint32_t>(scaled);
    return bit_cast<float>(out | sign);
}

JM_INLINE f16 to_f16(float x) {
    uint32_t u = bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000u) return {uint16_t(sign | 0x7e00 | ((mag >> 13) & 0x3ff))};
    if (mag >= 0x477ff000u) return {uint16_t(sign | 0x7c00)};
    if (mag <
        0x38800000u) {   // a denormal half: + 0.5 aligns its last bit and rounds to even
        return {uint16_t(sign | (bit_cast<uint32_t>(bit_cast<float>(mag) + 0.5f) - 0x3f000000u))};
    }
    return {uint16_t(sign | ((mag - 0x38000000u + 0xfff + ((mag >> 13) & 1)) >> 13))};
}

// The bits of an f16 that is 2^8 times smaller, denormals included. 0x7f and 0xff are NaN.
JM_INLINE float widen(f8 x) {
    uint16_t half = uint16_t((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7);
    return (x.bits & 0x7f) == 0x7f ? __builtin_nanf("") : widen(f16{half}) * 256.0f;
}

JM_INLINE double widen(double x) { return x; }
template <class T, when<is_scalar<T> && !same<T, double>> = 0> JM_INLINE T widen(T x) { return x; }

// An empty asm keeps float(int(x)) two conversions: gcc makes it trunc(x), which keeps infinities and gives -0 for -0.5.
// clang would compute no value at all for a constant that is out of range.
template <class I, class T> JM_INLINE I truncated(T x) {
    if constexpr (JM_CLANG) asm("" : "+" JM_VECTOR_REGISTER(x));
    I out = I(x);
    asm("" : "+r"(out));
    return out;
}

template <class U, class T> JM_INLINE U convert(T x) {
    if constexpr (same<U, T>) return x;
    else if constexpr (same<U, bf16>) return to_bf16(float(widen(x)));
    else if constexpr (same<U, f16>) return to_f16(float(widen(x)));
    else if constexpr (is_bool<U>) return widen(x) != 0;
    else if constexpr (is_int<U> && !is_int<T> && !is_bool<T>) {
        // Through a wide enough signed integer, then wrapped: as x86 does, and so eager's kernels and vectors (int32 of
        // inf is INT32_MIN), without undefined narrowing.
        if constexpr (sizeof(U) < 4 || same<U, int32_t>) return U(truncated<int32_t>(widen(x)));
        else return U(truncated<int64_t>(widen(x)));
    } else return U(widen(x));
}

}   // namespace jm
