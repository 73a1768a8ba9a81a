// HoldingObjects: a compiled graph called with more than its inputs: objects whose state the backward of an autograd
// function depends on. The autograd nodes of such a call keep them alive, as eager's `ctx` does.

#include "held.h"

#include "around.h"
#include "signature.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

thread_local PyObject* current = nullptr;

class Current {
 public:
  explicit Current(PyObject* held) : before_(std::exchange(current, held)) {}
  ~Current() { current = before_; }
  Current(const Current&) = delete;

 private:
  PyObject* before_;
};

PyObject* holding_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* holding = reinterpret_cast<GraphWrapper*>(self);
  const Py_ssize_t inputs = holding->positions->front(), count = PyVectorcall_NARGS(nargsf);
  if (count < inputs || names) {
    return PyErr_Format(PyExc_TypeError, "expected %zd inputs, then objects to hold", inputs);
  }
  THPObjectPtr held(PyTuple_New(count - inputs));
  if (!held) return nullptr;
  for (Py_ssize_t i = inputs; i < count; i++) PyTuple_SET_ITEM(held.get(), i - inputs, Py_NewRef(args[i]));
  const Current now(held.get());
  return PyObject_Vectorcall(holding->run, args, inputs, nullptr);
  END_HANDLE_TH_ERRORS
}

PyObject* holding_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *run, *inputs;
  if (!PyArg_ParseTuple(args, "OO!:HoldingObjects", &run, &PyTuple_Type, &inputs)) return nullptr;
  if (PyTuple_GET_SIZE(inputs) != 1) return PyErr_Format(PyExc_ValueError, "expected the number of inputs");
  return reinterpret_cast<PyObject*>(make_wrapper(type, run, inputs, holding_call));
  END_HANDLE_TH_ERRORS
}

PyTypeObject holding_type = wrapper_type(
    "jitmagic._runtime.HoldingObjects",
    "HoldingObjects(run, (inputs,)): calls run with its first `inputs` arguments. The autograd nodes created in the "
    "call keep the other ones alive.",
    holding_new, sizeof(GraphWrapper));

}  // namespace

PyObject* held_objects() { return current; }

Owned owned(PyObject* object) {
  return Owned(Py_NewRef(object), [](PyObject* held) {
    if (!Py_IsInitialized()) return;
    const GilGuard gil;
    Py_DECREF(held);
  });
}

bool register_holding_objects(PyObject* module) { return PyModule_AddType(module, &holding_type) == 0; }

}  // namespace jitmagic
