// Sums, Philox, threads and matrix products as C functions: what test_reduce.py,
// test_random.py and test_gemm.py drive.
#include <jitmagic/gemm.h>
#include <jitmagic/random.h>
using namespace jm;

constexpr int N = lanes<float>;

// As generated kernels do it: blocks of 32 additions, each then taken in by a Total.
template <class T> T block_sum(const T* a, int64_t n) {
    constexpr int64_t block = 32 * N;
    Total<Vec<T, N>> total;
    for (int64_t at = 0; at < n; at += block) {
        Vec<T, N> sum(T(0));
        for (int64_t i = at; i < n && i < at + block; i += N)
            sum = sum + (n - i < N ? Vec<T, N>::load(a + i, n - i) : Vec<T, N>::load(a + i));
        total.add(sum);
    }
    return hsum(total.result());
}
#define SUMS(T, S) \
    extern "C" void sum_##S(const T* a, int64_t n, T* out) { *out = block_sum(a, n); } \
    extern "C" void total_##S(const T* a, int64_t n, T* out) { \
        Total<T> total; \
        for (int64_t i = 0; i < n; ++i) total.add(a[i]); \
        *out = total.result(); \
    }
SUMS(float, f32)
SUMS(double, f64)

#define ACROSS(T, S) \
    extern "C" void prod_##S(const T* a, int64_t, T* out) { *out = hprod(Vec<T, N>::load(a)); } \
    extern "C" void max_##S(const T* a, int64_t, T* out) { *out = hmax(Vec<T, N>::load(a)); } \
    extern "C" void min_##S(const T* a, int64_t, T* out) { *out = hmin(Vec<T, N>::load(a)); } \
    extern "C" void lanes_##S(const T* a, int64_t, T* out) { *out = hsum(Vec<T, N>::load(a)); }
ACROSS(float, f32)
ACROSS(double, f64)
ACROSS(int32_t, i32)
ACROSS(int64_t, i64)
extern "C" int width() { return N; }

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
            begins[__atomic_fetch_add(&ranges, 1, __ATOMIC_RELAXED)] = begin;
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
