// Loops of generated kernels: blocks of lanes with a short last one, and memory access by valid lanes.
//
// In: the body that the C++ renderer writes. It is called as body(at, n): `n` is Full, or an int64_t 0 <= n <= N for the
// last block. Every access takes `n`, so a body is written once. Invariant: lanes at and after n are never read from memory
// nor written to it; their values are computed from zeros, and `only` removes them from reductions.
#pragma once
#include "math.h"
#include "parallel.h"
#include "reduce.h"

#define JM_BODY __attribute__((always_inline))
#define JM_APART __attribute__((noinline))

namespace jm {

struct Full {};

template <int N, class Body> JM_INLINE void blocks(int64_t begin, int64_t end, Body&& body) {
    if (begin >= end) return;
    // Both depend on the ends alone, so that an enclosing loop can hoist them.
    int64_t rest = (end - begin) & (N - 1), whole = end - rest;
    for (int64_t at = begin; at < whole; at += N) body(at, Full{});
    if (rest) body(whole, rest);
}

// From 0 on, which needs no test before the loop.
template <int N, class Body> JM_INLINE void blocks(int64_t end, Body&& body) {
    int64_t rest = end & (N - 1), whole = end - rest;
    for (int64_t at = 0; at < whole; at += N) body(at, Full{});
    if (rest) body(whole, rest);
}

// The same for a number of elements that is a constant or a multiple of N: only the bodies that run are compiled,
// because a body that never runs takes the compiler as long as one that does. More than four blocks stay a loop: g++ 12
// takes 0.58 s to unroll the 15 of a maximum over 1000 floats, for code that is no faster (113 us of a softmax, either
// way).
template <int N, int64_t Count, class Body> JM_INLINE void blocks(Body&& body) {
    if constexpr (Count / N > 4) {
#pragma GCC unroll 1
        for (int64_t at = 0; at + N <= Count; at += N) body(at, Full{});
    } else if constexpr (Count >= N)
        for (int64_t at = 0; at + N <= Count; at += N) body(at, Full{});
    if constexpr (Count % N != 0) body(int64_t(Count / N * N), int64_t(Count % N));
}
template <int N, class Body> JM_INLINE void whole_blocks(int64_t begin, int64_t end, Body&& body) {
    for (int64_t at = begin; at < end; at += N) body(at, Full{});
}

// The trip count of rows of `end` elements is tested once, around all rows. body(n) has told_steps(n, …) in place of
// blocks(end, …): of at most one step, or, if few_steps finds so many, of K steps with a non-empty last one.
template <int K> struct Steps { int64_t rest; };
struct AnySteps { int64_t end; };
template <int N, class Body> JM_INLINE void one_step(int64_t end, Body&& body) {
    if (end == N) body(Full{});
    else body(end);
}
template <int N, int K, class Body> JM_INLINE void few_steps(int64_t end, Body&& body) {
    if (end > N * (K - 1) && end <= N * K) body(Steps<K>{end - N * (K - 1)});
    else body(AnySteps{end});
}
template <int N, class Body> JM_INLINE void told_steps(Full n, Body&& body) { body(int64_t(0), n); }
template <int N, class Body> JM_INLINE void told_steps(int64_t n, Body&& body) { body(int64_t(0), n); }
template <int N, int K, class Body> JM_INLINE void told_steps(Steps<K> n, Body&& body) {
#pragma GCC unroll 8
    for (int64_t step = 0; step < K - 1; ++step) body(step * N, Full{});
    body(int64_t(N * (K - 1)), n.rest);
}
template <int N, class Body> JM_INLINE void told_steps(AnySteps n, Body&& body) { blocks<N>(n.end, body); }

// The next point in row-major order. Arguments: the last coordinate and its extent, the one before with its own, …, the
// first coordinate.
JM_INLINE void count_on(int64_t& first) { ++first; }
template <class... Before> JM_INLINE void count_on(int64_t& last, int64_t extent, Before&&... before) {
    if (__builtin_expect(++last < extent, 1)) return;
    last = 0;
    count_on(before...);
}

// As remainder: an index most often is in [0, extent) already, and a division takes thirty cycles.
JM_INLINE int64_t wrapped(int64_t index, int64_t extent) {
    if (__builtin_expect(index >= 0 && index < extent, 1)) return index;
    return remainder(index, extent);
}

JM_INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The number of rows of `steps` steps that have at most `most` steps together, at least 1.
JM_INLINE int64_t rows_of_block(int64_t most, int64_t steps) { return steps > 0 && steps < most ? most / steps : 1; }

// [0, end) in parts of `size`: body(begin, end), with next() between two of them. Most often there is one part.
template <class Body, class Next> JM_INLINE void in_parts(int64_t size, int64_t end, Body&& body, Next&& next) {
    for (int64_t at = 0, stop = least_of(size, end);; at = stop, stop = least_of(at + size, end)) {
        body(at, stop);
        if (__builtin_expect(stop >= end, 1)) break;
        next();
    }
}

// [0, end) in blocks of N: body(at, n) with an int64_t n, which is N for all but the last one.
template <int N, class Body> JM_INLINE void steps(int64_t end, Body&& body) {
    for (int64_t at = 0; at < end; at += N) body(at, least_of(end - at, N));
}

// --- memory ---------------------------------------------------------------------------------------------------------

template <int N, class T> JM_INLINE Vec<T, N> load(const T* p, Full) { return Vec<T, N>::load(p); }
template <int N, class T> JM_INLINE Vec<T, N> load(const T* p, int64_t n) { return Vec<T, N>::load(p, n); }
template <int N, class T> JM_INLINE Vec<T, N> load_strided(const T* p, int64_t stride, Full) {
    return Vec<T, N>::strided(p, stride);
}
template <int N, class T> JM_INLINE Vec<T, N> load_strided(const T* p, int64_t stride, int64_t n) {
    return Vec<T, N>::strided(p, stride, n);
}

// The number of valid lanes (or rows) of N.
template <int N> JM_INLINE int64_t lanes_in(Full) { return N; }
template <int N> JM_INLINE int64_t lanes_in(int64_t n) { return n < N ? n : N; }
template <int N> JM_INLINE bool is_whole(Full) { return true; }
template <int N> JM_INLINE bool is_whole(int64_t n) { return n >= N; }

template <int N> JM_INLINE Mask<N> valid(Full) { return Mask<N>(true); }
template <int N> JM_INLINE Mask<N> valid(int64_t n) { return first_n<N>(n); }

// The lanes at which positions first, first + 1, … are below a bound, which may be any number.
template <int N> JM_INLINE Mask<N> lanes_below(int64_t bound, int64_t first) {
    uint64_t n = bound > first ? uint64_t(bound) - uint64_t(first) : 0;
    return first_n<N>(n < N ? n : N);
}

template <class T, int N> JM_INLINE Vec<T, N> gather(const T* p, Vec<int64_t, N> index, Full) {
    return Vec<T, N>::gather(p, index);
}
template <class T, int N> JM_INLINE Vec<T, N> gather(const T* p, Vec<int64_t, N> index, int64_t n) {
    return Vec<T, N>::gather(p, index, first_n<N>(n));
}
template <class T, int N, class Count>
JM_INLINE Vec<T, N> gather_where(const T* p, Vec<int64_t, N> index, Mask<N> mask, T fill, Count n) {
    return Vec<T, N>::gather(p, index, mask & valid<N>(n), fill);
}
// Contiguous memory of which only masked lanes may be read: most blocks are wholly inside or outside. A kernel that
// reads concatenated tensors has fifty of these: lane by lane g++ 12 took 2.5 s for one, with masked loads it takes
// 0.35 s.
template <class T, int N, class Count> JM_INLINE Vec<T, N> load_where(const T* p, Mask<N> mask, T fill, Count n) {
    mask = mask & valid<N>(n);
    if (!any(mask)) return Vec<T, N>(fill);
    if constexpr (JM_AVX512) return Vec<T, N>::load_lanes(p, bits(mask), fill);
    if (all(mask)) return Vec<T, N>::load(p);
    T lanes[N];
    for (int i = 0; i < N; ++i) lanes[i] = mask[i] ? element(p, i) : fill;
    return Vec<T, N>::load(lanes);
}

// One element, read only under the mask. The empty asm keeps compilers from making masked vector loads of a loop over
// these: g++ 12 gets some lanes wrong if the inner loop is short.
template <class T> JM_INLINE T load_if(bool mask, const T* p, int64_t index, T fill) {
    if (!mask) return fill;
    asm volatile("");
    return element(p, index);
}

template <class T, int N> JM_INLINE void store(T* p, Vec<T, N> v, Full) { v.store(p); }
template <class T, int N> JM_INLINE void store(T* p, Vec<T, N> v, int64_t n) { v.store(p, n); }
template <class T, int N> JM_INLINE void store_strided(T* p, int64_t stride, Vec<T, N> v, Full) {
    v.scatter_strided(p, stride);
}
template <class T, int N> JM_INLINE void store_strided(T* p, int64_t stride, Vec<T, N> v, int64_t n) {
    v.scatter_strided(p, stride, n);
}
template <class T, int N> JM_INLINE void scatter(T* p, Vec<int64_t, N> index, Vec<T, N> v, Full) { v.scatter(p, index); }
template <class T, int N> JM_INLINE void scatter(T* p, Vec<int64_t, N> index, Vec<T, N> v, int64_t n) {
    v.scatter(p, index, first_n<N>(n));
}

// A square tile read along its contiguous side and transposed: tile[r] holds p[0 + r], p[stride + r], p[2 * stride +
// r], … for the first `rows` r; n lanes are valid. It reads every cache line once, unlike strided loads.
template <int D, class R, int... I> JM_INLINE void exchange_blocks(R& a, R& b, seq<I...>) {
    constexpr int N = sizeof...(I);
    R low = reg::shuffled<R>(a, b, seq<((I & D) ? N + I - D : I)...>{});
    b = reg::shuffled<R>(a, b, seq<((I & D) ? N + I : I + D)...>{});
    a = low;
}
template <int D, class T, int N> JM_INLINE void turn(Vec<T, N> (&tile)[N]) {
    if constexpr (D < N) {
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i)
            if (!(i & D)) exchange_blocks<D>(tile[i].v, tile[i + D].v, seq_to<N>{});
        turn<2 * D>(tile);
    }
}
// An empty asm that hides the value from g++, which then keeps the expression together.
template <class T> JM_INLINE T opaque(T x) {
    asm("" : "+r"(x));
    return x;
}
template <class T, int N, class Count>
JM_INLINE void load_tile(Vec<T, N> (&tile)[N], const T* p, int64_t stride, int64_t rows, Count n) {
    using V = Vec<T, N>;
    constexpr bool turns = !V::wide && !is_bool<T>, masks = turns && detail::lane_masks<typename V::storage>;
    bool whole = turns && is_whole<N>(rows) && is_whole<N>(n);
    if (masks || whole) {
        p = opaque(p);
        if (whole) {
#pragma GCC unroll 16
            for (int l = 0; l < N; ++l) tile[l] = V::load(p + l * stride);
        } else {
            int64_t columns = lanes_in<N>(n), most = lanes_in<N>(rows);
#pragma GCC unroll 16
            for (int l = 0; l < N; ++l) {  // with few valid lanes (image channels) skip the loads of the others
                tile[l] = V(T());
                if (l < columns) tile[l] = V::load(p + l * stride, most);
            }
        }
        if constexpr (turns) turn<1>(tile);
    } else
        for (int64_t r = 0; r < N && r < lanes_in<N>(rows); ++r) tile[r] = load_strided<N>(p + r, stride, n);
}

