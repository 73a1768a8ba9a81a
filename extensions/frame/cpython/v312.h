// CPython 3.12: inline values and dictionary share a tagged pointer.
#pragma once

#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"

#include "since312.h"
#include "until312.h"

// The instance's inline values, or NULL; then *dict is its dictionary or NULL.
static inline PyDictValues* jm_inline_values(PyObject* object, PyObject** dict) {
  PyDictOrValues held = *_PyObject_DictOrValuesPointer(object);
  if (_PyDictOrValues_IsValues(held)) {
    *dict = NULL;
    return _PyDictOrValues_GetValues(held);
  }
  *dict = _PyDictOrValues_GetDict(held);
  return NULL;
}
