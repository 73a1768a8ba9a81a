// Staged: compiled graphs that run one after the other as one callable.
//
// Values have places: the inputs come first, then the outputs of each stage in order. A stage's inputs are
// places, and so are the results of the whole. A value that no later stage reads is let go at once.

#include "callable.h"
#include "reading.h"

#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

using Places = std::vector<Py_ssize_t>;

struct OneStage {
  PyObject* run;
  Places inputs, spent;
  Py_ssize_t outputs;
};

struct Staged : Callable {
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
  HANDLE_TH_ERRORS
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
  END_HANDLE_TH_ERRORS
}

// The places whose values are there: not let go.
using Held = std::vector<bool>;

Places read_places(PyObject* tuple, const Held& held) {
  Places places = integers<Py_ssize_t>(tuple);
  const auto count = std::ssize(held);
  for (Py_ssize_t place : places) {
    check(PyExc_ValueError, place >= 0 && place < count, "place %zd is none of %zd", place, count);
    check(PyExc_ValueError, held[place], "the value at place %zd has been let go", place);
  }
  return places;
}

// (run, inputs, outputs, spent)
OneStage read_stage(PyObject* description, Held& held) {
  OneStage stage;
  stage.inputs = read_places(item(description, 1), held);
  stage.outputs = integer(item(description, 2));
  stage.spent = read_places(item(description, 3), held);
  check(PyExc_ValueError, stage.outputs >= 0, "a stage has %zd outputs", stage.outputs);
  for (Py_ssize_t place : stage.spent) held[place] = false;
  held.resize(held.size() + size_t(stage.outputs), true);
  stage.run = Py_NewRef(item(description, 0));
  return stage;
}

PyObject* staged_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *stages, *results;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(args, "nOO:Staged", &inputs, &stages, &results)) return nullptr;
  check(PyExc_ValueError, inputs >= 0, "a graph has %zd inputs", inputs);
  THPObjectPtr made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<Staged*>(made.get());
  self->vectorcall = staged_call;
  self->inputs = inputs;
  self->stages = new std::vector<OneStage>();
  Held held(size_t(inputs), true);
  for (PyObject* stage : items(stages)) self->stages->push_back(read_stage(stage, held));
  self->results = new Places(read_places(results, held));
  return made.release();
  END_HANDLE_TH_ERRORS
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

PyTypeObject staged_type = callable_type({
    .full_name = "jitmagic._runtime.Staged",
    .doc = "Staged(inputs, stages, results): calls graphs one after the other; a stage is (run, places of its "
           "inputs, number of its outputs, places that nobody reads after it).",
    .size = sizeof(Staged),
    .make = staged_new,
    .dealloc = staged_dealloc,
    .traverse = staged_traverse,
    .clear = staged_clear,
});

}  // namespace

bool register_stages(PyObject* module) { return PyModule_AddType(module, &staged_type) == 0; }

}  // namespace jitmagic
