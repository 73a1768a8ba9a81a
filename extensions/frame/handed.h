// Ownership of the values that a residual passes to a resume function.
#pragma once

#include "frame.h"

namespace jitmagic {

inline PyObject* pack(PyObject* const* args, Py_ssize_t count) {
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple && i < count; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
  return tuple;
}

// The arguments of a miss: the tuple of the resume function itself if there is one, so that
// let_go() empties it.
inline PyObject* pack_for_miss(PyObject* const* args, Py_ssize_t count) {
  PyObject* handed = jm_this_thread()->handed;
  return handed && args == &PyTuple_GET_ITEM(handed, 0) ? Py_NewRef(handed) : pack(args, count);
}

// Registers a resume function's arguments while it runs, until its frame owns them alone.
class Handed {
 public:
  explicit Handed(PyObject* values) : here(jm_this_thread()), before(here->handed) { here->handed = values; }
  ~Handed() { here->handed = before; }
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;

 private:
  jm_thread* here;
  PyObject* before;
};

bool register_handed(PyObject* module);

}  // namespace jitmagic
