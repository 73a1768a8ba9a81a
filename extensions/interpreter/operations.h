// The operations of the block interpreter: rows of tables that are compiled once per instruction set.
//
// An operation works on blocks of n elements, whose addresses it gets, or on scalars. A row is found by its
// name and the type of its operands: "exp", f32. program.h runs programs of these operations. pointwise_*.cpp, casts.cpp,
// memory.cpp, products.cpp and reductions.cpp define them by instantiating jitmagic/include, so that values have the bits
// of generated C++ kernels. Invariant: nothing outside of the n elements is read or written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jitmagic::blocks {

enum class Type : uint8_t { f32, f64, f16, bf16, f8, b8, i8, i16, i32, i64, u8, u16, u32, u64 };
constexpr int kTypes = 14;
constexpr const char* kTypeNames[kTypes] = {"f32", "f64", "f16", "bf16", "f8",  "b8",  "i8",
                                            "i16", "i32", "i64", "u8",   "u16", "u32", "u64"};
constexpr int kTypeBytes[kTypes] = {4, 8, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8};
constexpr int bytes_of(Type type) { return kTypeBytes[int(type)]; }

// out = op(a, b, c), elementwise; `arity` of them are used. Of a conditional operation `a` is b8, `type` that of b and c.
struct Pointwise {
  const char* name;
  Type type;
  Type result;
  int arity;
  bool conditional;
  void (*run)(void* out, const void* a, const void* b, const void* c, int64_t n);
  void (*one)(void* out, const void* a, const void* b, const void* c);  // scalars, by scalar functions as in C++ kernels
};

// Access to memory. Addresses are in elements of `type`; `memory` is that of the first one.
struct Access {
  Type type;
  // out[i] = memory[i * step]
  void (*load)(void* out, const void* memory, int64_t step, int64_t n);
  // mask[i] ? memory[i * step] : fill; what a mask excludes is not read
  void (*load_if)(void* out, const void* memory, int64_t step, const void* mask, const void* fill, int64_t n);
  // out[i] = memory[index[i]]
  void (*gather)(void* out, const void* memory, const int64_t* index, int64_t n);
  void (*gather_if)(void* out, const void* memory, const int64_t* index, const void* mask, const void* fill, int64_t n);
  void (*store)(void* memory, int64_t step, const void* value, int64_t n);
  void (*scatter)(void* memory, const int64_t* index, const void* value, int64_t n);
  // memory[i * step] += value[i], in order; on bools it is `or`
  void (*add)(void* memory, int64_t step, const void* value, int64_t n);
  void (*add_at)(void* memory, const int64_t* index, const void* value, int64_t n);
  void (*fill)(void* out, const void* value, int64_t n);
};

// A reduction of values of `type`. Its accumulator has type `total`; `extra` is the rounding error of a sum of doubles,
// or the position of an argmax; null for the others.
struct Reduction {
  const char* name;
  Type type;
  Type total;
  Type extra;
  bool has_extra;
  // into one accumulator; element i is at position + i * step
  void (*reduce)(void* total, void* extra, const void* value, int64_t position, int64_t step, int64_t n);
  // into n accumulators, one value each
  void (*join)(void* total, void* extra, const void* value, int64_t position, int64_t n);
  // n accumulators with those of a later part
  void (*merge)(void* total, void* extra, const void* other, const void* other_extra, int64_t n);
};

// Integer blocks: base + i * step, its quotient by a positive divisor, its remainder.
using Indexes = void (*)(int64_t* out, int64_t base, int64_t step, int64_t divisor, int64_t n);
// out = index, counted from the end if it is negative; 0 where it is out of range, which sets `bad` unless a mask
// (which may be null) is false there.
using Checked = void (*)(int64_t* out, const int64_t* index, int64_t extent, const void* mask, int* bad, int64_t n);

// c = a b, of m x n sums of k terms. Steps are in elements; the rows of c are contiguous, and so is a along m or k.
// `by_tiles`: few rows too are not added as dot products, whose terms have another order.
struct ProductShape {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m;
  bool by_tiles;
};
using Product = void (*)(const ProductShape& shape, const float* a, const float* b, float* c);

template <class Row>
struct Rows {
  const Row* rows;
  size_t count;
};

struct Operations {
  const char* isa;
  Rows<Pointwise> pointwise[5];
  Rows<Access> accesses;  // a row per Type, in another order
  Rows<Reduction> reductions;
  Indexes iota, quotients, remainders;
  Checked checked;
  Product product;
};

// The operations for an instruction set ("avx2", "avx512", "neon") of this processor; null if it has none or is not known.
const Operations* operations_for(const char* isa);

}  // namespace jitmagic::blocks
