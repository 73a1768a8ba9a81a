// SplitGraph: compiled subgraphs chained into one callable (graph/subgraphs.py).
//
// Values have slots: the inputs, then the constants, then the outputs of each subgraph in order. Inputs of subgraphs
// and the results are slots. A value is released after its last reader. SplitTemplate is the same for all sizes: its
// constants are numbers computed from sizes, its subgraphs Templates.

#include "callable.h"
#include "reading.h"
#include "sizes.h"
#include "staged_run.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

using SlotIndices = std::vector<Py_ssize_t>;

struct Subgraph {
  PyObject* run;
  SlotIndices inputs, dead;
  Py_ssize_t outputs;
};

// The description; between sizes only the subgraphs' `run` differs.
struct Parts {
  Py_ssize_t inputs = 0;
  std::vector<Subgraph> subgraphs;
  SlotIndices results;
  std::vector<PyObject*> constants;

  Parts() = default;
  Parts(const Parts&) = delete;
  ~Parts() { clear(); }

  int traverse(visitproc visit, void* arg) const {
    for (const Subgraph& subgraph : subgraphs) Py_VISIT(subgraph.run);
    return 0;
  }

  void clear() {
    std::vector<Subgraph> dropped;
    std::swap(dropped, subgraphs);
    for (Subgraph& subgraph : dropped) Py_DECREF(subgraph.run);
    for (PyObject* constant : constants) Py_DECREF(constant);
    constants.clear();
  }
};

struct SplitGraph : Callable {
  Parts* parts;
};

struct SplitTemplate : Template {
  Parts* parts;      // without constants
  PyObject* filled;  // per constant a pair of its dtype and a number or a Register
  PyObject* sizes;   // a SizeProgram
};

// The values of one call, with owned references.
class SlotValues {
 public:
  SlotValues(PyObject* const* args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) held_.push_back(Py_NewRef(args[i]));
  }
  ~SlotValues() {
    for (PyObject* value : held_) Py_XDECREF(value);
  }
  SlotValues(const SlotValues&) = delete;
  PyObject* at(Py_ssize_t slot) const { return held_[slot]; }
  Py_ssize_t size() const { return std::ssize(held_); }
  void push(PyObject* value) { held_.push_back(Py_NewRef(value)); }
  void release(Py_ssize_t slot) { Py_CLEAR(held_[slot]); }

 private:
  c10::SmallVector<PyObject*, 32> held_;
};

bool run_subgraph(const Subgraph& subgraph, SlotValues& values) {
  c10::SmallVector<PyObject*, 32> args;
  for (Py_ssize_t slot : subgraph.inputs) args.push_back(values.at(slot));
  PyObject* outputs = PyObject_Vectorcall(subgraph.run, args.data(), args.size(), nullptr);
  if (!outputs) return false;
  const bool expected = PyTuple_Check(outputs) && PyTuple_GET_SIZE(outputs) == subgraph.outputs;
  if (expected) {
    for (Py_ssize_t i = 0; i < subgraph.outputs; i++) values.push(PyTuple_GET_ITEM(outputs, i));
  } else {
    PyErr_Format(PyExc_TypeError, "a subgraph returns a tuple of %zd, not %R", subgraph.outputs, outputs);
  }
  Py_DECREF(outputs);
  for (Py_ssize_t slot : subgraph.dead) values.release(slot);
  return expected;
}

PyObject* split_graph_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const Parts& self = *reinterpret_cast<SplitGraph*>(object)->parts;
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != self.inputs || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "a compiled graph takes %zd tensors, got %zd", self.inputs, count);
    return nullptr;
  }
  SlotValues values(args, count);
  for (PyObject* constant : self.constants) values.push(constant);
  for (const Subgraph& subgraph : self.subgraphs) {
    if (!run_subgraph(subgraph, values)) return nullptr;
  }
  PyObject* results = PyTuple_New(Py_ssize_t(self.results.size()));
  for (size_t i = 0; results && i < self.results.size(); i++) {
    PyTuple_SET_ITEM(results, Py_ssize_t(i), Py_NewRef(values.at(self.results[i])));
  }
  return results;
  END_HANDLE_TH_ERRORS
}

// Whether the value at each slot is still alive.
using LiveSlots = std::vector<bool>;

