// The PEP 523 hook: replaces the code of callees reached from tagged code by a call stub.
//
// The evaluator function is replaced only while some thread is inside an extent (a residual with Python callees, or
// an original that runs as plain Python), and considers frames of that thread only. For the first fresh frame of a
// code object it calls the Python callback, which returns a stub with the same parameters (bytecode/stub.py), False
// (not for this family), None (for no family) or True (nor are its callees hooked). The answer is stored in the code's
// co_extra, stubs per family, because each tagged function compiles its callees with its own options. The hook then replaces the frame's code,
// resets its position, resizes its stack space, and runs the default evaluator. In unusual cases (tracing,
// generators, other globals, no stack space, deep recursion) the frame runs unchanged.

#include "cpython/layout.h"

#include "frame.h"

#if defined(__GNUC__)
static _Thread_local jm_thread here;
#else
static __declspec(thread) jm_thread here;
#endif

int jm_installs = 0;
int jm_any_disabled = 0;
int jm_any_timed = 0;

static PyObject* callback = NULL;
static _PyFrameEvalFunction previous = NULL;  // the evaluator before the hook was installed
static bool installed = false;
static int uninstalled = 0;  // > 0: uninstalled for a deep recursion, see below
static int resting = 0;      // extents of threads in plain stretches
static Py_ssize_t extra_index = -1;

// Beyond this many hooked frames on one C stack the hook uninstalls itself, so that the rest of the
// recursion uses no C stack (3.12 allows ~750 such frames, plain Python 1000).
enum { DEEPEST = 150 };

// A call stub for a code object, for one family and one namespace. Both are borrowed and only
// compared; the stub keeps them alive.
typedef struct Stub {
  struct Stub* next;
  PyObject* family;
  PyObject* globals;
  PyObject* code;  // NULL: not for this family
} Stub;

// The content of co_extra after the callback has decided about a code object.
typedef struct {
  bool never;     // for any family
  bool is_plain;  // nor are its callees hooked: code of this package, or declared (library.py)
  Stub* stubs;
} Decision;

jm_thread* jm_this_thread(void) { return &here; }

// ------------------------------------------------------------------------------------ in and out

static PyObject* evaluate(PyThreadState* tstate, struct _PyInterpreterFrame* frame, int throwing);

// Installs or uninstalls the evaluator according to the one that is current now, since another
// evaluator installed after this one may have removed both when it left.
static void update_evaluator(void) {
  PyInterpreterState* interp = PyInterpreterState_Get();
  _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
  bool wanted = jm_installs > resting && uninstalled == 0;
  if (current == _PyEval_EvalFrameDefault) installed = false;
  if (wanted && !installed && current != evaluate) {
    previous = current;
    _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
  } else if (!wanted && current == evaluate) {
    _PyInterpreterState_SetEvalFrameFunc(interp, previous);
  } else {
    return;  // nothing to do, or another evaluator wraps the hook: stay installed and pass frames on
  }
  installed = wanted;
}

jm_thread jm_enter(PyObject* family, PyObject* exempt) {
  jm_thread saved = here;
  here.extents++;
  here.paused = 0;
  here.disabled = 0;
  here.exempt = exempt;
  here.family = family;
  if (saved.disabled) jm_any_disabled--;
  jm_installs++;
  update_evaluator();
  return saved;
}

// Unbalanced suspend() and resume_hook() calls stay in effect (a `with` split by a graph break).
void jm_leave(jm_thread saved) {
  if (saved.disabled && !here.disabled) jm_any_disabled++;
  here.extents--;
  here.paused += saved.paused;
  here.disabled += saved.disabled;
  here.exempt = saved.exempt;
  here.family = saved.family;
  jm_installs--;
  update_evaluator();
}

// In a plain stretch the thread hooks no frame until it enters another extent. The evaluator is uninstalled if no other
// thread needs it: with it, Python calls a C function for each frame, which took 6 % of the time of FSDP2's hooks.
static int begin_plain_stretch(void) {
  int added = here.extents - here.resting;
  here.paused++;
  here.resting += added;
  resting += added;
  update_evaluator();
  return added;
}

static void end_plain_stretch(int added) {
  here.paused--;
  here.resting -= added;
  resting -= added;
  update_evaluator();
}

void jm_begin_uninstalled(void) {
  uninstalled++;
  update_evaluator();
}

void jm_end_uninstalled(void) {
  uninstalled--;
  update_evaluator();
}

// ------------------------------------------------------------------------------- other evaluators

static PyObject* other_evaluator = NULL;  // other_evaluator(callback | None) -> previous callback

bool jm_has_other_evaluator(void) {
  _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
  return current != _PyEval_EvalFrameDefault && current != evaluate && other_evaluator;
}

