// Objects, besides tensors, that a call keeps alive for its backwards.
#pragma once

#include <Python.h>

#include <memory>

namespace jitmagic {

// Returns the objects of the compiled call that runs in this thread, a borrowed tuple, or nullptr.
PyObject* held_objects();

// A shared reference to a Python object. Create and copy it with the GIL; it may be dropped without.
using Owned = std::shared_ptr<PyObject>;
Owned owned(PyObject* object);

}  // namespace jitmagic
