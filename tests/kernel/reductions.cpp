// Accumulators, Philox, threads and matrix products as C functions: what test_reduce.py,
// test_random.py and test_gemm.py drive.
#include <jitmagic/gemm.h>
#include <jitmagic/random.h>
using namespace jm;

constexpr int N = lanes<float>;

// Two accumulators over the halves of the input, the second merged into the first.
template <class Acc, class T> void accumulate(Acc& first, Acc& second, const T* a, int64_t n) {
    int64_t middle = n / 2 / N * N;
    for (int64_t i = 0; i < middle; i += N) first.add(Vec<T, N>::load(a + i));
    for (int64_t i = middle; i < n; i += N) {
        auto v = Vec<T, N>::load(a + i, n - i);
        if (n - i >= N) second.add(v);
        else second.add(v, n - i);
    }
    first.merge(second);
}
#define FOLD(NAME, ACC, T, S) \
    extern "C" void NAME##_##S(const T* a, int64_t n, T* out) { \
        ACC<T, N> first, second; \
        accumulate(first, second, a, n); \
        *out = first.result(); \
    }
#define ARG(NAME, ACC, T, S) \
    extern "C" void NAME##_##S(const T* a, int64_t n, int64_t* out) { \
        ACC<T, N> first, second(n / 2 / N * N); \
        accumulate(first, second, a, n); \
        *out = first.result(); \
    }
#define EVERY(T, S) \
    FOLD(sum, Sum, T, S) \
    FOLD(prod, Prod, T, S) FOLD(max, Max, T, S) FOLD(min, Min, T, S) ARG(argmax, ArgMax, T, S) \
        ARG(argmin, ArgMin, T, S)
EVERY(float, f32)
EVERY(double, f64)
EVERY(int32_t, i32)
EVERY(int64_t, i64)

#define WELFORD(T, S) \
    extern "C" void welford_##S(const T* a, int64_t n, T* out) { \
        Welford<T, N> first, second; \
        accumulate(first, second, a, n); \
        auto m = first.result(); \
        out[0] = m.mean; \
        out[1] = m.variance(T(1)); \
        out[2] = m.count; \
    }
WELFORD(float, f32)
WELFORD(double, f64)

extern "C" int any_all(const bool* a, int64_t n) {
    Any<N> some, some_more;
    All<N> each, each_more;
    accumulate(some, some_more, a, n);
    accumulate(each, each_more, a, n);
    return some.result() + 2 * each.result();
}

extern "C" void philox_words(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
    auto w =
        philox(Words4<uint32_t>{counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
    using V = Vec<uint32_t, N>;
    auto v = philox(Words4<V>{V(counter[0]), V(counter[1]), V(counter[2]), V(counter[3])}, key[0],
                    key[1]);
    uint32_t words[8] = {w.x, w.y, w.z, w.w, v.x[N - 1], v.y[N - 1], v.z[N - 1], v.w[N - 1]};
    for (int i = 0; i < 8; ++i) out[i] = words[i];
}
extern "C" void normals(uint64_t seed, int64_t n, float* out,
                        float* scalar_out) {   // n: a multiple of 4 N
    using V = Vec<uint32_t, N>;
    for (int64_t i = 0; i < n; i += 4 * N) {
        auto lane = iota<uint32_t, N>(uint32_t(i / 4));
        auto w = philox(Words4<V>{lane, V(0u), V(0u), V(0u)}, uint32_t(seed), uint32_t(seed >> 32));
        auto a = normal(w.x, w.y), b = normal(w.z, w.w);
        Vec<float, N> four[4] = {a.first, a.second, b.first, b.second};
        for (int part = 0; part < 4; ++part) four[part].scatter_strided(out + i + part, 4);
        for (int l = 0; l < N; ++l) {
            auto s = philox(seed, 0, uint64_t(i / 4 + l));
            auto c = normal(s.x, s.y), d = normal(s.z, s.w);
            float scalars[4] = {c.first, c.second, d.first, d.second};
            for (int part = 0; part < 4; ++part) scalar_out[i + 4 * l + part] = scalars[part];
        }
    }
}
extern "C" void uniforms(const uint32_t* words, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += N)
        uniform(Vec<uint32_t, N>::load(words + i, n - i)).store(out + i, n - i);
}

extern "C" int64_t cover(int64_t n, int64_t grain, int threads, int32_t* hits, int64_t* begins) {
    int64_t ranges = 0;
    parallel_for<8>(
        n, grain,
        [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) ++hits[i];
#pragma omp critical
            begins[ranges++] = begin;
        },
        threads);
    return ranges;
}
extern "C" int default_threads() { return max_threads(); }
extern "C" int nested_threads() {
    int inside = 0;
    parallel_region(2, [&](int part, int) {
        if (part == 0) inside = max_threads();
    });
    return inside;
}

extern "C" void matmul(const float* a, const float* b, const float* bias, float* c,
                       const int64_t* s, int mode, int threads) {
    MatrixA left{a, s[3], s[4]};
    MatrixB right{b, s[5], s[6]};
    if (mode == 0) gemm(s[0], s[1], s[2], left, right, c, s[7], NoEpilogue{}, threads);
    else if (mode == 1) gemm(s[0], s[1], s[2], left, right, c, s[7], AddBias{bias}, threads);
    else if (mode == 2) gemm(s[0], s[1], s[2], left, right, c, s[7], AddInto{c, s[7]}, threads);
    else {
        auto then = [bias](auto sum, int64_t, int64_t n, int64_t count) {
            return relu(sum + decltype(sum)::load(bias + n, count));
        };
        gemm(s[0], s[1], s[2], left, right, c, s[7], then, threads);
    }
}
