// Passes the warnings of a graph to Python.
#pragma once

#include "runtime.h"
#include "warned.h"

namespace jitmagic {

// Passes them to Python's `warnings`; false: a filter turned one into an exception, which is set.
bool issue_warnings(const PendingWarnings& warned);

}  // namespace jitmagic
