// Shows compiled graphs and their kernels in the profiles of torch.profiler, emit_nvtx and emit_itt.
#pragma once

#include <Python.h>

#include <optional>
#include <string>

#include <ATen/record_function.h>

namespace jitmagic {

// Returns whether a profiler runs, by the Python flag of torch's profilers: 0.7 ns, against 16 ns for looking up the
// callbacks of this thread. x + 1 on 4 elements takes 739 ns instead of 753.
bool profiler_is_on();

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

bool register_profiled();

}  // namespace jitmagic
