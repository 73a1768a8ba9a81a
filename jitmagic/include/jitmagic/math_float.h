// Vectorised elementary functions of float registers (R = 16, 8 or 4 floats; needs fused
// multiply-add).
//
// In and out: a register. Invariant: at most 2 ulp from the true value (pow and erf 4) on the whole
// float range, exact at 0, -0, infinities and NaN, gradual underflow and overflow included. Method:
// argument reduction with constants split over two or three floats, a minimax polynomial (Remez fits,
// weighted for the relative error of the result, rounded to float one coefficient at a time; the error
// of each fit is next to it), exact scaling. Rare arguments (|x| > 1e5 in sin) are computed by libm
// through `lanewise`.
#pragma once
#include "ops.h"

namespace jm {
namespace fast {

template <class R> constexpr bool usable = has_fma && sizeof(R) >= 16;

template <class R> using ints = raw<int32_t, reg::count<R>>;
template <class R> using words = raw<uint32_t, reg::count<R>>;

using reg::fma;

template <class R> JM_INLINE R poly(R, R acc) { return acc; }
// Horner's rule, highest coefficient first.
template <class R, class... C> JM_INLINE R poly(R x, R acc, decltype(R{}[0] + 0) c, C... rest) {
    return poly(x, fma(acc, x, R{} + c), rest...);
}

template <class R> JM_INLINE bool any_lane(ints<R> m) { return any(Mask<reg::count<R>>(m)); }
template <class R> JM_INLINE R with_sign(R magnitude, R sign) {
    return (R)(((words<R>)magnitude & 0x7fffffffu) | ((words<R>)sign & 0x80000000u));
}
template <class R> JM_INLINE R magnitude(R x) { return (R)((words<R>)x & 0x7fffffffu); }
template <class R> JM_INLINE R at_most(R x, float limit) { return reg::at_most(x, R{} + limit); }
template <class R> JM_INLINE R at_least(R x, float limit) { return reg::at_least(x, R{} + limit); }

// Out of line: a rare call should not cost registers in the enclosing loop.
template <class R, class F> JM_NOINLINE R lanewise(R x, F f) {
    R out = x;
    for (int i = 0; i < reg::count<R>; ++i) out[i] = f(x[i]);
    return out;
}

// --- exponentials --------------------------------------------------------------------------------

// a * 2^n for a in [0.5, 2] and whole n in [-252, 252], rounded once.
template <class R> JM_INLINE R scale(R a, R n) {
#if JM_AVX512
    return reg::scalef(a, n);
#else
    ints<R> k = __builtin_convertvector(n, ints<R>), half = k >> 1;
    R first = (R)((half + 127) << 23), second = (R)((k - half + 127) << 23);
    return a * first * second;
#endif
}

template <class R> struct Reduced {
    R n, r, power;   // power: 2^n, if n is in [-126, 127]
};
// x = n ln2 + r, |r| <= ln2 / 2. The sum with 1.5 * 2^23 rounds, and has n + 127 in its last bits.
template <class R> JM_INLINE Reduced<R> by_ln2(R x) {
    constexpr float shift = 0x1.8p+23f + 127.0f;
    R shifted = fma(x, R{} + 0x1.715476p+0f, R{} + shift), n = shifted - shift;
    R r = fma(n, R{} + 0x1.05c610p-29f, fma(n, R{} - 0x1.62e430p-1f, x));
    return {n, r, (R)((words<R>)shifted << 23)};
}

template <class R> JM_INLINE R exp_small(R x) {   // |x| < 105
    auto [n, r, power] = by_ln2(x);
    // (e^r - 1 - r) / r^2, 2^-28.2
    R q = poly(r, R{} + 0x1.6ab77ap-10f, 0x1.123dcep-7f, 0x1.555860p-5f, 0x1.55548cp-3f,
               0x1.fffffcp-2f);
    R e = fma(q, r * r, r) + 1.0f;
    // AVX2: exp takes 0.63 to 0.8 of the time with `scale` for all, which is eight instructions.
    if (JM_AVX512 || __builtin_expect(any_lane<R>(magnitude(n) > 125.0f), 0)) return scale(e, n);
    return e * power;
}
template <class R> JM_INLINE R exp(R x) { return exp_small(at_least(at_most(x, 89.0f), -105.0f)); }

template <class R> JM_INLINE R two_to(R r) {   // |r| <= 0.5, 2^-27.5
    return poly(r, R{} + 0x1.4c0592p-13f, 0x1.5fb618p-10f, 0x1.3b2194p-7f, 0x1.c6adb4p-5f,
                0x1.ebfbe6p-3f, 0x1.62e432p-1f, 1.0f);
}
template <class R> JM_INLINE R exp2(R x) {
    x = at_least(at_most(x, 129.0f), -151.0f);
    R n = reg::round<reg::nearest>(x);
    return scale(two_to(x - n), n);
}

template <class R> JM_INLINE R expm1(R x) {
    R clamped = at_least(at_most(x, 89.0f), -18.0f);
    auto [n, r, power] = by_ln2(clamped);
    // (e^r - 1 - r) / r^2, 2^-29.7
    R q = poly(r, R{} + 0x1.9fc8f0p-13f, 0x1.6d4622p-10f, 0x1.1111c6p-7f, 0x1.5554ecp-5f,
               0x1.555554p-3f, 0.5f);
    R t = fma(q, r * r, r);   // e^r - 1
    R half_scale = (R)((words<R>)power - (1u << 23));   // 2^(n-1): 2^128 would overflow
    R out = fma(t, half_scale, half_scale - 0.5f);
    return with_sign(out + out, x);   // keeps -0
}

// top / (big + small) for big >= small, as if the sum were not rounded.
template <class R> JM_INLINE R over_sum(R top, R big, R small) {
    R sum = big + small, lost = small - (sum - big), inverse = 1 / sum, q = top * inverse;
    return fma(fma(-q, sum, top) - q * lost, inverse, q);
}

template <class R> JM_INLINE R tanh(R x) {
    R a = at_most(magnitude(x), 10.0f);
    auto [n, r, power] = by_ln2(a + a);
    R q = poly(r, R{} + 0x1.9fc8f0p-13f, 0x1.6d4622p-10f, 0x1.1111c6p-7f, 0x1.5554ecp-5f,
               0x1.555554p-3f, 0.5f);
    R t = fma(q, r * r, r);
    R em1 = fma(t, power, power - 1.0f);   // e^(2a) - 1
    return with_sign(over_sum(em1, R{} + 2.0f, em1), x);
}

template <class R> JM_INLINE R sigmoid(R x) {
    // Through e^-|x|, which cannot overflow: e^x / (1 + e^x) on the left keeps full relative
    // accuracy down to the denormals.
    R e = exp_small(at_least(-magnitude(x), -105.0f));
    return over_sum(x < 0.0f ? e : R{} + 1.0f, R{} + 1.0f, e);
}

// --- logarithms ----------------------------------------------------------------------------------

template <class R> struct Logged {
    R e, f, tail;
};   // log(x) = e ln2 + f + tail, |tail| < f^2
template <class R> JM_INLINE R log_tail(R f) {
    R f2 = f * f;
    // (log(1+f) - f + f^2/2) / f^3 on [sqrt(1/2), sqrt(2)], 2^-27
    R p = poly(f, R{} - 0x1.47ad34p-4f, 0x1.09fd80p-3f, -0x1.0d14fap-3f, 0x1.2243a0p-3f,
               -0x1.546d2ep-3f, 0x1.99a4acp-3f, -0x1.000240p-2f, 0x1.555554p-2f);
    return fma(f2 * f, p, f2 * -0.5f);
}
// For positive normal x.
template <class R> JM_INLINE Logged<R> split_log(R x) {
    words<R> u = (words<R>)x;
    ints<R> k = (ints<R>)(u - 0x3f3504f3u) >> 23;   // x = m 2^k, m in [sqrt(1/2), sqrt(2))
    R f = (R)(u - ((words<R>)k << 23)) - 1.0f;
    return {__builtin_convertvector(k, R), f, log_tail(f)};
}
template <class R> JM_INLINE ints<R> not_normal(R x) {   // zero, negative, denormal, infinite, NaN
    return (ints<R>)(((words<R>)x - 0x00800000u) >= 0x7f000000u);
}
template <class R> JM_INLINE R log_join(Logged<R> l) {
    return fma(l.e, R{} + 0x1.62e430p-1f, l.f + fma(l.e, R{} - 0x1.05c610p-29f, l.tail));
}
template <class R> JM_INLINE R log2_join(Logged<R> l) {
    R t = fma(l.f, R{} + 0x1.4ae0c0p-26f, l.tail * 0x1.715476p+0f);
    return l.e + fma(l.f, R{} + 0x1.715476p+0f, t);
}
template <class R> JM_INLINE R log10_join(Logged<R> l) {
    R t = fma(l.f, R{} - 0x1.5b235ep-27f, fma(l.e, R{} - 0x1.ec10c0p-27f, l.tail * 0x1.bcb7b2p-2f));
    return fma(l.e, R{} + 0x1.344136p-2f, fma(l.f, R{} + 0x1.bcb7b2p-2f, t));
}
// Recomputes with the exponent of denormals corrected; arguments without a logarithm get their
// special value.
template <class R, class Join> JM_NOINLINE R log_special(R x, Join join_parts) {
    ints<R> small = x < 0x1p-126f;
    Logged<R> l = split_log(small ? x * 0x1p23f : x);
    l.e = small ? l.e - 23.0f : l.e;
    R out = join_parts(l);
    out = x < __builtin_inff() ? out : x;
    out = x == 0.0f ? R{} - __builtin_inff() : out;
    return x < 0.0f ? R{} + __builtin_nanf("") : out;
}
template <class R, class Join> JM_INLINE R log_with(R x, Join join_parts) {
    if (__builtin_expect(any_lane<R>(not_normal(x)), 0)) return log_special(x, join_parts);
    return join_parts(split_log(x));
}
template <class R> JM_INLINE R log(R x) {
    return log_with(x, [](Logged<R> l) { return log_join(l); });
}
template <class R> JM_INLINE R log2(R x) {
    return log_with(x, [](Logged<R> l) { return log2_join(l); });
}
template <class R> JM_INLINE R log10(R x) {
    return log_with(x, [](Logged<R> l) { return log10_join(l); });
}

template <class R> JM_INLINE R log1p(R x) {
    R u = x + 1.0f, back = u - 1.0f,
      lost = (1.0f - (u - back)) + (x - back);   // u + lost = 1 + x exactly
    words<R> bits_of_u = (words<R>)u;
    ints<R> k = (ints<R>)(bits_of_u - 0x3f3504f3u) >> 23;
    R f = (R)(bits_of_u - ((words<R>)k << 23)) - 1.0f;
    f = fma(lost, (R)(k < 100 ? (127 - k) << 23 : ints<R>{}), f);   // 2^-k
    R out = log_join(Logged<R>{__builtin_convertvector(k, R), f, log_tail(f)});
    out = x < __builtin_inff() ? out : x;   // infinity and NaN stay
    out = x == 0.0f ? x : out;              // -0 stays
    out = x == -1.0f ? R{} - __builtin_inff() : out;
    return x < -1.0f ? R{} + __builtin_nanf("") : out;
}

// --- trigonometry --------------------------------------------------------------------------------

constexpr float trig_limit = 1e5f;   // up to here three floats of pi reduce exactly enough
constexpr float shift_in =
    0x1.8p23f;   // adding it rounds to a whole number, which appears in the low bits

template <class R> JM_INLINE R minus_pi_times(R x, R n) {
    // pi in three floats, each rounded down: then all products have the sign that keeps -0
    R r = fma(n, R{} - 0x1.921fb4p+1f, x);
    r = fma(n, R{} - 0x1.4442d0p-23f, r);
    return fma(n, R{} - 0x1.84698ap-47f, r);
}
template <class R>
JM_INLINE R sin_reduced(R r, words<R> flip) {   // |r| <= pi/2, flip: the sign bit to change
    r = (R)((words<R>)r ^ flip);
    R s = r * r;
    // (sin(r)/r - 1) / r^2, 2^-27.1
    R p = poly(s, R{} + 0x1.5da7b4p-19f, -0x1.9f6f1ep-13f, 0x1.110ed4p-7f, -0x1.55554cp-3f);
    return with_sign(fma(r * s, p, r), r);
}
template <class R> JM_INLINE bool beyond(R x, float limit) {
    return reg::any_beyond(magnitude(x), R{} + limit);
}
template <class R> JM_INLINE R sin(R x) {
    if (__builtin_expect(beyond(x, trig_limit), 0))
        return lanewise(x, [](float t) { return __builtin_sinf(t); });
    R k = fma(x, R{} + 0x1.45f306p-2f, R{} + shift_in);
    return sin_reduced(minus_pi_times(x, k - shift_in), (words<R>)k << 31);
}
template <class R> JM_INLINE R cos(R x) {
    if (__builtin_expect(beyond(x, trig_limit), 0))
        return lanewise(x, [](float t) { return __builtin_cosf(t); });
    // cos(x) = -(-1)^n sin(x - (n + 1/2) pi)
    R k = fma(magnitude(x), R{} + 0x1.45f306p-2f, R{} - 0.5f) + shift_in, n = k - shift_in;
    return sin_reduced(minus_pi_times(magnitude(x), n + 0.5f), ~((words<R>)k << 31) & 0x80000000u);
}
template <class R> JM_INLINE R tan(R x) {
    if (__builtin_expect(beyond(x, trig_limit), 0))
        return lanewise(x, [](float t) { return __builtin_tanf(t); });
    R k = fma(x, R{} + 0x1.45f306p-1f, R{} + shift_in);
    R r = minus_pi_times(x, (k - shift_in) * 0.5f), s = r * r;
    // (tan(r)/r - 1) / r^2 on |r| <= pi/4, 2^-29.5
    R p = poly(s, R{} + 0x1.1ecf3ep-8f, 0x1.81d138p-14f, 0x1.62ebaep-7f, 0x1.5cbc88p-6f,
               0x1.bad9f6p-5f, 0x1.110d9ep-3f, 0x1.555560p-2f);
    R t = fma(r * s, p, r);
    return ((ints<R>)k & 1) != 0 ? -1.0f / t : t;
}
template <class R> JM_INLINE R atan(R x) {
    R a = magnitude(x);
    ints<R> inverted = a > 1.0f;
    R z = inverted ? -1.0f / a : a, s = z * z;
    // (atan(z)/z - 1) / z^2 on |z| <= 1, 2^-28.5
    R p = poly(s, R{} - 0x1.d32d2cp-10f, 0x1.6410bcp-7f, -0x1.fd6facp-6f, 0x1.da24c8p-5f,
               -0x1.580814p-4f, 0x1.c08c1ap-4f, -0x1.242084p-3f, 0x1.9991e4p-3f, -0x1.55553ep-2f);
    R base = inverted ? R{} + 0x1.921fb6p+0f : R{};
    return with_sign(base + fma(z * s, p, z), x);
}

// --- error function ------------------------------------------------------------------------------

template <class R> JM_INLINE R erf(R x) {
    R a = at_most(magnitude(x), 3.95f), s = a * a;   // erf(3.95) rounds to 1
    // erf(a)/a - 1 on [0, 1], 2^-29.4
    R p = poly(s, R{} + 0x1.4771fep-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f,
               0x1.ce2ce6p-4f, -0x1.81273ep-2f, 0x1.06eba8p-3f);
    R near_zero = fma(a, p, a);
    // log2(erfc(a)) on [0.94, 3.95], 2^-27.5 of erf
    R l = poly(a, R{} - 0x1.9628e6p-16f, 0x1.1c3590p-11f, -0x1.6b288ep-8f, 0x1.1d231cp-5f,
               -0x1.3ad290p-3f, -0x1.d51d2ap-1f, -0x1.a0d0d8p+0f, -0x1.be68dcp-15f);
    R n = reg::round<reg::nearest>(l);
    ints<R> k = (__builtin_convertvector(n, ints<R>) + 127) << 23;
    R far = fma(two_to(l - n), -(R)k, R{} + 1.0f);
    return with_sign(a > 0.97f ? far : near_zero, x);
}

}   // namespace fast
}   // namespace jm
