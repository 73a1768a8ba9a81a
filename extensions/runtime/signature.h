// What an AutogradFunction knows when it is made (jitmagic/autograd/shell.py describes it as tuples of integers):
// shared by all the autograd nodes that it hangs on results.
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

// A part of the backward that all these tangents run through, and the saved tensors that it reads: running any
// of them uses it up, as eager frees what a node of its graph has saved.
struct Spent {
  std::vector<size_t> tangents, saved;
};

// An input whose value a replay of the forward needs. One that backward has saved is kept there; `large`: not kept
// before somebody has asked for a replay. One that is `written` to by the forward is copied before.
struct Replayed {
  size_t input = 0;
  std::ptrdiff_t saved = -1;
  bool large = false, written = false;
};

// Inputs (positions in `grad_inputs`) that the same tangents reach. `are_one`: all tangents reach all of them.
struct Histories {
  std::vector<std::vector<size_t>> inputs;
  bool are_one = true;

  explicit Histories(const std::vector<std::vector<size_t>>& reach = {}, size_t tangents = 0);
};

// What the graphs are like, whatever the sizes.
struct Facts {
  size_t inputs = 0, results = 0, intermediates = 0;
  std::vector<size_t> outputs;  // their slots
  std::vector<size_t> saved_inputs, saved_results, grad_inputs, mutated;
  std::vector<std::vector<size_t>> reach;  // for each of `grad_inputs`: the tangents of results that it leads to
  Histories histories;
  std::vector<Spent> spent;
  std::vector<Replayed> replayed;
  std::vector<c10::Device> draws;  // whose generators the forward draws from
  Owned checks;  // a tuple of functions: whether what a backward relies on still holds of the objects that the call held
};

// What stands for a saved tensor that is not read: of its sizes, with the memory of one element.
struct Absent {
  at::Tensor element;
  std::vector<int64_t> sizes;
};

// What is known when the function is made; shared by all its nodes.
struct Signature : Facts {
  PyObject* forward = nullptr;
  PyObject* resolve = nullptr;  // (missing tangents) -> backward
  std::map<std::vector<char>, PyObject*> backwards;  // by which tangents are given; set by the first use
  PyObject* compile_failed = nullptr;
  PyObject* double_backward = nullptr;
  PyObject* replay = nullptr;  // (inputs, tangents, held) -> gradients that can be differentiated
  std::vector<AliasStep> aliasing;
  size_t slots = 0;  // of the inputs, the results and the views of `aliasing`, in this order
  std::vector<Tangent> tangents;
  bool keeps_large = false;  // of `replayed`; from the first time on that they were missing
  bool keeps_copies = false;  // from the first time on that one was written to before its replay
  std::vector<Absent> absent;  // empty: all saved tensors always are read
  PyObject* family = nullptr;  // the AutogradTemplate, which has `resolve` and `replay` of all sizes
  std::vector<int64_t> values;  // of these

  Signature() = default;
  explicit Signature(const Facts& facts) : Facts(facts) {}
  Signature(const Signature&) = delete;
  ~Signature();

  // The backward executable for these tangents, a borrowed reference; nullptr with a Python error set.
  PyObject* get_backward(const std::vector<char>& given);
  // A borrowed reference; throws.
  PyObject* get_replay();
};

// Both throw through Python's error state where the description is malformed. `tangents`, `aliasing` and `absent` are
// what depends on sizes.
void read_facts(PyObject* dict, Facts& facts);
void read_sized(PyObject* tangents, PyObject* aliasing, PyObject* absent, Signature& s);

PyObject* missing_tangents(const std::vector<char>& given);

// autograd_template.cpp, new references: what one size needs of the AutogradTemplate; throw.
PyObject* backward_of(PyObject* family, const std::vector<char>& given, Values values);
PyObject* replay_of(PyObject* family, Values values);

// autograd.cpp: the AutogradFunction, a new reference; throws.
PyObject* autograd_function_of(std::shared_ptr<Signature> signature);

}  // namespace jitmagic
