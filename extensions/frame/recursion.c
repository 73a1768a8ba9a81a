// Python's recursion limit where dispatchers stand between a caller and the code that it called: that
// code may recurse as deep as in eager.

#include "cpython/layout.h"

#include "frame.h"

// Recursion allowance of a compile, however deep the call that needs it. Deeply nested dispatchers
// add no more, or a recursion would never reach Python's limit.
enum { COMPILE_FRAMES = 1000 };

jm_nest jm_begin_nest(bool misses) {
  jm_thread* here = jm_this_thread();
  int* left = jm_recursion_left(PyThreadState_Get());
  int added = !misses ? 1 : *left < COMPILE_FRAMES ? COMPILE_FRAMES - *left : 0;
  jm_nest saved = {here->allowance, here->nested < JM_DEEPEST ? added : 0};
  here->nested++;
  here->allowance = misses ? *left + 1 : 0;
  *left += saved.added;
  return saved;
}

void jm_end_nest(jm_nest saved) {
  jm_thread* here = jm_this_thread();
  *jm_recursion_left(PyThreadState_Get()) -= saved.added;
  here->allowance = saved.allowance;
  here->nested--;
}

jm_nest jm_begin_original(void) {
  jm_thread* here = jm_this_thread();
  int* left = jm_recursion_left(PyThreadState_Get());
  jm_nest saved = {here->allowance, here->allowance ? here->allowance - *left : 0};
  here->allowance = 0;
  *left += saved.added;
  return saved;
}

void jm_end_original(jm_nest saved) {
  jm_thread* here = jm_this_thread();
  *jm_recursion_left(PyThreadState_Get()) -= saved.added;
  here->allowance = saved.allowance;
}
