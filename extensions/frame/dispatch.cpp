// Dispatcher: what a call stub calls. Entries most recently used first; the first whose guards pass
// runs. No entry: `miss` (Python) compiles or runs the original.
//
// A residual may hand over to a resume function by returning continue_with(dispatcher, *values); the
// dispatcher then goes on with that one in a loop, so a loop in the user's code does not grow the
// stack. Guards run no user code, so the list of entries stands still while it is searched; whatever
// runs afterwards may change it, and the entry that runs is held meanwhile.

#include "dispatch.h"
#include "entry.h"

#include <structmember.h>

#include <algorithm>

namespace jitmagic {
namespace {

PyObject* code_of(PyObject* callable) {
  return PyFunction_Check(callable) ? PyFunction_GET_CODE(callable) : nullptr;
}

// ----------------------------------------------------------------------------------- dispatcher

struct Dispatcher {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* name;
  PyObject* miss;
  PyObject* error;
  PyObject* owner;
  PyObject* family;        // whose options callees are compiled with
  PyObject* plain;         // function that runs when no entry does (the handle gave up), or NULL
  Py_ssize_t plain_count;  // leading arguments it takes
  Py_ssize_t arity;
  long long calls;
  std::vector<Entry*>* entries;  // strong
  PyObject* weakrefs;
};

struct Continue {
  PyObject_HEAD
  Dispatcher* dispatcher;
  PyObject* args;
};

extern PyTypeObject DispatcherType;
extern PyTypeObject ContinueType;

PyObject* pack(PyObject* const* args, Py_ssize_t count) {
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple && i < count; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
  return tuple;
}

PyObject* run_hooked(PyObject* callee, PyObject* family, PyObject* const* args, Py_ssize_t count) {
  PyObject* code = Py_XNewRef(code_of(callee));
  Py_XINCREF(family);
  jm_thread saved = jm_enter(family, code);
  PyObject* result = PyObject_Vectorcall(callee, args, count, nullptr);
  jm_leave(saved);
  Py_XDECREF(family);
  Py_XDECREF(code);
  return result;
}

PyObject* missed(Dispatcher* self, PyObject* const* args) {
  if (self->plain && !jm_this_thread()->disabled) {
    PyObject* plain = Py_NewRef(self->plain);
    PyObject* result = run_hooked(plain, self->family, args, self->plain_count);
    Py_DECREF(plain);
    return result;
  }
  if (!self->miss) {
    PyErr_Format(PyExc_RuntimeError, "the dispatcher of %U was cleared", self->name);
    return nullptr;
  }
  PyObject* tuple = pack(args, self->arity);
  if (!tuple) return nullptr;
  PyObject* miss = Py_NewRef(self->miss);
  jm_this_thread()->paused++;  // our own Python is not to be hooked; running the original is again
  PyObject* result = PyObject_CallOneArg(miss, tuple);
  jm_this_thread()->paused--;
  Py_DECREF(miss);
  Py_DECREF(tuple);
  return result;
}

// A graph raised: Python finds out what eager would have raised. Ctrl-C and the like pass.
PyObject* failed(Dispatcher* self, Entry* entry, PyObject* const* args) {
  if (!self->error || !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  PyObject* tuple = pack(args, self->arity);
  PyObject* error = Py_NewRef(self->error);
  jm_this_thread()->paused++;
  PyObject* result =
      tuple ? PyObject_CallFunctionObjArgs(error, (PyObject*)entry, tuple, value, nullptr) : nullptr;
  jm_this_thread()->paused--;
  Py_DECREF(error);
  Py_XDECREF(tuple);
  Py_DECREF(type);
  Py_DECREF(value);
  Py_XDECREF(traceback);
  return result;
}

PyObject* run_python(Dispatcher* self, Entry* entry, PyObject* const* args) {
  if (entry->hook) return run_hooked(entry->run, self->family, args, self->arity);
  return PyObject_Vectorcall(entry->run, args, self->arity, nullptr);
}

PyObject* run_unhooked(Dispatcher* self, Entry* entry, PyObject* const* args, Registers& registers) {
  return entry->residual ? run_python(self, entry, args) : run_graph(entry, registers);
}

PyObject* run_entry(Dispatcher* self, Entry* entry, PyObject* const* args, Registers& registers) {
  Py_INCREF(entry);
  entry->hits++;
  PyObject* result;
  if (jm_installs == 0 || entry->hook) {
    result = run_unhooked(self, entry, args, registers);
  } else {  // somebody's extent, maybe this thread's: it ends at a graph
    jm_thread* here = jm_this_thread();
    here->paused++;
    result = run_unhooked(self, entry, args, registers);
    here->paused--;
  }
  if (!result && !entry->residual) result = failed(self, entry, args);
  Py_DECREF(entry);
  return result;
}

PyObject* dispatch_once(Dispatcher* self, PyObject* const* args) {
  self->calls++;
  if (jm_any_disabled && jm_this_thread()->disabled) return missed(self, args);
  std::vector<Entry*>& entries = *self->entries;
  for (size_t i = 0; i < entries.size(); i++) {
    Entry* entry = entries[i];
    Registers registers(entry->program);
    if (first_failure(entry->program, args, self->arity, registers) >= 0) continue;
    if (i > 0) std::rotate(entries.begin(), entries.begin() + i, entries.begin() + i + 1);
    return run_entry(self, entry, args, registers);
  }
  return missed(self, args);
}

PyObject* follow(PyObject* result) {
  while (result && Py_IS_TYPE(result, &ContinueType)) {
    auto* next = reinterpret_cast<Continue*>(result);
    result = dispatch_once(next->dispatcher, &PyTuple_GET_ITEM(next->args, 0));
    Py_DECREF(next);
  }
  return result;
}

PyObject* dispatch(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count != self->arity || (keywords && PyTuple_GET_SIZE(keywords))) {
    PyErr_Format(PyExc_TypeError, "the dispatcher of %U takes %zd positional arguments, not %zd",
                 self->name, self->arity, count);
    return nullptr;
  }
  return follow(dispatch_once(self, args));
}

PyObject* dispatcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"name", "arity", "miss", "error", nullptr};
  PyObject *name, *miss, *error;
  Py_ssize_t arity;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UnOO:Dispatcher", const_cast<char**>(names), &name,
                                   &arity, &miss, &error)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Dispatcher*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = dispatch;
  self->entries = new std::vector<Entry*>();
  self->name = Py_NewRef(name);
  self->arity = arity;
  self->miss = Py_NewRef(miss);
  self->error = Py_NewRef(error);
  return reinterpret_cast<PyObject*>(self);
}

