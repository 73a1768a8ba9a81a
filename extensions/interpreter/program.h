// A kernel of the block interpreter: instructions on numbered registers.
//
// A register holds a scalar (8 bytes), a block of `lanes` elements, or the address of a block in an argument's memory (a
// view). Instructions are those of the text that jitmagic/codegen/blocks/ writes; reader.cpp reads and checks them,
// run.cpp runs them. Invariant of a program that was read: every register is defined before it is used, with the type
// that the operation takes; blocks fit their registers; loops are nested. Offsets into arguments are not checked: as with
// any kernel, the caller passes tensors of the sizes that it was made for.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "operations.h"

namespace jitmagic::blocks {

enum class Kind : uint8_t {
  Constant, Size, Sum, Point, Fill, View, Load, LoadIf, Gather, GatherIf, Store, Scatter, Add, AddAt,
  Iota, Quotients, Remainders, Check, Reduce, Join, Loop, Scratch, Product,
};

// operands[] of each Kind, registers unless said otherwise:
//   Constant out · Size out, number · Sum out (then `terms`) · Point out, a, b, c · Fill out, a
//   View out, argument, offset · Load out, argument, offset, step · LoadIf …, mask, fill
//   Gather out, argument, offset, index · GatherIf …, mask, fill · Store argument, offset, step, value
//   Scatter argument, offset, index, value · Add, AddAt as these two · Iota out, base, step
//   Quotients, Remainders out, base, step, divisor · Check out, index, extent, mask
//   Reduce total, extra, value, position, step · Join total, extra, value, position · Loop (its `terms`: axis, extent)
//   Scratch argument, elements · Product (its `terms`: m, n, k, then argument, offset and two steps of each factor, then
//   argument, offset and step of the result)
struct Instruction {
  Kind kind;
  bool is_block = false;  // works on n elements, not on one
  bool parallel = false;  // Loop: its rounds may run on several threads
  bool blocked = false;   // Loop: the last axis advances by blocks
  bool first = false;     // View: the first one of its argument; others mostly show what is in the cache by then
  int operands[6] = {-1, -1, -1, -1, -1, -1};
  int end = 0;            // Loop: the instruction after its body
  int bytes = 0;          // View: of an element
  uint64_t number = 0;    // Constant: the bits; Sum: the constant; Loop: the cost of one element of a
                          // round; Product: whether it is by tiles
  union {
    const Pointwise* point;
    const Access* access;
    const Reduction* reduction;
  };
  std::vector<int> terms;  // Sum: factors, in pairs; Loop: axes and extents; Product: see above
  std::vector<int> totals;  // Loop: the instructions inside that accumulate into registers from outside

  Instruction() : kind(Kind::Constant), point(nullptr) {}
};

using Function = int (*)(void* const*);

struct Program {
  const Operations* operations = nullptr;
  int lanes = 0;
  int arguments = 0;  // without the array of sizes, which is the next one
  int scratch = 0;    // further arguments: memory that a call allocates
  int sizes = 0;
  std::vector<uint32_t> places;  // of each register in a State's memory
  size_t bytes = 0;              // of that memory
  std::vector<Instruction> code;
  std::atomic<Function> compiled{nullptr};  // what runs in its place, once it is built

  // Returns whether a run-time index was out of range.
  int run(void* const* args) const;
};

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Named {
  std::string name;
  std::unique_ptr<Program> program;
};

// Reads all kernels of a text. Throws Malformed.
std::vector<Named> read_programs(std::string_view text, const Operations& operations);

// The kernel's entry point, `int (void* const* args)`: args[-1] is the Program.
int run_program(void* const* args);

}  // namespace jitmagic::blocks
