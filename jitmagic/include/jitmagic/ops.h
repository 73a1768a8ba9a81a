// Pointwise operations that need no approximation: arithmetic, comparison, rounding, logic and
// bits, for scalars and Vec.
//
// In and out: values of one dtype (comparisons and logic give bool). Invariant: torch's semantics,
// lane by lane: NaN propagates through minimum, maximum and relu; floordiv and remainder follow the
// divisor's sign; integers wrap; shifts by a negative or too large amount give 0 (or the sign for
// rshift); integer division by zero gives 0 and never traps.
#pragma once
#include "vec.h"

namespace jm {

#define JM_FOR_SCALAR(COND) template <class T, when<(COND)> = 0> JM_INLINE
#define JM_FOR_VEC template <class T, int N> JM_INLINE
#define JM_SPLIT1(NAME, a) join(NAME((a).lo()), NAME((a).hi()))
#define JM_SPLIT2(NAME, a, b) join(NAME((a).lo(), (b).lo()), NAME((a).hi(), (b).hi()))
#define JM_SPLIT3(NAME, a, b, c) \
    join(NAME((a).lo(), (b).lo(), (c).lo()), NAME((a).hi(), (b).hi(), (c).hi()))

namespace detail {
// Signed overflow is undefined for scalars and for vectors: wrap in the unsigned type.
template <class T, int N> using wrapping = raw<unsigned_of<T>, N>;

// Applies the scalar version to every lane, for operations without a faster vector version.
template <class T, int N, class F> JM_INLINE auto each(Vec<T, N> a, F f) {
    using U = decltype(f(T{}));
    T x[N];
    U out[N];
    a.store(x);
    for (int i = 0; i < N; ++i) out[i] = f(x[i]);
    return Vec<U, N>::load(out);
}
template <class T, int N, class F> JM_INLINE auto each(Vec<T, N> a, Vec<T, N> b, F f) {
    using U = decltype(f(T{}, T{}));
    T x[N], y[N];
    U out[N];
    a.store(x);
    b.store(y);
    for (int i = 0; i < N; ++i) out[i] = f(x[i], y[i]);
    return Vec<U, N>::load(out);
}
}   // namespace detail

#define JM_EACH1(NAME) \
    JM_FOR_VEC auto NAME(Vec<T, N> a) { \
        return detail::each(a, [](T x) { return NAME(x); }); \
    }
#define JM_EACH2(NAME) \
    JM_FOR_VEC auto NAME(Vec<T, N> a, Vec<T, N> b) { \
        return detail::each(a, b, [](T x, T y) { return NAME(x, y); }); \
    }

// A number of elements, to divide by. Powers of two have exact reciprocals, so a product is the quotient: a division
// takes longer than the sum of a short row (layer norm of rows of 64: 1.16 of the static kernel's time, 1.06 with the
// product).
template <class T> struct Divisor {
    T count, inverse;
    bool exact;

    JM_INLINE explicit Divisor(T n) : count(n), inverse(T(1) / n) {
        exact = (bit_cast<unsigned_of<T>>(n) << (sizeof(T) == 4 ? 9 : 12)) == 0;  // no bits but sign and exponent
    }
    template <class V> friend JM_INLINE V operator/(V value, const Divisor& by) {
        return by.exact ? value * by.inverse : value / by.count;
    }
};

// --- add, sub, mul, neg, truediv, fma ------------------------------------------------------------

#define JM_ARITHMETIC(NAME, OP, BOOL_OP) \
    JM_FOR_SCALAR(is_scalar<T>) T NAME(T a, T b) { \
        if constexpr (is_real<T>) return a OP b; \
        else if constexpr (is_bool<T>) return bool(int(a) BOOL_OP int(b)); \
        else return T(uint64_t(a) OP uint64_t(b)); \
    } \
    JM_FOR_VEC Vec<T, N> NAME(Vec<T, N> a, Vec<T, N> b) { \
        if constexpr (Vec<T, N>::wide) return JM_SPLIT2(NAME, a, b); \
        else if constexpr (is_real<T>) return Vec<T, N>(a.v OP b.v); \
        else if constexpr (is_bool<T>) return Vec<T, N>(a.v BOOL_OP b.v); \
        else { \
            using U = detail::wrapping<T, N>; \
            return Vec<T, N>((raw<T, N>)((U)a.v OP(U) b.v)); \
        } \
    }
JM_ARITHMETIC(add, +, |)
JM_ARITHMETIC(sub, -, ^)
JM_ARITHMETIC(mul, *, &)
#undef JM_ARITHMETIC

JM_FOR_SCALAR(is_number<T>) T neg(T a) {
    if constexpr (is_real<T>) return -a;
    else return T(-uint64_t(a));
}
JM_FOR_VEC Vec<T, N> neg(Vec<T, N> a) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT1(neg, a);
    else if constexpr (is_real<T>) return Vec<T, N>(-a.v);
    else return Vec<T, N>((raw<T, N>)(-(detail::wrapping<T, N>)a.v));
}

