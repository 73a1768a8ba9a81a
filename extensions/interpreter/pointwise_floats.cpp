// Arithmetic and elementary functions of floats and doubles.
#include "pointwise.h"

namespace jitmagic::blocks::JITMAGIC_ISA {
namespace {

#define FUNCTIONS(X, T) \
  X(sqrt, T) X(rsqrt, T) X(exp, T) X(exp2, T) X(expm1, T) X(sigmoid, T) X(log, T) X(log2, T) X(log10, T) X(log1p, T) \
  X(sin, T) X(cos, T) X(tan, T) X(asin, T) X(acos, T) X(atan, T) X(sinh, T) X(cosh, T) X(tanh, T) X(asinh, T) \
  X(acosh, T) X(atanh, T) X(erf, T) X(erfc, T) X(erfinv, T) X(lgamma, T) X(reciprocal, T) X(floor, T) X(ceil, T) \
  X(round, T) X(trunc, T) X(frac, T) X(isnan, T) X(isinf, T) X(isfinite, T) X(signbit, T)
#define OF_TWO(X, T) X(truediv, T) X(pow, T) X(atan2, T) X(hypot, T) X(copysign, T) X(nextafter, T) \
  X(logaddexp, T)
#define NAME_IT(NAME, T) NAMED(NAME)

FUNCTIONS(NAME_IT, )
OF_TWO(NAME_IT, )
NAMED(fma)

constexpr Pointwise table[] = {
    FUNCTIONS(UNARY, float) FUNCTIONS(UNARY, double)
    OF_TWO(BINARY, float) OF_TWO(BINARY, double)
    TERNARY(fma, float) TERNARY(fma, double)
};

}  // namespace

extern const Rows<Pointwise> floats{table, sizeof table / sizeof *table};

}  // namespace jitmagic::blocks::JITMAGIC_ISA
