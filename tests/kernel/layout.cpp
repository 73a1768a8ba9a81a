// Conversions, memory access and masks as C functions over arrays: what test_vec.py drives.
#include <jitmagic/loop.h>
using namespace jm;

constexpr int N = lanes<float>;

#define CONVERT(T, S, U, R) \
    extern "C" void convert_##S##_##R(const T* a, U* o, int64_t n) { \
        for (int64_t i = 0; i < n; i += N) \
            convert<U>(Vec<T, N>::load(a + i, n - i)).store(o + i, n - i); \
    } \
    extern "C" void convert_##S##_##R##_scalar(const T* a, U* o, int64_t n) { \
        for (int64_t i = 0; i < n; ++i) o[i] = convert<U>(a[i]); \
    }
#define FROM(T, S) \
    CONVERT(T, S, float, f32) \
    CONVERT(T, S, double, f64) CONVERT(T, S, int8_t, i8) CONVERT(T, S, uint8_t, u8) \
        CONVERT(T, S, int16_t, i16) CONVERT(T, S, int32_t, i32) CONVERT(T, S, int64_t, i64) \
            CONVERT(T, S, bool, b8) CONVERT(T, S, bf16, bf16) CONVERT(T, S, f16, f16)
FROM(float, f32)
FROM(double, f64)
FROM(int8_t, i8)
FROM(uint8_t, u8)
FROM(int16_t, i16)
FROM(int32_t, i32)
FROM(int64_t, i64)
FROM(bool, b8)
FROM(bf16, bf16)
FROM(f16, f16)

template <class T> void copy_tail(const T* a, T* o, int64_t n, T fill) {
    auto v = Vec<T, N>::load(a, n, fill);
    v.store(o);
    v.store(o + N, n);
}
#define MEMORY(T, S) \
    extern "C" void tail_##S(const T* a, T* o, int64_t n, const T* fill) { \
        copy_tail<T>(a, o, n, *fill); \
    } \
    extern "C" void strided_##S(const T* a, T* o, int64_t stride, int64_t n) { \
        Vec<T, N>::strided(a, stride, n).scatter_strided(o, stride, n); \
    } \
    extern "C" void gather_##S(const T* a, const int64_t* index, const bool* keep, T* o) { \
        auto at = Vec<int64_t, N>::load(index); \
        auto mask = Mask<N>::load(keep); \
        Vec<T, N>::gather(a, at, mask).store(o); \
        Vec<T, N>::gather(a, at).scatter(o + N, at, mask); \
    } \
    extern "C" void anywhere_##S(const T* a, const int64_t* index, const bool* keep, const T* fill, T* o) { \
        using V = Vec<T, 2 * N>; \
        auto at = Vec<int64_t, 2 * N>::load(index); \
        auto mask = Mask<2 * N>::load(keep); \
        V::gather(a, at, mask, *fill).store(o); \
        V::load(a).scatter(o + 2 * N, at, mask); \
        V::load(a).scatter(o + 4 * N, where(mask, at, Vec<int64_t, 2 * N>(0))); \
    } \
    extern "C" void part_##S(const T* a, const bool* keep, const T* fill, int64_t n, T* o) { \
        load_where(a, Mask<N>::load(keep), *fill, Full{}).store(o); \
        load_where(a, Mask<N>::load(keep), *fill, n).store(o + N); \
        load_where(a, Mask<4 * N>::load(keep), *fill, n).store(o + 2 * N); \
    } \
    extern "C" void where_##S(const bool* m, const T* a, const T* b, T* o) { \
        where(Mask<N>::load(m), Vec<T, N>::load(a), Vec<T, N>::load(b)).store(o); \
    } \
    extern "C" void stream_##S(const T* a, T* o) { Vec<T, N>::load(a).stream(o); }
MEMORY(float, f32)
MEMORY(double, f64)
MEMORY(int8_t, i8)
MEMORY(int16_t, i16)
MEMORY(int64_t, i64)
MEMORY(bool, b8)
MEMORY(bf16, bf16)

extern "C" int width() { return N; }
extern "C" uint64_t mask_bits(const bool* m) { return bits(Mask<N>::load(m)); }
extern "C" int mask_any_all(const bool* m) {
    return any(Mask<N>::load(m)) + 2 * all(Mask<N>::load(m));
}
extern "C" uint64_t first_bits(int64_t n) { return bits(first_n<N>(n)); }
extern "C" void iota_i64(int64_t start, int64_t* o) { iota<int64_t, N>(start).store(o); }
extern "C" void fma_f32(const float* a, const float* b, const float* c, float* o, int64_t n) {
    for (int64_t i = 0; i < n; i += N)
        jm::fma(Vec<float, N>::load(a + i), Vec<float, N>::load(b + i), Vec<float, N>::load(c + i))
            .store(o + i);
}
