// The Python frames of this thread, innermost first, without the frame objects that PyEval_GetFrame would make. They
// need the GIL, and are valid until their code goes on.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

void* jm_lazy_innermost_frame(void);
void* jm_lazy_caller(void* frame);
PyCodeObject* jm_lazy_code(void* frame);  // borrowed
int jm_lazy_offset(void* frame);          // of the running instruction, in bytes

#ifdef __cplusplus
}
#endif
