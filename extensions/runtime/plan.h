// A Plan as the executor holds it: the steps of one call, on numbered slots.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime.h"
#include "sizes.h"

namespace jitmagic {

using Kernel = int (*)(void* const*);

enum class Kind : uint8_t { Alloc, Reuse, Pool, Launch, LaunchCuda, Call, View, Address, Free };

// One argument of an ATen call: a constant, a slot, the number in a slot, or a list whose entries are slots or
// None.
struct CallArgument {
  enum class From : uint8_t { Constant, Slot, Number, List, OptionalList } from = From::Constant;
  c10::IValue constant;
  std::vector<int> slots;  // -1: None
  bool is_tensor = false;  // Number: as a 0-d tensor that promotes as a Python number does
};

// What later steps take a result of an ATen call to be.
struct Expected {
  bool known = false;
  bool required = false;  // a kernel or a view reads it: another shape or dtype is an error
  TensorLayout layout;
};

struct Call {
  c10::OperatorHandle op;
  std::vector<CallArgument> arguments;
  std::vector<int> results;  // -1: dropped
  bool out = false;
  std::vector<Expected> expected;  // of the results; empty: whatever comes is right
  bool foreign = false;  // an operator from outside of torch: what it gives is looked at
  std::string file;  // where it stands in the user's source
  int line = 0;      // 0: nobody knows
};

struct Step {
  Kind kind;
  int slot = -1;
  int base = -1;
  int64_t offset = 0;  // Pool, Address: bytes; View: elements from the base's first element
  bool as_tensor = false;  // Pool: some ATen call or view needs a tensor, not only a pointer
  TensorLayout layout;
  Kernel kernel = nullptr;
  std::vector<int> args;
  int number = 0;  // Launch, LaunchCuda: of the program's
  CudaLaunch cuda;
  std::shared_ptr<Call> call;
};

struct Program {
  int inputs = 0;
  int slots = 0;
  size_t pool_bytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool heavy = false;
  std::vector<at::Tensor> constants;
  std::vector<Step> steps;
  std::vector<int> outputs;  // -1: None
  std::shared_ptr<const std::vector<std::string>> titles;  // for profilers: of the graph, its launches; may be empty
  std::vector<int> aligned;  // inputs that kernels take to be on 16-byte boundaries
};

// A number of a template's program that a register has.
struct Blank {
  enum Field : uint8_t { Size, Stride, Offset, Pool, Grid } field;
  int step;
  int result;  // of an ATen call; -1: it is the step's own
  int dim;
  int index;  // of the register
};

// What is filled in where the sizes are known.
struct Sizing {
  struct Argument {
    int step, number;  // of an ATen call
    PyObject* structure;
  };
  struct Vector {
    int constant;
    PyObject* structure;  // of an int64 tensor
  };
  std::vector<Blank> blanks;
  std::vector<Argument> arguments;
  std::vector<Vector> vectors;
};

// plan_read.cpp: from the tuple that runtime/native.py lowers a Plan to, its constants, and the inputs that
// have to be aligned (may be null). `sizing` is given where it may have Registers.
std::unique_ptr<Program> read_program(
    PyObject* tuple, PyObject* constants, PyObject* aligned, Sizing* sizing = nullptr);
void set_nbytes(TensorLayout& layout);
c10::IValue constant_of(PyObject* object, const c10::Argument& declared);

// plan.cpp: the Executable, a new reference. `otherwise` is called where an input is not aligned that has to be; may
// be null if none has.
PyObject* executable_of(std::unique_ptr<Program> program, PyObject* owners, PyObject* otherwise = nullptr);

}  // namespace jitmagic