int dispatcher_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  Py_VISIT(self->miss);
  Py_VISIT(self->error);
  Py_VISIT(self->owner);
  Py_VISIT(self->family);
  Py_VISIT(self->plain);
  if (self->entries) {
    for (Entry* entry : *self->entries) Py_VISIT(entry);
  }
  return 0;
}

void drop_entries(Dispatcher* self) {
  std::vector<Entry*> dropped;
  std::swap(dropped, *self->entries);
  for (Entry* entry : dropped) Py_DECREF(entry);
}

int dispatcher_clear(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  Py_CLEAR(self->miss);
  Py_CLEAR(self->error);
  Py_CLEAR(self->owner);
  Py_CLEAR(self->family);
  Py_CLEAR(self->plain);
  if (self->entries) drop_entries(self);
  return 0;
}

void dispatcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs) PyObject_ClearWeakRefs(object);
  dispatcher_clear(object);
  Py_CLEAR(self->name);
  delete self->entries;
  Py_TYPE(object)->tp_free(object);
}

PyObject* dispatcher_add(PyObject* object, PyObject* entry) {
  if (!Py_IS_TYPE(entry, &EntryType)) {
    PyErr_SetString(PyExc_TypeError, "add() takes an Entry");
    return nullptr;
  }
  auto* self = reinterpret_cast<Dispatcher*>(object);
  if (reinterpret_cast<Entry*>(entry)->program->arguments > self->arity) {
    PyErr_SetString(PyExc_ValueError, "the entry's guards read more arguments than there are");
    return nullptr;
  }
  self->entries->insert(self->entries->begin(), reinterpret_cast<Entry*>(Py_NewRef(entry)));
  Py_RETURN_NONE;
}

PyObject* dispatcher_remove(PyObject* object, PyObject* entry) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  auto found = std::find(self->entries->begin(), self->entries->end(), (Entry*)entry);
  if (found == self->entries->end()) {
    PyErr_SetString(PyExc_ValueError, "no such entry");
    return nullptr;
  }
  self->entries->erase(found);
  Py_DECREF(entry);
  Py_RETURN_NONE;
}

PyObject* dispatcher_drop_all(PyObject* object, PyObject*) {
  drop_entries(reinterpret_cast<Dispatcher*>(object));
  Py_RETURN_NONE;
}

