// The result template of a graph entry: builds the frame's result from the graph's outputs.
#pragma once

#include "guards.h"

#include <vector>

namespace jitmagic {

// Parsed once, when the entry is created, from nested tuples:
//   ("out", i) | ("const", object) | ("reg", r) | ("tuple", t...) | ("list", t...) | ("dict", (key, t)...)
struct Template {
  enum Kind { Out, Const, Register, Tuple, List, Dict } kind = Const;
  Py_ssize_t number = 0;
  PyObject* object = nullptr;   // constant (strong)
  std::vector<Template> parts;  // of a dict: values, keys in `keys`
  std::vector<PyObject*> keys;  // strong
};

// Returns false with a Python error set if it is malformed or uses an unknown register.
bool read_template(PyObject* given, int registers, Template& shape);

// The frame's result, a new reference, or NULL with a Python error.
PyObject* build_result(const Template& shape, PyObject* outputs, Registers& registers);

// Collects the registers that the template reads after the graph has run.
void collect_registers(const Template& shape, std::vector<int>& found);

int visit_template(const Template& shape, visitproc visit, void* arg);
void release_template(Template& shape);

}  // namespace jitmagic
