// Dispatcher, the value a residual hands over to its resume function with, and ModuleCall.
#pragma once

#include "frame.h"

namespace jitmagic {

bool register_dispatch(PyObject* module);
bool register_module_call(PyObject* module);

}  // namespace jitmagic