SlotIndices read_slots(PyObject* tuple, const LiveSlots& held) {
  SlotIndices slots = integers<Py_ssize_t>(tuple);
  const auto count = std::ssize(held);
  for (Py_ssize_t slot : slots) {
    check(PyExc_ValueError, slot >= 0 && slot < count, "slot %zd is out of range: there are %zd", slot, count);
    check(PyExc_ValueError, held[slot], "the value at slot %zd has been released", slot);
  }
  return slots;
}

// (run, inputs, outputs, dead)
Subgraph read_subgraph(PyObject* description, LiveSlots& held) {
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

std::unique_ptr<Parts> read_parts(Py_ssize_t inputs, PyObject* subgraphs, PyObject* results, size_t constants) {
  check(PyExc_ValueError, inputs >= 0, "a graph has %zd inputs", inputs);
  auto parts = std::make_unique<Parts>();
  parts->inputs = inputs;
  LiveSlots held(size_t(inputs) + constants, true);
  for (PyObject* subgraph : items(subgraphs)) parts->subgraphs.push_back(read_subgraph(subgraph, held));
  parts->results = read_slots(results, held);
  return parts;
}

// Holds the graph and the values between its subgraphs.
class SplitRun : public StagedRun {
 public:
  SplitRun(PyObject* graph, PyObject* const* args, Py_ssize_t count)
      : graph_(Py_NewRef(graph)), parts_(*reinterpret_cast<SplitGraph*>(graph)->parts), values_(args, count) {
    check(PyExc_TypeError, count == parts_.inputs, "a compiled graph takes %zd tensors, got %zd", parts_.inputs, count);
    for (PyObject* constant : parts_.constants) values_.push(constant);
    taken_.resize(parts_.results.size());
  }

  at::Tensor take(size_t result) override {
    const Py_ssize_t slot = parts_.results[result];
    while (values_.size() <= slot) step();
    PyObject* value = values_.at(slot);
    const at::Tensor tensor = value == Py_None ? at::Tensor() : THPVariable_Unpack(value);
    taken_[result] = true;
    // Autograd takes over a gradient that nothing else refers to, and copies it otherwise.
    if (!is_needed(slot)) values_.release(slot);
    return tensor;
  }

 private:
  THPObjectPtr graph_;  // owns the parts
  const Parts& parts_;
  SlotValues values_;
  size_t next_ = 0;
  std::vector<bool> taken_;

  void step() {
    if (!run_subgraph(parts_.subgraphs[next_++], values_)) raise_python_error();
  }

  // Whether a later subgraph reads a slot, or a result that was not taken yet is in it.
  bool is_needed(Py_ssize_t slot) const {
    for (size_t i = next_; i < parts_.subgraphs.size(); i++) {
      if (std::ranges::count(parts_.subgraphs[i].inputs, slot)) return true;
    }
    for (size_t i = 0; i < taken_.size(); i++) {
      if (!taken_[i] && parts_.results[i] == slot) return true;
    }
    return false;
  }
};

int split_graph_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<SplitGraph*>(object)->construction);
  const Parts* parts = reinterpret_cast<SplitGraph*>(object)->parts;
  return parts ? parts->traverse(visit, arg) : 0;
}

int split_graph_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<SplitGraph*>(object)->construction);
  Parts* parts = reinterpret_cast<SplitGraph*>(object)->parts;
  if (parts) parts->clear();
  return 0;
}

void split_graph_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  delete reinterpret_cast<SplitGraph*>(object)->parts;
  Py_TYPE(object)->tp_free(object);
}

PyObject* split_graph_of(std::unique_ptr<Parts> parts);

PyObject* split_graph_new(PyTypeObject*, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *subgraphs, *results, *constants = nullptr;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(args, "nOO|O!:SplitGraph", &inputs, &subgraphs, &results, &PyTuple_Type, &constants)) {
    return nullptr;
  }
  auto parts = read_parts(inputs, subgraphs, results, constants ? items(constants).size() : 0);
  if (constants) {
    for (PyObject* constant : items(constants)) parts->constants.push_back(Py_NewRef(constant));
  }
  return split_graph_of(std::move(parts));
  END_HANDLE_TH_ERRORS
}