PyObject* jm_disable_other_evaluator(void) { return PyObject_CallOneArg(other_evaluator, Py_None); }

void jm_restore_other_evaluator(PyObject* callback_before) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject* replaced = PyObject_CallOneArg(other_evaluator, callback_before);
  if (!replaced) PyErr_WriteUnraisable(other_evaluator);
  Py_XDECREF(replaced);
  Py_DECREF(callback_before);
  PyErr_Restore(type, error, traceback);
}

static PyObject* set_other_evaluator(PyObject* module, PyObject* given) {
  (void)module;
  PyObject* old = other_evaluator;
  other_evaluator = given == Py_None ? NULL : Py_NewRef(given);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

// ------------------------------------------------------------------------------------- decisions

// Releasing a stub may run arbitrary code, so each element is unlinked first.
static void release_stubs(Stub* stub) {
  while (stub) {
    Stub* next = stub->next;
    PyObject* code = stub->code;
    PyMem_Free(stub);
    Py_XDECREF(code);
    stub = next;
  }
}

static void drop_decision(void* extra) {
  Decision* decision = extra;
  if (!decision) return;
  Stub* stubs = decision->stubs;
  PyMem_Free(decision);
  release_stubs(stubs);
}

static Decision* known_decision(PyObject* code) {
  void* extra = NULL;
  if (jm_get_extra(code, extra_index, &extra) < 0) PyErr_Clear();
  return extra;
}

static Decision* decision_of(PyObject* code) {
  Decision* decision = known_decision(code);
  if (decision) return decision;
  decision = PyMem_Calloc(1, sizeof(Decision));
  if (!decision || jm_set_extra(code, extra_index, decision) == 0) return decision;
  PyErr_Clear();
  PyMem_Free(decision);
  return NULL;
}

static Stub* stub_for(Decision* decision, PyObject* family) {
  Stub* stub = decision->stubs;
  while (stub && stub->family != family) stub = stub->next;
  return stub;
}

// Same parameters in the same slots, so that arguments bound for `code` fit `stub`.
static bool fits(PyCodeObject* code, PyObject* stub) {
  if (!PyCode_Check(stub)) return false;
  PyCodeObject* other = (PyCodeObject*)stub;
  const int stars = CO_VARARGS | CO_VARKEYWORDS;
  int parameters = code->co_argcount + code->co_kwonlyargcount +
                   !!(code->co_flags & CO_VARARGS) + !!(code->co_flags & CO_VARKEYWORDS);
  return code->co_argcount == other->co_argcount && code->co_kwonlyargcount == other->co_kwonlyargcount &&
         (code->co_flags & stars) == (other->co_flags & stars) && code->co_nfreevars == other->co_nfreevars &&
         other->co_nlocalsplus >= parameters && other->co_nlocalsplus <= code->co_nlocalsplus;
}

static bool remember(Decision* decision, PyObject* family, PyObject* globals, PyObject* code) {
  Stub* stub = PyMem_Malloc(sizeof(Stub));
  if (!stub) return false;
  *stub = (Stub){decision->stubs, family, globals, code};
  decision->stubs = stub;
  return true;
}

// Calls the Python callback. The code counts as "never" meanwhile, because the callback may call it.
static Stub* decide(PyCodeObject* code, Decision* decision, PyObject* globals) {
  PyObject* family = here.family;
  decision->never = true;
  here.paused++;
  PyObject* answer = PyObject_CallFunctionObjArgs(callback, (PyObject*)code, globals, NULL);
  here.paused--;
  if (!answer) return PyErr_WriteUnraisable(callback), NULL;
  decision->is_plain = answer == Py_True;
  PyObject* stub = answer == Py_False ? NULL : answer;
  if ((!stub || fits(code, stub)) && remember(decision, family, globals, stub)) {
    decision->never = false;
    if (stub) return decision->stubs;
  }
  Py_DECREF(answer);
  return NULL;
}

// -------------------------------------------------------------------------------------- acting

static bool resize_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, PyCodeObject* stub) {
  int has = jm_frame_size(jm_frame_code(frame));
  int needs = jm_frame_size(stub);
  PyObject** end = (PyObject**)frame + has;
  if (end != tstate->datastack_top) return needs <= has;
  if (tstate->datastack_limit - end <= needs - has) return false;
  tstate->datastack_top = (PyObject**)frame + needs;
  return true;
}

static bool is_candidate(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwing) {
  const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
  const int refused = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  if (throwing || !callback || !jm_frame_is_fresh(frame) || jm_is_traced(tstate)) return false;
  return (jm_frame_code(frame)->co_flags & (wanted | refused)) == wanted;
}

