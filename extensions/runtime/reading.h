// Reading the tuples of numbers that Python describes a plan or a signature by. Every function throws
// through Python's error state.
#pragma once

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

// Borrowed.
inline PyObject* item(PyObject* tuple, Py_ssize_t index) {
  check(PyExc_TypeError, PyTuple_Check(tuple) && index < PyTuple_GET_SIZE(tuple), "malformed description");
  return PyTuple_GET_ITEM(tuple, index);
}

inline int64_t integer(PyObject* object) {
  const auto value = static_cast<int64_t>(PyLong_AsLongLong(object));
  if (value == -1 && PyErr_Occurred()) raise_python_error();
  return value;
}

template <class T = int64_t>
std::vector<T> integers(PyObject* tuple) {
  check(PyExc_TypeError, PyTuple_Check(tuple), "malformed description: expected a tuple of integers");
  std::vector<T> values;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) values.push_back(T(integer(PyTuple_GET_ITEM(tuple, i))));
  return values;
}

}  // namespace jitmagic
