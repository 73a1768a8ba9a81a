// Reductions: across the lanes of a Vec, and accumulators that take one Vec at a time.
//
// In: Vecs of values, the last one perhaps with n valid lanes. Out: `result()`, one scalar. All
// accumulators have add(v), add(v, n), merge(other of a later range), result(). Invariants: sums of
// floats cascade (blocks of 32 adds, three levels), so the error grows like that of a pairwise sum;
// NaN wins in max, min, argmax and argmin; the first index wins among equals, as in torch.
//   Sum<T,N>  Prod<T,N>  Max<T,N>  Min<T,N>  ArgMax<T,N>  ArgMin<T,N>  Welford<T,N> (mean,
//       variance)  Any<N>  All<N>
// For speed on data in cache keep two or four Sums side by side and merge them at the end.
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

namespace detail {
template <class T> JM_INLINE T lowest() {
    if constexpr (is_real<T>) return -infinity<T>;
    else if constexpr (is_unsigned<T>) return T(0);
    else return T(sign_bit<T>);
}
template <class T> JM_INLINE T highest() {
    if constexpr (is_real<T>) return infinity<T>;
    else if constexpr (is_unsigned<T>) return T(-1);
    else return T(~sign_bit<T>);
}
}   // namespace detail

template <class T, int N> struct Sum {
    Vec<T, N> block{T(0)}, middle{T(0)}, top{T(0)};
    uint32_t count = 0;

    JM_INLINE void add(Vec<T, N> v) {
        block = jm::add(block, v);
        if constexpr (is_real<T>) {
            if ((++count & 31) == 0) carry();
        }
    }
    JM_INLINE void add(Vec<T, N> v, int64_t n) { add(where(first_n<N>(n), v, Vec<T, N>(T(0)))); }
    JM_INLINE void merge(const Sum& o) { top = jm::add(top, o.total()); }
    JM_INLINE T result() const { return hsum(total()); }

    JM_INLINE Vec<T, N> total() const { return jm::add(top, jm::add(middle, block)); }
    JM_INLINE void carry() {
        middle = jm::add(middle, block);
        block = Vec<T, N>(T(0));
        if ((count & 1023) == 0) {
            top = jm::add(top, middle);
            middle = Vec<T, N>(T(0));
        }
    }
};

#define JM_FOLD(NAME, OP, START, HORIZONTAL) \
    template <class T, int N> struct NAME { \
        Vec<T, N> value{START}; \
        JM_INLINE void add(Vec<T, N> v) { value = OP(value, v); } \
        JM_INLINE void add(Vec<T, N> v, int64_t n) { \
            add(where(first_n<N>(n), v, Vec<T, N>(START))); \
        } \
        JM_INLINE void merge(const NAME& o) { value = OP(value, o.value); } \
        JM_INLINE T result() const { return HORIZONTAL(value); } \
    };
JM_FOLD(Prod, mul, T(1), hprod)
JM_FOLD(Max, maximum, detail::lowest<T>(), hmax)
JM_FOLD(Min, minimum, detail::highest<T>(), hmin)
#undef JM_FOLD

template <int N> struct Any {
    Mask<N> value{false};
    JM_INLINE void add(Mask<N> v) { value = value | v; }
    JM_INLINE void add(Mask<N> v, int64_t n) { add(v & first_n<N>(n)); }
    JM_INLINE void merge(const Any& o) { value = value | o.value; }
    JM_INLINE bool result() const { return any(value); }
};
template <int N> struct All {
    Mask<N> value{true};
    JM_INLINE void add(Mask<N> v) { value = value & v; }
    JM_INLINE void add(Mask<N> v, int64_t n) { add(v | ~first_n<N>(n)); }
    JM_INLINE void merge(const All& o) { value = value & o.value; }
    JM_INLINE bool result() const { return all(value); }
};