JM_FOR_SCALAR(is_real<T>) T truediv(T a, T b) { return a / b; }
JM_FOR_VEC Vec<T, N> truediv(Vec<T, N> a, Vec<T, N> b) {
    static_assert(is_real<T>, "truediv takes floating point: convert first");
    if constexpr (Vec<T, N>::wide) return JM_SPLIT2(truediv, a, b);
    else return Vec<T, N>(a.v / b.v);
}
template <class T> JM_INLINE T reciprocal(T a) { return truediv(T(1), a); }
template <class T> JM_INLINE T square(T a) { return mul(a, a); }

JM_FOR_SCALAR(is_real<T>) T fma(T a, T b, T c) { return reg::lane_fma(a, b, c); }
JM_FOR_VEC Vec<T, N> fma(Vec<T, N> a, Vec<T, N> b, Vec<T, N> c) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT3(fma, a, b, c);
    else return Vec<T, N>(reg::fma(a.v, b.v, c.v));
}

JM_FOR_SCALAR(is_real<T>) T sqrt(T a) { return reg::lane_sqrt(a); }
JM_FOR_VEC Vec<T, N> sqrt(Vec<T, N> a) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT1(sqrt, a);
    else return Vec<T, N>(reg::sqrt(a.v));
}
template <class T> JM_INLINE T rsqrt(T a) { return truediv(T(1), sqrt(a)); }

// --- comparison and logic ------------------------------------------------------------------------

#define JM_COMPARISON(NAME, OP) \
    JM_FOR_SCALAR(is_scalar<T>) bool NAME(T a, T b) { return a OP b; } \
    JM_FOR_VEC Mask<N> NAME(Vec<T, N> a, Vec<T, N> b) { \
        if constexpr (detail::split<T, N>) return JM_SPLIT2(NAME, a, b); \
        else if constexpr (is_bool<T>) return Mask<N>((-a.v)OP(-b.v)); \
        else return detail::mask_from<raw<signed_of<T>, N>, N>(a.v OP b.v); \
    }
JM_COMPARISON(eq, ==)
JM_COMPARISON(ne, !=)
JM_COMPARISON(lt, <)
JM_COMPARISON(le, <=)
JM_COMPARISON(gt, >)
JM_COMPARISON(ge, >=)
#undef JM_COMPARISON

#define JM_BITWISE(NAME, OP) \
    JM_FOR_SCALAR(is_int<T> || is_bool<T>) T NAME(T a, T b) { return T(a OP b); } \
    JM_FOR_VEC Vec<T, N> NAME(Vec<T, N> a, Vec<T, N> b) { \
        static_assert(!is_real<T>, "bitwise operations take integers and bool"); \
        if constexpr (Vec<T, N>::wide) return JM_SPLIT2(NAME, a, b); \
        else return Vec<T, N>(a.v OP b.v); \
    }
JM_BITWISE(bitwise_and, &)
JM_BITWISE(bitwise_or, |)
JM_BITWISE(bitwise_xor, ^)
#undef JM_BITWISE