// body(n) for a tile of `lanes` valid lanes: Full if masks are not free and the tile is whole.
template <class T, int N, class Body> JM_INLINE void tile_of(int64_t lanes, Body&& body) {
    if constexpr (!detail::lane_masks<typename Vec<T, N>::storage>) {
        if (lanes == N) return body(Full{});
    }
    body(lanes);
}

// body(row) for the first `rows` of a tile of N, whose rows stay in registers.
template <int N, class Body> JM_INLINE void tile_rows(int64_t first, int64_t rows, Body&& body) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < N; ++r) {
        if (r >= rows) break;
        body(first + r);
    }
}

// --- run-time indexes -------------------------------------------------------------------------------------------------

JM_INLINE void flag(int& bad) { __atomic_store_n(&bad, 1, __ATOMIC_RELAXED); }

// Negative indexes count from the end; one that is out of range sets `bad` and becomes 0.
JM_INLINE int64_t checked(int64_t index, int64_t extent, int& bad, bool used = true) {
    index += index < 0 ? extent : 0;
    if (uint64_t(index) < uint64_t(extent)) return index;
    if (used) flag(bad);
    return 0;
}
template <int N, class Count>
JM_INLINE Vec<int64_t, N> checked(Vec<int64_t, N> index, int64_t extent, int& bad, Mask<N> used, Count n) {
    using I = Vec<int64_t, N>;
    index = where(lt(index, I(0)), add(index, I(extent)), index);
    auto outside = logical_or(lt(index, I(0)), ge(index, I(extent)));
    if (any(outside & used & valid<N>(n))) flag(bad);
    return where(outside, I(0), index);
}
template <int N, class Count> JM_INLINE Vec<int64_t, N> checked(Vec<int64_t, N> index, int64_t extent, int& bad, Count n) {
    return checked<N>(index, extent, bad, Mask<N>(true), n);
}

