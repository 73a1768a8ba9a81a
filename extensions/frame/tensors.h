// Objects of torch.Tensor as guards read them: no call of torch's, which would be most of a guard's price.
#pragma once

#include "guards.h"

#include <ATen/core/TensorBase.h>

#include <cstddef>

namespace jitmagic {

// guards_tensor.cpp, set when the module is imported: bytes from the start of such an object to its at::Tensor (whose
// only member is a pointer), and its class.
extern std::ptrdiff_t tensor_place;
extern PyTypeObject* tensor_class;

inline bool is_tensor(PyObject* object) {
  return Py_IS_TYPE(object, tensor_class) || PyType_IsSubtype(Py_TYPE(object), tensor_class);
}

inline const at::TensorBase& tensor_of(PyObject* object) {
  return *reinterpret_cast<const at::TensorBase*>(reinterpret_cast<char*>(object) + tensor_place);
}

}  // namespace jitmagic
