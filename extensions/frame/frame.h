// Declarations shared by the files of jitmagic._frame. Plain C, so that hook.c and layout.c can
// include it.
//
//   layout.c           the interpreter's own data layouts (dictionaries, instances), per version
//   hook.c             the PEP 523 hook and the state of the thread it acts on
//   recursion.c        frames that dispatchers add to Python's recursion limit
//   concealed.c        hides frames that eager would not have from stack walks
//   function_cache.c   entries of functools.lru_cache
//   function_watch.c   notices functions whose code or defaults are replaced in place
//   constants.cpp      equality that runs no user code
//   memo.cpp           lookups cached while a dictionary does not change
//   class_facts.cpp    facts about a class, cached while it does not change
//   namespace_facts.cpp  facts about the dictionary of a module, cached likewise
//   guard_steps.h      the rows of all steps: what they read, how they run
//   guards.cpp         runs guard programs         guard_program.cpp  builds them
//   guards_tensor.cpp  tensors and torch's state; only *_tensor.cpp files depend on torch
//   observers_tensor.cpp  detects modes and tracers that watch the thread's operations
//   profiled_tensor.cpp  records calls for torch's profilers
//   template.cpp       result templates            entry.cpp          guards, run and template
//   compared.cpp       times calls, compiled code against eager
//   timed_graph.cpp    adds up the time that a timed call spends in compiled graphs
//   spread.cpp         calls plain Python with a dispatcher's values
//   dispatch.cpp       dispatchers                 module_call.cpp    tagged nn.Module instances
#pragma once

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------- layout.c

// Value of `name` (exact str) in the instance's dictionary without materialising that: borrowed, or
// NULL (absent, or no dictionary). Never raises and runs no user code.
PyObject* jm_instance_get(PyObject* object, PyObject* name);

// The instance's dictionary if it is already materialised: borrowed, or NULL.
PyObject* jm_instance_dict(PyObject* object);

// Whether the instance's entries that hide attributes of its class are those of `names`, a tuple of
// str: an attribute of a class is hidden unless it is a data descriptor. Runs no user code.
bool jm_instance_hides_only(PyObject* object, PyObject* names);

// Version of a dictionary: changes with every change, unique over all dictionaries (PEP 509); 0 if
// this Python has none (3.13).
uint64_t jm_dict_version(PyObject* dict);

// Address of that version, valid while the dictionary lives; NULL if there is none.
const uint64_t* jm_dict_version_address(PyObject* dict);

// Version of a class: changes with every change of the class or one of its bases (attributes,
// `__bases__`), unique over all classes; 0 if it has none now. _PyType_Lookup assigns one, except
// that since 3.13 a class that has changed a thousand times gets no more.
unsigned jm_type_version(PyTypeObject* type);

// The dictionary of a class itself: borrowed.
PyObject* jm_type_dict(PyTypeObject* type);

// Whether every key of the dictionary is an exact str, by the kind of its key table, so that a
// lookup only compares strings. May return false although all are.
bool jm_dict_has_only_strings(PyObject* dict);

// ----------------------------------------------------------------------------------- constants.cpp

// Value of a constant key in any dictionary, without running user code: borrowed, or NULL.
PyObject* jm_dict_get(PyObject* dict, PyObject* key);

// ------------------------------------------------------------------------------------------ hook.c

// The state of one thread. Frames are considered only while `extents` is nonzero.
typedef struct {
  int extents;      // number of hooked calls around the current frame
  int paused;       // > 0: the hook ignores every frame
  int resting;      // extents around the innermost plain stretch
  int disabled;     // > 0: dispatchers run the original as well
  int depth;        // hooked frames on this thread's C stack
  PyObject* exempt; // code whose next frame runs unchanged (borrowed; the caller keeps it alive)
  PyObject* family; // the family for which callees are hooked (borrowed likewise)
  int timed;        // > 0: inside a timed call, so nested calls are not timed
  int in_graph;     // > 0: inside a compiled graph
  long long graphs; // nanoseconds in compiled graphs since the timed call began
  int nested;       // dispatchers on this thread's C stack that run Python
  int allowance;         // frames that may follow a miss before Python's recursion limit; 0: not in a miss
  PyObject* resume_arguments; // arguments of the current resume function (borrowed), until it owns them; or NULL
} jm_thread;

// Beyond this many nested dispatchers, recursion continues as plain Python without C frames in
// between, so that Python's recursion limit and the C stack allow the same depth as in eager.
enum { JM_DEEPEST = 64 };

jm_thread* jm_this_thread(void);

extern int jm_installs;       // extents of all threads; the hook is in place while some thread is in one and in no plain stretch
extern int jm_any_disabled;   // threads with disabled > 0, so that the hot path reads one global
extern int jm_any_timed;      // calls that are timed now, likewise

// Between enter and leave (an extent) the hook acts on this thread. `exempt` is the code of the
// first frame, which runs unchanged (the residual, or the original as plain Python).
jm_thread jm_enter(PyObject* family, PyObject* exempt);
void jm_leave(jm_thread saved);

// Between begin and end the hook is uninstalled for all threads, so that Python calls use no C
// stack.
void jm_begin_uninstalled(void);
void jm_end_uninstalled(void);

// Whether another frame evaluator (torch.compile's) is installed. hide() disables it for this
// thread and returns a new reference to the callback for show(), or NULL with an exception set.
bool jm_has_other_evaluator(void);
PyObject* jm_disable_other_evaluator(void);
void jm_restore_other_evaluator(PyObject* callback);

bool jm_register_hook(PyObject* module);

// --------------------------------------------------------------------------------- recursion.c

// A dispatcher runs Python between begin and end. With `misses` that is jitmagic's own Python,
// which gets an extra recursion allowance; the original that it runs gets the allowance that the
// dispatcher's caller had. Otherwise the allowance grows by one for the stub's frame, which eager
// does not have.
typedef struct {
  int allowance, added;
} jm_nest;
jm_nest jm_begin_nest(bool misses);
void jm_end_nest(jm_nest saved);

// The original gets the allowance of the dispatcher's caller, without jitmagic's Python in between.
jm_nest jm_begin_original(void);
void jm_end_original(jm_nest saved);

// --------------------------------------------------------------------------------- concealed.c

// Between conceal and reveal, stack walks skip the frames between the user's caller and the user's
// code. None of these frames may end in between.
enum { JM_CONCEALED = 12 };
typedef struct {
  int count;
  void* frame[JM_CONCEALED];
  void* position[JM_CONCEALED];
} jm_concealed;

// Conceals the running frames of jitmagic's Python down to the call stub.
void jm_conceal_jitmagic(jm_concealed* frames);
void jm_reveal(const jm_concealed* frames);

// Whether a new frame has its caller's frame as an argument: a signal handler, which Python calls
// between two instructions, or code that inspects the stack. Such code is not part of the tagged
// program.
bool jm_is_handed_its_caller(PyThreadState* tstate, struct _PyInterpreterFrame* frame);

// Calls callee(*args); conceals the call stub if its frame is running.
PyObject* jm_call_concealed(PyObject* callee, PyObject* const* args, Py_ssize_t count);

// `type` is the type of dispatchers.
bool jm_register_concealed(PyTypeObject* type);

// -------------------------------------------------------------------------------- function_cache.c

// The cached result of a functools.lru_cache wrapper for a key: borrowed, or NULL.
PyObject* jm_cached_result(PyObject* wrapper, PyObject* key);

// -------------------------------------------------------------------------------- function_watch.c

bool jm_register_watch(PyObject* module);

#ifdef __cplusplus
}
#endif
