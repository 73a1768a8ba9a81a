// Access to the at::Tensor inside a torch.Tensor without calling torch, which would be most of a
// guard's cost.
#pragma once

#include "guards.h"

#include <ATen/core/TensorBase.h>

#include <cstddef>

namespace jitmagic {

// Set by guards_tensor.cpp at import: the offset in bytes of the at::Tensor (whose only member is a
// pointer) within a torch.Tensor object, and that class.
extern std::ptrdiff_t tensor_offset;
extern PyTypeObject* tensor_class;

inline bool is_tensor(PyObject* object) {
  return Py_IS_TYPE(object, tensor_class) || PyType_IsSubtype(Py_TYPE(object), tensor_class);
}

inline const at::TensorBase& tensor_of(PyObject* object) {
  return *reinterpret_cast<const at::TensorBase*>(reinterpret_cast<char*>(object) + tensor_offset);
}

}  // namespace jitmagic