static void replace_code(PyThreadState* tstate, _PyInterpreterFrame* frame, Stub* stub) {
  if (!stub || !stub->code || stub->globals != frame->f_globals) return;
  PyCodeObject* other = (PyCodeObject*)stub->code;
  if (!resize_frame(tstate, frame, other)) return;
  Py_INCREF(other);
  Py_DECREF(jm_frame_set_code(frame, other));  // the function still owns its code
}

// Returns whether the frame begins a plain stretch; replaces the code of others if they have a stub.
static bool replace_code_or_is_plain(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwing) {
  PyCodeObject* code = jm_frame_code(frame);
  PyObject* exempt = here.exempt;
  here.exempt = NULL;  // only for the first frame of an extent
  if (exempt == (PyObject*)code || !is_candidate(tstate, frame, throwing)) return false;
  Decision* decision = decision_of((PyObject*)code);
  if (!decision || decision->never) return decision && decision->is_plain;
  Stub* stub = stub_for(decision, here.family);
  replace_code(tstate, frame, stub ? stub : decide(code, decision, frame->f_globals));
  return decision->is_plain;
}

// Returns the evaluator to which the hook passes frames on. An evaluator that was there before the hook may be installed
// a second time, on top of it: torch.compile's stays in place after an error, and the next torch.compile then takes the
// hook for the one below. It has seen the frame already, and would pass it back for ever.
static _PyFrameEvalFunction next_evaluator(PyThreadState* tstate) {
  if (previous == _PyEval_EvalFrameDefault) return previous;
  return _PyInterpreterState_GetEvalFrameFunc(tstate->interp) == previous ? _PyEval_EvalFrameDefault : previous;
}

// Uninstalls the hook while one frame runs, so that everything below runs at full speed.
static PyObject* evaluate_uninstalled(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwing) {
  _PyFrameEvalFunction run = next_evaluator(tstate);
  jm_begin_uninstalled();
  PyObject* result = run(tstate, frame, throwing);
  jm_end_uninstalled();
  return result;
}

static PyObject* evaluate(PyThreadState* tstate, struct _PyInterpreterFrame* frame, int throwing) {
  if (!here.extents || here.paused) return next_evaluator(tstate)(tstate, frame, throwing);
  if (here.depth >= DEEPEST) return evaluate_uninstalled(tstate, frame, throwing);
  const bool plainly = (!throwing && jm_is_handed_its_caller(tstate, frame)) ||
                       replace_code_or_is_plain(tstate, frame, throwing);
  _PyFrameEvalFunction run = next_evaluator(tstate);
  const int resting_here = plainly ? begin_plain_stretch() : 0;
  here.depth++;
  PyObject* result = run(tstate, frame, throwing);
  here.depth--;
  if (plainly) end_plain_stretch(resting_here);
  return result;
}

// ------------------------------------------------------------------------------- Python's side

