// SplitGraph: compiled subgraphs that run one after the other as one callable (graph/subgraphs.py).
//
// Values have slots: the inputs come first, then the outputs of each subgraph in order. A subgraph's inputs are
// slots, and so are the results. A value that no later subgraph reads is released at once.

#include "callable.h"
#include "reading.h"

#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

using Slots = std::vector<Py_ssize_t>;

struct Subgraph {
  PyObject* run;
  Slots inputs, dead;
  Py_ssize_t outputs;
};

struct SplitGraph : Callable {
  Py_ssize_t inputs;
  std::vector<Subgraph>* subgraphs;
  Slots* results;
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
  PyObject* at(Py_ssize_t slot) const { return held_[slot]; }
  void push(PyObject* value) { held_.push_back(Py_NewRef(value)); }
  void release(Py_ssize_t slot) { Py_CLEAR(held_[slot]); }

 private:
  c10::SmallVector<PyObject*, 32> held_;
};

bool run_subgraph(const Subgraph& subgraph, Values& values) {
  c10::SmallVector<PyObject*, 32> args;
  for (Py_ssize_t slot : subgraph.inputs) args.push_back(values.at(slot));
  PyObject* outputs = PyObject_Vectorcall(subgraph.run, args.data(), args.size(), nullptr);
  if (!outputs) return false;
  const bool expected = PyTuple_Check(outputs) && PyTuple_GET_SIZE(outputs) == subgraph.outputs;
  if (expected) {
    for (Py_ssize_t i = 0; i < subgraph.outputs; i++) values.push(PyTuple_GET_ITEM(outputs, i));
  } else {
    PyErr_Format(PyExc_TypeError, "a subgraph gives a tuple of %zd, not %R", subgraph.outputs, outputs);
  }
  Py_DECREF(outputs);
  for (Py_ssize_t slot : subgraph.dead) values.release(slot);
  return expected;
}

PyObject* split_graph_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<SplitGraph*>(object);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != self->inputs || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "a compiled graph takes %zd tensors, got %zd", self->inputs, count);
    return nullptr;
  }
  Values values(args, count);
  for (const Subgraph& subgraph : *self->subgraphs) {
    if (!run_subgraph(subgraph, values)) return nullptr;
  }
  PyObject* results = PyTuple_New(Py_ssize_t(self->results->size()));
  for (size_t i = 0; results && i < self->results->size(); i++) {
    PyTuple_SET_ITEM(results, Py_ssize_t(i), Py_NewRef(values.at((*self->results)[i])));
  }
  return results;
  END_HANDLE_TH_ERRORS
}

// The slots whose values are there: not released.
using Held = std::vector<bool>;

Slots read_slots(PyObject* tuple, const Held& held) {
  Slots slots = integers<Py_ssize_t>(tuple);
  const auto count = std::ssize(held);
  for (Py_ssize_t slot : slots) {
    check(PyExc_ValueError, slot >= 0 && slot < count, "slot %zd is none of %zd", slot, count);
    check(PyExc_ValueError, held[slot], "the value at slot %zd has been released", slot);
  }
  return slots;
}

// (run, inputs, outputs, dead)
Subgraph read_subgraph(PyObject* description, Held& held) {
  Subgraph subgraph;
  subgraph.inputs = read_slots(item(description, 1), held);
  subgraph.outputs = integer(item(description, 2));
  subgraph.dead = read_slots(item(description, 3), held);
  check(PyExc_ValueError, subgraph.outputs >= 0, "a subgraph has %zd outputs", subgraph.outputs);
  for (Py_ssize_t slot : subgraph.dead) held[slot] = false;
  held.resize(held.size() + size_t(subgraph.outputs), true);
  subgraph.run = Py_NewRef(item(description, 0));
  return subgraph;
}

PyObject* split_graph_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *subgraphs, *results;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(args, "nOO:SplitGraph", &inputs, &subgraphs, &results)) return nullptr;
  check(PyExc_ValueError, inputs >= 0, "a graph has %zd inputs", inputs);
  THPObjectPtr object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  auto* self = reinterpret_cast<SplitGraph*>(object.get());
  self->vectorcall = split_graph_call;
  self->inputs = inputs;
  self->subgraphs = new std::vector<Subgraph>();
  Held held(size_t(inputs), true);
  for (PyObject* subgraph : items(subgraphs)) self->subgraphs->push_back(read_subgraph(subgraph, held));
  self->results = new Slots(read_slots(results, held));
  return object.release();
  END_HANDLE_TH_ERRORS
}

int split_graph_traverse(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<SplitGraph*>(object);
  if (!self->subgraphs) return 0;
  for (const Subgraph& subgraph : *self->subgraphs) Py_VISIT(subgraph.run);
  return 0;
}

int split_graph_clear(PyObject* object) {
  auto* self = reinterpret_cast<SplitGraph*>(object);
  if (!self->subgraphs) return 0;
  std::vector<Subgraph> dropped;
  std::swap(dropped, *self->subgraphs);
  for (Subgraph& subgraph : dropped) Py_DECREF(subgraph.run);
  return 0;
}

void split_graph_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  split_graph_clear(object);
  delete reinterpret_cast<SplitGraph*>(object)->subgraphs;
  delete reinterpret_cast<SplitGraph*>(object)->results;
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject split_graph_type = callable_type({
    .full_name = "jitmagic._runtime.SplitGraph",
    .doc = "SplitGraph(inputs, subgraphs, results): calls graphs one after the other; a subgraph is (run, slots of its "
           "inputs, number of its outputs, slots that are not read after it).",
    .size = sizeof(SplitGraph),
    .make = split_graph_new,
    .dealloc = split_graph_dealloc,
    .traverse = split_graph_traverse,
    .clear = split_graph_clear,
});

}  // namespace

bool register_split_graph(PyObject* module) { return PyModule_AddType(module, &split_graph_type) == 0; }

}  // namespace jitmagic
