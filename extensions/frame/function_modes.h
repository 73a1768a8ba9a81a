// The torch-function modes of this thread. torch.set_default_device and `with torch.device(...)`
// put a mode at the bottom of the stack that only gives factory functions a device, which can be
// guarded on. Any other mode may observe or change the thread's operations.
#pragma once

#include <Python.h>  // before all others: it configures the system's headers

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace jitmagic {

struct FunctionModes {
  int64_t watching = 0;               // number of other modes
  std::optional<c10::Device> device;  // the default device
};

FunctionModes function_modes();  // observers_tensor.cpp; the GIL is held

}  // namespace jitmagic
