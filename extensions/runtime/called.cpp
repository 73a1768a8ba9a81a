// TorchCall: one torch function as a callable that returns a tuple, as compiled graphs do (data_partitions.py).
//
// An argument is a position among the tensors of the call, or a constant. The function's result is wrapped in a tuple
// unless it is a tuple or list.

#include "callable.h"
#include "reading.h"

#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

// A constant if `held` is set.
struct Argument {
  Py_ssize_t position;
  PyObject* held;
};

struct TorchCall : Callable {
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

PyObject* torch_call_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<TorchCall*>(object);
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

// TorchCall(inputs, function, arguments, names): an argument is (position,) or (constant, None).
PyObject* torch_call_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *function, *arguments, *names;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(args, "nOOO!:TorchCall", &inputs, &function, &arguments, &PyTuple_Type, &names)) return nullptr;
  check(PyExc_ValueError, inputs >= 0 && PyTuple_GET_SIZE(names) <= Py_ssize_t(items(arguments).size()),
        "a call has %zd inputs and more names than arguments", inputs);
  THPObjectPtr object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  auto* self = reinterpret_cast<TorchCall*>(object.get());
  self->vectorcall = torch_call_call;
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
    check(PyExc_ValueError, position >= 0 && position < inputs, "position %zd is out of range: there are %zd", position,
          inputs);
    self->arguments->push_back({position, nullptr});
  }
  return object.release();
  END_HANDLE_TH_ERRORS
}

int torch_call_traverse(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<TorchCall*>(object);
  Py_VISIT(self->function);
  Py_VISIT(self->construction);
  Py_VISIT(self->names);
  if (!self->arguments) return 0;
  for (const Argument& one : *self->arguments) Py_VISIT(one.held);
  return 0;
}

int torch_call_clear(PyObject* object) {
  auto* self = reinterpret_cast<TorchCall*>(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->construction);
  Py_CLEAR(self->names);
  if (!self->arguments) return 0;
  std::vector<Argument> dropped;
  std::swap(dropped, *self->arguments);
  for (Argument& one : dropped) Py_XDECREF(one.held);
  return 0;
}

void torch_call_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  torch_call_clear(object);
  delete reinterpret_cast<TorchCall*>(object)->arguments;
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject torch_call_type = callable_type({
    .full_name = "jitmagic._runtime.TorchCall",
    .doc = "TorchCall(inputs, function, arguments, names): calls a function with tensors at positions, (position,), "
           "and constants, (constant, None), the last of them by name; returns a tuple.",
    .size = sizeof(TorchCall),
    .make = torch_call_new,
    .dealloc = torch_call_dealloc,
    .traverse = torch_call_traverse,
    .clear = torch_call_clear,
});

}  // namespace

bool register_torch_call(PyObject* module) { return PyModule_AddType(module, &torch_call_type) == 0; }

}  // namespace jitmagic
