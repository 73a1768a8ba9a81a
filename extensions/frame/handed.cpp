// let_go(): the first call in a resume function whose frame has created objects with finalizers.

#include "handed.h"

namespace jitmagic {
namespace {

// Drops the dispatcher's references to the arguments, so that the resume function's frame is their
// only owner and finalizers run where the program drops an object. The dispatcher does not read the
// values after the frame has begun.
PyObject* let_go(PyObject*, PyObject*) {
  jm_thread* here = jm_this_thread();
  PyObject* handed = here->handed;
  here->handed = nullptr;
  for (Py_ssize_t i = 0; handed && i < PyTuple_GET_SIZE(handed); i++) {
    PyObject* item = PyTuple_GET_ITEM(handed, i);
    PyTuple_SET_ITEM(handed, i, Py_NewRef(Py_None));
    Py_DECREF(item);
  }
  Py_RETURN_NONE;
}

PyMethodDef handed_functions[] = {
    {"let_go", let_go, METH_NOARGS, "First call of a resume function: makes its frame the only owner of its values."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_handed(PyObject* module) { return PyModule_AddFunctions(module, handed_functions) == 0; }

}  // namespace jitmagic
