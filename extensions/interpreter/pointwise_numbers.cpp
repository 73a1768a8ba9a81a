// Arithmetic, comparisons and order of floats and integers; logic and choice.
#include "pointwise.h"

namespace jitmagic::blocks::JITMAGIC_ISA {
namespace {

#define COMPARISONS(X, T) X(eq, T) X(ne, T) X(lt, T) X(le, T) X(gt, T) X(ge, T)
#define ONE_NUMBER(X, T) X(neg, T) X(abs, T) X(sign, T) X(relu, T)
#define TWO_NUMBERS(X, T) \
  X(add, T) X(sub, T) X(mul, T) X(floordiv, T) X(remainder, T) X(fmod, T) X(maximum, T) X(minimum, T) X(fmax, T) \
  X(fmin, T) COMPARISONS(X, T)
#define TWO_INTEGERS(X, T) X(bitwise_and, T) X(bitwise_or, T) X(bitwise_xor, T) X(lshift, T) X(rshift, T)
#define TWO_BOOLS(X, T) X(logical_and, T) X(logical_or, T) X(logical_xor, T)
#define NAME_IT(NAME, T) NAMED(NAME)
#define INTEGERS(ROWS) ROWS(int8_t) ROWS(int16_t) ROWS(int32_t) ROWS(int64_t) ROWS(uint8_t) ROWS(uint16_t) \
  ROWS(uint32_t) ROWS(uint64_t)

ONE_NUMBER(NAME_IT, )
TWO_NUMBERS(NAME_IT, )
TWO_INTEGERS(NAME_IT, )
TWO_BOOLS(NAME_IT, )
NAMED(bitwise_not)
NAMED(logical_not)

#define NUMBER_ROWS(T) ONE_NUMBER(UNARY, T) TWO_NUMBERS(BINARY, T) where_row<T>(),
#define INTEGER_ROWS(T) NUMBER_ROWS(T) TWO_INTEGERS(BINARY, T) UNARY(bitwise_not, T)

constexpr Pointwise of_numbers[] = {
    NUMBER_ROWS(float) NUMBER_ROWS(double)
    where_row<jm::f16>(), where_row<jm::bf16>(), where_row<bool>(),
    COMPARISONS(BINARY, bool) TWO_BOOLS(BINARY, bool) UNARY(logical_not, bool)
};
constexpr Pointwise of_integers[] = {INTEGERS(INTEGER_ROWS)};

}  // namespace

extern const Rows<Pointwise> numbers{of_numbers, sizeof of_numbers / sizeof *of_numbers};
extern const Rows<Pointwise> integers{of_integers, sizeof of_integers / sizeof *of_integers};

}  // namespace jitmagic::blocks::JITMAGIC_ISA
