// ModuleCall: the value of `_compiled_call_impl` of a tagged nn.Module instance.
//
// nn.Module.__call__ passes its arguments to that attribute if it is set. Without hooks, the stub
// of the class's forward is called with the module as first argument. With hooks of any kind, or a
// forward of the instance's own, `eager` (Python) does the same as nn.Module. If the class's
// forward has changed (%autoreload, a patched class), `outdated` tags the module again. Deep in a
// recursion `bare` is called, nn.Module's own code, which takes as many frames as an untagged
// module. Arguments that the stub would pass on unchanged go directly to its dispatcher, without
// the stub's frame (with direct reads of autograd's metadata: 1.35 instead of 1.62 us per call of a
// small module). The module is referenced weakly, so tagging adds no cycle and `del model` frees
// its memory at once.

#include "dispatch.h"
#include "memo.h"

#include <structmember.h>

#include <algorithm>
#include <vector>

namespace jitmagic {
namespace {

struct ModuleCall {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* module;  // weak reference
  PyObject* stub;    // function with forward's signature
  PyObject* dispatcher;  // called directly if the arguments are just the stub's parameters
  PyObject* on_error;    // called with an exception raised by the dispatcher
  Py_ssize_t arity;      // number of parameters, or -1
  PyObject* forward;  // the class's forward when the stub was made
  PyObject* code;     // and its code
  PyObject* eager;   // called as eager(module, *args, **kwargs)
  PyObject* outdated;  // the same, if the class's forward has changed since
  PyObject* bare;      // the same, if dispatchers are nested too deeply
  PyObject* tables;  // names of instance dictionaries that must be empty
  PyObject* shared;  // dictionaries that must be empty
  PyObject* owner;   // the Handle
  EmptyTables* own;  // cached lookup of the instance's dictionaries
};

constexpr Py_ssize_t kInlineArguments = 16;  // arguments stored without an allocation
PyObject* forward_name = nullptr;
PyObject* forward_names = nullptr;  // (forward_name,)

bool without_hooks(const ModuleCall* self, PyObject* module) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->shared); i++) {
    if (PyDict_GET_SIZE(PyTuple_GET_ITEM(self->shared, i))) return false;
  }
  PyObject* dict = jm_instance_dict(module);
  return dict && self->own->hold(dict, self->tables, forward_names, true);
}

bool is_current(const ModuleCall* self, PyObject* module) {
  PyObject* found = _PyType_Lookup(Py_TYPE(module), forward_name);
  return found && found == self->forward && PyFunction_Check(found) &&
         PyFunction_GET_CODE(found) == self->code;
}

// Edits the traceback of the current exception, as the stub would.
void show_error(PyObject* on_error) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyException_SetTraceback(value, traceback ? traceback : Py_None);
  Py_XDECREF(traceback);
  PyObject* done = PyObject_CallOneArg(on_error, value);
  if (done) {
    Py_DECREF(done);
    PyErr_Restore(type, value, PyException_GetTraceback(value));
  } else {
    Py_DECREF(type);
    Py_DECREF(value);
  }
}

PyObject* call_dispatcher(const ModuleCall* self, PyObject* const* values) {
  PyObject* dispatcher = Py_NewRef(self->dispatcher);
  PyObject* on_error = Py_NewRef(self->on_error);
  PyObject* result = PyObject_Vectorcall(dispatcher, values, self->arity, nullptr);
  if (!result) show_error(on_error);
  Py_DECREF(on_error);
  Py_DECREF(dispatcher);
  return result;
}

PyObject* call_function(PyObject* function, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  Py_INCREF(function);
  PyObject* result = PyObject_Vectorcall(function, values, count, names);
  Py_DECREF(function);
  return result;
}

PyObject* module_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  auto* self = reinterpret_cast<ModuleCall*>(object);
  PyObject* module = reinterpret_cast<PyWeakReference*>(self->module)->wr_object;
  if (!module || module == Py_None) {
    PyErr_SetString(PyExc_ReferenceError, "the module of this call has been deleted");
    return nullptr;
  }
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  PyObject* few[kInlineArguments];
  std::vector<PyObject*> many(count + named >= kInlineArguments ? count + named + 1 : 0);
  PyObject** values = many.empty() ? few : many.data();
  values[0] = Py_NewRef(module);
  std::copy(args, args + count + named, values + 1);
  PyObject* result;
  if (jm_this_thread()->nested >= JM_DEEPEST) {
    result = call_function(self->bare, values, count + 1, keywords);
  } else if (!is_current(self, module)) {
    result = call_function(self->outdated, values, count + 1, keywords);
  } else if (!without_hooks(self, module)) {
    result = call_function(self->eager, values, count + 1, keywords);
  } else if (named || count + 1 != self->arity) {
    result = call_function(self->stub, values, count + 1, keywords);
  } else {
    result = call_dispatcher(self, values);
  }
  Py_DECREF(module);
  return result;
}

