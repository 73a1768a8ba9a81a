// Conversions: "to_U" of each type, as Tensor.to converts.
#include "pointwise.h"

namespace jitmagic::blocks::JITMAGIC_ISA {
namespace {

template <class U> struct converted {
  template <class W> static JM_INLINE auto call(W value) { return jm::convert<U>(value); }
};

#define CAST(U, NAME, T) unary_row<converted<U>, T>("to_" NAME),
#define TO(U, NAME) \
  CAST(U, NAME, float) CAST(U, NAME, double) CAST(U, NAME, jm::f16) CAST(U, NAME, jm::bf16) CAST(U, NAME, jm::f8) \
  CAST(U, NAME, bool) CAST(U, NAME, int8_t) CAST(U, NAME, int16_t) CAST(U, NAME, int32_t) CAST(U, NAME, int64_t) \
  CAST(U, NAME, uint8_t) CAST(U, NAME, uint16_t) CAST(U, NAME, uint32_t) CAST(U, NAME, uint64_t)

constexpr Pointwise table[] = {
    TO(float, "f32") TO(double, "f64") TO(jm::f16, "f16") TO(jm::bf16, "bf16") TO(bool, "b8")
    TO(int8_t, "i8") TO(int16_t, "i16") TO(int32_t, "i32") TO(int64_t, "i64")
    TO(uint8_t, "u8") TO(uint16_t, "u16") TO(uint32_t, "u32") TO(uint64_t, "u64")
};

}  // namespace

extern const Rows<Pointwise> casts{table, sizeof table / sizeof *table};

}  // namespace jitmagic::blocks::JITMAGIC_ISA
