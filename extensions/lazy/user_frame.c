// Walks the interpreter's own frames; see user_frame.h. A frame object costs an allocation that the garbage collector
// tracks, for each operation of a short function.

#include "../frame/cpython/layout.h"

#include "user_frame.h"

static void* python_frame(_PyInterpreterFrame* frame) {
  while (frame && frame->owner != FRAME_OWNED_BY_THREAD && frame->owner != FRAME_OWNED_BY_GENERATOR)
    frame = frame->previous;
  return frame;
}

void* jm_lazy_innermost_frame(void) { return python_frame(jm_current_frame(PyThreadState_Get())); }

void* jm_lazy_caller(void* frame) { return python_frame(((_PyInterpreterFrame*)frame)->previous); }

PyCodeObject* jm_lazy_code(void* frame) { return jm_frame_code(frame); }

int jm_lazy_offset(void* frame) {
  return _PyInterpreterFrame_LASTI((_PyInterpreterFrame*)frame) * (int)sizeof(_Py_CODEUNIT);
}