bool good_tables(PyObject* tables, PyObject* shared) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tables); i++) {
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(tables, i))) return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shared); i++) {
    if (!PyDict_Check(PyTuple_GET_ITEM(shared, i))) return false;
  }
  return true;
}

// The number of a function's parameters, or -1 if they are not just the caller's positional
// arguments (stars, keyword-only parameters, or cells, which follow the arguments).
Py_ssize_t plain_parameters(PyObject* function) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  const bool sorted = code->co_flags & (CO_VARARGS | CO_VARKEYWORDS) || code->co_kwonlyargcount;
  return sorted || PyFunction_GET_CLOSURE(function) ? -1 : code->co_argcount;
}

PyObject* module_call_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *module, *stub, *dispatcher, *on_error, *forward, *tables, *shared, *owner;
  PyObject *eager, *outdated, *bare;
  if (!PyArg_ParseTuple(args, "OO!OOO!(OOO)O!O!O:ModuleCall", &module, &PyFunction_Type, &stub,
                        &dispatcher, &on_error, &PyFunction_Type, &forward, &eager, &outdated, &bare,
                        &PyTuple_Type, &tables, &PyTuple_Type, &shared, &owner)) {
    return nullptr;
  }
  if (!good_tables(tables, shared)) {
    PyErr_SetString(PyExc_TypeError, "tables are names, shared are dictionaries");
    return nullptr;
  }
  auto* self = reinterpret_cast<ModuleCall*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = module_call;
  self->stub = Py_NewRef(stub);
  self->dispatcher = Py_NewRef(dispatcher);
  self->on_error = Py_NewRef(on_error);
  self->arity = plain_parameters(stub);
  self->forward = Py_NewRef(forward);
  self->code = Py_NewRef(PyFunction_GET_CODE(forward));
  self->eager = Py_NewRef(eager);
  self->outdated = Py_NewRef(outdated);
  self->bare = Py_NewRef(bare);
  self->tables = Py_NewRef(tables);
  self->shared = Py_NewRef(shared);
  self->owner = Py_NewRef(owner);
  self->own = new EmptyTables();
  self->module = PyWeakref_NewRef(module, nullptr);
  if (!self->module) Py_CLEAR(self);
  return reinterpret_cast<PyObject*>(self);
}

int module_call_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<ModuleCall*>(object);
  Py_VISIT(self->module);
  Py_VISIT(self->stub);
  Py_VISIT(self->dispatcher);
  Py_VISIT(self->on_error);
  Py_VISIT(self->forward);
  Py_VISIT(self->code);
  Py_VISIT(self->eager);
  Py_VISIT(self->outdated);
  Py_VISIT(self->bare);
  Py_VISIT(self->tables);
  Py_VISIT(self->shared);
  Py_VISIT(self->owner);
  return 0;
}

int module_call_clear(PyObject* object) {
  auto* self = reinterpret_cast<ModuleCall*>(object);
  Py_CLEAR(self->module);
  Py_CLEAR(self->stub);
  Py_CLEAR(self->dispatcher);
  Py_CLEAR(self->on_error);
  Py_CLEAR(self->forward);
  Py_CLEAR(self->code);
  Py_CLEAR(self->eager);
  Py_CLEAR(self->outdated);
  Py_CLEAR(self->bare);
  Py_CLEAR(self->tables);
  Py_CLEAR(self->shared);
  Py_CLEAR(self->owner);
  return 0;
}

void module_call_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  module_call_clear(object);
  delete reinterpret_cast<ModuleCall*>(object)->own;
  Py_TYPE(object)->tp_free(object);
}

PyMemberDef module_call_members[] = {
    {"stub", T_OBJECT, offsetof(ModuleCall, stub), READONLY, "function with forward's signature"},
    {"owner", T_OBJECT, offsetof(ModuleCall, owner), READONLY, "the Handle"},
    {nullptr, 0, 0, 0, nullptr},
};

PyTypeObject ModuleCallType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.ModuleCall",
    .tp_basicsize = sizeof(ModuleCall),
    .tp_dealloc = module_call_dealloc,
    .tp_vectorcall_offset = offsetof(ModuleCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "ModuleCall(module, stub, dispatcher, on_error, forward, (eager, outdated, bare), tables, "
              "shared, owner)",
    .tp_traverse = module_call_traverse,
    .tp_clear = module_call_clear,
    .tp_members = module_call_members,
    .tp_new = module_call_new,
};

}  // namespace

bool register_module_call(PyObject* module) {
  forward_name = PyUnicode_InternFromString("forward");
  if (!forward_name || !(forward_names = PyTuple_Pack(1, forward_name))) return false;
  return PyModule_AddType(module, &ModuleCallType) == 0;
}

}  // namespace jitmagic
