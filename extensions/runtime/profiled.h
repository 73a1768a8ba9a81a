// Compiled graphs and their kernels in the profiles of torch.profiler, emit_nvtx and emit_itt.
#pragma once

#include <Python.h>

#include <optional>
#include <string>

#include <ATen/record_function.h>

namespace jitmagic {

// Whether anybody profiles. torch's profilers set a flag of Python's, which is found in a third of the time
// that it takes to look for the callbacks of this thread.
bool profiler_is_on();

// A block of that title in the profile of this thread, if there is one, while the object lives.
class ProfiledBlock {
 public:
  ProfiledBlock(const std::string& title, at::RecordScope scope) {
    auto listeners = at::getStepCallbacksUnlessEmpty(scope);
    if (listeners) record_.emplace(std::move(*listeners)).before(std::string_view(title));
  }
  ProfiledBlock(const ProfiledBlock&) = delete;
  ProfiledBlock& operator=(const ProfiledBlock&) = delete;

 private:
  std::optional<at::RecordFunction> record_;
};

bool register_profiled();

}  // namespace jitmagic
