// jitmagic._frame: module initialisation.

#include "compared.h"
#include "dispatch.h"
#include "entry.h"
#include "handed.h"
#include "profiled.h"
#include "spread.h"
#include "timed_graph.h"

namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "jitmagic._frame",
    "Dispatchers, guard programs and the frame hook.", -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__frame() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  const bool ready = jitmagic::register_guards(module) && jitmagic::register_entry(module) &&
                     jitmagic::register_compared(module) && jitmagic::register_timed_graph(module) &&
                     jitmagic::register_spread(module) &&
                     jitmagic::register_dispatch(module) && jitmagic::register_resume_arguments(module) &&
                     jitmagic::register_module_call(module) && jm_register_hook(module) &&
                     jm_register_watch(module) &&
                     jitmagic::register_tensor_guards(module) &&
                     jitmagic::register_observers(module) && jitmagic::register_profiled();
  if (!ready) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
