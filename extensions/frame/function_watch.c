// Notices functions whose code or defaults are replaced in place, as %autoreload and debuggers do.
//
// A call binds its arguments with the stub's code and defaults before any dispatcher runs, so a
// stub must be updated at the assignment itself. CPython 3.12 and newer have function watchers; on
// 3.11 the setters of three function attributes are wrapped when the first function is tagged. The
// callback runs only for functions with weak references, since followed functions have one.

#include "frame.h"

static PyObject* callback = NULL;  // called as callback(function, attribute, value | None)

static void notify(PyObject* function, const char* attribute, PyObject* value) {
  if (!callback || !((PyFunctionObject*)function)->func_weakreflist) return;
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject* asked = Py_NewRef(callback);
  PyObject* answer =
      PyObject_CallFunction(asked, "OsO", function, attribute, value ? value : Py_None);
  if (!answer) PyErr_WriteUnraisable(asked);
  Py_XDECREF(answer);
  Py_DECREF(asked);
  PyErr_Restore(type, error, traceback);
}

#if PY_VERSION_HEX >= 0x030C0000

static int on_event(PyFunction_WatchEvent event, PyFunctionObject* function, PyObject* value) {
  if (event == PyFunction_EVENT_MODIFY_CODE) notify((PyObject*)function, "__code__", value);
  if (event == PyFunction_EVENT_MODIFY_DEFAULTS) notify((PyObject*)function, "__defaults__", value);
  if (event == PyFunction_EVENT_MODIFY_KWDEFAULTS) notify((PyObject*)function, "__kwdefaults__", value);
  return 0;
}

static bool begin_watching(void) { return PyFunction_AddWatcher(on_event) >= 0; }

#else

enum { SETTERS = 3 };
static const char* const attributes[SETTERS] = {"__code__", "__defaults__", "__kwdefaults__"};
static setter wrapped[SETTERS];

static int set_and_notify(int which, PyObject* function, PyObject* value, void* closure) {
  const int failed = wrapped[which](function, value, closure);
  if (!failed) notify(function, attributes[which], value);
  return failed;
}

static int set_code(PyObject* function, PyObject* value, void* closure) {
  return set_and_notify(0, function, value, closure);
}

static int set_defaults(PyObject* function, PyObject* value, void* closure) {
  return set_and_notify(1, function, value, closure);
}

static int set_kwdefaults(PyObject* function, PyObject* value, void* closure) {
  return set_and_notify(2, function, value, closure);
}

static bool begin_watching(void) {
  static const setter wrappers[SETTERS] = {set_code, set_defaults, set_kwdefaults};
  for (int i = 0; i < SETTERS; i++) {
    PyObject* descriptor = PyDict_GetItemString(PyFunction_Type.tp_dict, attributes[i]);
    if (!descriptor || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
      PyErr_Format(PyExc_RuntimeError, "functions have no attribute %s to watch", attributes[i]);
      return false;
    }
    PyGetSetDef* definition = ((PyGetSetDescrObject*)descriptor)->d_getset;
    wrapped[i] = definition->set;
    definition->set = wrappers[i];
  }
  return true;
}

#endif

static PyObject* watch_functions(PyObject* module, PyObject* given) {
  (void)module;
  static bool watching = false;
  if (!watching && !begin_watching()) return NULL;
  watching = true;
  PyObject* old = callback;
  callback = Py_NewRef(given);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"watch_functions", watch_functions, METH_O,
     "callback(function, attribute, value | None) when code or defaults of a function change."},
    {NULL, NULL, 0, NULL},
};

bool jm_register_watch(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
