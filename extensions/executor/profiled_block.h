// Shows compiled graphs and their kernels in the profiles of torch.profiler, emit_nvtx and emit_itt.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/record_function.h>

namespace jitmagic {

// A titled block in this thread's profile, if there is one, during the object's lifetime.
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

}  // namespace jitmagic
