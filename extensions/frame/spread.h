// Spread: calls plain Python code with a dispatcher's values.
#pragma once

#include <Python.h>

namespace jitmagic {

// The code that a call of `callee` (a function or a Spread) runs: borrowed, or NULL.
PyObject* code_of(PyObject* callee);

bool register_spread(PyObject* module);

}  // namespace jitmagic
