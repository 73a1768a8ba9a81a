// Reads the entry of a functools.lru_cache for a key without counting as a call.
//
// There is no public way, neither in Python nor in C: cache_info() has numbers only, and a call of
// the wrapper counts a hit and moves the entry to the front. The layouts in
// Modules/_functoolsmodule.c are the same from 3.11 to 3.13; tests/guards/test_check.py compares
// this with calls of the wrapper.

#include "frame.h"

typedef struct jm_link {
  PyObject_HEAD
  struct jm_link *previous, *next;
  Py_hash_t hash;
  PyObject *key, *result;
} jm_link;

typedef struct {
  jm_link root;
  void* call;
  int typed;
  PyObject* cache;
} jm_cache;

PyObject* jm_cached_result(PyObject* wrapper, PyObject* key) {
  static PyTypeObject* type = NULL;
  if (!type) {
    PyObject* module = PyImport_ImportModule("functools");
    type = module ? (PyTypeObject*)PyObject_GetAttrString(module, "_lru_cache_wrapper") : NULL;
    Py_XDECREF(module);
    if (!type) return PyErr_Clear(), NULL;
  }
  if (!Py_IS_TYPE(wrapper, type)) return NULL;
  PyObject* cache = ((jm_cache*)wrapper)->cache;
  if (!cache || !PyDict_CheckExact(cache)) return NULL;
  // An ordinary lookup, as in the wrapper: 2 and 2.0 are the same key.
  PyObject* found = PyDict_GetItemWithError(cache, key);
  if (!found) return PyErr_Clear(), NULL;
  const bool is_link = strcmp(Py_TYPE(found)->tp_name, "functools._lru_list_elem") == 0;
  return is_link ? ((jm_link*)found)->result : found;
}
