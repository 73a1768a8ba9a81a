// Callable: the common base of this extension's types. Their objects are compiled graphs or wrap one, and are called
// through vectorcall.
#pragma once

#include "constructed.h"
#include "runtime.h"

namespace jitmagic {

struct Callable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* construction;  // see constructed.h
};

// The parts that differ between types. Objects of a type with `traverse` are tracked by the garbage collector.
struct CallableParts {
  const char* full_name;
  const char* doc;
  size_t size;
  newfunc make;
  destructor dealloc;
  traverseproc traverse = nullptr;
  inquiry clear = nullptr;
};

inline PyTypeObject callable_type(const CallableParts& parts) {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = parts.full_name;
  type.tp_doc = parts.doc;
  type.tp_basicsize = Py_ssize_t(parts.size);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | (parts.traverse ? Py_TPFLAGS_HAVE_GC : 0);
  type.tp_vectorcall_offset = offsetof(Callable, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_new = parts.make;
  type.tp_dealloc = parts.dealloc;
  type.tp_traverse = parts.traverse;
  type.tp_clear = parts.clear;
  type.tp_free = free_constructed<Callable>;
  type.tp_members = construction_member<Callable>;
  return type;
}

}  // namespace jitmagic
