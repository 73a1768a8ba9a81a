// Reads the tuples of numbers by which Python describes a plan or a signature. Every function throws with Python's
// error state set.
#pragma once

#include <span>
#include <vector>

#include "runtime.h"

namespace jitmagic {

// `format` as for PyErr_Format. (c10::str writes through an ostringstream, which crashed under torch 2.11.)
template <class... Parts>
void check(PyObject* error, bool holds, const char* format, Parts... parts) {
  if (holds) return;
  PyErr_Format(error, format, parts...);
  raise_python_error();
}

// Returns a borrowed reference.
inline PyObject* item(PyObject* tuple, Py_ssize_t index) {
  check(PyExc_TypeError, PyTuple_Check(tuple) && index < PyTuple_GET_SIZE(tuple), "malformed description");
  return PyTuple_GET_ITEM(tuple, index);
}

inline int64_t integer(PyObject* object) {
  const auto value = static_cast<int64_t>(PyLong_AsLongLong(object));
  if (value == -1 && PyErr_Occurred()) raise_python_error();
  return value;
}

inline bool truth(PyObject* object) { return integer(object) != 0; }

// Valid during the object's lifetime.
inline const char* text(PyObject* object) {
  const char* characters = PyUnicode_AsUTF8(object);
  if (!characters) raise_python_error();
  return characters;
}

// Returns borrowed references.
inline std::span<PyObject* const> items(PyObject* tuple) {
  check(PyExc_TypeError, PyTuple_Check(tuple), "malformed description: expected a tuple");
  return {reinterpret_cast<PyTupleObject*>(tuple)->ob_item, size_t(PyTuple_GET_SIZE(tuple))};
}

template <class T = int64_t>
std::vector<T> integers(PyObject* tuple) {
  std::vector<T> values;
  for (PyObject* value : items(tuple)) values.push_back(T(integer(value)));
  return values;
}

}  // namespace jitmagic