JM_FOR_SCALAR(is_int<T> || is_bool<T>) T bitwise_not(T a) {
    if constexpr (is_bool<T>) return !a;
    else return T(~a);
}
JM_FOR_VEC Vec<T, N> bitwise_not(Vec<T, N> a) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT1(bitwise_not, a);
    else return Vec<T, N>(~a.v);
}

template <class T> JM_INLINE auto logical_and(T a, T b) {
    return bitwise_and(convert<bool>(a), convert<bool>(b));
}
template <class T> JM_INLINE auto logical_or(T a, T b) {
    return bitwise_or(convert<bool>(a), convert<bool>(b));
}
template <class T> JM_INLINE auto logical_xor(T a, T b) {
    return bitwise_xor(convert<bool>(a), convert<bool>(b));
}
template <class T> JM_INLINE auto logical_not(T a) { return bitwise_not(convert<bool>(a)); }

JM_FOR_SCALAR(is_scalar<T> || is_half<T>) T where(bool m, T a, T b) { return m ? a : b; }

JM_FOR_SCALAR(is_int<T>) T lshift(T a, T b) {
    return b < T(0) || uint64_t(b) >= sizeof(T) * 8 ? T(0) : T(uint64_t(a) << b);
}
JM_FOR_SCALAR(is_int<T>) T rshift(T a, T b) {
    constexpr T last = sizeof(T) * 8 - 1;
    if (b < T(0) || b > last) return is_unsigned<T> ? T(0) : T(a >> last);
    return T(a >> b);
}
JM_FOR_VEC Vec<T, N> lshift(Vec<T, N> a, Vec<T, N> b) {
    if constexpr (sizeof(T) < 4)
        return convert<T>(lshift(
            convert<int32_t>(a),
            where(lt(b, Vec<T, N>(8 * sizeof(T))), convert<int32_t>(b), Vec<int32_t, N>(-1))));
    else if constexpr (Vec<T, N>::wide) return JM_SPLIT2(lshift, a, b);
    else {
        using U = detail::wrapping<T, N>;
        U count = (U)b.v, all_lanes = (U)(count < U{} + 8 * sizeof(T));
        return Vec<T, N>((raw<T, N>)(((U)a.v << (count & (8 * sizeof(T) - 1))) & all_lanes));
    }
}
JM_FOR_VEC Vec<T, N> rshift(Vec<T, N> a, Vec<T, N> b) {
    if constexpr (sizeof(T) < 4)
        return convert<T>(rshift(convert<int32_t>(a), convert<int32_t>(b)));
    else if constexpr (Vec<T, N>::wide) return JM_SPLIT2(rshift, a, b);
    else {
        using U = detail::wrapping<T, N>;
        constexpr unsigned_of<T> last = sizeof(T) * 8 - 1;
        U count = (U)b.v, capped = count > U{} + last ? U{} + last : count;
        raw<T, N> out = a.v >> (raw<T, N>)capped;
        if constexpr (is_unsigned<T>) out = count > U{} + last ? raw<T, N>{} : out;
        return Vec<T, N>(out);
    }
}

// --- order: minimum, maximum, relu, abs, sign ----------------------------------------------------

