// The executor's form of a Plan: the steps of one call, on numbered slots.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "cuda.h"
#include "memory.h"

namespace jitmagic {

// A kernel takes the addresses of its arguments. args[-1] is its context, for a function that runs many kernels.
struct Kernel {
  int (*function)(void* const*) = nullptr;
  void* context = nullptr;
};

enum class Kind : uint8_t { Alloc, Reuse, Pool, Launch, LaunchCuda, Call, View, Address, Free };

// One argument of an ATen call: a constant, a slot, the number in a slot, or a list of slots and None.
struct CallArgument {
  enum class From : uint8_t { Constant, Slot, Number, List, OptionalList } from = From::Constant;
  c10::IValue constant;
  std::vector<int> slots;  // -1: None
  bool is_tensor = false;  // Number: passed as a 0-dim tensor that promotes like a Python number
};

// The layout that later steps expect of an ATen result.
struct Expected {
  bool known = false;
  bool required = false;  // a kernel or a view reads it: another shape or dtype is an error
  TensorLayout layout;
};

struct Call;

// Launches a kernel in place of an operator's call.
struct NativeLaunch {
  virtual ~NativeLaunch() = default;
  // Returns the launch for the numbers among the call's arguments, null if the operator has to be called.
  virtual std::shared_ptr<NativeLaunch> specialised(const Call& call) const = 0;
  // Returns false if the caller has to call the operator. `given` has the tensor of each argument that is one, or a
  // number that varies.
  virtual bool launch(const Call& call, c10::ArrayRef<const at::Tensor*> given) = 0;
};

struct Call {
  c10::OperatorHandle op;
  std::vector<CallArgument> arguments;
  std::vector<int> results;  // -1: dropped
  bool out = false;
  std::vector<Expected> expected;  // per result; empty: any result is accepted
  bool foreign = false;  // an operator outside torch: its results are checked
  std::shared_ptr<NativeLaunch> kernel;  // the operator launches a Triton kernel of the user
  std::string file;  // its position in the user's source
  int line = 0;  // 0: unknown
};

struct Step {
  Kind kind;
  int slot = -1;
  int base = -1;
  int64_t offset = 0;  // Pool, Address: bytes; View: elements from the base's first element
  bool as_tensor = false;  // Pool: an ATen call or view needs a tensor, not only a pointer
  TensorLayout layout;
  Kernel kernel;
  std::vector<int> args;
  int number = 0;  // Launch, LaunchCuda: index among the program's launches
  CudaLaunch cuda;
  std::vector<int> by_value;  // LaunchCuda: CPU scalars, of which the kernel takes the value
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
  std::shared_ptr<const std::vector<std::string>> titles;  // for profilers: of the graph and its launches; may be empty
  std::vector<int> aligned;  // inputs that kernels assume on 16-byte boundaries
};

// A number in a template's program that is filled in from a register.
struct SizedField {
  enum Field : uint8_t { Size, Stride, Offset, Pool, Grid } kind;
  int step;
  int result;  // of an ATen call; -1: of the step itself
  int dim;
  int index;  // of the register
};

}  // namespace jitmagic
