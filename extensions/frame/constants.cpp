// Equality and dictionary lookup that run no user code.
//
// Only exact built-in types are compared by value: a subclass may define __eq__, so it is compared
// by identity, or, for tuples of one type (named tuples, torch.Size), by the stored items.

#include "guards.h"

#include <cstring>

#if PY_VERSION_HEX >= 0x030D0000  // still exported, but declared in an internal header only
extern "C" int _PySet_NextEntry(PyObject* set, Py_ssize_t* position, PyObject** key, Py_hash_t* hash);
#endif

namespace jitmagic {
namespace {

bool same_bits(double left, double right) { return std::memcmp(&left, &right, sizeof left) == 0; }

bool same_complex(PyObject* left, PyObject* right) {
  const Py_complex a = PyComplex_AsCComplex(left);
  const Py_complex b = PyComplex_AsCComplex(right);
  return same_bits(a.real, b.real) && same_bits(a.imag, b.imag);
}

bool equal_natively(PyObject* left, PyObject* right) {
  const int equal = PyObject_RichCompareBool(left, right, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal > 0;
}

bool same_tuple(PyObject* left, PyObject* right) {
  const Py_ssize_t size = PyTuple_GET_SIZE(left);
  if (PyTuple_GET_SIZE(right) != size) return false;
  for (Py_ssize_t i = 0; i < size; i++) {
    if (!same_constant(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i))) return false;
  }
  return true;
}

bool same_slice(PyObject* left, PyObject* right) {
  auto* a = reinterpret_cast<PySliceObject*>(left);
  auto* b = reinterpret_cast<PySliceObject*>(right);
  return same_constant(a->start, b->start) && same_constant(a->stop, b->stop) &&
         same_constant(a->step, b->step);
}

bool holds(PyObject* set, PyObject* wanted) {
  PyObject* item;
  Py_ssize_t position = 0;
  Py_hash_t hash;
  while (_PySet_NextEntry(set, &position, &item, &hash)) {
    if (same_constant(item, wanted)) return true;
  }
  return false;
}

bool same_frozenset(PyObject* left, PyObject* right) {
  if (PySet_GET_SIZE(left) != PySet_GET_SIZE(right)) return false;
  PyObject* item;
  Py_ssize_t position = 0;
  Py_hash_t hash;
  while (_PySet_NextEntry(left, &position, &item, &hash)) {
    if (!holds(right, item)) return false;
  }
  return true;
}

// torch.device compares in C and holds no objects. Recognised by name, so that this file does not
// need torch.
bool is_device(PyTypeObject* type) {
  return !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && std::strcmp(type->tp_name, "torch.device") == 0;
}

// numpy's numbers are immutable (its arrays and records are not). Recognised by name, like
// torch.device.
bool is_array_scalar(PyTypeObject* type) {
  for (; type; type = type->tp_base) {
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return false;
    for (const char* name : {"numpy.number", "numpy.bool", "numpy.bool_"}) {
      if (std::strcmp(type->tp_name, name) == 0) return true;
    }
  }
  return false;
}

bool same_bytes(PyObject* left, PyObject* right) {
  Py_buffer a, b;
  if (PyObject_GetBuffer(left, &a, PyBUF_SIMPLE) < 0) return PyErr_Clear(), false;
  const bool read = PyObject_GetBuffer(right, &b, PyBUF_SIMPLE) >= 0;
  const bool same = read && a.len == b.len && std::memcmp(a.buf, b.buf, a.len) == 0;
  PyBuffer_Release(&a);
  read ? PyBuffer_Release(&b) : PyErr_Clear();
  return same;
}

}  // namespace

bool same_constant(PyObject* left, PyObject* right) {
  if (left == right) return true;
  PyTypeObject* type = Py_TYPE(left);
  if (type != Py_TYPE(right)) return false;
  if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBytes_Type ||
      type == &PyRange_Type) {
    return equal_natively(left, right);
  }
  if (type == &PyFloat_Type) return same_bits(PyFloat_AS_DOUBLE(left), PyFloat_AS_DOUBLE(right));
  if (type == &PyComplex_Type) return same_complex(left, right);
  if (PyTuple_Check(left)) return same_tuple(left, right);
  if (type == &PySlice_Type) return same_slice(left, right);
  if (type == &PyFrozenSet_Type) return same_frozenset(left, right);
  if (is_device(type)) return equal_natively(left, right);
  return is_array_scalar(type) && same_bytes(left, right);
}

static bool is_number(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyBool_Type || type == &PyFloat_Type;
}

// In a dictionary 1, True and 1.0 are the same key, though not the same constant.
static bool same_key(PyObject* left, PyObject* right) {
  if (same_constant(left, right)) return true;
  return is_number(Py_TYPE(left)) && is_number(Py_TYPE(right)) && equal_natively(left, right);
}

}  // namespace jitmagic

PyObject* jm_dict_get(PyObject* dict, PyObject* key) {
  using jitmagic::same_key;
  if (PyUnicode_CheckExact(key) && jm_dict_has_only_strings(dict)) {
    PyObject* found = PyDict_GetItemWithError(dict, key);
    if (!found) PyErr_Clear();
    return found;
  }
  // A hash lookup might compare with keys of user types, so scan instead; such dictionaries are
  // small.
  PyObject *candidate, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &candidate, &value)) {
    if (same_key(candidate, key)) return value;
  }
  return nullptr;
}
