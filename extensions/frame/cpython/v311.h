// CPython 3.11.
#pragma once

#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"

#include "until312.h"

#define jm_request_extra_index _PyEval_RequestCodeExtraIndex
#define jm_get_extra _PyCode_GetExtra
#define jm_set_extra _PyCode_SetExtra

static inline int jm_frame_size(PyCodeObject* code) {
  return (int)FRAME_SPECIALS_SIZE + code->co_nlocalsplus + code->co_stacksize;
}

static inline bool jm_is_traced(PyThreadState* tstate) {
  return tstate->cframe->use_tracing || tstate->c_tracefunc || tstate->c_profilefunc;
}

// The number of Python frames that this thread may still enter.
static inline int* jm_recursion_left(PyThreadState* tstate) { return &tstate->recursion_remaining; }

// The instance's inline values, or NULL; then *dict is its dictionary or NULL.
static inline PyDictValues* jm_inline_values(PyObject* object, PyObject** dict) {
  *dict = *_PyObject_ManagedDictPointer(object);
  return *_PyObject_ValuesPointer(object);
}

static inline PyObject* jm_dict_of_type(PyTypeObject* type) { return type->tp_dict; }
