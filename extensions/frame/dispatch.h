// Dispatcher, Continue (the value with which a residual continues in its resume function), and
// ModuleCall.
#pragma once

#include "frame.h"

namespace jitmagic {

bool register_dispatch(PyObject* module);
bool register_module_call(PyObject* module);

}  // namespace jitmagic
