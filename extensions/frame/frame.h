// What the files of jitmagic._frame share. Plain C, so that hook.c and layout.c can include it.
//
//   layout.c           the interpreter's own data layouts (dictionaries, instances), per version
//   hook.c             the PEP 523 hook and the state of the thread it acts on
//   constants.cpp      equality that runs no user code
//   memo.cpp           lookups remembered while a dictionary does not change
//   class_facts.cpp    what is relied on of a class, remembered while it does not change
//   guards.cpp         running guard programs      guard_program.cpp  making them
//   guards_tensor.cpp  the only file that knows torch
//   template.cpp       result templates            entry.cpp          guards, run and template
//   dispatch.cpp       dispatchers                 module_call.cpp    tagged nn.Module instances
#pragma once

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------- layout.c

// Value of `name` (exact str) in the instance's dictionary without making one: borrowed, or NULL
// (absent, or no dictionary at all). Never raises and runs no user code.
PyObject* jm_instance_get(PyObject* object, PyObject* name);

// The instance's dictionary where it has one already: borrowed, or NULL.
PyObject* jm_instance_dict(PyObject* object);

// What changes with every change of a dictionary and is the same for no two of them (PEP 509); 0: this
// Python does not say.
uint64_t jm_dict_version(PyObject* dict);

// What changes with every change of a class or of a class below it (attributes, `__bases__`) and is
// the same for no two classes; 0: it has none now. _PyType_Lookup gives it one, where it may have
// one: from 3.13 on a class that has changed a thousand times gets no more.
unsigned jm_type_version(PyTypeObject* type);

// The dictionary of a class itself: borrowed.
PyObject* jm_type_dict(PyTypeObject* type);

// Whether every key of the dictionary is an exact str, from the kind of its key table: then a lookup
// compares strings only. May say false although it is so.
bool jm_dict_has_only_strings(PyObject* dict);

// ----------------------------------------------------------------------------------- constants.cpp

// Value of a constant key in any dictionary, without running user code: borrowed, or NULL.
PyObject* jm_dict_get(PyObject* dict, PyObject* key);

// ------------------------------------------------------------------------------------------ hook.c

// What one thread knows. `acting` is what decides: frames are looked at only while it is nonzero.
typedef struct {
  int extents;      // hooked calls this thread is inside of
  int paused;       // > 0: the hook lets every frame pass
  int disabled;     // > 0: dispatchers run the original as well
  int depth;        // hooked frames on this thread's C stack
  PyObject* exempt; // code whose next frame runs as it is (borrowed; the caller keeps it alive)
  PyObject* family; // whose callees are hooked (borrowed likewise)
} jm_thread;

jm_thread* jm_this_thread(void);

extern int jm_installs;       // extents of all threads: the hook is in place while > 0
extern int jm_any_disabled;   // threads with disabled > 0, so that the hot path reads one global

// An extent: the hook acts on this thread between enter and leave. `exempt` is the code of the first
// frame, which runs as it is (the residual, or the original run plainly).
jm_thread jm_enter(PyObject* family, PyObject* exempt);
void jm_leave(jm_thread saved);

bool jm_register_hook(PyObject* module);

#ifdef __cplusplus
}
#endif
