// Spread: plain Python called with a dispatcher's values.
#pragma once

#include <Python.h>

namespace jitmagic {

// The code that a call of it runs, borrowed: of a function or a Spread, else NULL.
PyObject* code_of(PyObject* callee);

bool register_spread(PyObject* module);

}  // namespace jitmagic
