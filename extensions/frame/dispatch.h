// Entry and Dispatcher, and the value a residual hands over to its resume function with.
#pragma once

#include "guards.h"

namespace jitmagic {

bool register_dispatch(PyObject* module);
bool register_module_call(PyObject* module);

}  // namespace jitmagic
