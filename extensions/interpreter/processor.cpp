// Chooses the operations that this processor can run.
#include <cstring>

#include "operations.h"

namespace jitmagic::blocks {

#if defined(__x86_64__)
namespace avx2 {
const Operations& operations();
}
namespace avx512 {
const Operations& operations();
}

namespace {
// What -march=x86-64-v3 and -v4 let the compiler use (devices/processors.py); the others come with these.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
}  // namespace

const Operations* operations_for(const char* isa) {
  if (!std::strcmp(isa, "avx512") && has_avx512()) return &avx512::operations();
  if (!std::strcmp(isa, "avx2") && has_avx2()) return &avx2::operations();
  return nullptr;
}
#elif defined(__aarch64__)
namespace neon {
const Operations& operations();
}
const Operations* operations_for(const char* isa) { return std::strcmp(isa, "neon") ? nullptr : &neon::operations(); }
#else
const Operations* operations_for(const char*) { return nullptr; }
#endif

}  // namespace jitmagic::blocks