// Largest ? argmax : argmin. `next` is the index of lane 0 of the next Vec: construct with the
// index at which this range begins.
template <class T, int N, bool Largest> struct ArgBest {
    Vec<T, N> value;
    Vec<int64_t, N> index, lane_index;
    int64_t first;

    JM_INLINE explicit ArgBest(int64_t begin = 0)
        : value(worst()), index(begin), lane_index(iota<int64_t, N>(begin)), first(begin) {}
    static JM_INLINE T worst() { return Largest ? detail::lowest<T>() : detail::highest<T>(); }
    static JM_INLINE bool better(T a, T b) {
        return (Largest ? a > b : a < b) || (a != a && b == b);
    }
    static JM_INLINE Mask<N> better(Vec<T, N> a, Vec<T, N> b) {
        Mask<N> m = Largest ? gt(a, b) : lt(a, b);
        if constexpr (is_real<T>) m = m | (isnan(a) & ~isnan(b));
        return m;
    }
    JM_INLINE void add(Vec<T, N> v) { take(v, better(v, value)); }
    JM_INLINE void add(Vec<T, N> v, int64_t n) { take(v, better(v, value) & first_n<N>(n)); }
    JM_INLINE void take(Vec<T, N> v, Mask<N> m) {
        value = where(m, v, value);
        index = where(m, lane_index, index);
        lane_index = jm::add(lane_index, Vec<int64_t, N>(int64_t(N)));
    }
    struct Found {
        T value;
        int64_t index;
    };
    JM_INLINE Found found() const {
        Found out{value[0], index[0]};
        for (int i = 1; i < N; ++i) {
            T v = value[i];
            bool tie = v == out.value || (v != v && out.value != out.value);
            if (better(v, out.value) || (tie && index[i] < out.index)) out = {v, index[i]};
        }
        return out;
    }
    JM_INLINE void merge(const ArgBest& later) {
        Found mine = found(), theirs = later.found();
        if (better(theirs.value, mine.value)) mine = theirs;
        value = Vec<T, N>(mine.value);
        index = Vec<int64_t, N>(mine.index);
    }
    JM_INLINE int64_t result() const { return found().index; }
};
template <class T, int N> using ArgMax = ArgBest<T, N, true>;
template <class T, int N> using ArgMin = ArgBest<T, N, false>;

// Mean and sum of squared deviations in one pass (Welford 1962; lanes and ranges merged by Chan,
// Golub and LeVeque 1979).
template <class T> struct Moments {
    T mean = T(0), m2 = T(0), count = T(0);
    JM_INLINE void merge(Moments o) {
        T total = count + o.count;
        if (total == T(0)) return;
        T delta = o.mean - mean, share = o.count / total;
        mean += delta * share;
        m2 += o.m2 + delta * delta * count * share;
        count = total;
    }
    JM_INLINE T
    variance(T correction) const {   // NaN or infinite like torch when count <= correction
        T free_count = count - correction;
        return m2 / (free_count > T(0) ? free_count : T(0));
    }
};
template <class T, int N> struct Welford {
    Vec<T, N> mean{T(0)}, m2{T(0)}, count{T(0)};
    Moments<T> before;   // ranges merged so far

    JM_INLINE void add(Vec<T, N> v) {
        count = jm::add(count, Vec<T, N>(T(1)));
        Vec<T, N> delta = sub(v, mean);
        mean = fma(delta, reciprocal(count), mean);
        m2 = fma(delta, sub(v, mean), m2);
    }
    JM_INLINE void add(Vec<T, N> v, int64_t n) {
        Welford longer = *this;
        longer.add(v);
        Mask<N> valid = first_n<N>(n);
        count = where(valid, longer.count, count);
        mean = where(valid, longer.mean, mean);
        m2 = where(valid, longer.m2, m2);
    }
    JM_INLINE void merge(const Welford& o) { before.merge(o.result()); }
    JM_INLINE Moments<T> result() const {
        Moments<T> out = before;
        for (int i = 0; i < N; ++i) out.merge({mean[i], m2[i], count[i]});
        return out;
    }
};

}   // namespace jm
