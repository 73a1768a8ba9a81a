// jitmagic._runtime: module initialisation. Records the torch it was built for, so that a mismatch is an
// error with a remedy instead of a crash (jitmagic/runtime/native.py checks it).

#include "runtime.h"

namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "jitmagic._runtime", "The native executor and autograd node.", -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__runtime() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  const bool ready = jitmagic::register_plan(module) && jitmagic::register_autograd(module) &&
                     PyModule_AddStringConstant(module, "TORCH_VERSION", JITMAGIC_TORCH_VERSION) == 0;
  if (!ready) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
