// WithNumbers: a compiled graph some of whose inputs are Python floats.
//
// Such inputs are handed on as 0-dim float64 CPU tensors, so that a number which changes from call to call
// (a learning rate) is data to the kernels and no constant of theirs. Anything but a float is handed on as it
// is, and the graph says what is wrong with it.

#include "runtime.h"

#include <structmember.h>

#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

struct WithNumbers {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* run;
  std::vector<Py_ssize_t>* positions;
};

PyObject* as_tensor(double value) {
  at::Tensor made = make_tensor({{}, {}, at::kDouble, c10::Device(c10::DeviceType::CPU), sizeof(double)});
  *static_cast<double*>(made.mutable_data_ptr()) = value;
  return THPVariable_Wrap(std::move(made));
}

PyObject* numbers_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* numbers = reinterpret_cast<WithNumbers*>(self);
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
  std::vector<Py_ssize_t> read;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); i++) {
    read.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i)));
    if (PyErr_Occurred()) return nullptr;
    if (read.back() < 0) return PyErr_Format(PyExc_ValueError, "position %zd is negative", read.back());
  }
  auto* self = reinterpret_cast<WithNumbers*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = numbers_call;
  self->run = Py_NewRef(run);
  self->positions = new std::vector<Py_ssize_t>(std::move(read));
  return reinterpret_cast<PyObject*>(self);
}

int numbers_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<WithNumbers*>(self)->run);
  return 0;
}

int numbers_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<WithNumbers*>(self)->run);
  return 0;
}

void numbers_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  numbers_clear(self);
  delete reinterpret_cast<WithNumbers*>(self)->positions;
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef numbers_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(WithNumbers, vectorcall), READONLY, nullptr},
    {"run", T_OBJECT, offsetof(WithNumbers, run), READONLY, "the graph itself"},
    {nullptr}};

PyTypeObject numbers_type = [] {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "jitmagic._runtime.WithNumbers";
  type.tp_doc = "WithNumbers(run, positions): calls run with the Python floats at these positions as 0-dim tensors.";
  type.tp_basicsize = sizeof(WithNumbers);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  type.tp_vectorcall_offset = offsetof(WithNumbers, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_members = numbers_members;
  type.tp_new = numbers_new;
  type.tp_traverse = numbers_traverse;
  type.tp_clear = numbers_clear;
  type.tp_dealloc = numbers_dealloc;
  return type;
}();

}  // namespace

bool register_numbers(PyObject* module) {
  if (PyType_Ready(&numbers_type) < 0) return false;
  return PyModule_AddObjectRef(module, "WithNumbers", reinterpret_cast<PyObject*>(&numbers_type)) == 0;
}

}  // namespace jitmagic