#define JM_ORDER(NAME, FNAME, OP, CLAMP) \
    JM_FOR_SCALAR(is_scalar<T>) T NAME(T a, T b) { return a OP b || a != a ? a : b; } \
    JM_FOR_SCALAR(is_scalar<T>) T FNAME(T a, T b) { return a OP b || b != b ? a : b; } \
    JM_FOR_VEC Vec<T, N> NAME(Vec<T, N> a, Vec<T, N> b) { \
        if constexpr (Vec<T, N>::wide) return JM_SPLIT2(NAME, a, b); \
        else if constexpr (is_real<T>) { \
            raw<T, N> out = reg::CLAMP(b.v, a.v); /* b where one is NaN */ \
            return Vec<T, N>(a.v != a.v ? a.v : out); \
        } else return where(NAME##_first(a, b), a, b); \
    } \
    JM_FOR_VEC Vec<T, N> FNAME(Vec<T, N> a, Vec<T, N> b) { \
        if constexpr (Vec<T, N>::wide) return JM_SPLIT2(FNAME, a, b); \
        else if constexpr (is_real<T>) { \
            raw<T, N> out = reg::CLAMP(b.v, a.v); \
            return Vec<T, N>(b.v != b.v ? a.v : out); \
        } else return NAME(a, b); \
    }
JM_FOR_VEC Mask<N> minimum_first(Vec<T, N> a, Vec<T, N> b) { return lt(a, b); }
JM_FOR_VEC Mask<N> maximum_first(Vec<T, N> a, Vec<T, N> b) { return gt(a, b); }
JM_ORDER(minimum, fmin, <, at_most)
JM_ORDER(maximum, fmax, >, at_least)
#undef JM_ORDER

JM_FOR_SCALAR(is_number<T>) T relu(T a) { return a < T(0) ? T(0) : a; }
JM_FOR_VEC Vec<T, N> relu(Vec<T, N> a) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT1(relu, a);
    else if constexpr (is_real<T>) return Vec<T, N>(reg::at_least(a.v, raw<T, N>{}));
    else return Vec<T, N>(a.v < T(0) ? typename Vec<T, N>::storage{} : a.v);
}

namespace detail {
template <class T> constexpr unsigned_of<T> sign_bit = unsigned_of<T>(1) << (8 * sizeof(T) - 1);
JM_FOR_VEC auto to_bits(Vec<T, N> a) { return (wrapping<T, N>)a.v; }
JM_FOR_VEC Vec<T, N> from_bits(wrapping<T, N> u) { return Vec<T, N>((raw<T, N>)u); }
}   // namespace detail

JM_FOR_SCALAR(is_number<T>) T abs(T a) {
    if constexpr (is_real<T>)
        return bit_cast<T>(unsigned_of<T>(bit_cast<unsigned_of<T>>(a) & ~detail::sign_bit<T>));
    else if constexpr (is_unsigned<T>) return a;
    else return a < 0 ? neg(a) : a;
}
JM_FOR_VEC Vec<T, N> abs(Vec<T, N> a) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT1(abs, a);
    else if constexpr (is_real<T>)
        return detail::from_bits<T, N>(detail::to_bits(a) & ~detail::sign_bit<T>);
    else if constexpr (is_unsigned<T>) return a;
    else return Vec<T, N>(a.v < T(0) ? neg(a).v : a.v);
}
JM_FOR_SCALAR(is_scalar<T>) T sign(T a) {
    if constexpr (is_bool<T>) return a;
    else return T((a > T(0)) - (a < T(0)));
}
JM_FOR_VEC Vec<T, N> sign(Vec<T, N> a) {
    if constexpr (is_bool<T>) return a;
    else {
        Vec<T, N> zero(T(0)), one(T(1));
        return where(gt(a, zero), one, where(lt(a, zero), Vec<T, N>(T(-1)), zero));
    }
}

// --- rounding and classification: integers are whole and finite ----------------------------------

#define JM_ROUNDING(NAME, HOW) \
    JM_FOR_SCALAR(is_number<T>) T NAME(T a) { \
        if constexpr (is_int<T>) return a; \
        else return reg::lane_round<reg::HOW>(a); \
    } \
    JM_FOR_VEC Vec<T, N> NAME(Vec<T, N> a) { \
        if constexpr (is_int<T>) return a; \
        else if constexpr (Vec<T, N>::wide) return JM_SPLIT1(NAME, a); \
        else return Vec<T, N>(reg::round<reg::HOW>(a.v)); \
    }
JM_ROUNDING(floor, down)
JM_ROUNDING(ceil, up)
JM_ROUNDING(round, nearest)
JM_ROUNDING(trunc, zero)
#undef JM_ROUNDING
template <class T> JM_INLINE T frac(T a) { return sub(a, trunc(a)); }

