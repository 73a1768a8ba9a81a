// Passes the warnings of a graph to Python, at the line of their call: the frame around a compiled graph is at its
// function's first line.

#include "issued.h"

#include <string>
#include <variant>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

// Formats a warning as torch does, with the position in torch's source if known.
std::string text_of(const c10::Warning& warning) {
  std::string text = torch::processErrorMsg(warning.msg());
  const auto& source = warning.source_location();
  if (!source.file || warning.verbatim()) return text;
  return text + " (Triggered internally at " + torch::processErrorMsg(source.file) + ":" +
         std::to_string(source.line) + ".)";
}

// Returns the registry of warnings already shown; null without a Python frame: then each is shown.
PyObject* registry_in(PyObject* globals) {
  if (!globals) return nullptr;
  PyObject* known = PyDict_GetItemString(globals, "__warningregistry__");
  if (known && PyDict_Check(known)) return known;
  THPObjectPtr made(PyDict_New());
  if (!made || PyDict_SetItemString(globals, "__warningregistry__", made.get()) < 0) throw python_error();
  return PyDict_GetItemString(globals, "__warningregistry__");
}

}  // namespace

bool issue_warnings(const PendingWarnings& warned) {
  PyObject* globals = PyEval_GetGlobals();
  PyObject* registry = registry_in(globals);
  PyObject* name = globals ? PyDict_GetItemString(globals, "__name__") : nullptr;
  for (const auto& [warning, call] : *warned) {
    const bool outdated = std::holds_alternative<c10::Warning::DeprecationWarning>(warning.type());
    THPObjectPtr text(PyUnicode_FromString(text_of(warning).c_str()));
    THPObjectPtr file(PyUnicode_FromString(call->file.c_str()));
    if (!text || !file) throw python_error();
    PyObject* kind = outdated ? PyExc_DeprecationWarning : PyExc_UserWarning;
    if (PyErr_WarnExplicitObject(kind, text.get(), file.get(), call->line, name, registry) < 0) return false;
  }
  return true;
}

}  // namespace jitmagic
