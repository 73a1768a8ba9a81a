// The result template of a graph entry: how the frame's result is told by the graph's outputs.
#pragma once

#include "guards.h"

#include <vector>

namespace jitmagic {

// Read once, when the entry is made, out of nested tuples:
//   ("out", i) | ("const", object) | ("reg", r) | ("tuple", t...) | ("list", t...) | ("dict", (key, t)...)
struct Template {
  enum Kind { Out, Const, Register, Tuple, List, Dict } kind = Const;
  Py_ssize_t number = 0;
  PyObject* object = nullptr;   // constant (strong)
  std::vector<Template> parts;  // of a dict: values, keys in `keys`
  std::vector<PyObject*> keys;  // strong
};

// False with a Python error set: malformed, or a register the program does not have.
bool read_template(PyObject* given, int registers, Template& shape);

// The frame's result, a new reference, or NULL with a Python error.
PyObject* build_result(const Template& shape, PyObject* outputs, Registers& registers);

// Registers that must outlive the graph's run, since the template reads them.
void collect_registers(const Template& shape, std::vector<int>& found);

int visit_template(const Template& shape, visitproc visit, void* arg);
void release_template(Template& shape);

}  // namespace jitmagic
