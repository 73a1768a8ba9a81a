// CPython 3.13 and newer: frames with an executable (code or None) and the next instruction.
//
// A version's own header defines how a frame holds its executable and its stack first:
// jm_frame_executable, jm_frame_set_executable, jm_frame_clear_stack, jm_frame_local.
#pragma once

#ifdef Py_GIL_DISABLED
#error "jitmagic relies on the GIL: build it for the ordinary CPython, not for the free-threaded one"
#endif

static inline PyCodeObject* jm_frame_code(_PyInterpreterFrame* frame) {
  return (PyCodeObject*)jm_frame_executable(frame);
}

static inline bool jm_frame_is_python(_PyInterpreterFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && PyCode_Check(jm_frame_executable(frame));
}

static inline bool jm_frame_is_fresh(_PyInterpreterFrame* frame) {
  return jm_frame_is_python(frame) && frame->instr_ptr == _PyCode_CODE(jm_frame_code(frame));
}

// Steals the reference to `code`; returns the old code, which the caller must release.
static inline PyObject* jm_frame_set_code(_PyInterpreterFrame* frame, PyCodeObject* code) {
  frame->instr_ptr = _PyCode_CODE(code);
  jm_frame_clear_stack(frame, code);
  return jm_frame_set_executable(frame, code);
}

// The same for a finished frame, whose code has the same instructions.
static inline PyObject* jm_frame_show_as(_PyInterpreterFrame* frame, PyCodeObject* code) {
  frame->instr_ptr = _PyCode_CODE(code) + (frame->instr_ptr - _PyCode_CODE(jm_frame_code(frame)));
  return jm_frame_set_executable(frame, code);
}

static inline _PyInterpreterFrame* jm_current_frame(PyThreadState* tstate) {
  return tstate->current_frame;
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

// Dictionary versions (PEP 509) were removed in 3.13.
static inline uint64_t jm_version_tag(PyDictObject* dict) {
  (void)dict;
  return 0;
}

static inline const uint64_t* jm_version_address(PyDictObject* dict) {
  (void)dict;
  return NULL;
}
