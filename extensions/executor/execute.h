// Runs a Program on tensors. The caller binds the inputs, runs the steps and takes the outputs from their slots.
#pragma once

#include <string>
#include <vector>

#include "program.h"
#include "warned.h"

namespace jitmagic {

// A slot of a running call. `seen` points to the tensor (an input, a constant, or `own`).
struct Slot {
  const at::Tensor* seen = nullptr;
  void* pointer = nullptr;
  at::Tensor own;

  void hold(at::Tensor tensor) {
    own = std::move(tensor);
    seen = &own;
    pointer = own.defined() ? own.data_ptr() : nullptr;
  }
};

struct Frame {
  c10::SmallVector<Slot, 16> slots;
  c10::Storage pool;  // one allocation for all temporaries, which are offsets into it
  const std::vector<std::string>* titles = nullptr;  // of the program, while a profiler runs
  PendingWarnings warned;
  c10::DeviceIndex device = -1;  // of the program, if it is a CUDA device
  bool stream_is_known = false;
  void* stream = nullptr;  // the current one of `device`, a CUstream
};

// Binds the input to its slot; the tensor must live until the steps have run.
inline void bind(Frame& frame, int slot, const at::Tensor& tensor) {
  frame.slots[slot].seen = &tensor;
  frame.slots[slot].pointer = const_cast<void*>(tensor.const_data_ptr());
}

inline void bind_constants(const Program& program, Frame& frame) {
  for (size_t i = 0; i < program.constants.size(); ++i) bind(frame, program.inputs + int(i), program.constants[i]);
}

// Lets the programs that this thread runs have their temporaries in this memory, if it is large enough, until it is set to
// an empty Storage. CUDA graphs, of which one runs at a time, share it.
void share_temporaries(c10::Storage memory);

void run_steps(const Program& program, Frame& frame);

}  // namespace jitmagic