// --- reductions -------------------------------------------------------------------------------------------------------

template <class T> struct Limits;
template <> struct Limits<float> {
    static constexpr float least = -__builtin_inff(), most = __builtin_inff();
};
template <> struct Limits<double> {
    static constexpr double least = -__builtin_inf(), most = __builtin_inf();
};
template <> struct Limits<bool> {
    static constexpr bool least = false, most = true;
};
#define JM_LIMITS(T, LOW, HIGH) template <> struct Limits<T> { static constexpr T least = LOW, most = HIGH; };
JM_LIMITS(int8_t, INT8_MIN, INT8_MAX)
JM_LIMITS(int16_t, INT16_MIN, INT16_MAX)
JM_LIMITS(int32_t, INT32_MIN, INT32_MAX)
JM_LIMITS(int64_t, INT64_MIN, INT64_MAX)
JM_LIMITS(uint8_t, 0, UINT8_MAX)
JM_LIMITS(uint16_t, 0, UINT16_MAX)
JM_LIMITS(uint32_t, 0, UINT32_MAX)
JM_LIMITS(uint64_t, 0, UINT64_MAX)
#undef JM_LIMITS

// Lanes after the first n replaced by the neutral element of the reduction that follows.
template <class T, int N> JM_INLINE Vec<T, N> only(Vec<T, N> v, T, Full) { return v; }
template <class T, int N> JM_INLINE Vec<T, N> only(Vec<T, N> v, T neutral, int64_t n) {
    using V = Vec<T, N>;
    if constexpr (V::wide)
        return join(only(v.lo(), neutral, n), only(v.hi(), neutral, n - N / 2));
    else if constexpr (detail::lane_masks<typename V::storage>) {
        using I = detail::as_ints<typename V::storage>;
        return V((typename V::storage)detail::chosen(detail::first_bits(n), (I)v.v, (I)V(neutral).v));
    } else return where(first_n<N>(n), v, V(neutral));
}

