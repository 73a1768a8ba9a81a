// Every pointwise operation as a C function over arrays, vector and scalar versions: what
// test_pointwise.py drives.
#include <jitmagic/math.h>
using namespace jm;

constexpr int N = lanes<float>;

#define LOOP for (int64_t i = 0; i < n; i += N)
#define UNARY_AS(NAME, T, U, SUFFIX) \
    extern "C" void NAME##_##SUFFIX(const T* a, U* o, int64_t n) { \
        LOOP jm::NAME(Vec<T, N>::load(a + i, n - i)).store(o + i, n - i); \
    } \
    extern "C" void NAME##_##SUFFIX##_scalar(const T* a, U* o, int64_t n) { \
        for (int64_t i = 0; i < n; ++i) o[i] = jm::NAME(a[i]); \
    }
#define BINARY_AS(NAME, T, U, SUFFIX) \
    extern "C" void NAME##_##SUFFIX(const T* a, const T* b, U* o, int64_t n) { \
        LOOP jm::NAME(Vec<T, N>::load(a + i, n - i), Vec<T, N>::load(b + i, n - i)) \
            .store(o + i, n - i); \
    } \
    extern "C" void NAME##_##SUFFIX##_scalar(const T* a, const T* b, U* o, int64_t n) { \
        for (int64_t i = 0; i < n; ++i) o[i] = jm::NAME(a[i], b[i]); \
    }
#define UNARY(NAME, T, SUFFIX) UNARY_AS(NAME, T, T, SUFFIX)
#define BINARY(NAME, T, SUFFIX) BINARY_AS(NAME, T, T, SUFFIX)

#define EVERY_NUMBER(T, S) \
    BINARY(add, T, S) \
    BINARY(sub, T, S) BINARY(mul, T, S) UNARY(neg, T, S) UNARY(abs, T, S) UNARY(sign, T, S) \
        UNARY(relu, T, S) UNARY(square, T, S) BINARY(minimum, T, S) BINARY(maximum, T, S) BINARY( \
            fmin, T, S) BINARY(fmax, T, S) BINARY_AS(eq, T, bool, S) BINARY_AS(ne, T, bool, S) \
            BINARY_AS(lt, T, bool, S) BINARY_AS(le, T, bool, S) BINARY_AS(gt, T, bool, S) \
                BINARY_AS(ge, T, bool, S) BINARY_AS(logical_and, T, bool, S) \
                    BINARY_AS(logical_or, T, bool, S) BINARY_AS(logical_xor, T, bool, S) \
                        UNARY_AS(logical_not, T, bool, S) BINARY(floordiv, T, S) \
                            BINARY(remainder, T, S) BINARY(fmod, T, S) BINARY(pow, T, S) \
                                UNARY(floor, T, S) UNARY(ceil, T, S) UNARY(round, T, S) \
                                    UNARY(trunc, T, S) UNARY_AS(isnan, T, bool, S) \
                                        UNARY_AS(isinf, T, bool, S) UNARY_AS(isfinite, T, bool, S) \
                                            UNARY_AS(signbit, T, bool, S)
#define EVERY_REAL(T, S) \
    BINARY(truediv, T, S) \
    UNARY(sqrt, T, S) UNARY(rsqrt, T, S) UNARY(reciprocal, T, S) UNARY(frac, T, S) \
        BINARY(copysign, T, S) BINARY(nextafter, T, S) BINARY(hypot, T, S) BINARY(atan2, T, S) \
        BINARY(logaddexp, T, S) \
            UNARY(exp, T, S) UNARY(exp2, T, S) UNARY(expm1, T, S) UNARY(log, T, S) \
                UNARY(log2, T, S) UNARY(log10, T, S) UNARY(log1p, T, S) UNARY(sin, T, S) \
                    UNARY(cos, T, S) UNARY(tan, T, S) UNARY(asin, T, S) UNARY(acos, T, S) \
                        UNARY(atan, T, S) UNARY(sinh, T, S) UNARY(cosh, T, S) UNARY(tanh, T, S) \
                            UNARY(asinh, T, S) UNARY(acosh, T, S) UNARY(atanh, T, S) \
                                UNARY(erf, T, S) UNARY(erfc, T, S) UNARY(erfinv, T, S) \
                                    UNARY(lgamma, T, S) UNARY(sigmoid, T, S)
#define EVERY_BITS(T, S) \
    BINARY(bitwise_and, T, S) \
    BINARY(bitwise_or, T, S) BINARY(bitwise_xor, T, S) UNARY(bitwise_not, T, S)
#define EVERY_INT(T, S) \
    EVERY_NUMBER(T, S) EVERY_BITS(T, S) BINARY(lshift, T, S) BINARY(rshift, T, S)

EVERY_NUMBER(float, f32)
EVERY_REAL(float, f32)
EVERY_NUMBER(double, f64)
EVERY_REAL(double, f64)
EVERY_INT(int8_t, i8)
EVERY_INT(uint8_t, u8)
EVERY_INT(int16_t, i16)
EVERY_INT(int32_t, i32)
EVERY_INT(int64_t, i64)
EVERY_BITS(bool, b8)
BINARY(add, bool, b8)
BINARY(mul, bool, b8)
BINARY(logical_and, bool, b8)
BINARY(eq, bool, b8)
BINARY(lt, bool, b8)
