// Looking for torch's per-thread profiler callbacks takes 16 ns. Its profilers first set a Python
// flag, and reading that is a cached lookup in a dictionary that rarely changes.

#include "profiled.h"

#include "memo.h"

#include <ATen/record_function.h>

#include <optional>
#include <utility>

namespace jitmagic {
namespace {

PyObject* profiler_globals = nullptr;  // of torch.autograd.profiler
PyObject* profiler_flag = nullptr;
Lookup profiler_lookup;

}  // namespace

bool profiler_is_on() { return profiler_lookup.in(profiler_globals, profiler_flag) == Py_True; }

ProfiledCall::ProfiledCall(PyObject* title) {
  Py_ssize_t length;
  const char* text = PyUnicode_AsUTF8AndSize(title, &length);
  if (!text) {  // lone surrogates, or not a str
    PyErr_Clear();
    return;
  }
  auto listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!listeners) return;
  title_ = Py_NewRef(title);
  record_ = std::make_unique<at::RecordFunction>(std::move(*listeners));
  record_->before(std::string_view(text, size_t(length)));
}

ProfiledCall::~ProfiledCall() {
  record_.reset();
  Py_XDECREF(title_);
}

bool register_profiled() {
  PyObject* profiler = PyImport_ImportModule("torch.autograd.profiler");
  if (!profiler) return false;
  profiler_globals = Py_NewRef(PyModule_GetDict(profiler));
  profiler_flag = PyUnicode_InternFromString("_is_profiler_enabled");
  Py_DECREF(profiler);
  return profiler_flag != nullptr;
}

}  // namespace jitmagic
