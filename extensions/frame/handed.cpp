// release_arguments(): the first call in a resume function whose frame has created objects with finalizers.

#include "handed.h"

namespace jitmagic {
namespace {

// Drops the dispatcher's references to the arguments, so that the resume function's frame is their
// only owner and finalizers run where the program drops an object. The dispatcher does not read the
// values after the frame has begun.
PyObject* release_arguments(PyObject*, PyObject*) {
  jm_thread* here = jm_this_thread();
  PyObject* tuple = here->resume_arguments;
  here->resume_arguments = nullptr;
  for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject* item = PyTuple_GET_ITEM(tuple, i);
    PyTuple_SET_ITEM(tuple, i, Py_NewRef(Py_None));
    Py_DECREF(item);
  }
  Py_RETURN_NONE;
}

PyMethodDef resume_functions[] = {
    {"release_arguments", release_arguments, METH_NOARGS, "First call of a resume function: makes its frame the only owner of its values."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_resume_arguments(PyObject* module) { return PyModule_AddFunctions(module, resume_functions) == 0; }

}  // namespace jitmagic
