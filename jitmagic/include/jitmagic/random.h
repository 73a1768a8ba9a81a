// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011).
//
// In: a 64-bit seed (key), a 64-bit subsequence and a 64-bit offset (counter); words are uint32_t
// or Vec<uint32_t, N>.
// Out: four random words. Invariant: a pure function of seed and counter, so any lane or thread can
// draw any number.
#pragma once
#include "math.h"

namespace jm {

template <class W> struct Words4 {
    W x, y, z, w;
};

namespace detail {
struct Product {
    uint32_t high, low;
};
JM_INLINE Product mul_wide(uint32_t a, uint32_t b) {
    uint64_t p = uint64_t(a) * b;
    return {uint32_t(p >> 32), uint32_t(p)};
}
template <int N> struct ProductVec {
    Vec<uint32_t, N> high, low;
};
template <int N> JM_INLINE ProductVec<N> mul_wide(Vec<uint32_t, N> a, uint32_t b) {
    auto p = mul(convert<uint64_t>(a), Vec<uint64_t, N>(b));
    return {convert<uint32_t>(rshift(p, Vec<uint64_t, N>(uint64_t(32)))), convert<uint32_t>(p)};
}
}   // namespace detail

template <class W> JM_INLINE Words4<W> philox(Words4<W> c, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        auto a = detail::mul_wide(c.x, 0xD2511F53u);
        auto b = detail::mul_wide(c.z, 0xCD9E8D57u);
        c = {bitwise_xor(bitwise_xor(b.high, c.y), W(key0)), b.low,
             bitwise_xor(bitwise_xor(a.high, c.w), W(key1)), a.low};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}
// Four words number `offset` of stream `subsequence` under `seed`: the counter layout of curand and
// of torch on CUDA.
JM_INLINE Words4<uint32_t> philox(uint64_t seed, uint64_t subsequence, uint64_t offset) {
    return philox(Words4<uint32_t>{uint32_t(offset), uint32_t(offset >> 32), uint32_t(subsequence),
                                   uint32_t(subsequence >> 32)},
                  uint32_t(seed), uint32_t(seed >> 32));
}

// [0, 1) with 24 bits; every value is a multiple of 2^-24.
JM_INLINE float uniform(uint32_t w) { return float(w >> 8) * 0x1p-24f; }
template <int N> JM_INLINE Vec<float, N> uniform(Vec<uint32_t, N> w) {
    auto top = reinterpret<int32_t>(rshift(w, Vec<uint32_t, N>(8u)));
    return convert<float>(top) * 0x1p-24f;
}

template <class F> struct Pair {
    F first, second;
};
// Two independent standard normals from two words (Box and Muller). The radius takes (0, 1], so its
// logarithm is finite.
template <class W> JM_INLINE auto normal(W a, W b) {
    auto u = uniform(a), angle = uniform(b);
    using F = decltype(u);
    F radius = sqrt(mul(F(-2.0f), log(sub(F(1.0f), u)))), turn = mul(F(6.283185307179586f), angle);
    return Pair<F>{mul(radius, cos(turn)), mul(radius, sin(turn))};
}

}   // namespace jm
