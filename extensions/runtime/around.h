// Around: a callable object around a compiled graph that has to know some of the graph's inputs. What its call
// does is said by numbers.cpp, undo.cpp and spent.cpp.
#pragma once

#include "callable.h"

#include <vector>

namespace jitmagic {

struct Around : Callable {
  PyObject* run;
  std::vector<Py_ssize_t>* positions;
  std::vector<Py_ssize_t>* others;  // positions of a second kind; may be null
};

// A new object around `run`. Throws through Python's error state, as where a position is no index.
Around* make_around(PyTypeObject* type, PyObject* run, PyObject* positions, vectorcallfunc call,
                    PyObject* others = nullptr);

void around_dealloc(PyObject* self);

// The type of such objects, `size` bytes each.
PyTypeObject around_type(const char* full_name, const char* doc, newfunc make, size_t size);

}  // namespace jitmagic