static PyObject* set_callback(PyObject* module, PyObject* given) {
  (void)module;
  PyObject* old = callback;
  callback = given == Py_None ? NULL : Py_NewRef(given);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

static PyObject* install(PyObject* module, PyObject* given) {
  Py_XDECREF(set_callback(module, given));
  here.extents++;
  jm_installs++;
  update_evaluator();
  Py_RETURN_NONE;
}

static PyObject* uninstall(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  if (!here.extents || !jm_installs) {
    PyErr_SetString(PyExc_RuntimeError, "uninstall() without install() on this thread");
    return NULL;
  }
  here.extents--;
  jm_installs--;
  update_evaluator();
  Py_RETURN_NONE;
}

static PyObject* active(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  return PyLong_FromLong(here.paused ? 0 : here.extents);
}

static PyObject* suspend(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  here.paused++;
  if (here.disabled++ == 0) jm_any_disabled++;
  Py_RETURN_NONE;
}

static PyObject* resume_hook(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  if (!here.disabled || !here.paused) {
    PyErr_SetString(PyExc_RuntimeError, "resume_hook() without suspend() on this thread");
    return NULL;
  }
  here.paused--;
  if (--here.disabled == 0) jm_any_disabled--;
  Py_RETURN_NONE;
}

static PyObject* suspended(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  return PyBool_FromLong(here.disabled > 0);
}

static PyObject* current_family(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  return Py_NewRef(here.family ? here.family : Py_None);
}

// forget(code, family=None): drops the family's stub, or all decisions.
static PyObject* forget(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *code, *family = Py_None;
  if (!PyArg_ParseTuple(args, "O!|O:forget", &PyCode_Type, &code, &family)) return NULL;
  Decision* decision = known_decision(code);
  Stub* dropped = NULL;
  for (Stub** at = decision ? &decision->stubs : &dropped; *at;) {
    Stub* stub = *at;
    if (family == Py_None || stub->family == family) {
      *at = stub->next;
      stub->next = dropped;
      dropped = stub;
    } else {
      at = &stub->next;
    }
  }
  if (decision && family == Py_None) decision->never = false;
  release_stubs(dropped);
  Py_RETURN_NONE;
}

// skip(code, family): the family's frames of this code run unchanged.
static PyObject* skip(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *code, *family;
  if (!PyArg_ParseTuple(args, "O!O:skip", &PyCode_Type, &code, &family)) return NULL;
  Decision* decision = decision_of(code);
  Stub* stub = decision ? stub_for(decision, family) : NULL;
  PyObject* dropped = stub ? stub->code : NULL;
  if (stub) stub->code = NULL;
  if (decision && !stub && !remember(decision, family, NULL, NULL)) return PyErr_NoMemory();
  Py_XDECREF(dropped);
  Py_RETURN_NONE;
}

static PyObject* run_function(PyObject* function, PyObject* args, PyObject* kwargs) {
  if (kwargs == Py_None) kwargs = NULL;
  jm_nest saved = jm_begin_original();
  jm_concealed frames;
  jm_conceal_jitmagic(&frames);
  PyObject* result = PyObject_Call(function, args, kwargs);
  jm_reveal(&frames);
  jm_end_original(saved);
  return result;
}

// call_plainly(function, args, kwargs | None, family | None): runs the function as plain Python,
// with its callees hooked if a family is given.
static PyObject* call_plainly(PyObject* module, PyObject* const* given, Py_ssize_t count) {
  (void)module;
  if (count != 4 || !PyFunction_Check(given[0]) || !PyTuple_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "call_plainly(function, args, kwargs | None, family | None)");
    return NULL;
  }
  if (given[3] == Py_None) {
    const int resting_here = begin_plain_stretch();
    PyObject* result = run_function(given[0], given[1], given[2]);
    end_plain_stretch(resting_here);
    return result;
  }
  PyObject* code = Py_NewRef(PyFunction_GET_CODE(given[0]));
  jm_thread saved = jm_enter(given[3], code);
  PyObject* result = run_function(given[0], given[1], given[2]);
  jm_leave(saved);
  Py_DECREF(code);
  return result;
}

// For debuggers and printed tracebacks. A frame that still runs is not changed.
static PyObject* show_as(PyObject* Py_UNUSED(module), PyObject* args) {
  PyFrameObject* shown;
  PyCodeObject* code;
  if (!PyArg_ParseTuple(args, "O!O!", &PyFrame_Type, &shown, &PyCode_Type, &code)) return NULL;
  _PyInterpreterFrame* frame = shown->f_frame;
  if (frame->owner != FRAME_OWNED_BY_FRAME_OBJECT) Py_RETURN_FALSE;
  PyCodeObject* own = jm_frame_code(frame);
  if (Py_SIZE(own) != Py_SIZE(code) || own->co_nlocalsplus != code->co_nlocalsplus) {
    PyErr_SetString(PyExc_ValueError, "the code has other instructions or variables");
    return NULL;
  }
  Py_DECREF(jm_frame_show_as(frame, (PyCodeObject*)Py_NewRef(code)));
  Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"set_callback", set_callback, METH_O, "callback(code, globals) -> stub code | False | None"},
    {"install", install, METH_O, "Set the callback and begin an extent on this thread."},
    {"uninstall", uninstall, METH_NOARGS, "End the extent begun last on this thread."},
    {"active", active, METH_NOARGS, "> 0 while the hook acts on this thread."},
    {"suspend", suspend, METH_NOARGS, "Disable the hook and dispatchers on this thread; nests."},
    {"resume_hook", resume_hook, METH_NOARGS, "Undo one suspend()."},
    {"suspended", suspended, METH_NOARGS, "Whether suspend() is in effect on this thread."},
    {"current_family", current_family, METH_NOARGS, "Family whose extent the thread is in, or None."},
    {"set_other_evaluator", set_other_evaluator, METH_O,
     "other(callback | None) -> previous callback: sets another frame evaluator's callback."},
    {"forget", forget, METH_VARARGS, "Drop the decisions about a code object (for a family)."},
    {"skip", skip, METH_VARARGS, "Never hook a family's frames of this code."},
    {"show_as", show_as, METH_VARARGS, "Give a finished frame other code with the same slots."},
    {"call_plainly", (PyCFunction)(void (*)(void))call_plainly, METH_FASTCALL,
     "Run a function as plain Python; its callees are hooked when a family is given."},
    {NULL, NULL, 0, NULL},
};

bool jm_register_hook(PyObject* module) {
  if (extra_index < 0) extra_index = jm_request_extra_index(drop_decision);
  if (extra_index < 0) {
    PyErr_SetString(PyExc_RuntimeError, "no slot is left in co_extra");
    return false;
  }
  return PyModule_AddFunctions(module, functions) == 0;
}
