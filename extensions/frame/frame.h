// What the files of jitmagic._frame share. Plain C, so that hook.c and layout.c can include it.
//
//   layout.c           the interpreter's own data layouts (dictionaries, instances), per version
//   hook.c             the PEP 523 hook and the state of the thread it acts on
//   concealed.c        frames that eager has not are passed over where stacks are walked
//   function_cache.c   entries of functools.lru_cache
//   function_watch.c   functions whose code or defaults are exchanged in place
//   constants.cpp      equality that runs no user code
//   memo.cpp           lookups remembered while a dictionary does not change
//   class_facts.cpp    what is relied on of a class, remembered while it does not change
//   namespace_facts.cpp  the same of the dictionary of a module
//   guards.cpp         running guard programs      guard_program.cpp  making them
//   guards_tensor.cpp  tensors and torch's state; with the next two all that knows torch
//   observers_tensor.cpp  who watches the thread's operations
//   profiled_tensor.cpp  calls that a profiler is told of
//   template.cpp       result templates            entry.cpp          guards, run and template
//   compared.cpp       calls that are timed, compiled code beside eager
//   timed_graph.cpp    the time that a timed call spends in compiled graphs
//   spread.cpp         plain Python, called with a dispatcher's values
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

// Where the dictionary keeps that, for as long as it lives; NULL: nowhere.
const uint64_t* jm_dict_clock(PyObject* dict);

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
  int timed;        // > 0: inside a call that is timed; those within are a part of it
  int in_graph;     // > 0: inside a compiled graph
  long long graphs; // nanoseconds in compiled graphs since the call that is timed began
  int nested;       // dispatchers on this thread's C stack that run Python
  int room;         // frames that may follow a miss before Python's recursion limit; 0: not in a miss
  PyObject* handed; // the values that a resume function was handed, until that owns them (borrowed); or NULL
} jm_thread;

// From so many dispatchers on one C stack on, recursion goes on as plain Python, without C frames in
// between: Python's own limit and the C stack then allow what they allow eager.
enum { JM_DEEPEST = 64 };

jm_thread* jm_this_thread(void);

extern int jm_installs;       // extents of all threads: the hook is in place while > 0
extern int jm_any_disabled;   // threads with disabled > 0, so that the hot path reads one global
extern int jm_any_timed;      // calls that are timed now, likewise

// An extent: the hook acts on this thread between enter and leave. `exempt` is the code of the first
// frame, which runs as it is (the residual, or the original run plainly).
jm_thread jm_enter(PyObject* family, PyObject* exempt);
void jm_leave(jm_thread saved);

// A dispatcher runs Python between begin and end. `misses`: it is our own Python first, which has room
// of its own to recurse; what that runs plainly has the room that the dispatcher's caller had. Otherwise
// the stub's frame, which eager has not, is not counted.
typedef struct {
  int room, lent;
} jm_nest;
jm_nest jm_begin_nest(bool misses);
void jm_end_nest(jm_nest saved);

// The hook is out of place for everybody between begin and end: calls cost no C stack.
void jm_begin_aside(void);
void jm_end_aside(void);

// Whether somebody else's evaluator (torch.compile's) looks at frames. hide() keeps it from looking at
// this thread's: a new reference to what show() wants back, or NULL with an exception set.
bool jm_is_looked_at(void);
PyObject* jm_hide(void);
void jm_show(PyObject* hidden);

bool jm_register_hook(PyObject* module);

// --------------------------------------------------------------------------------- concealed.c

// What stands between the user's caller and the user's code is passed over where stacks are walked,
// between conceal and reveal, which hold the same frames: nothing of them may end meanwhile.
enum { JM_CONCEALED = 12 };
typedef struct {
  int count;
  void* frame[JM_CONCEALED];
  void* position[JM_CONCEALED];
} jm_concealed;

// The frames of our Python that run now, down to the call stub.
void jm_conceal_ours(jm_concealed* frames);
void jm_reveal(const jm_concealed* frames);

// Whether a frame that begins is handed the frame that calls it: what Python calls by itself between
// two instructions, a signal's handler, or code that looks at the stack. No part of what is tagged.
bool jm_is_handed_its_caller(PyThreadState* tstate, struct _PyInterpreterFrame* frame);

// callee(*args); the call stub is concealed, if that is the frame that runs.
PyObject* jm_call_concealed(PyObject* callee, PyObject* const* args, Py_ssize_t count);

// `type`: of what call stubs call.
bool jm_register_concealed(PyTypeObject* type);

// -------------------------------------------------------------------------------- function_cache.c

// The result that a functools.lru_cache wrapper holds for a key: borrowed, or NULL.
PyObject* jm_cached_result(PyObject* wrapper, PyObject* key);

// -------------------------------------------------------------------------------- function_watch.c

bool jm_register_watch(PyObject* module);

#ifdef __cplusplus
}
#endif
