// GraphWrapper: a callable wrapper of a compiled graph that stores positions of graph inputs or results. Its calls are
// defined in numbers.cpp, held.cpp, undo.cpp and spent.cpp.
#pragma once

#include "callable.h"

#include <vector>

namespace jitmagic {

struct GraphWrapper : Callable {
  PyObject* run;
  std::vector<Py_ssize_t>* positions;
  std::vector<Py_ssize_t>* others;  // positions of a second kind; may be null
};

// Returns a new wrapper of `run`. Throws with Python's error state set, e.g. for a negative position.
GraphWrapper* make_wrapper(PyTypeObject* type, PyObject* run, PyObject* positions, vectorcallfunc call,
                    PyObject* others = nullptr);

void wrapper_dealloc(PyObject* self);

// Returns the type of such objects, `size` bytes each.
PyTypeObject wrapper_type(const char* full_name, const char* doc, newfunc make, size_t size);

}  // namespace jitmagic
