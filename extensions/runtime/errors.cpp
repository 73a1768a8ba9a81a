// Python errors thrown from C++ code, see runtime.h.

#include <utility>

#include <torch/csrc/Exceptions.h>

#include "runtime.h"

namespace jitmagic {

void raise_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

void raise_as(PyObject* type, const char* message) {
  PyErr_SetString(type, message);
  raise_python_error();
}

}  // namespace jitmagic
