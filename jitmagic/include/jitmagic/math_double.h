// Vectorised exp, expm1, log, tanh and sigmoid of double registers (R = 8, 4 or 2 doubles), and pow
// of floats through doubles.
//
// In and out: a register. Invariant: at most 2 ulp, special values exact, as in math_float.h; pow
// of floats is correct to 1 ulp of float.
// Method: as in math_float.h, with polynomials fitted for 53 bits; log through s = f / (2 + f), whose
// odd series needs few terms.
#pragma once
#include "math_float.h"

namespace jm {
namespace fast {

template <class R> using longs = raw<int64_t, reg::count<R>>;
template <class R> using ulongs = raw<uint64_t, reg::count<R>>;

constexpr double shift_in_d =
    0x1.8p52;   // adding it rounds to a whole number, which appears in the low bits

template <class R> JM_INLINE R with_sign_d(R magnitude, R sign) {
    constexpr uint64_t top = uint64_t(1) << 63;
    return (R)(((ulongs<R>)magnitude & ~top) | ((ulongs<R>)sign & top));
}
template <class R> JM_INLINE R magnitude_d(R x) { return (R)((ulongs<R>)x & ~(uint64_t(1) << 63)); }
template <class R> JM_INLINE R at_most_d(R x, double limit) { return reg::at_most(x, R{} + limit); }
template <class R> JM_INLINE R at_least_d(R x, double limit) {
    return reg::at_least(x, R{} + limit);
}

// x = n ln2 + r and em1 = e^r - 1; k = n + shift_in_d carries n in its low bits
template <class R> struct ExpParts {
    R k, em1;
};
template <class R> JM_INLINE ExpParts<R> exp_parts(R x) {
    R k = fma(x, R{} + 0x1.71547652b82fep+0, R{} + shift_in_d), n = k - shift_in_d;
    R r = fma(n, R{} - 0x1.abc9e3b39803fp-56, fma(n, R{} - 0x1.62e42fefa39efp-1, x));
    // (e^r - 1 - r) / r^2, 2^-61
    R q = poly(r, R{} + 0x1.1f1372823c548p-29, 0x1.af5d0ee363ff4p-26, 0x1.27e50fe391e75p-22,
               0x1.71ddf94c9eafcp-19, 0x1.a01a0194cd434p-16, 0x1.a01a01af8c7d4p-13,
               0x1.6c16c16c17e46p-10, 0x1.111111110f736p-7, 0x1.5555555555558p-5,
               0x1.5555555555559p-3, 0.5);
    return {k, fma(q, r * r, r)};
}
// 2^n for n the low bits of k, |n| < 1000
template <class R> JM_INLINE R power_of_two(R k) {
    return (R)(((ulongs<R>)k << 52) + ((ulongs<R>)(R{} + 1.0)));
}

template <class R> JM_INLINE R exp_small_d(R x) {
    auto [k, em1] = exp_parts(x);
#if JM_AVX512
    return reg::scalef(em1 + 1.0, k - shift_in_d);
#else
    R n = k - shift_in_d, first = fma(n, R{} + 0.5, R{} + shift_in_d),
      second = n - (first - shift_in_d) + shift_in_d;
    return (em1 + 1.0) * power_of_two(first) * power_of_two(second);
#endif
}
template <class R> JM_INLINE R exp_d(R x) {
    return exp_small_d(at_least_d(at_most_d(x, 710.0), -746.0));
}

template <class R> JM_INLINE R sigmoid_d(R x) {
    R e = exp_small_d(at_least_d(-magnitude_d(x), -746.0));
    return over_sum(x < 0.0 ? e : R{} + 1.0, R{} + 1.0, e);
}

template <class R> JM_INLINE R expm1_d(R x) {
    auto [k, em1] = exp_parts(at_least_d(at_most_d(x, 710.0), -40.0));
    R half = power_of_two(k - 1.0),
      out = fma(em1, half, half - 0.5);   // half: 2^1024 would overflow
    return with_sign_d(out + out, x);
}

template <class R> JM_INLINE R tanh_d(R x) {
    R a = at_most_d(magnitude_d(x), 20.0);
    auto [k, em1] = exp_parts(a + a);
    R s = power_of_two(k), t = fma(em1, s, s - 1.0);
    return with_sign_d(over_sum(t, R{} + 2.0, t), x);
}

// For positive normal x = m 2^e, m in [sqrt(1/2), sqrt(2)); e as a double without an int64
// conversion, which AVX2 lacks.
template <class R> struct Split {
    R e, m;
};
template <class R> JM_INLINE Split<R> split_d(R x) {
    ulongs<R> u = (ulongs<R>)x, biased = (u + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    R e = (R)(biased | 0x4330000000000000u) - (0x1p52 + 1023.0);
    return {e, (R)(u - ((biased - 1023) << 52))};
}
template <class R> JM_INLINE R log_parts_d(R e, R m) {
    R f = m - 1.0, s = f / (f + 2.0), t = s * s, half_square = f * f * 0.5;
    // (2 atanh(s) - 2 s) / s^3 in t = s^2, 2^-59
    R p = poly(t, R{} + 0x1.2f04c75fd93cap-3, 0x1.39a1d2f8f221ap-3, 0x1.74663d94519b8p-3,
               0x1.c71c521215cd4p-3, 0x1.24924941e2f2ep-2, 0x1.999999997ff0ep-2,
               0x1.5555555555592p-1) *
          t;
    R low = fma(e, R{} + 0x1.abc9e3b39803fp-56, s * (half_square + p));
    return fma(e, R{} + 0x1.62e42fefa39efp-1, f - (half_square - low));
}
template <class R> JM_NOINLINE R log_special_d(R x) {
    longs<R> small = x < 0x1p-1022;
    auto [e, m] = split_d(small ? x * 0x1p52 : x);
    R out = log_parts_d(small ? e - 52.0 : e, m);
    out = x < __builtin_inf() ? out : x;
    out = x == 0.0 ? R{} - __builtin_inf() : out;
    return x < 0.0 ? R{} + __builtin_nan("") : out;
}
template <class R> JM_INLINE R log_d(R x) {
    longs<R> odd = (longs<R>)(((ulongs<R>)x - 0x0010000000000000u) >= 0x7fe0000000000000u);
    if (__builtin_expect(any(convert<bool>(Vec<int64_t, reg::count<R>>(odd))), 0))
        return log_special_d(x);
    auto [e, m] = split_d(x);
    return log_parts_d(e, m);
}

// a^y for positive finite a and finite y, to 2^-31: for results that are rounded to float.
template <class R> JM_INLINE R pow_single(R a, R y) {
    auto [e, m] = split_d(a);
    R s = (m - 1.0) / (m + 1.0), t = s * s;
    // log2(m) / s, 2^-43.5
    R l = poly(t, R{} + 0x1.21b4e1ae0fe1bp-2, 0x1.47950ed34c386p-2, 0x1.a61a3089fbfafp-2,
               0x1.2776c291032ddp-1, 0x1.ec709dc53e5f4p-1, 0x1.71547652b8250p+1);
    R z = at_least_d(at_most_d(y * fma(s, l, e), 200.0), -200.0), k = z + shift_in_d,
      r = z - (k - shift_in_d);
    // 2^r, 2^-32
    R p = poly(r, R{} + 0x1.c0471998c4f74p-17, 0x1.443fb6026efdep-13, 0x1.5dc0581752925p-10,
               0x1.3b2a1bd5863a6p-7, 0x1.c6b055109517ep-5, 0x1.ebfbe04588a27p-3,
               0x1.62e4300ba719ep-1, 1.0);
    return p * power_of_two(k);
}

// For results that are rounded to float: t exp(P(t) - a^2) with t = 2 / (2 + a), as in Numerical Recipes 6.2.2.
template <class R> JM_INLINE R erfc_single(R x) {
    R a = at_most_d(magnitude_d(x), 10.3), t = 2.0 / (a + 2.0);   // erfc(10.06) rounds to 0
    R u = (t - 0x1.29a0429a0429ap-1) * 0x1.31b56fd83ba68p+1;      // [0.16, 1] to [-1, 1]
    // log(erfc(a) / t) + a^2, 2^-31.8
    R p = poly(u, R{} + 0x1.7978a5d9e0659p-18, -0x1.64150cbcb3217p-18, -0x1.5340ff7db9b96p-15, 0x1.318cd21938f9dp-14,
               0x1.3bacb28f31073p-13, -0x1.2bfc663f4ef9ep-11, -0x1.1fb381340d61bp-12, 0x1.f3c33eacb02efp-9,
               -0x1.2f1f9a1a55e79p-10, -0x1.e99b319810807p-6, 0x1.0b9eb0bc99a0ap-6, 0x1.25576e425efb3p-1,
               -0x1.1f6ccd00b1a89p-1);
    R out = t * exp_small_d(fma(-a, a, p));
    return x < 0.0 ? 2.0 - out : out;
}

}   // namespace fast
}   // namespace jm