// The greatest (or least) value and its first position; NaN beats everything, as in torch.
template <class T, bool Greatest> struct Best {
    T value = Greatest ? Limits<T>::least : Limits<T>::most;
    int64_t at = INT64_MAX;

    static JM_INLINE bool nan(T x) { return x != x; }
    JM_INLINE void take(T x, int64_t position) {
        bool better = nan(value) ? false : nan(x) || (Greatest ? x > value : x < value);
        bool same = x == value || (nan(x) && nan(value));
        if (better || (same && position < at)) value = x, at = position;
    }
    JM_INLINE void take(Best other) { take(other.value, other.at); }
    template <int N> JM_INLINE void take(Vec<T, N> v, Vec<int64_t, N> position, Full) { take(v, position, int64_t(N)); }
    template <int N> JM_INLINE void take(Vec<T, N> v, Vec<int64_t, N> position, int64_t n) {
        for (int i = 0; i < N; ++i) if (i < n) take(v[i], position[i]);
    }
};

// The same, lane by lane: positions grow from call to call, so the first of equal values stays.
template <class T, int N, bool Greatest> struct BestLanes {
    Vec<T, N> value = Vec<T, N>(Greatest ? Limits<T>::least : Limits<T>::most);
    Vec<int64_t, N> at = Vec<int64_t, N>(INT64_MAX);

    template <class Count> JM_INLINE void take(Vec<T, N> v, Vec<int64_t, N> position, Count n) {
        auto better = Greatest ? gt(v, value) : lt(v, value);
        better = better | (ne(v, v) & eq(value, value)) | (eq(v, value) & eq(at, Vec<int64_t, N>(INT64_MAX)));
        better = better & valid<N>(n);
        value = where(better, v, value);
        at = where(better, position, at);
    }
    JM_INLINE Best<T, Greatest> best() const { return best_of(value, at); }
    // Lanes without a value lose against equal ones: their position is the greatest possible.
    template <int M> static JM_INLINE Best<T, Greatest> best_of(Vec<T, M> v, Vec<int64_t, M> at) {
        if constexpr (M == 2) {
            Best<T, Greatest> out{v[0], at[0]};
            out.take(v[1], at[1]);
            return out;
        } else {
            auto a = v.lo(), b = v.hi();
            auto i = at.lo(), j = at.hi();
            auto a_nan = ne(a, a), b_nan = ne(b, b);
            auto better = ~a_nan & ((Greatest ? gt(b, a) : lt(b, a)) | b_nan);
            auto second = better | ((eq(a, b) | (a_nan & b_nan)) & lt(j, i));
            return best_of(where(second, b, a), where(second, j, i));
        }
    }
};

