// Detects a running profiler, see profiled.h.

#include "profiled.h"

extern "C" uint64_t jm_dict_version_here(PyObject* dict);  // dict_version.c

namespace jitmagic {
namespace {

PyObject* globals = nullptr;  // of torch.autograd.profiler
PyObject* flag = nullptr;
uint64_t seen = 0;  // the version of `globals` at which the flag was read
bool is_on = false;

}  // namespace

bool profiler_is_on() {
  const uint64_t version = jm_dict_version_here(globals);
  if (version == 0 || version != seen) {
    is_on = PyDict_GetItemWithError(globals, flag) == Py_True;
    seen = version;
  }
  return is_on;
}

bool register_profiled() {
  PyObject* profiler = PyImport_ImportModule("torch.autograd.profiler");
  if (!profiler) return false;
  globals = Py_NewRef(PyModule_GetDict(profiler));
  flag = PyUnicode_InternFromString("_is_profiler_enabled");
  Py_DECREF(profiler);
  return flag != nullptr;
}

}  // namespace jitmagic
