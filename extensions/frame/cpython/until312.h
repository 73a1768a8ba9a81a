// CPython 3.11 and 3.12: frames with a code object and a previous instruction, dictionary versions.
#pragma once

static inline PyCodeObject* jm_frame_code(_PyInterpreterFrame* frame) { return frame->f_code; }

static inline bool jm_frame_is_python(_PyInterpreterFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD;
}

static inline bool jm_frame_is_fresh(_PyInterpreterFrame* frame) {
  return jm_frame_is_python(frame) && frame->prev_instr == _PyCode_CODE(frame->f_code) - 1;
}

static inline PyObject* jm_frame_local(_PyInterpreterFrame* frame, Py_ssize_t index) {
  return frame->localsplus[index];
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

// The number of inline values that are set.
static inline int jm_values_used(const PyDictValues* values) { return ((const uint8_t*)values)[-2]; }

// PEP 509.
static inline uint64_t jm_version_tag(PyDictObject* dict) {
  return dict->ma_version_tag;
}

static inline const uint64_t* jm_version_address(PyDictObject* dict) {
  return &dict->ma_version_tag;
}
