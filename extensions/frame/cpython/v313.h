// CPython 3.13: frames, instances, dictionary keys. The only file that knows this version's layout.
#pragma once

#ifdef Py_GIL_DISABLED
#error "jitmagic relies on the GIL: build it for the ordinary CPython 3.13"
#endif

#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"

#define jm_request_extra_index PyUnstable_Eval_RequestCodeExtraIndex
#define jm_get_extra PyUnstable_Code_GetExtra
#define jm_set_extra PyUnstable_Code_SetExtra

static inline PyCodeObject* jm_frame_code(_PyInterpreterFrame* frame) {
  return (PyCodeObject*)frame->f_executable;
}

static inline bool jm_frame_is_fresh(_PyInterpreterFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && PyCode_Check(frame->f_executable) &&
         frame->instr_ptr == _PyCode_CODE(jm_frame_code(frame));
}

static inline int jm_frame_size(PyCodeObject* code) { return code->co_framesize; }

// Steals the reference to `code`; returns the old code, which the caller must release.
static inline PyObject* jm_frame_set_code(_PyInterpreterFrame* frame, PyCodeObject* code) {
  PyObject* old = frame->f_executable;
  frame->f_executable = (PyObject*)code;
  frame->instr_ptr = _PyCode_CODE(code);
  frame->stacktop = code->co_nlocalsplus;
  return old;
}

// The same for a finished frame, whose code has the same instructions.
static inline PyObject* jm_frame_show_as(_PyInterpreterFrame* frame, PyCodeObject* code) {
  PyObject* old = frame->f_executable;
  frame->instr_ptr = _PyCode_CODE(code) + (frame->instr_ptr - _PyCode_CODE((PyCodeObject*)old));
  frame->f_executable = (PyObject*)code;
  return old;
}

static inline _PyInterpreterFrame* jm_current_frame(PyThreadState* tstate) {
  return tstate->current_frame;
}

static inline bool jm_frame_is_python(_PyInterpreterFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && PyCode_Check(frame->f_executable);
}

// Moves a frame before its first traceable instruction, where stack walks skip it
// (_PyFrame_IsIncomplete); returns the old position.
static inline void* jm_frame_conceal(_PyInterpreterFrame* frame) {
  void* position = frame->instr_ptr;
  frame->instr_ptr = _PyCode_CODE(jm_frame_code(frame)) - 1;
  return position;
}

static inline void jm_frame_reveal(_PyInterpreterFrame* frame, void* position) {
  frame->instr_ptr = position;
}

static inline bool jm_is_traced(PyThreadState* tstate) {
  return tstate->c_tracefunc || tstate->c_profilefunc;
}

// The number of Python frames that this thread may still enter.
static inline int* jm_recursion_left(PyThreadState* tstate) { return &tstate->py_recursion_remaining; }

// The instance's inline values, or NULL; then *dict is its dictionary or NULL. A materialised
// dictionary may still share the inline values; then the dictionary is authoritative.
static inline PyDictValues* jm_inline_values(PyObject* object, PyObject** dict) {
  *dict = (PyObject*)_PyObject_ManagedDictPointer(object)->dict;
  if (*dict || !(Py_TYPE(object)->tp_flags & Py_TPFLAGS_INLINE_VALUES)) return NULL;
  PyDictValues* values = _PyObject_InlineValues(object);
  return values->valid ? values : NULL;
}

// The number of inline values that are set.
static inline int jm_values_used(const PyDictValues* values) { return values->size; }

// The interpreter stores the dictionaries of built-in classes. The result is borrowed from the
// class.
static inline PyObject* jm_dict_of_type(PyTypeObject* type) {
  PyObject* dict = PyType_GetDict(type);
  Py_DECREF(dict);
  return dict;
}

// Dictionary versions (PEP 509) were removed in 3.13.
static inline uint64_t jm_version_tag(PyDictObject* dict) {
  (void)dict;
  return 0;
}

static inline const uint64_t* jm_version_address(PyDictObject* dict) {
  (void)dict;
  return NULL;
}
