// The operator jitmagic::philox_state: a draw from a CUDA generator without a kernel (loops/philox_state.py).

#include <mutex>
#include <optional>
#include <tuple>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "cuda.h"

namespace jitmagic {
namespace {

// Returns the seed and the offset, which it advances as ATen's kernels do. `aligned`: a tensor that decides how many
// elements a thread of ATen's takes. If this raises, eager runs the function.
std::tuple<at::Tensor, at::Tensor> philox_state(
    const std::optional<at::Tensor>& aligned, int64_t device, int64_t increment) {
  TORCH_CHECK(
      !aligned || reinterpret_cast<uintptr_t>(aligned->const_data_ptr()) % 16 == 0,
      "jitmagic: dropout of a tensor that is not at a multiple of 16 bytes is ATen's");
  const auto index = static_cast<c10::DeviceIndex>(device);
  // A replay would use the numbers of the capture again.
  TORCH_CHECK(
      !is_capturing(current_cuda_stream(index), index),
      "jitmagic: dropout was compiled for calls outside of CUDA graphs; capture a function compiled with "
      "mode=\"reduce-overhead\"");
  at::Generator generator = at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, index));
  const std::lock_guard<std::mutex> alone(generator.mutex());
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + static_cast<uint64_t>(increment));
  const auto number = [](uint64_t value) {
    return at::scalar_tensor(static_cast<int64_t>(value), at::dtype(at::kLong));
  };
  return {number(generator.current_seed()), number(offset)};
}

void define(torch::Library& library) {
  if (!c10::Dispatcher::singleton().findSchema({"jitmagic::philox_state", ""})) {
    library.def(
        "philox_state(Tensor? aligned, int device, int increment) -> (Tensor, Tensor)",
        {at::Tag::nondeterministic_seeded});
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(jitmagic, library) {
  define(library);
}

TORCH_LIBRARY_IMPL(jitmagic, CompositeExplicitAutograd, library) {
  library.impl("philox_state", philox_state);
}

}  // namespace jitmagic