// give_up(function, count): calls without an entry go to function(*first count arguments); (None, 0)
// takes it back.
PyObject* dispatcher_give_up(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject* function;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "On:give_up", &function, &count)) return nullptr;
  if (count < 0 || count > self->arity) {
    PyErr_SetString(PyExc_ValueError, "more arguments than the dispatcher has");
    return nullptr;
  }
  PyObject* old = self->plain;
  self->plain = function == Py_None ? nullptr : Py_NewRef(function);
  self->plain_count = count;
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

PyObject* dispatcher_entries(PyObject* object, void*) {
  auto& entries = *reinterpret_cast<Dispatcher*>(object)->entries;
  return pack(reinterpret_cast<PyObject**>(entries.data()), entries.size());
}

PyObject* dispatcher_repr(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  return PyUnicode_FromFormat("<dispatcher of %U: %zd entries>", self->name,
                              (Py_ssize_t)self->entries->size());
}

PyMethodDef dispatcher_methods[] = {
    {"add", dispatcher_add, METH_O, "Put an entry first."},
    {"remove", dispatcher_remove, METH_O, "Take an entry out; it may be running."},
    {"clear", dispatcher_drop_all, METH_NOARGS, "Take all entries out."},
    {"give_up", dispatcher_give_up, METH_VARARGS, "Function to call natively when no entry fits."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef dispatcher_members[] = {
    {"name", T_OBJECT, offsetof(Dispatcher, name), READONLY, nullptr},
    {"arity", T_PYSSIZET, offsetof(Dispatcher, arity), READONLY, nullptr},
    {"calls", T_LONGLONG, offsetof(Dispatcher, calls), READONLY, "calls so far"},
    {"owner", T_OBJECT, offsetof(Dispatcher, owner), 0, "the Python Handle"},
    {"family", T_OBJECT, offsetof(Dispatcher, family), 0, "what hooked callees are compiled for"},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef dispatcher_getset[] = {
    {"entries", dispatcher_entries, nullptr, "Entries, most recently used first.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject DispatcherType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.Dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_dealloc = dispatcher_dealloc,
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_repr = dispatcher_repr,
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Dispatcher(name, arity, miss, error)",
    .tp_traverse = dispatcher_traverse,
    .tp_clear = dispatcher_clear,
    .tp_weaklistoffset = offsetof(Dispatcher, weakrefs),
    .tp_methods = dispatcher_methods,
    .tp_members = dispatcher_members,
    .tp_getset = dispatcher_getset,
    .tp_new = dispatcher_new,
};

// ------------------------------------------------------------------------------------- continue

int continue_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Continue*>(object);
  Py_VISIT(self->dispatcher);
  Py_VISIT(self->args);
  return 0;
}

int continue_clear(PyObject* object) {
  auto* self = reinterpret_cast<Continue*>(object);
  Py_CLEAR(self->dispatcher);
  Py_CLEAR(self->args);
  return 0;
}

void continue_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  continue_clear(object);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject ContinueType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.Continue",
    .tp_basicsize = sizeof(Continue),
    .tp_dealloc = continue_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What continue_with() makes: the call a residual hands over with.",
    .tp_traverse = continue_traverse,
    .tp_clear = continue_clear,
};

PyObject* continue_with(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count < 1 || !Py_IS_TYPE(args[0], &DispatcherType)) {
    PyErr_SetString(PyExc_TypeError, "continue_with(dispatcher, *values)");
    return nullptr;
  }
  auto* dispatcher = reinterpret_cast<Dispatcher*>(args[0]);
  if (dispatcher->arity != count - 1) {
    PyErr_Format(PyExc_TypeError, "the dispatcher of %U takes %zd values, not %zd", dispatcher->name,
                 dispatcher->arity, count - 1);
    return nullptr;
  }
  PyObject* tuple = pack(args + 1, count - 1);
  auto* made = tuple ? reinterpret_cast<Continue*>(ContinueType.tp_alloc(&ContinueType, 0)) : nullptr;
  if (!made) return Py_XDECREF(tuple), nullptr;
  made->dispatcher = reinterpret_cast<Dispatcher*>(Py_NewRef(args[0]));
  made->args = tuple;
  return reinterpret_cast<PyObject*>(made);
}

PyMethodDef functions[] = {
    {"continue_with", (PyCFunction)(void (*)(void))continue_with, METH_FASTCALL,
     "continue_with(dispatcher, *values): as a residual's result, goes on with that dispatcher."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_dispatch(PyObject* module) {
  return PyModule_AddType(module, &DispatcherType) == 0 &&
         PyModule_AddType(module, &ContinueType) == 0 && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace jitmagic
