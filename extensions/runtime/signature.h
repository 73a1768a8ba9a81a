// Signature: the facts of an AutogradFunction (jitmagic/autograd/autograd_function.py describes them as tuples of integers),
// shared by all autograd nodes that it creates.
#pragma once

#include "held.h"
#include "view_replay.h"
#include "reading.h"
#include "sizes.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace jitmagic {

struct GilGuard {
  PyGILState_STATE state = PyGILState_Ensure();
  ~GilGuard() { PyGILState_Release(state); }
};

struct Geometry {
  std::vector<int64_t> sizes, strides;
};

struct Tangent {
  size_t result = 0;
  Geometry layout;
};

// A part of the backward that all these tangents run through, and the saved tensors it reads. Running any of them
// frees those, as eager frees what a node saved.
struct FreedPart {
  std::vector<size_t> tangents, saved;
};

// An input whose value a replay of the forward needs. If backward has saved it, `saved` is its index there. A `large`
// one is not saved before a replay was requested; a `written` one is copied before the forward writes to it.
struct ReplayInput {
  size_t input = 0;
  std::ptrdiff_t saved = -1;
  bool large = false, written = false;
};

// Groups of inputs (positions in `grad_inputs`) reached by the same tangents, whose gradients are computed in the same
// stage of the backward; those of late stages come first. `are_one`: there is one group, which all tangents reach.
struct Histories {
  std::vector<std::vector<size_t>> inputs;
  bool are_one = true;

  Histories() = default;
  Histories(const std::vector<std::vector<size_t>>& reach, const std::vector<size_t>& stages, size_t tangents);
};

// The facts of the graphs that do not depend on sizes.
struct Facts {
  size_t inputs = 0, results = 0, intermediates = 0;
  std::vector<size_t> outputs;  // by slot
  std::vector<size_t> saved_inputs, saved_results, grad_inputs, mutated;
  // per input in `grad_inputs`: the tangents of the results whose history contains it
  std::vector<std::vector<size_t>> reach;
  std::vector<size_t> stages;  // per input in `grad_inputs`: when its gradient is ready; empty: all at the end
  Histories histories;
  std::vector<FreedPart> freed;
  std::vector<ReplayInput> replayed;
  std::vector<c10::Device> draws;  // devices whose generators the forward draws from
  Owned checks;  // a tuple of functions of the held objects: whether facts that a backward relies on hold
};

// A stand-in for a saved tensor that is not read: its sizes, over the memory of one element.
struct StandIn {
  at::Tensor element;
  std::vector<int64_t> sizes;
};

// The facts of an AutogradFunction, shared by all its nodes.
struct Signature : Facts {
  PyObject* forward = nullptr;
  PyObject* resolve = nullptr;  // (missing tangents) -> backward
  std::map<std::vector<char>, PyObject*> backwards;  // by the given tangents; added at first use
  PyObject* compile_failed = nullptr;
  PyObject* double_backward = nullptr;
  PyObject* replay = nullptr;  // (inputs, tangents, held) -> function that computes differentiable gradients
  std::vector<AliasStep> aliasing;
  size_t slots = 0;  // inputs, results and views of `aliasing`, in this order
  std::vector<Tangent> tangents;
  bool keeps_large = false;  // of `replayed`; set once they were missing
  bool keeps_copies = false;  // set once an input was written to before its replay
  std::vector<StandIn> absent;  // empty: every backward reads all saved tensors
  PyObject* family = nullptr;  // the AutogradTemplate, with `resolve` and `replay` for all sizes
  std::vector<int64_t> values;  // of the symbols

  Signature() = default;
  explicit Signature(const Facts& facts) : Facts(facts) {}
  Signature(const Signature&) = delete;
  ~Signature();

  // Returns the backward executable for these tangents, borrowed; nullptr with a Python error set.
  PyObject* get_backward(const std::vector<char>& given);
  // Returns a borrowed reference; throws.
  PyObject* get_replay();
};

// Both throw with Python's error state set on a malformed description. `tangents`, `aliasing` and `absent` depend on
// sizes.
void read_facts(PyObject* dict, Facts& facts);
void read_sized(PyObject* tangents, PyObject* aliasing, PyObject* absent, Signature& s);

PyObject* missing_tangents(const std::vector<char>& given);

// autograd_template.cpp: make the parts for one size; new references; throw.
PyObject* backward_of(PyObject* family, const std::vector<char>& given, Values values);
PyObject* replay_of(PyObject* family, Values values);

// autograd.cpp: the AutogradFunction, a new reference; throws.
PyObject* autograd_function_of(std::shared_ptr<Signature> signature);

}  // namespace jitmagic
