// Calls of tagged functions as torch's profilers see them: torch.profiler, emit_nvtx, emit_itt.
#pragma once

#include "frame.h"

#include <memory>

namespace at {
struct RecordFunction;
}

namespace jitmagic {

// Whether anybody profiles: the one flag that a call reads where nobody does.
bool profiler_is_on();

// A block of that title (a str) in the profile of this thread, if there is one, while the object lives.
class ProfiledCall {
 public:
  explicit ProfiledCall(PyObject* title);
  ~ProfiledCall();
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

 private:
  PyObject* title_ = nullptr;  // what `record_` refers to
  std::unique_ptr<at::RecordFunction> record_;
};

bool register_profiled();

}  // namespace jitmagic
