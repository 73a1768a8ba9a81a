// Dispatcher: the callee of a call stub. Entries (guards and compiled code) are tried most recently
// used first, and the first whose guards pass runs. If none does, `miss` (Python) compiles or runs
// the original.
//
// A residual continues in a resume function by returning continue_with(dispatcher, *values). The
// dispatcher then calls that one in a loop, so that a loop in the user's code does not grow the
// stack. Guards run no user code, so the list of entries does not change while it is searched. The
// entry's own code may change it, so the running entry is kept alive.

#include "compared.h"
#include "dispatch.h"
#include "handed.h"
#include "profiled.h"
#include "spread.h"

#include <structmember.h>

#include <algorithm>

namespace jitmagic {
namespace {
// ----------------------------------------------------------------------------------- dispatcher

struct Dispatcher {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* name;
  PyObject* title;         // its name in profiles: str, or NULL
  PyObject* miss;
  PyObject* error;
  PyObject* owner;
  PyObject* family;        // the family whose options apply to callees
  PyObject* plain;         // function to run if no entry fits (the handle gave up), or NULL
  Py_ssize_t plain_count;  // number of leading arguments it takes
  Py_ssize_t plain_left;   // such calls until `miss` is called again; < 0: forever
  Py_ssize_t arity;
  long long calls;
  PyObject* stub;          // weak reference to the function whose code calls this, or NULL
  PyObject* stub_code;     // the stub's code while the function runs as plain Python
  int runs_without_stub;              // number of calls that do
  std::vector<Entry*>* entries;  // strong
  PyObject* weakrefs;
};

struct Continue {
  PyObject_HEAD
  Dispatcher* dispatcher;
  PyObject* args;
};

extern PyTypeObject DispatcherType, ContinueType;

PyObject* run_hooked(PyObject* callee, PyObject* family, PyObject* const* args, Py_ssize_t count) {
  PyObject* code = Py_XNewRef(code_of(callee));
  Py_XINCREF(family);  // the thread's state borrows both, and the callee may drop them
  jm_thread saved = jm_enter(family, code);
  PyObject* result = jm_call_concealed(callee, args, count);
  jm_leave(saved);
  Py_XDECREF(family);
  Py_XDECREF(code);
  return result;
}

PyObject* missed_here(Dispatcher* self, PyObject* const* args) {
  if (self->plain && self->plain_left && !jm_this_thread()->disabled) {  // given up: no jitmagic Python runs
    self->plain_left -= self->plain_left > 0;
    PyObject* plain = Py_NewRef(self->plain);
    const jm_nest saved = jm_begin_nest(false);
    PyObject* result = run_hooked(plain, self->family, args, self->plain_count);
    jm_end_nest(saved);
    Py_DECREF(plain);
    return result;
  }
  if (!self->miss) {
    PyErr_Format(PyExc_RuntimeError, "the dispatcher of %U was cleared", self->name);
    return nullptr;
  }
  PyObject* tuple = pack_for_miss(args, self->arity);
  if (!tuple) return nullptr;
  PyObject* miss = Py_NewRef(self->miss);
  jm_this_thread()->paused++;  // jitmagic's Python is not hooked; the original is hooked again
  const jm_nest saved = jm_begin_nest(true);
  PyObject* result = PyObject_CallOneArg(miss, tuple);
  jm_end_nest(saved);
  jm_this_thread()->paused--;
  Py_DECREF(miss);
  Py_DECREF(tuple);
  return result;
}

// The stub's function if it is alive: a new reference, or NULL.
PyObject* stub_of(const Dispatcher* self) {
  PyObject* stub = self->stub ? reinterpret_cast<PyWeakReference*>(self->stub)->wr_object : nullptr;
  return stub && PyFunction_Check(stub) ? Py_NewRef(stub) : nullptr;
}

bool is_deep(const Dispatcher* self) {
  return jm_this_thread()->nested >= JM_DEEPEST && self->stub && self->owner;
}

// Gives the stub the original's code for ordinary recursive calls. This dispatcher is a constant of
// that code, so that the function is still recognised as tagged.
bool install_original_code(Dispatcher* self, PyObject* stub) {
  if (self->runs_without_stub > 0) return true;
  PyObject* code = PyObject_CallMethod(self->owner, "code_for_deep_recursion", nullptr);
  if (!code) return false;
  PyObject* own = Py_NewRef(PyFunction_GET_CODE(stub));
  if (PyObject_SetAttrString(stub, "__code__", code) < 0) {
    Py_CLEAR(own);
  } else {
    Py_XSETREF(self->stub_code, Py_NewRef(own));
  }
  Py_DECREF(code);
  Py_XDECREF(own);
  return own != nullptr;
}

// Restores the stub's code, unless it was replaced meanwhile by code with another dispatcher.
void restore_stub_code(Dispatcher* self, PyObject* stub) {
  PyObject* own = self->stub_code;
  self->stub_code = nullptr;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* constants = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(stub))->co_consts;
  const int is_own = PySequence_Contains(constants, reinterpret_cast<PyObject*>(self));
  if (is_own == 1 && PyObject_SetAttrString(stub, "__code__", own) < 0) PyErr_WriteUnraisable(stub);
  Py_DECREF(own);
  PyErr_Restore(type, value, traceback);
}

PyObject* run_without_stub(Dispatcher* self, PyObject* stub, PyObject* const* args) {
  PyObject* tuple = pack_for_miss(args, self->arity);
  if (!tuple || !install_original_code(self, stub)) return Py_XDECREF(tuple), nullptr;
  self->runs_without_stub++;
  jm_begin_uninstalled();
  const jm_nest saved = jm_begin_nest(true);
  PyObject* result = PyObject_CallMethod(self->owner, "run_original", "(O)", tuple);
  jm_end_nest(saved);
  jm_end_uninstalled();
  if (--self->runs_without_stub == 0) restore_stub_code(self, stub);
  Py_DECREF(tuple);
  return result;
}

PyObject* missed(Dispatcher* self, PyObject* const* args) {
  PyObject* stub = is_deep(self) ? stub_of(self) : nullptr;
  if (!stub) return missed_here(self, args);
  PyObject* result = run_without_stub(self, stub, args);
  Py_DECREF(stub);
  return result;
}

// A graph raised: the handler finds out what eager would raise. Ctrl-C and the like propagate.
PyObject* failed(Dispatcher* self, Entry* entry, PyObject* const* args) {
  if (!self->error || !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  PyObject* tuple = pack(args, self->arity);
  PyObject* error = Py_NewRef(self->error);
  jm_this_thread()->paused++;
  PyObject* result = tuple ? PyObject_CallFunctionObjArgs(error, entry, tuple, value, nullptr) : nullptr;
  jm_this_thread()->paused--;
  Py_DECREF(error);
  Py_XDECREF(tuple);
  Py_DECREF(type);
  Py_DECREF(value);
  Py_XDECREF(traceback);
  return result;
}

PyObject* run_python(Dispatcher* self, Entry* entry, PyObject* const* args) {
  const jm_nest saved = jm_begin_nest(false);
  PyObject* result = entry->hook ? run_hooked(entry->run, self->family, args, self->arity)
                                 : jm_call_concealed(entry->run, args, self->arity);
  jm_end_nest(saved);
  return result;
}

PyObject* run_unhooked(Dispatcher* self, Entry* entry, PyObject* const* args, Registers& registers) {
  return entry->residual ? run_python(self, entry, args) : run_graph(entry, registers);
}

PyObject* run_entry(Dispatcher* self, Entry* entry, PyObject* const* args, Registers& registers) {
  PyObject* result;
  Py_INCREF(entry);  // its code may remove it from the dispatcher
  entry->hits++;
  if (jm_installs == 0 || entry->hook) {  // the hook is not installed, or is meant for this entry's callees
    result = run_unhooked(self, entry, args, registers);
  } else {  // an extent of some thread, maybe this one: it ends at a graph
    jm_thread* here = jm_this_thread();
    here->paused++;
    result = run_unhooked(self, entry, args, registers);
    here->paused--;
  }
  if (!result && !entry->residual) result = failed(self, entry, args);
  Py_DECREF(entry);
  return result;
}

PyObject* follow(PyObject* result);
PyObject* dispatch_once(Dispatcher* self, PyObject* const* args);

// Times the whole frame including its resume functions.
PyObject* run_compared(Dispatcher* self, Entry* entry, PyObject* const* args, Registers& registers) {
  if (Py_IS_TYPE(entry->comparison, &CallBatchType)) {
    BatchedCall call(entry);  // the guards have just passed and run again only to be timed
    if (call.chosen() == entry) first_failure(entry->program, args, self->arity, registers);
    return call.stop(follow(run_entry(self, call.chosen(), args, registers)));
  }
  ComparedCall call(entry);
  if (!call.chosen()) return nullptr;
  // Python code, maybe of another thread, has run since the guards passed.
  if (first_failure(entry->program, args, self->arity, registers) >= 0) return dispatch_once(self, args);
  call.start();
  return call.stop(follow(run_entry(self, call.chosen(), args, registers)));
}

PyObject* dispatch_once(Dispatcher* self, PyObject* const* args) {
  self->calls++;
  if (jm_any_disabled && jm_this_thread()->disabled) return missed(self, args);  // the global is cheaper to read than the thread-local
  if (torch_is_observed()) return missed(self, args);  // a mode or a tracer must see every operation
  if (PyThreadState_Get()->c_tracefunc) return missed(self, args);  // a debugger must see every line
  std::vector<Entry*>& entries = *self->entries;
  for (size_t i = 0; i < entries.size(); i++) {
    Entry* entry = entries[i];
    Registers registers(entry->program);  // guards load values here that the graph's inputs reuse
    if (first_failure(entry->program, args, self->arity, registers) >= 0) continue;
    if (entry->residual && is_deep(self)) return missed(self, args);  // another residual would grow the C stack
    if (i > 0) std::rotate(entries.begin(), entries.begin() + i, entries.begin() + i + 1);  // move to front
    const bool compared = entry->comparison && !jm_this_thread()->timed && !is_deep(self);
    return (compared ? run_compared : run_entry)(self, entry, args, registers);
  }
  return missed(self, args);
}

PyObject* follow(PyObject* result) {
  while (result && Py_IS_TYPE(result, &ContinueType)) {
    auto* next = reinterpret_cast<Continue*>(result);
    {
      ResumeArguments resume_arguments(next->args);
      result = dispatch_once(next->dispatcher, &PyTuple_GET_ITEM(next->args, 0));
    }
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
  PyObject* title = self->title ? self->title : self->name;
  // The flag takes 0.7 ns to read; the block is only created under a profiler.
  const std::unique_ptr<ProfiledCall> profiled(profiler_is_on() ? new ProfiledCall(title) : nullptr);
  if (!jm_has_other_evaluator()) return follow(dispatch_once(self, args));  // torch.compile's evaluator is not installed
  PyObject* callback = jm_disable_other_evaluator();
  if (!callback) return nullptr;
  PyObject* result = follow(dispatch_once(self, args));
  jm_restore_other_evaluator(callback);
  return result;
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
  Py_VISIT(self->stub);
  Py_VISIT(self->stub_code);
  if (self->entries) {
    for (Entry* entry : *self->entries) Py_VISIT(entry);
  }
  return 0;
}

void drop_entries(Dispatcher* self) {
  std::vector<Entry*> dropped;
  std::swap(dropped, *self->entries);  // first, since destructors may call this dispatcher
  for (Entry* entry : dropped) Py_DECREF(entry);
}

int dispatcher_clear(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  Py_CLEAR(self->miss);
  Py_CLEAR(self->error);
  Py_CLEAR(self->owner);
  Py_CLEAR(self->family);
  Py_CLEAR(self->plain);
  Py_CLEAR(self->stub);
  Py_CLEAR(self->stub_code);
  if (self->entries) drop_entries(self);
  return 0;
}

void dispatcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs) PyObject_ClearWeakRefs(object);
  dispatcher_clear(object);
  Py_CLEAR(self->name);
  Py_CLEAR(self->title);
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

// give_up(function, count, calls=-1): the next `calls` calls that no entry fits (< 0: all) run
// function(*first count arguments); (None, 0) undoes it.
PyObject* dispatcher_give_up(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject* function;
  Py_ssize_t count, calls = -1;
  if (!PyArg_ParseTuple(args, "On|n:give_up", &function, &count, &calls)) return nullptr;
  if (count < 0 || count > self->arity) {
    PyErr_SetString(PyExc_ValueError, "more arguments than the dispatcher has");
    return nullptr;
  }
  self->plain_count = count;
  self->plain_left = calls;
  Py_XSETREF(self->plain, function == Py_None ? nullptr : Py_NewRef(function));
  Py_RETURN_NONE;
}

PyObject* dispatcher_entries(PyObject* object, void*) {
  auto& entries = *reinterpret_cast<Dispatcher*>(object)->entries;
  return pack(reinterpret_cast<PyObject**>(entries.data()), entries.size());
}

PyObject* dispatcher_repr(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  const Py_ssize_t count = self->entries->size();
  return PyUnicode_FromFormat("<dispatcher of %U: %zd entries>", self->name, count);
}

PyMethodDef dispatcher_methods[] = {
    {"add", dispatcher_add, METH_O, "Add an entry at the front."},
    {"remove", dispatcher_remove, METH_O, "Remove an entry, which may be running."},
    {"clear", dispatcher_drop_all, METH_NOARGS, "Remove all entries."},
    {"give_up", dispatcher_give_up, METH_VARARGS, "Set the function to call natively if no entry fits."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef dispatcher_members[] = {
    {"name", T_OBJECT, offsetof(Dispatcher, name), READONLY, nullptr},
    {"title", T_OBJECT, offsetof(Dispatcher, title), 0, "its name in profiles"},
    {"arity", T_PYSSIZET, offsetof(Dispatcher, arity), READONLY, nullptr},
    {"calls", T_LONGLONG, offsetof(Dispatcher, calls), READONLY, "calls so far"},
    {"owner", T_OBJECT, offsetof(Dispatcher, owner), 0, "the Python Handle"},
    {"family", T_OBJECT, offsetof(Dispatcher, family), 0, "the family that hooked callees belong to"},
    {"stub", T_OBJECT, offsetof(Dispatcher, stub), 0, "weak reference to the function it serves"},
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
    .tp_doc = "Result of continue_with(): the call with which a residual continues.",
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

PyMethodDef dispatch_functions[] = {
    {"continue_with", (PyCFunction)(void (*)(void))continue_with, METH_FASTCALL,
     "continue_with(dispatcher, *values): as a residual's result, continues in that dispatcher."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_dispatch(PyObject* module) {
  return PyModule_AddType(module, &DispatcherType) == 0 && jm_register_concealed(&DispatcherType) &&
         PyModule_AddType(module, &ContinueType) == 0 && PyModule_AddFunctions(module, dispatch_functions) == 0;
}

}  // namespace jitmagic
