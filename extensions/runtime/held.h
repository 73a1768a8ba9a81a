// What a call holds besides its tensors: the objects that its backwards may look at.
#pragma once

#include <Python.h>

#include <memory>

namespace jitmagic {

// The objects of the compiled call that runs in this thread, a tuple, borrowed; nullptr where it holds none.
PyObject* held_objects();

// A Python object that copies share. Made and copied with the GIL held, dropped without it too.
using Owned = std::shared_ptr<PyObject>;
Owned owned(PyObject* object);

}  // namespace jitmagic
