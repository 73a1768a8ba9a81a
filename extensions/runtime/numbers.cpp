// WithNumbers: a compiled graph some of whose inputs are Python floats.
//
// Such inputs are handed on as 0-dim float64 CPU tensors, so that a number which changes from call to call
// (a learning rate) is data to the kernels and no constant of theirs. Anything but a float is handed on as it
// is, and the graph says what is wrong with it.

#include "around.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

PyObject* as_tensor(double value) {
  at::Tensor made = make_tensor({{}, {}, at::kDouble, c10::Device(c10::DeviceType::CPU), sizeof(double)});
  *static_cast<double*>(made.mutable_data_ptr()) = value;
  return THPVariable_Wrap(std::move(made));
}

PyObject* numbers_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* numbers = reinterpret_cast<Around*>(self);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  std::vector<PyObject*> given(args, args + count);
  std::vector<THPObjectPtr> made;
  for (Py_ssize_t position : *numbers->positions) {
    if (position >= count || !PyFloat_CheckExact(given[position])) continue;
    made.emplace_back(as_tensor(PyFloat_AS_DOUBLE(given[position])));
    if (!made.back()) return nullptr;
    given[position] = made.back().get();
  }
  return PyObject_Vectorcall(numbers->run, given.data(), count, names);
  END_HANDLE_TH_ERRORS
}

PyObject* numbers_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *run, *positions;
  if (!PyArg_ParseTuple(args, "OO!:WithNumbers", &run, &PyTuple_Type, &positions)) return nullptr;
  return reinterpret_cast<PyObject*>(make_around(type, run, positions, numbers_call));
}

PyTypeObject numbers_type = around_type(
    "jitmagic._runtime.WithNumbers",
    "WithNumbers(run, positions): calls run with the Python floats at these positions as 0-dim tensors.",
    numbers_new, sizeof(Around));

}  // namespace

bool register_numbers(PyObject* module) {
  if (PyType_Ready(&numbers_type) < 0) return false;
  return PyModule_AddObjectRef(module, "WithNumbers", reinterpret_cast<PyObject*>(&numbers_type)) == 0;
}

}  // namespace jitmagic
