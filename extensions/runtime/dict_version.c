// Returns a tag that changes with every change of a dictionary, as in extensions/frame; 0 if this Python has none.

#include "../frame/cpython/layout.h"

uint64_t jm_dict_version_here(PyObject* dict) { return jm_version_tag((PyDictObject*)dict); }
