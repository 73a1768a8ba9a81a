// Objects that carry the data from which another process makes them again: the field `construction`, which
// jitmagic/construction.py sets and reads. Types with a traverse visit it; others must not be in a cycle through it.
#pragma once

#include "runtime.h"

#include <structmember.h>

namespace jitmagic {

// The tp_free of such types, which their deallocators call last.
template <class T>
void free_constructed(void* memory) {
  const bool has_gc = PyType_IS_GC(Py_TYPE(static_cast<PyObject*>(memory)));
  Py_CLEAR(static_cast<T*>(memory)->construction);
  has_gc ? PyObject_GC_Del(memory) : PyObject_Free(memory);
}

template <class T>
inline PyMemberDef construction_member[] = {
    {"construction", T_OBJECT, offsetof(T, construction), 0, "data from which it can be made again, or None"},
    {nullptr}};

}  // namespace jitmagic
