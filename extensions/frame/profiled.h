// Shows calls of tagged functions to torch's profilers: torch.profiler, emit_nvtx, emit_itt.
#pragma once

#include "frame.h"

#include <memory>

namespace at {
struct RecordFunction;
}

namespace jitmagic {

// Whether a profiler is on. This flag is the only cost of a call without a profiler.
bool profiler_is_on();

// A block with a title (str) in the profile of this thread, if there is one, for the object's
// lifetime.
class ProfiledCall {
 public:
  explicit ProfiledCall(PyObject* title);
  ~ProfiledCall();
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

 private:
  PyObject* title_ = nullptr;  // `record_` refers to its text
  std::unique_ptr<at::RecordFunction> record_;
};

bool register_profiled();

}  // namespace jitmagic
