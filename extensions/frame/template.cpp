// Result templates: parsed from tuples, and used to build a frame's result.

#include "template.h"

#include <string_view>

namespace jitmagic {
namespace {

bool refuse_template(PyObject* given) {
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "malformed result template: %R", given);
  return false;
}

bool read_parts(PyObject* given, int registers, Template& shape) {
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(given); i++) {
    PyObject* part = PyTuple_GET_ITEM(given, i);
    if (shape.kind == Template::Dict) {
      if (!PyTuple_Check(part) || PyTuple_GET_SIZE(part) != 2) return refuse_template(given);
      shape.keys.push_back(Py_NewRef(PyTuple_GET_ITEM(part, 0)));
      part = PyTuple_GET_ITEM(part, 1);
    }
    if (!read_template(part, registers, shape.parts.emplace_back())) return false;
  }
  return true;
}

PyObject* build_dict(const Template& shape, PyObject* outputs, Registers& registers) {
  PyObject* made = PyDict_New();
  for (size_t i = 0; made && i < shape.parts.size(); i++) {
    PyObject* value = build_result(shape.parts[i], outputs, registers);
    if (!value || PyDict_SetItem(made, shape.keys[i], value) < 0) Py_CLEAR(made);
    Py_XDECREF(value);
  }
  return made;
}

PyObject* build_sequence(const Template& shape, PyObject* outputs, Registers& registers) {
  const auto size = static_cast<Py_ssize_t>(shape.parts.size());
  const bool tuple = shape.kind == Template::Tuple;
  PyObject* made = tuple ? PyTuple_New(size) : PyList_New(size);
  for (Py_ssize_t i = 0; made && i < size; i++) {
    PyObject* value = build_result(shape.parts[i], outputs, registers);
    if (!value) {
      Py_CLEAR(made);
    } else if (tuple) {
      PyTuple_SET_ITEM(made, i, value);
    } else {
      PyList_SET_ITEM(made, i, value);
    }
  }
  return made;
}

}  // namespace

bool read_template(PyObject* given, int registers, Template& shape) {
  if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) < 1 ||
      !PyUnicode_Check(PyTuple_GET_ITEM(given, 0))) {
    return refuse_template(given);
  }
  const char* text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(given, 0));
  if (!text) return false;
  const std::string_view kind = text;
  if (kind == "tuple" || kind == "list" || kind == "dict") {
    shape.kind = kind == "tuple" ? Template::Tuple : kind == "list" ? Template::List : Template::Dict;
    return read_parts(given, registers, shape);
  }
  if (PyTuple_GET_SIZE(given) != 2) return refuse_template(given);
  PyObject* operand = PyTuple_GET_ITEM(given, 1);
  if (kind == "const") {
    shape.object = Py_NewRef(operand);
    return true;
  }
  shape.kind = kind == "out" ? Template::Out : Template::Register;
  if (kind != "out" && kind != "reg") return refuse_template(given);
  shape.number = PyLong_AsSsize_t(operand);
  if (PyErr_Occurred()) return false;
  const bool good = shape.number >= 0 && (kind == "out" || shape.number < registers);
  return good || refuse_template(given);
}

PyObject* build_result(const Template& shape, PyObject* outputs, Registers& registers) {
  switch (shape.kind) {
    case Template::Out:
      if (shape.number < PyTuple_GET_SIZE(outputs)) {
        return Py_NewRef(PyTuple_GET_ITEM(outputs, shape.number));
      }
      PyErr_SetString(PyExc_SystemError, "the graph returned fewer results than its template uses");
      return nullptr;
    case Template::Const: return Py_NewRef(shape.object);
    case Template::Register: return Py_NewRef(registers[static_cast<int>(shape.number)]);
    case Template::Dict: return build_dict(shape, outputs, registers);
    default: return build_sequence(shape, outputs, registers);
  }
}

void collect_registers(const Template& shape, std::vector<int>& found) {
  if (shape.kind == Template::Register) found.push_back(static_cast<int>(shape.number));
  for (const Template& part : shape.parts) collect_registers(part, found);
}

int visit_template(const Template& shape, visitproc visit, void* arg) {
  Py_VISIT(shape.object);
  for (PyObject* key : shape.keys) Py_VISIT(key);
  for (const Template& part : shape.parts) {
    if (int stopped = visit_template(part, visit, arg)) return stopped;
  }
  return 0;
}

void release_template(Template& shape) {
  Py_CLEAR(shape.object);
  for (PyObject*& key : shape.keys) Py_CLEAR(key);
  for (Template& part : shape.parts) release_template(part);
}

}  // namespace jitmagic
