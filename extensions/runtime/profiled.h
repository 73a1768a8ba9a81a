// Detects a running profiler.
#pragma once

#include <Python.h>

namespace jitmagic {

// Returns whether a profiler runs, by the Python flag of torch's profilers: 0.7 ns, against 16 ns for looking up the
// callbacks of this thread. x + 1 on 4 elements takes 739 ns instead of 753.
bool profiler_is_on();

bool register_profiled();

}  // namespace jitmagic
