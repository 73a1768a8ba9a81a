// The torch-function modes of this thread. torch.set_default_device and `with torch.device(...)` keep
// a mode at the bottom of the stack, which only gives factories a device: that is state to guard on.
// Any other mode watches, or changes, what the thread computes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace jitmagic {

struct FunctionModes {
  int64_t watching = 0;               // the modes besides
  std::optional<c10::Device> device;  // the default device
};

FunctionModes function_modes();  // observers_tensor.cpp; the GIL is held

}  // namespace jitmagic
