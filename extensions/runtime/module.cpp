// Initialises the module jitmagic._runtime. Records the torch version of the build, so that a mismatch is an error
// with a remedy instead of a crash (jitmagic/runtime/native.py checks it).

#include "profiled.h"
#include "runtime.h"

namespace {

PyObject* kept_bytes(PyObject*, PyObject*) { return PyLong_FromSize_t(jitmagic::kept_bytes()); }
PyObject* release_memory(PyObject*, PyObject*) { return PyLong_FromSize_t(jitmagic::release_memory()); }

PyMethodDef methods[] = {
    {"kept_bytes", kept_bytes, METH_NOARGS, "Return the bytes of freed results that are cached for reuse."},
    {"release_memory", release_memory, METH_NOARGS, "Return cached memory to the system; returns the number of bytes."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "jitmagic._runtime", "The native executor and autograd node.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__runtime() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  const bool ready = jitmagic::register_sizes(module) && jitmagic::register_plan(module) &&
                     jitmagic::register_autograd(module) && jitmagic::register_numbers(module) &&
                     jitmagic::register_undo_on_error(module) && jitmagic::register_split_graph(module) &&
                     jitmagic::register_freed_results(module) && jitmagic::register_holding_objects(module) &&
                     jitmagic::register_sized(module) && jitmagic::register_recording(module) &&
                     jitmagic::register_replay(module) && jitmagic::register_inner_tensors(module) &&
                     jitmagic::register_torch_call(module) && jitmagic::register_profiled() &&
                     jitmagic::register_plan_template(module) && jitmagic::register_autograd_template(module) &&
                     jitmagic::register_blocks(module) &&
                     PyModule_AddStringConstant(module, "TORCH_VERSION", JITMAGIC_TORCH_VERSION) == 0;
  if (!ready) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
