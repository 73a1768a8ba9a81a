// Reductions: across the lanes of a Vec, and long sums.
//
// In: a Vec; or sums of a few values each, Vecs or scalars of float or double. Out: one scalar; or their sum as if it had
// been taken in twice the precision and rounded once. Invariant: generated kernels add at most 32 values (codegen/cpp_blocks.py)
// to one accumulator before it enters a Total, so that the error of a sum does not grow with its length.
#pragma once
#include "ops.h"

namespace jm {

// The lanes are combined as a balanced tree.
#define JM_HORIZONTAL(NAME, OP) \
    JM_FOR_VEC T NAME(Vec<T, N> v) { \
        if constexpr (N == 2) return OP(v[0], v[1]); \
        else return NAME(OP(v.lo(), v.hi())); \
    }
JM_HORIZONTAL(hsum, add)
JM_HORIZONTAL(hprod, mul)
JM_HORIZONTAL(hmax, maximum)
JM_HORIZONTAL(hmin, minimum)
#undef JM_HORIZONTAL

// A compensated sum (TwoSum: Knuth, TAOCP 2, 4.2.2): the rounding error of each addition is accumulated, and added at
// the end. That takes six operations instead of one, so it adds sums of blocks. Beyond the largest finite value `lost`
// is NaN and the plain sum is the result.
template <class V> struct Total {
    V sum{0}, lost{0};

    JM_INLINE void add(V v) {
        V next = sum + v, taken = next - sum;
        lost = lost + ((sum - (next - taken)) + (v - taken));
        sum = next;
    }
    JM_INLINE V result() const {
        V whole = sum + lost;
        return where(isnan(whole), sum, whole);
    }
};

// A Total for a number of blocks known at run time: the sum of a `single` block is the result, as in a static kernel.
// (Rows of 8 floats: 5.3 ns each with the arithmetic of a Total, 2.7 without.)
template <class V> struct Blocks : Total<V> {
    V block{0};

    JM_INLINE void next() {
        Total<V>::add(block);
        block = V(0);
    }
    JM_INLINE V result(bool single) const {
        if (__builtin_expect(single, 1)) return block;
        Total<V> whole = *this;
        whole.add(block);
        return whole.result();
    }
};

// Sums of a few floats each in double, for the sum of a whole tensor. Four additions in float, two conversions and two
// additions in double take as long as four vectors take to come from L2.
template <class V> struct WideTotal;
template <int N> struct WideTotal<Vec<float, N>> {
    Vec<double, N> sum{0.0};

    JM_INLINE void add(Vec<float, N> v) { sum = sum + convert<double>(v); }
    JM_INLINE Vec<double, N> result() const { return sum; }
};
template <> struct WideTotal<float> {
    double sum = 0.0;

    JM_INLINE void add(float v) { sum = sum + v; }
    JM_INLINE float result() const { return float(sum); }
};
template <class V> struct WideBlocks : WideTotal<V> {
    V block{0};

    JM_INLINE void next() {
        WideTotal<V>::add(block);
        block = V(0);
    }
    JM_INLINE auto result(bool) const {
        WideTotal<V> whole = *this;
        whole.add(block);
        return whole.result();
    }
};

// The extreme of a scan so far and the next element: of equal ones the later, as in ATen.
JM_FOR_SCALAR(is_number<T>) T running_max(T total, T a) {
    return a >= total || a != a ? a : total;
}
JM_FOR_SCALAR(is_number<T>) T running_min(T total, T a) {
    return a <= total || a != a ? a : total;
}
JM_FOR_VEC Vec<T, N> running_max(Vec<T, N> total, Vec<T, N> a) {
    return where(ge(a, total) | ne(a, a), a, total);
}
JM_FOR_VEC Vec<T, N> running_min(Vec<T, N> total, Vec<T, N> a) {
    return where(le(a, total) | ne(a, a), a, total);
}

}   // namespace jm
