// CPython 3.12 and newer: public names for co_extra, frame sizes, dictionaries of classes.
#pragma once

#define jm_request_extra_index PyUnstable_Eval_RequestCodeExtraIndex
#define jm_get_extra PyUnstable_Code_GetExtra
#define jm_set_extra PyUnstable_Code_SetExtra

static inline int jm_frame_size(PyCodeObject* code) { return code->co_framesize; }

static inline bool jm_is_traced(PyThreadState* tstate) {
  return tstate->c_tracefunc || tstate->c_profilefunc;
}

// The number of Python frames that this thread may still enter.
static inline int* jm_recursion_left(PyThreadState* tstate) { return &tstate->py_recursion_remaining; }

// The interpreter stores the dictionaries of built-in classes. The result is borrowed from the
// class.
static inline PyObject* jm_dict_of_type(PyTypeObject* type) {
  PyObject* dict = PyType_GetDict(type);
  Py_DECREF(dict);
  return dict;
}