namespace detail {
template <class T> constexpr T infinity = T(__builtin_inff());
template <class T> constexpr T not_a_number = T(__builtin_nanf(""));
}   // namespace detail

JM_FOR_SCALAR(is_number<T>) bool isnan(T a) { return a != a; }
JM_FOR_VEC Mask<N> isnan(Vec<T, N> a) { return ne(a, a); }
JM_FOR_SCALAR(is_number<T>) bool isinf(T a) {
    if constexpr (is_int<T>) return false;
    else return abs(a) == detail::infinity<T>;
}
JM_FOR_VEC Mask<N> isinf(Vec<T, N> a) {
    if constexpr (is_int<T>) return Mask<N>(false);
    else return eq(abs(a), Vec<T, N>(detail::infinity<T>));
}
JM_FOR_SCALAR(is_number<T>) bool isfinite(T a) {
    if constexpr (is_int<T>) return true;
    else return abs(a) < detail::infinity<T>;
}
JM_FOR_VEC Mask<N> isfinite(Vec<T, N> a) {
    if constexpr (is_int<T>) return Mask<N>(true);
    else return lt(abs(a), Vec<T, N>(detail::infinity<T>));
}
JM_FOR_SCALAR(is_number<T>) bool signbit(T a) {
    if constexpr (is_real<T>) return bit_cast<unsigned_of<T>>(a) >> (8 * sizeof(T) - 1);
    else return a < T(0);
}
JM_FOR_VEC Mask<N> signbit(Vec<T, N> a) {
    if constexpr (is_real<T>)
        return lt(reinterpret<signed_of<T>>(a), Vec<signed_of<T>, N>(signed_of<T>(0)));
    else return lt(a, Vec<T, N>(T(0)));
}
JM_FOR_SCALAR(is_real<T>) T copysign(T a, T b) {
    using U = unsigned_of<T>;
    return bit_cast<T>(
        U((bit_cast<U>(a) & ~detail::sign_bit<T>) | (bit_cast<U>(b) & detail::sign_bit<T>)));
}
JM_FOR_VEC Vec<T, N> copysign(Vec<T, N> a, Vec<T, N> b) {
    if constexpr (Vec<T, N>::wide) return JM_SPLIT2(copysign, a, b);
    else {
        auto ua = detail::to_bits(a), ub = detail::to_bits(b);
        return detail::from_bits<T, N>((ua & ~detail::sign_bit<T>) | (ub & detail::sign_bit<T>));
    }
}

// --- division with a rounding: fmod, remainder, floordiv -----------------------------------------

namespace detail {
template <class T> JM_INLINE bool traps(T b) {
    return b == T(0) || (!is_unsigned<T> && b == T(-1));
}
}   // namespace detail

JM_FOR_SCALAR(is_number<T>) T fmod(T a, T b) {
    if constexpr (same<T, float>) return __builtin_fmodf(a, b);
    else if constexpr (same<T, double>) return __builtin_fmod(a, b);
    else return detail::traps(b) ? T(0) : T(a % b);
}
JM_FOR_SCALAR(is_number<T>) T remainder(T a, T b) {
    T r = fmod(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? add(r, b) : r;
}
JM_FOR_SCALAR(is_number<T>) T floordiv(T a, T b) {
    if constexpr (is_int<T>) {
        if (detail::traps(b)) return b == T(0) ? T(0) : neg(a);
        T q = T(a / b);
        return q * b != a && (a < T(0)) != (b < T(0)) ? T(q - 1) : q;
    } else {
        // The quotient that matches `remainder`: exact multiple first, then the nearest whole number.
        if (b == T(0)) return a / b;
        T r = fmod(a, b), q = (a - r) / b;
        if (r != T(0) && (r < T(0)) != (b < T(0))) q -= T(1);
        if (q == T(0)) return copysign(T(0), a / b);
        T whole = floor(q);
        return q - whole > T(0.5) ? whole + T(1) : whole;
    }
}
JM_EACH2(fmod)
JM_EACH2(remainder)
JM_EACH2(floordiv)

}   // namespace jm
