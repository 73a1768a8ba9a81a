// Staged: compiled graphs that run one after the other as one callable.
//
// Values have places: the inputs come first, then the outputs of each stage in order. A stage's inputs are
// places, and so are the results of the whole. A value that no later stage reads is let go at once.

#include "runtime.h"

#include <vector>

#include <structmember.h>

namespace jitmagic {
namespace {

using Places = std::vector<Py_ssize_t>;

struct OneStage {
  PyObject* run;
  Places inputs, spent;
  Py_ssize_t outputs;
};

struct Staged {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Py_ssize_t inputs;
  std::vector<OneStage>* stages;
  Places* results;
};

// The values of one call, owned.
class Values {
 public:
  Values(PyObject* const* args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) held_.push_back(Py_NewRef(args[i]));
  }
  ~Values() {
    for (PyObject* value : held_) Py_XDECREF(value);
  }
  Values(const Values&) = delete;
  PyObject* at(Py_ssize_t place) const { return held_[place]; }
  void push(PyObject* value) { held_.push_back(Py_NewRef(value)); }
  void let_go(Py_ssize_t place) { Py_CLEAR(held_[place]); }

 private:
  c10::SmallVector<PyObject*, 32> held_;
};

bool run_stage(const OneStage& stage, Values& values) {
  c10::SmallVector<PyObject*, 32> args;
  for (Py_ssize_t place : stage.inputs) args.push_back(values.at(place));
  PyObject* made = PyObject_Vectorcall(stage.run, args.data(), args.size(), nullptr);
  if (!made) return false;
  const bool expected = PyTuple_Check(made) && PyTuple_GET_SIZE(made) == stage.outputs;
  if (expected) {
    for (Py_ssize_t i = 0; i < stage.outputs; i++) values.push(PyTuple_GET_ITEM(made, i));
  } else {
    PyErr_Format(PyExc_TypeError, "a stage gives a tuple of %zd, not %R", stage.outputs, made);
  }
  Py_DECREF(made);
  for (Py_ssize_t place : stage.spent) values.let_go(place);
  return expected;
}

PyObject* staged_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  const auto* self = reinterpret_cast<Staged*>(object);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != self->inputs || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "a compiled graph takes %zd tensors, got %zd", self->inputs, count);
    return nullptr;
  }
  Values values(args, count);
  for (const OneStage& stage : *self->stages) {
    if (!run_stage(stage, values)) return nullptr;
  }
  PyObject* results = PyTuple_New(Py_ssize_t(self->results->size()));
  for (size_t i = 0; results && i < self->results->size(); i++) {
    PyTuple_SET_ITEM(results, Py_ssize_t(i), Py_NewRef(values.at((*self->results)[i])));
  }
  return results;
}

// A tuple of places below `known`.
bool read_places(PyObject* tuple, Py_ssize_t known, Places& places) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
    if (place == -1 && PyErr_Occurred()) return false;
    if (place < 0 || place >= known) {
      PyErr_Format(PyExc_ValueError, "place %zd is none of %zd", place, known);
      return false;
    }
    places.push_back(place);
  }
  return true;
}

// (run, inputs, outputs, spent)
bool read_stage(Staged* self, PyObject* description, Py_ssize_t& known) {
  PyObject *run, *inputs, *spent;
  OneStage stage;
  if (!PyTuple_Check(description)) return PyErr_SetString(PyExc_TypeError, "a stage is a tuple"), false;
  if (!PyArg_ParseTuple(
          description, "OO!nO!", &run, &PyTuple_Type, &inputs, &stage.outputs, &PyTuple_Type, &spent)) {
    return false;
  }
  if (!read_places(inputs, known, stage.inputs) || !read_places(spent, known, stage.spent)) return false;
  known += stage.outputs;
  stage.run = Py_NewRef(run);
  self->stages->push_back(std::move(stage));
  return true;
}

PyObject* staged_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *stages, *results;
  Py_ssize_t known;
  if (!PyArg_ParseTuple(args, "nO!O!:Staged", &known, &PyTuple_Type, &stages, &PyTuple_Type, &results)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Staged*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = staged_call;
  self->inputs = known;
  self->stages = new std::vector<OneStage>();
  self->results = new Places();
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(stages); i++) {
    good = read_stage(self, PyTuple_GET_ITEM(stages, i), known);
  }
  if (!good || !read_places(results, known, *self->results)) Py_CLEAR(self);
  return reinterpret_cast<PyObject*>(self);
}

int staged_traverse(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<Staged*>(object);
  if (!self->stages) return 0;
  for (const OneStage& stage : *self->stages) Py_VISIT(stage.run);
  return 0;
}

int staged_clear(PyObject* object) {
  auto* self = reinterpret_cast<Staged*>(object);
  if (!self->stages) return 0;
  std::vector<OneStage> dropped;
  std::swap(dropped, *self->stages);
  for (OneStage& stage : dropped) Py_DECREF(stage.run);
  return 0;
}

void staged_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  staged_clear(object);
  delete reinterpret_cast<Staged*>(object)->stages;
  delete reinterpret_cast<Staged*>(object)->results;
  Py_TYPE(object)->tp_free(object);
}

PyMemberDef staged_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Staged, vectorcall), READONLY, nullptr},
    {nullptr}};

PyTypeObject staged_type = [] {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "jitmagic._runtime.Staged";
  type.tp_doc = "Staged(inputs, stages, results): calls graphs one after the other; a stage is (run, places of its "
                "inputs, number of its outputs, places that nobody reads after it).";
  type.tp_basicsize = sizeof(Staged);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  type.tp_vectorcall_offset = offsetof(Staged, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_members = staged_members;
  type.tp_new = staged_new;
  type.tp_traverse = staged_traverse;
  type.tp_clear = staged_clear;
  type.tp_dealloc = staged_dealloc;
  return type;
}();

}  // namespace

bool register_stages(PyObject* module) {
  if (PyType_Ready(&staged_type) < 0) return false;
  return PyModule_AddObjectRef(module, "Staged", reinterpret_cast<PyObject*>(&staged_type)) == 0;
}

}  // namespace jitmagic
