// The operations of one instruction set.
#include "operations.h"

namespace jitmagic::blocks::JITMAGIC_ISA {

extern const Rows<Pointwise> floats, numbers, integers, casts, pairs;
extern const Rows<Access> accesses;
extern const Rows<Reduction> reductions;
void iota(int64_t* out, int64_t base, int64_t step, int64_t divisor, int64_t n);
void quotients(int64_t* out, int64_t base, int64_t step, int64_t divisor, int64_t n);
void remainders(int64_t* out, int64_t base, int64_t step, int64_t divisor, int64_t n);
void checked(int64_t* out, const int64_t* index, int64_t extent, const void* mask, int* bad, int64_t n);
void product(const ProductShape& shape, const float* a, const float* b, float* c);

#define JITMAGIC_NAME_(isa) #isa
#define JITMAGIC_NAME(isa) JITMAGIC_NAME_(isa)

const Operations& operations() {
  static const Operations made{JITMAGIC_NAME(JITMAGIC_ISA), {floats, numbers, integers, casts, pairs}, accesses, reductions,
                               iota, quotients, remainders, checked, product};
  return made;
}

}  // namespace jitmagic::blocks::JITMAGIC_ISA
