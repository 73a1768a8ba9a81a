// Selects the layout of the Python that this is built for. Must be included first, because
// Py_BUILD_CORE_MODULE enables the interpreter's internal headers only if it is defined before
// Python.h.
#pragma once

#define Py_BUILD_CORE_MODULE 1
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include <Python.h>
#include <stdbool.h>

#if PY_VERSION_HEX >= 0x030F0000
#error "jitmagic knows the interpreter layouts of CPython 3.11 to 3.14"
#elif PY_VERSION_HEX >= 0x030E0000
#include "v314.h"
#elif PY_VERSION_HEX >= 0x030D0000
#include "v313.h"
#elif PY_VERSION_HEX >= 0x030C0000
#include "v312.h"
#elif PY_VERSION_HEX >= 0x030B0000
#include "v311.h"
#else
#error "jitmagic needs CPython 3.11 or newer"
#endif
