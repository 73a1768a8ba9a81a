// Products of matrices, by the tiles that kernels are linked with.
#include <jitmagic/products.cpp>

#include "operations.h"

namespace jitmagic::blocks::JITMAGIC_ISA {

void product(const ProductShape& s, const float* a, const float* b, float* c) {
  const jm::MatrixA left{a, s.a_m, s.a_k};
  const jm::MatrixB right{b, s.b_k, s.b_n};
  const jm::NoEpilogue none;
  if (s.by_tiles) jm::gemm<jm::Way::Swapped>(s.m, s.n, s.k, left, right, c, s.c_m, none);
  else jm::gemm(s.m, s.n, s.k, left, right, c, s.c_m, none);
}

}  // namespace jitmagic::blocks::JITMAGIC_ISA
