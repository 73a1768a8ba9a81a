// CPython 3.11: frames, instances, dictionary keys. The only file that knows this version's layout.
#pragma once

#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"

#define jm_request_extra_index _PyEval_RequestCodeExtraIndex
#define jm_get_extra _PyCode_GetExtra
#define jm_set_extra _PyCode_SetExtra

static inline PyCodeObject* jm_frame_code(_PyInterpreterFrame* frame) { return frame->f_code; }

static inline bool jm_frame_is_fresh(_PyInterpreterFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD &&
         frame->prev_instr == _PyCode_CODE(frame->f_code) - 1;
}

static inline int jm_frame_size(PyCodeObject* code) {
  return (int)FRAME_SPECIALS_SIZE + code->co_nlocalsplus + code->co_stacksize;
}

// Steals the reference to `code`; returns the old code, which the caller must release.
static inline PyObject* jm_frame_set_code(_PyInterpreterFrame* frame, PyCodeObject* code) {
  PyObject* old = (PyObject*)frame->f_code;
  frame->f_code = code;
  frame->prev_instr = _PyCode_CODE(code) - 1;
  frame->stacktop = code->co_nlocalsplus;
  return old;
}

// The same for a finished frame, whose code has the same instructions.
static inline PyObject* jm_frame_show_as(_PyInterpreterFrame* frame, PyCodeObject* code) {
  PyObject* old = (PyObject*)frame->f_code;
  frame->prev_instr = _PyCode_CODE(code) + (frame->prev_instr - _PyCode_CODE(frame->f_code));
  frame->f_code = code;
  return old;
}

static inline _PyInterpreterFrame* jm_current_frame(PyThreadState* tstate) {
  return tstate->cframe->current_frame;
}

static inline bool jm_frame_is_python(_PyInterpreterFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD;
}

// Moves a frame before its first traceable instruction, where stack walks skip it
// (_PyFrame_IsIncomplete); returns the old position.
static inline void* jm_frame_conceal(_PyInterpreterFrame* frame) {
  void* position = frame->prev_instr;
  frame->prev_instr = _PyCode_CODE(frame->f_code) - 1;
  return position;
}

static inline void jm_frame_reveal(_PyInterpreterFrame* frame, void* position) {
  frame->prev_instr = position;
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

// The number of inline values that are set.
static inline int jm_values_used(const PyDictValues* values) { return ((const uint8_t*)values)[-2]; }

static inline PyObject* jm_dict_of_type(PyTypeObject* type) { return type->tp_dict; }

// PEP 509.
static inline uint64_t jm_version_tag(PyDictObject* dict) {
  return dict->ma_version_tag;
}

static inline const uint64_t* jm_version_address(PyDictObject* dict) {
  return &dict->ma_version_tag;
}