// A product in the order of ATen's reduction (native/cpu/Reduce.h), which decides whether it overflows on the way: blocks
// of four registers of `Lane` elements, lane by lane; the registers in pairs, the lanes of the last one in turn; then the
// elements after the last whole block in turn. Steps of less than a block are put together in `values`.
template <class T, int N, int Lane> struct Product {
    static constexpr int Block = 4 * Lane;
    Vec<T, Block> lanes = Vec<T, Block>(T(1));
    T values[N < Block ? Block : N];
    int64_t left = 0;

    JM_INLINE void take(Vec<T, N> v, Full) {
        if constexpr (N < Block) take(v, int64_t(N));
        else take_whole(v);
    }
    JM_INLINE void take(Vec<T, N> v, int64_t n) {
        v.store(values + left);
        left += n;
        if (N < Block && left == Block) {
            lanes = lanes * Vec<T, Block>::load(values);
            left = 0;
        }
    }
    JM_INLINE T result() const {
        Vec<T, Block> all = lanes;
        int64_t at = 0;
        for (; at + Block <= left; at += Block) all = all * Vec<T, Block>::load(values + at);
        auto a = all.lo(), b = all.hi();
        T last[Lane], product = T(1);
        ((a.lo() * a.hi()) * (b.lo() * b.hi())).store(last);
        for (int i = 0; i < Lane; ++i) product = product * last[i];
        for (; at < left; ++at) product = product * values[at];
        return product;
    }

  private:
    template <int M> JM_INLINE void take_whole(Vec<T, M> v) {
        if constexpr (M == Block) lanes = lanes * v;
        else {
            take_whole(v.lo());
            take_whole(v.hi());
        }
    }
};

}  // namespace jm
