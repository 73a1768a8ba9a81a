// The Entry type, and how its graph is run.
//
//   Entry(program, run, inputs=None, template=None, hook=False)
//     inputs None:  run is a residual, called with all stub arguments; returns the frame's result
//     inputs tuple: registers of the graph's inputs; `template` builds the result from run(*tensors)
//     hook:         the frame hook is active for the dynamic extent of `run`

#include "entry.h"

#include "timed_graph.h"

#include <structmember.h>

namespace jitmagic {
namespace {

bool read_inputs(Entry* self, PyObject* inputs, PyObject* result) {
  if (inputs == Py_None) {
    self->residual = true;
    return true;
  }
  if (!PyTuple_Check(inputs)) {
    PyErr_SetString(PyExc_TypeError, "inputs are None or a tuple of registers");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); i++) {
    const long slot = PyLong_AsLong(PyTuple_GET_ITEM(inputs, i));
    if (slot == -1 && PyErr_Occurred()) return false;
    if (slot < 0 || slot >= self->program->registers) {
      PyErr_Format(PyExc_ValueError, "input register %ld is not one of the program's", slot);
      return false;
    }
    self->inputs->push_back(static_cast<int>(slot));
  }
  if (!read_template(result, self->program->registers, *self->result)) return false;
  collect_registers(*self->result, *self->kept);
  return true;
}

PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"program", "run", "inputs", "template", "hook", nullptr};
  PyObject *program, *run, *inputs = Py_None, *result = Py_None;
  int hook = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OOp:Entry", const_cast<char**>(names),
                                   &ProgramType, &program, &run, &inputs, &result, &hook)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Entry*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->program = reinterpret_cast<Program*>(Py_NewRef(program));
  self->run = Py_NewRef(run);
  self->notes = Py_NewRef(Py_None);
  self->hook = hook;
  self->inputs = new std::vector<int>();
  self->kept = new std::vector<int>();
  self->result = new Template();
  if (!read_inputs(self, inputs, result)) Py_CLEAR(self);
  return reinterpret_cast<PyObject*>(self);
}

int entry_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Entry*>(object);
  Py_VISIT(self->program);
  Py_VISIT(self->run);
  Py_VISIT(self->notes);
  Py_VISIT(self->comparison);
  return self->result ? visit_template(*self->result, visit, arg) : 0;
}

int entry_clear(PyObject* object) {
  auto* self = reinterpret_cast<Entry*>(object);
  Py_CLEAR(self->program);
  Py_CLEAR(self->run);
  Py_CLEAR(self->notes);
  Py_CLEAR(self->comparison);
  if (self->result) release_template(*self->result);
  return 0;
}

void entry_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Entry*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs) PyObject_ClearWeakRefs(object);
  entry_clear(object);
  delete self->inputs;
  delete self->kept;
  delete self->result;
  Py_TYPE(object)->tp_free(object);
}

PyObject* entry_check(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Entry*>(object);
  return PyObject_CallMethod(reinterpret_cast<PyObject*>(self->program), "check", "(O)", args);
}

PyObject* entry_alive(PyObject* object, void*) {
  return PyBool_FromLong(is_alive(reinterpret_cast<Entry*>(object)->program));
}

PyObject* entry_comparison(PyObject* object, void*) {
  PyObject* comparison = reinterpret_cast<Entry*>(object)->comparison;
  return Py_NewRef(comparison ? comparison : Py_None);
}

int entry_set_comparison(PyObject* object, PyObject* value, void*) {
  PyObject* comparison = value == Py_None ? nullptr : Py_XNewRef(value);
  Py_XSETREF(reinterpret_cast<Entry*>(object)->comparison, comparison);
  return 0;
}

PyMethodDef entry_methods[] = {
    {"check", entry_check, METH_O, "Whether the guards pass for this tuple of arguments."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef entry_members[] = {
    {"hits", T_LONGLONG, offsetof(Entry, hits), READONLY, "calls of this variant, eager turns included"},
    {"program", T_OBJECT, offsetof(Entry, program), READONLY, "its GuardProgram"},
    {"run", T_OBJECT, offsetof(Entry, run), READONLY, "what it runs"},
    {"hook", T_BOOL, offsetof(Entry, hook), READONLY, "the frame hook acts while it runs"},
    {"residual", T_BOOL, offsetof(Entry, residual), READONLY, "it runs as Python, not as a graph"},
    {"mutates", T_BOOL, offsetof(Entry, mutates), 0, "a failed run may have changed its inputs"},
    {"notes", T_OBJECT, offsetof(Entry, notes), 0, "data that Python attaches to the entry"},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef entry_getset[] = {
    {"alive", entry_alive, nullptr, "False once a weakly referenced object has died.", nullptr},
    {"comparison", entry_comparison, entry_set_comparison,
     "Chooses the entry of each call and gets its time; None: no timing.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// The arguments of one call and other objects that must live until it ends; on the C stack if they
// fit.
class Arguments {
 public:
  Arguments(size_t count, size_t kept) : count_(count) {
    const size_t all = count + kept;
    if (all > kInline) many_.resize(all + 1);
    values_ = (all > kInline ? many_.data() : inline_) + 1;  // room for a bound self before them
  }
  ~Arguments() {
    for (size_t i = 0; i < filled_; i++) Py_DECREF(values_[i]);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  void push(PyObject* object) { values_[filled_++] = Py_NewRef(object); }
  PyObject* call(PyObject* callee) {
    return PyObject_Vectorcall(callee, values_, count_ | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  }

 private:
  static constexpr size_t kInline = 32;
  PyObject* inline_[kInline + 1];
  std::vector<PyObject*> many_;
  PyObject** values_;
  size_t count_, filled_ = 0;
};

}  // namespace

PyTypeObject EntryType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_dealloc = entry_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Entry(program, run, inputs=None, template=None, hook=False)",
    .tp_traverse = entry_traverse,
    .tp_clear = entry_clear,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
    .tp_methods = entry_methods,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_new = entry_new,
};

PyObject* run_graph(Entry* entry, Registers& registers) {
  // The registers are borrowed from the user's objects, and another thread may drop those during
  // the call.
  Arguments arguments(entry->inputs->size(), entry->kept->size());
  for (int slot : *entry->inputs) arguments.push(registers[slot]);
  for (int slot : *entry->kept) arguments.push(registers[slot]);
  PyObject* outputs;
  {
    GraphClock clock;
    outputs = arguments.call(entry->run);
  }
  if (!outputs) return nullptr;
  PyObject* result = nullptr;
  if (PyTuple_Check(outputs)) {
    result = build_result(*entry->result, outputs, registers);
  } else {
    PyErr_Format(PyExc_TypeError, "a graph returns a tuple, not %s", Py_TYPE(outputs)->tp_name);
  }
  Py_DECREF(outputs);
  return result;
}

bool register_entry(PyObject* module) { return PyModule_AddType(module, &EntryType) == 0; }

}  // namespace jitmagic
