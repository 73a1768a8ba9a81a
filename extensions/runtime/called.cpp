// Called: one function of torch as a callable that gives a tuple, as compiled graphs do (data_partitions.py).
//
// An argument is a position among the tensors of the call, or a constant. What the function gives is put into a
// tuple, unless it is one, or a list, already.

#include "callable.h"
#include "reading.h"

#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

// A constant where `held` is set.
struct Argument {
  Py_ssize_t position;
  PyObject* held;
};

struct Called : Callable {
  Py_ssize_t inputs;
  PyObject *function, *names;
  std::vector<Argument>* arguments;
};

PyObject* as_tuple(PyObject* result) {
  if (!result || PyTuple_CheckExact(result)) return result;
  PyObject* made = PyTuple_Check(result) || PyList_Check(result) ? PySequence_Tuple(result) : PyTuple_Pack(1, result);
  Py_DECREF(result);
  return made;
}

PyObject* called_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<Called*>(object);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != self->inputs || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "a call takes %zd tensors, got %zd", self->inputs, count);
    return nullptr;
  }
  c10::SmallVector<PyObject*, 8> given;
  for (const Argument& one : *self->arguments) given.push_back(one.held ? one.held : args[one.position]);
  const Py_ssize_t named = PyTuple_GET_SIZE(self->names);
  PyObject* keywords = named ? self->names : nullptr;
  return as_tuple(PyObject_Vectorcall(self->function, given.data(), given.size() - size_t(named), keywords));
  END_HANDLE_TH_ERRORS
}

// Called(inputs, function, arguments, names): an argument is (position,), or (constant, None).
PyObject* called_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *function, *arguments, *names;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(args, "nOOO!:Called", &inputs, &function, &arguments, &PyTuple_Type, &names)) return nullptr;
  check(PyExc_ValueError, inputs >= 0 && PyTuple_GET_SIZE(names) <= Py_ssize_t(items(arguments).size()),
        "a call has %zd inputs and more names than arguments", inputs);
  THPObjectPtr object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  auto* self = reinterpret_cast<Called*>(object.get());
  self->vectorcall = called_call;
  self->inputs = inputs;
  self->arguments = new std::vector<Argument>();
  self->names = Py_NewRef(names);
  self->function = Py_NewRef(function);
  for (PyObject* one : items(arguments)) {
    if (items(one).size() > 1) {
      self->arguments->push_back({-1, Py_NewRef(item(one, 0))});
      continue;
    }
    const auto position = Py_ssize_t(integer(item(one, 0)));
    check(PyExc_ValueError, position >= 0 && position < inputs, "position %zd is none of %zd", position, inputs);
    self->arguments->push_back({position, nullptr});
  }
  return object.release();
  END_HANDLE_TH_ERRORS
}

int called_traverse(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<Called*>(object);
  Py_VISIT(self->function);
  Py_VISIT(self->names);
  if (!self->arguments) return 0;
  for (const Argument& one : *self->arguments) Py_VISIT(one.held);
  return 0;
}

int called_clear(PyObject* object) {
  auto* self = reinterpret_cast<Called*>(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->names);
  if (!self->arguments) return 0;
  std::vector<Argument> dropped;
  std::swap(dropped, *self->arguments);
  for (Argument& one : dropped) Py_XDECREF(one.held);
  return 0;
}

void called_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  called_clear(object);
  delete reinterpret_cast<Called*>(object)->arguments;
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject called_type = callable_type({
    .full_name = "jitmagic._runtime.Called",
    .doc = "Called(inputs, function, arguments, names): calls a function with tensors at positions, (position,), and "
           "constants, (constant, None), the last of them by name; gives a tuple.",
    .size = sizeof(Called),
    .make = called_new,
    .dealloc = called_dealloc,
    .traverse = called_traverse,
    .clear = called_clear,
});

}  // namespace

bool register_called(PyObject* module) { return PyModule_AddType(module, &called_type) == 0; }

}  // namespace jitmagic
