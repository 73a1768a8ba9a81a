// The elementary functions of the pointwise table, for float and double, scalars and Vec. Includes
// the rest of the table.
//
// In and out: values of one real dtype (pow also integers). Vectorised: exp exp2 expm1 log log2
// log10 log1p sin cos tan tanh atan erf sigmoid pow of float; exp expm1 log tanh sigmoid of double.
// The others, and all of them on a target without AVX2+FMA, call libm lane by lane.
// Invariant: a value never depends on neighbouring lanes; scalars (always libm) and Vec agree to the
// accuracy stated in math_float.h.
#pragma once
#include "math_double.h"

namespace jm {

#define JM_LIBM1(NAME, BUILTIN) \
    JM_FOR_SCALAR(is_real<T>) T NAME(T a) { \
        if constexpr (same<T, float>) return __builtin_##BUILTIN##f(a); \
        else return __builtin_##BUILTIN(a); \
    }
#define JM_LIBM2(NAME, BUILTIN) \
    JM_FOR_SCALAR(is_real<T>) T NAME(T a, T b) { \
        if constexpr (same<T, float>) return __builtin_##BUILTIN##f(a, b); \
        else return __builtin_##BUILTIN(a, b); \
    }
JM_LIBM1(exp, exp)
JM_LIBM1(exp2, exp2)
JM_LIBM1(expm1, expm1)
JM_LIBM1(log, log)
JM_LIBM1(log2, log2)
JM_LIBM1(log10, log10)
JM_LIBM1(log1p, log1p)
JM_LIBM1(sin, sin)
JM_LIBM1(cos, cos)
JM_LIBM1(tan, tan)
JM_LIBM1(asin, asin)
JM_LIBM1(acos, acos)
JM_LIBM1(atan, atan)
JM_LIBM1(sinh, sinh)
JM_LIBM1(cosh, cosh)
JM_LIBM1(tanh, tanh)
JM_LIBM1(asinh, asinh)
JM_LIBM1(acosh, acosh)
JM_LIBM1(atanh, atanh)
JM_LIBM1(erf, erf)
JM_LIBM1(lgamma, lgamma)
JM_LIBM2(atan2, atan2)
JM_LIBM2(hypot, hypot)
JM_LIBM2(nextafter, nextafter)
#undef JM_LIBM1
// glibc's erfcf errs by 1.8 ulp, eager's by 0.7.
JM_FOR_SCALAR(is_real<T>) T erfc(T a) { return T(__builtin_erfc(double(a))); }
#undef JM_LIBM2

JM_FOR_SCALAR(is_real<T>) T sigmoid(T a) {
    T e = exp(-abs(a));
    return (a < T(0) ? e : T(1)) / (T(1) + e);
}

// Equal infinities, whose difference is NaN, are returned.
JM_FOR_SCALAR(is_real<T>) T logaddexp(T a, T b) {
    return a == b && isinf(a) ? a : maximum(a, b) + log1p(exp(-abs(a - b)));
}

JM_FOR_SCALAR(is_number<T>) T pow(T a, T b) {
    if constexpr (same<T, float>) return __builtin_powf(a, b);
    else if constexpr (same<T, double>) return __builtin_pow(a, b);
    else {   // by squaring; a negative exponent leaves only 1 and -1
        if (b < T(0))
            return a == T(1) ? T(1) : !is_unsigned<T> && a == T(-1) ? (b % 2 ? a : T(1)) : T(0);
        uint64_t out = 1, base = uint64_t(a);
        for (uint64_t n = uint64_t(b); n; n >>= 1, base *= base) out *= n & 1 ? base : 1;
        return T(out);
    }
}

namespace detail {
// Solves erf(x) = y, or erfc(x) = 1 - |y| where erf is flat: Winitzki's closed form, then Halley's
// iteration, cubically convergent.
JM_NOINLINE inline double erfinv(double y) {
    double a = __builtin_fabs(y), rest = 1.0 - a;
    if (!(a < 1.0)) return a == 1.0 ? __builtin_copysign(__builtin_inf(), y) : __builtin_nan("");
    if (a < 1e-9) return y * 0.88622692545275801365;   // sqrt(pi) / 2
    double l = __builtin_log(rest * (1.0 + a)), h = 4.33074675078 + 0.5 * l;
    double x = __builtin_sqrt(__builtin_sqrt(h * h - l / 0.147) - h);
    for (int i = 0; i < 3; ++i) {
        double error = a < 0.5 ? __builtin_erf(x) - a : rest - __builtin_erfc(x);
        double step = error / (1.1283791670955125739 * __builtin_exp(-x * x));
        x -= step / (1.0 + x * step);
    }
    return __builtin_copysign(x, y);
}
}   // namespace detail
JM_FOR_SCALAR(is_real<T>) T erfinv(T a) { return T(detail::erfinv(double(a))); }

// --- Vec -----------------------------------------------------------------------------------------

JM_EACH1(asin)
JM_EACH1(acos)
JM_EACH1(sinh)
JM_EACH1(cosh)
JM_EACH1(asinh)
JM_EACH1(acosh)
JM_EACH1(atanh)
JM_EACH1(erfinv)
JM_EACH1(lgamma)
JM_EACH2(atan2)
JM_EACH2(hypot)
JM_EACH2(nextafter)

namespace detail {
template <class T, int N> constexpr bool vector_math =
    has_fma && !Vec<T, N>::wide && sizeof(typename Vec<T, N>::storage) >= 16;
}   // namespace detail

#define JM_FAST_FLOAT(NAME) \
    JM_FOR_VEC Vec<T, N> NAME(Vec<T, N> a) { \
        if constexpr (Vec<T, N>::wide) return JM_SPLIT1(NAME, a); \
        else if constexpr (same<T, float> && detail::vector_math<T, N>) \
            return Vec<T, N>(fast::NAME(a.v)); \
        else return detail::each(a, [](T x) { return NAME(x); }); \
    }
#define JM_FAST_BOTH(NAME) \
    JM_FOR_VEC Vec<T, N> NAME(Vec<T, N> a) { \
        if constexpr (Vec<T, N>::wide) return JM_SPLIT1(NAME, a); \
        else if constexpr (!detail::vector_math<T, N>) \
            return detail::each(a, [](T x) { return NAME(x); }); \
        else if constexpr (same<T, float>) return Vec<T, N>(fast::NAME(a.v)); \
        else return Vec<T, N>(fast::NAME##_d(a.v)); \
    }
JM_FAST_BOTH(exp)
JM_FAST_BOTH(expm1)
JM_FAST_BOTH(log)
JM_FAST_BOTH(tanh)
JM_FAST_BOTH(sigmoid)
JM_FAST_FLOAT(exp2)
JM_FAST_FLOAT(log2)
JM_FAST_FLOAT(log10)
JM_FAST_FLOAT(log1p)
JM_FAST_FLOAT(sin)
JM_FAST_FLOAT(cos)
JM_FAST_FLOAT(tan)
JM_FAST_FLOAT(atan)
JM_FAST_FLOAT(erf)
#undef JM_FAST_FLOAT
#undef JM_FAST_BOTH

JM_FOR_VEC Vec<T, N> logaddexp(Vec<T, N> a, Vec<T, N> b) {
    return where(eq(a, b) & isinf(a), a, maximum(a, b) + log1p(exp(-abs(a - b))));
}

namespace detail {
template <int N> JM_INLINE Vec<double, N> erfc_wide(Vec<double, N> a) {
    if constexpr (Vec<double, N>::wide) return JM_SPLIT1(erfc_wide, a);
    else return Vec<double, N>(fast::erfc_single(a.v));
}
}   // namespace detail
JM_FOR_VEC Vec<T, N> erfc(Vec<T, N> a) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT1(erfc, a);
    else if constexpr (same<T, float> && detail::vector_math<T, N> && N >= 4)
        return convert<float>(detail::erfc_wide(convert<double>(a)));
    else return detail::each(a, [](T x) { return erfc(x); });
}

namespace detail {
template <int N> JM_NOINLINE Vec<float, N> pow_lanes(Vec<float, N> a, Vec<float, N> b) {
    return each(a, b, [](float x, float y) { return __builtin_powf(x, y); });
}
template <int N> JM_INLINE Vec<double, N> pow_wide(Vec<double, N> a, Vec<double, N> y) {
    if constexpr (Vec<double, N>::wide) return JM_SPLIT2(pow_wide, a, y);
    else return Vec<double, N>(fast::pow_single(a.v, y.v));
}
// Zeros, infinities and NaN go to libm; a negative base takes the sign of an odd exponent, NaN for
// a fraction.
template <int N> JM_INLINE Vec<float, N> pow_float(Vec<float, N> a, Vec<float, N> b) {
    using V = Vec<float, N>;
    V size = abs(a), zero(0.0f);
    Mask<N> plain = gt(size, zero) & isfinite(a) & isfinite(b);
    if (__builtin_expect(!all(plain), 0)) return pow_lanes(a, b);
    V out = convert<float>(pow_wide(convert<double>(size), convert<double>(b)));
    Mask<N> negative = lt(a, zero);
    if (__builtin_expect(!any(negative), 1)) return out;
    V half = b * 0.5f, not_whole = V(__builtin_nanf(""));
    V signed_out = where(eq(trunc(half), half), out, -out);
    return where(negative, where(eq(trunc(b), b), signed_out, not_whole), out);
}
}   // namespace detail

JM_FOR_VEC Vec<T, N> pow(Vec<T, N> a, Vec<T, N> b) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT2(pow, a, b);
    else if constexpr (same<T, float> && detail::vector_math<T, N> && N >= 4)
        return detail::pow_float(a, b);
    else return detail::each(a, b, [](T x, T y) { return pow(x, y); });
}

}   // namespace jm
