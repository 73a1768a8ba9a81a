// WithNumbers: a compiled graph some of whose inputs are Python floats and ints.
//
// They are passed as 0-dim CPU tensors of float64 and int64, so that a number which changes from call to call (a
// learning rate, a step) is data to the kernels and not a constant. Other values, a bool or an int beyond 64 bits,
// are passed unchanged, and the graph reports the error.

#include "around.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

template <class T>
PyObject* wrapped(T value) {
  const auto dtype = c10::CppTypeToScalarType<T>::value;
  at::Tensor made = make_tensor({{}, {}, dtype, c10::Device(c10::DeviceType::CPU), sizeof(T)});
  *static_cast<T*>(made.mutable_data_ptr()) = value;
  return THPVariable_Wrap(std::move(made));
}

// Returns the tensor of a number, or `object` itself for other types; nullptr with a Python error set.
PyObject* as_tensor(PyObject* object) {
  if (PyFloat_CheckExact(object)) return wrapped<double>(PyFloat_AS_DOUBLE(object));
  if (!PyLong_CheckExact(object)) return Py_NewRef(object);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow ? Py_NewRef(object) : wrapped<int64_t>(value);
}

PyObject* numbers_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* numbers = reinterpret_cast<GraphWrapper*>(self);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  std::vector<PyObject*> given(args, args + count + (names ? PyTuple_GET_SIZE(names) : 0));
  std::vector<THPObjectPtr> made;
  for (Py_ssize_t position : *numbers->positions) {
    if (position >= count) continue;
    made.emplace_back(as_tensor(given[position]));
    if (!made.back()) return nullptr;
    given[position] = made.back().get();
  }
  return PyObject_Vectorcall(numbers->run, given.data(), count, names);
  END_HANDLE_TH_ERRORS
}

PyObject* numbers_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *run, *positions;
  if (!PyArg_ParseTuple(args, "OO:WithNumbers", &run, &positions)) return nullptr;
  return reinterpret_cast<PyObject*>(make_wrapper(type, run, positions, numbers_call));
  END_HANDLE_TH_ERRORS
}

PyTypeObject numbers_type = wrapper_type(
    "jitmagic._runtime.WithNumbers",
    "WithNumbers(run, positions): calls run with the Python numbers at these positions as 0-dim tensors.",
    numbers_new, sizeof(GraphWrapper));

}  // namespace

bool register_numbers(PyObject* module) { return PyModule_AddType(module, &numbers_type) == 0; }

}  // namespace jitmagic
