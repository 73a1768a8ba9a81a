// Around: a callable object around a compiled graph that has to know some of the graph's inputs. What its call
// does is said by numbers.cpp and undo.cpp.
#pragma once

#include "runtime.h"

#include <vector>

namespace jitmagic {

struct Around {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* run;
  std::vector<Py_ssize_t>* positions;
};

// A new object around `run`; nullptr with a Python error set, as where a position is no index.
Around* make_around(PyTypeObject* type, PyObject* run, PyObject* positions, vectorcallfunc call);

// The type jitmagic._runtime.NAME of such objects, `size` bytes each.
PyTypeObject around_type(const char* full_name, const char* doc, newfunc make, size_t size);

}  // namespace jitmagic
