// CPython 3.14: frames hold tagged references (_PyStackRef), the stack depth is a pointer.
#pragma once

#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_interpframe.h"
#include "internal/pycore_object.h"

static inline PyObject* jm_frame_executable(_PyInterpreterFrame* frame) {
  return PyStackRef_AsPyObjectBorrow(frame->f_executable);
}

static inline PyObject* jm_frame_set_executable(_PyInterpreterFrame* frame, PyCodeObject* code) {
  PyObject* old = PyStackRef_AsPyObjectSteal(frame->f_executable);
  frame->f_executable = PyStackRef_FromPyObjectSteal((PyObject*)code);
  return old;
}

static inline void jm_frame_clear_stack(_PyInterpreterFrame* frame, PyCodeObject* code) {
  frame->stackpointer = frame->localsplus + code->co_nlocalsplus;
}

// NULL if unbound: the tag of NULL is masked like that of an object.
static inline PyObject* jm_frame_local(_PyInterpreterFrame* frame, Py_ssize_t index) {
  return PyStackRef_AsPyObjectBorrow(frame->localsplus[index]);
}

#include "since312.h"
#include "since313.h"
