// Reads the state of a built-in iterator without advancing it, through its __reduce__, which is C
// code and runs no user code. For an iterator over a dictionary or set that gives the remaining
// items but not the container, which is found through tp_traverse.

#include "guards.h"

namespace jitmagic {
namespace {

struct Kinds {
  PyTypeObject* wrappers[3] = {&PyEnum_Type, &PyMap_Type, &PyFilter_Type};
  PyTypeObject* sequences[4] = {&PyListIter_Type, &PyTupleIter_Type, &PyListRevIter_Type, &PyReversed_Type};
  PyTypeObject* tables[4] = {&PyDictIterKey_Type, &PyDictIterValue_Type, &PyDictIterItem_Type, &PySetIter_Type};
};

template <size_t N>
bool is_one_of(PyTypeObject* type, PyTypeObject* const (&types)[N]) {
  for (PyTypeObject* each : types) {
    if (each == type) return true;
  }
  return false;
}

int note_table(PyObject* object, void* found) {
  if (!PyDict_CheckExact(object) && !PyAnySet_CheckExact(object)) return 0;
  *static_cast<PyObject**>(found) = object;
  return 1;
}

PyObject* entries_left(PyObject* iterator, PyObject* arguments) {
  PyObject* owner = nullptr;
  Py_TYPE(iterator)->tp_traverse(iterator, note_table, &owner);
  PyObject* left = PyTuple_GET_SIZE(arguments) ? PyTuple_GET_ITEM(arguments, 0) : nullptr;
  if (!owner || !left || !PyList_Check(left)) return nullptr;
  return Py_BuildValue("(On)", owner, PyList_GET_SIZE(left));
}

PyObject* range_left(PyObject* arguments, PyObject* state) {
  PyObject* range = PyTuple_GET_ITEM(arguments, 0);
  PyObject* start = PyObject_GetAttrString(range, "start");
  PyObject* stop = PyObject_GetAttrString(range, "stop");
  PyObject* step = PyObject_GetAttrString(range, "step");
  PyObject* zero = PyLong_FromLong(0);
  PyObject* parts = nullptr;
  if (start && stop && step && zero) {
    parts = PyTuple_Pack(4, start, stop, step, state && state != Py_None ? state : zero);
  }
  Py_XDECREF(start);
  Py_XDECREF(stop);
  Py_XDECREF(step);
  Py_XDECREF(zero);
  return parts;
}

PyObject* zipped(PyObject* arguments, bool strict) {
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  PyObject* parts = PyTuple_New(count + 1);
  if (!parts) return nullptr;
  PyTuple_SET_ITEM(parts, 0, PyBool_FromLong(strict));
  for (Py_ssize_t i = 0; i < count; i++) {
    PyTuple_SET_ITEM(parts, i + 1, Py_NewRef(PyTuple_GET_ITEM(arguments, i)));
  }
  return parts;
}

PyObject* sequence_left(PyObject* arguments, PyObject* state) {
  PyObject* container = PyTuple_GET_ITEM(arguments, 0);
  if (!state || state == Py_None) return nullptr;
  if (!PyList_CheckExact(container) && !PyTuple_CheckExact(container)) return nullptr;
  return PyTuple_Pack(2, container, state);
}

// `reduced` is the result of __reduce__: (callable, arguments[, state]).
PyObject* parts_of(PyObject* iterator, PyObject* reduced) {
  static const Kinds kinds;
  PyTypeObject* type = Py_TYPE(iterator);
  if (!PyTuple_Check(reduced) || PyTuple_GET_SIZE(reduced) < 2) return nullptr;
  PyObject* arguments = PyTuple_GET_ITEM(reduced, 1);
  PyObject* state = PyTuple_GET_SIZE(reduced) > 2 ? PyTuple_GET_ITEM(reduced, 2) : nullptr;
  if (!PyTuple_Check(arguments)) return nullptr;
  if (is_one_of(type, kinds.tables)) return entries_left(iterator, arguments);
  // map(..., strict=True) of 3.14 has a state; it is not modelled.
  if (is_one_of(type, kinds.wrappers)) return state ? nullptr : Py_NewRef(arguments);
  if (type == &PyZip_Type) return zipped(arguments, state != nullptr);
  if (PyTuple_GET_SIZE(arguments) != 1) return nullptr;
  if (type == &PyRangeIter_Type) return range_left(arguments, state);
  return is_one_of(type, kinds.sequences) ? sequence_left(arguments, state) : nullptr;
}

bool has_parts(PyTypeObject* type) {
  static const Kinds kinds;
  return is_one_of(type, kinds.tables) || is_one_of(type, kinds.wrappers) ||
         is_one_of(type, kinds.sequences) || type == &PyZip_Type || type == &PyRangeIter_Type;
}

}  // namespace

PyObject* iterator_parts(PyObject* iterator) {
  if (!has_parts(Py_TYPE(iterator))) return nullptr;
  PyObject* reduced = PyObject_CallMethod(iterator, "__reduce__", nullptr);
  PyObject* parts = reduced ? parts_of(iterator, reduced) : nullptr;
  Py_XDECREF(reduced);
  if (!parts) PyErr_Clear();
  return parts;
}

}  // namespace jitmagic
