// Pairs of operations of floats and doubles, "first_second": second(first(a, b), c), or of one operand. A block then passes
// the first cache once less: an operation on 16 floats takes 0.7 ns, of which the store is two thirds. Each of the two is
// rounded.
#include "pointwise.h"

namespace jitmagic::blocks::JITMAGIC_ISA {
namespace {

struct add_of {
  template <class W> static JM_INLINE W call(W a, W b) { return jm::add(a, b); }
};
struct sub_of {
  template <class W> static JM_INLINE W call(W a, W b) { return jm::sub(a, b); }
};
struct mul_of {
  template <class W> static JM_INLINE W call(W a, W b) { return jm::mul(a, b); }
};
// c - first(a, b)
struct rsub_of {
  template <class W> static JM_INLINE W call(W a, W b) { return jm::sub(b, a); }
};
NAMED(exp)
NAMED(relu)
NAMED(square)
NAMED(tanh)
NAMED(sigmoid)

template <class First, class Second> struct pair_of {
  template <class W> static JM_INLINE W call(W a, W b, W c) { return Second::call(First::call(a, b), c); }
  template <class W> static JM_INLINE W call(W a, W b) { return Second::call(First::call(a, b)); }
};

#define THREE(T, FIRST, SECOND) ternary_row<pair_of<FIRST##_of, SECOND##_of>, T>(#FIRST "_" #SECOND),
#define TWO(T, FIRST, SECOND) binary_row<pair_of<FIRST##_of, SECOND##_of>, T>(#FIRST "_" #SECOND),
#define AFTER(T, FIRST) \
  THREE(T, FIRST, add) THREE(T, FIRST, sub) THREE(T, FIRST, rsub) THREE(T, FIRST, mul) TWO(T, FIRST, exp) \
  TWO(T, FIRST, relu) TWO(T, FIRST, square) TWO(T, FIRST, tanh) TWO(T, FIRST, sigmoid)

constexpr Pointwise table[] = {
    AFTER(float, add) AFTER(float, sub) AFTER(float, mul) AFTER(double, add) AFTER(double, sub) AFTER(double, mul)
};

}  // namespace

extern const Rows<Pointwise> pairs{table, sizeof table / sizeof *table};

}  // namespace jitmagic::blocks::JITMAGIC_ISA