PyTypeObject split_graph_type = callable_type({
    .full_name = "jitmagic._runtime.SplitGraph",
    .doc = "SplitGraph(inputs, subgraphs, results, constants=()): calls graphs in order; a subgraph is (run, slots of "
           "its inputs, number of its outputs, slots that are not read after it).",
    .size = sizeof(SplitGraph),
    .make = split_graph_new,
    .dealloc = split_graph_dealloc,
    .traverse = split_graph_traverse,
    .clear = split_graph_clear,
});

PyObject* split_graph_of(std::unique_ptr<Parts> parts) {
  auto* self = reinterpret_cast<SplitGraph*>(split_graph_type.tp_alloc(&split_graph_type, 0));
  if (!self) raise_python_error();
  self->vectorcall = split_graph_call;
  self->parts = parts.release();
  return reinterpret_cast<PyObject*>(self);
}

// ------------------------------------------------------------------------------------- for all sizes

// Returns a number as a 0-dim tensor, independent of the caller's modes.
PyObject* constant_of(PyObject* dtype, PyObject* value) {
  const c10::InferenceMode usual(false);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check(PyExc_TypeError, THPDtype_Check(dtype), "malformed constant: no dtype");
  const auto options = at::TensorOptions().dtype(reinterpret_cast<THPDtype*>(dtype)->scalar_type);
  const at::Scalar number = PyFloat_Check(value) ? at::Scalar(PyFloat_AS_DOUBLE(value)) : at::Scalar(integer(value));
  PyObject* made = THPVariable_Wrap(at::full({}, number, options));
  if (!made) raise_python_error();
  return made;
}

PyObject* make_split_graph(PyObject* object, Values values) {
  const auto* self = reinterpret_cast<SplitTemplate*>(object);
  auto parts = std::make_unique<Parts>();
  parts->inputs = self->parts->inputs;
  parts->results = self->parts->results;
  for (const Subgraph& subgraph : self->parts->subgraphs) {
    PyObject* run = instance_of(subgraph.run, values);
    parts->subgraphs.push_back({run, subgraph.inputs, subgraph.dead, subgraph.outputs});
  }
  THPObjectPtr constants(filled(self->filled, computed(*size_program(self->sizes), values)));
  for (PyObject* constant : items(constants.get())) {
    parts->constants.push_back(constant_of(item(constant, 0), item(constant, 1)));
  }
  return split_graph_of(std::move(parts));
}

PyObject* split_template_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *subgraphs, *results, *constants, *sizes;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(
          args, "nOOO!O:SplitTemplate", &inputs, &subgraphs, &results, &PyTuple_Type, &constants, &sizes)) {
    return nullptr;
  }
  size_program(sizes);
  auto parts = read_parts(inputs, subgraphs, results, items(constants).size());
  auto* self = reinterpret_cast<SplitTemplate*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->make = make_split_graph;
  self->parts = parts.release();
  self->filled = Py_NewRef(constants);
  self->sizes = Py_NewRef(sizes);
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int split_template_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<SplitTemplate*>(object)->construction);
  const Parts* parts = reinterpret_cast<SplitTemplate*>(object)->parts;
  return parts ? parts->traverse(visit, arg) : 0;
}

int split_template_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<SplitTemplate*>(object)->construction);
  Parts* parts = reinterpret_cast<SplitTemplate*>(object)->parts;
  if (parts) parts->clear();
  return 0;
}

void split_template_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* self = reinterpret_cast<SplitTemplate*>(object);
  delete self->parts;
  Py_XDECREF(self->filled);
  Py_XDECREF(self->sizes);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject split_template_type;

}  // namespace

std::unique_ptr<StagedRun> StagedRun::start(PyObject* graph, PyObject* const* args, size_t count) {
  if (Py_TYPE(graph) != &split_graph_type) return nullptr;
  return std::make_unique<SplitRun>(graph, args, Py_ssize_t(count));
}

bool register_split_graph(PyObject* module) {
  split_template_type = template_type_of(
      "jitmagic._runtime.SplitTemplate",
      "SplitTemplate(inputs, subgraphs, results, constants, sizes): makes SplitGraphs; a subgraph's run may be a "
      "Template, a constant is (dtype, number or Register).",
      sizeof(SplitTemplate), split_template_new, split_template_dealloc, split_template_traverse,
      split_template_clear);
  return PyModule_AddType(module, &split_graph_type) == 0 && PyModule_AddType(module, &split_template_type) == 0;
}

}  // namespace jitmagic
