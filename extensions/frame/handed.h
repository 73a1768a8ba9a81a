// Ownership of the values that a residual passes to a resume function.
#pragma once

#include "frame.h"

namespace jitmagic {

inline PyObject* pack(PyObject* const* args, Py_ssize_t count) {
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple && i < count; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
  return tuple;
}

// The arguments of a miss: the tuple of the resume function itself if there is one, so that
// release_arguments() empties it.
inline PyObject* pack_for_miss(PyObject* const* args, Py_ssize_t count) {
  PyObject* tuple = jm_this_thread()->resume_arguments;
  return tuple && args == &PyTuple_GET_ITEM(tuple, 0) ? Py_NewRef(tuple) : pack(args, count);
}

// Registers a resume function's arguments while it runs, until its frame owns them alone.
class ResumeArguments {
 public:
  explicit ResumeArguments(PyObject* values) : here(jm_this_thread()), before(here->resume_arguments) {
    here->resume_arguments = values;
  }
  ~ResumeArguments() { here->resume_arguments = before; }
  ResumeArguments(const ResumeArguments&) = delete;
  ResumeArguments& operator=(const ResumeArguments&) = delete;

 private:
  jm_thread* here;
  PyObject* before;
};

bool register_resume_arguments(PyObject* module);

}  // namespace jitmagic
