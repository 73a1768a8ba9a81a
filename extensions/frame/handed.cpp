// let_go(): a resume function of a frame that made what tells when it dies begins with it.

#include "handed.h"

namespace jitmagic {
namespace {

// The frame of a resume function holds what it was handed, and nobody else does any more: an object dies
// where the program lets go of it. Who handed it on looks at the values no more once the frame runs.
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
    {"let_go", let_go, METH_NOARGS, "What a resume function begins with: only its frame holds its values."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_handed(PyObject* module) { return PyModule_AddFunctions(module, handed_functions) == 0; }

}  // namespace jitmagic
