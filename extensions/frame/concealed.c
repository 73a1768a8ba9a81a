// Hides frames that eager would not have: the call stub's, and those of jitmagic's Python between
// it and the user's code.
//
// While the user's code runs below them they are marked as incomplete frames, which the interpreter
// skips wherever a stack is walked: `sys._getframe`, `f_back`, `inspect.stack`, the `stacklevel` of
// warnings. A graph without Python conceals nothing and costs nothing: a warning of its operations
// shows the stub's location, which is the tagged function's file.

#include "cpython/layout.h"

#include "frame.h"

static PyTypeObject* dispatcher_type = NULL;  // lives as long as the module does
static PyObject* package = NULL;

bool jm_register_concealed(PyTypeObject* type) {
  dispatcher_type = type;
  if (!package) package = PyUnicode_InternFromString("jitmagic.");
  return package != NULL;
}

// bytecode/stub.py makes the constants (docstring, dispatcher, on_error). The stub's code for a
// deep recursion has the dispatcher as its last constant.
static bool is_stub(PyCodeObject* code) {
  PyObject* constants = code->co_consts;
  return PyTuple_GET_SIZE(constants) > 2 && Py_IS_TYPE(PyTuple_GET_ITEM(constants, 1), dispatcher_type);
}

static bool is_jitmagic_frame(_PyInterpreterFrame* frame) {
  PyObject* name = PyDict_GetItemString(frame->f_globals, "__name__");
  if (!name || !PyUnicode_CheckExact(name)) return false;
  return PyUnicode_Tailmatch(name, package, 0, PY_SSIZE_T_MAX, -1) == 1;
}

static void conceal(jm_concealed* frames, _PyInterpreterFrame* frame) {
  frames->frame[frames->count] = frame;
  frames->position[frames->count++] = jm_frame_conceal(frame);
}

void jm_conceal_jitmagic(jm_concealed* frames) {
  frames->count = 0;
  _PyInterpreterFrame* frame = jm_current_frame(PyThreadState_Get());
  for (; frame && frames->count < JM_CONCEALED; frame = frame->previous) {
    if (!jm_frame_is_python(frame)) continue;  // an entry from C into the interpreter
    const bool stub = is_stub(jm_frame_code(frame));
    if (!stub && !is_jitmagic_frame(frame)) return;
    conceal(frames, frame);
    if (stub) return;
  }
}

void jm_reveal(const jm_concealed* frames) {
  for (int i = 0; i < frames->count; i++) jm_frame_reveal(frames->frame[i], frames->position[i]);
}

PyObject* jm_call_concealed(PyObject* callee, PyObject* const* args, Py_ssize_t count) {
  jm_concealed frames;
  frames.count = 0;
  _PyInterpreterFrame* frame = jm_current_frame(PyThreadState_Get());
  if (frame && jm_frame_is_python(frame) && is_stub(jm_frame_code(frame))) conceal(&frames, frame);
  PyObject* result = PyObject_Vectorcall(callee, args, count, NULL);
  jm_reveal(&frames);
  return result;
}

bool jm_is_handed_its_caller(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  if (!jm_frame_is_fresh(frame)) return false;
  PyCodeObject* code = jm_frame_code(frame);
  Py_ssize_t count = code->co_argcount;
  PyObject* found = NULL;
  for (Py_ssize_t i = 0; i < count && !found; i++) {
    PyObject* given = jm_frame_local(frame, i);
    if (given && PyFrame_Check(given)) found = given;
  }
  if (!found && code->co_flags & CO_VARARGS) {
    PyObject* rest = jm_frame_local(frame, count + code->co_kwonlyargcount);
    Py_ssize_t size = rest && PyTuple_CheckExact(rest) ? PyTuple_GET_SIZE(rest) : 0;
    PyObject* last = size ? PyTuple_GET_ITEM(rest, size - 1) : NULL;
    if (last && PyFrame_Check(last)) found = last;
  }
  if (!found) return false;
  PyFrameObject* caller = PyThreadState_GetFrame(tstate);
  Py_XDECREF(caller);  // its frame holds it
  return found == (PyObject*)caller;
}
