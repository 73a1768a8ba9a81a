// CPython 3.13: a frame's executable is an object pointer, its stack depth an index.
#pragma once

#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"

static inline PyObject* jm_frame_executable(_PyInterpreterFrame* frame) {
  return frame->f_executable;
}

static inline PyObject* jm_frame_set_executable(_PyInterpreterFrame* frame, PyCodeObject* code) {
  PyObject* old = frame->f_executable;
  frame->f_executable = (PyObject*)code;
  return old;
}

static inline void jm_frame_clear_stack(_PyInterpreterFrame* frame, PyCodeObject* code) {
  frame->stacktop = code->co_nlocalsplus;
}

static inline PyObject* jm_frame_local(_PyInterpreterFrame* frame, Py_ssize_t index) {
  return frame->localsplus[index];
}

#include "since312.h"
#include "since313.h"
