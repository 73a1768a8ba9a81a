// Reads a Signature, and finds the backward executable of each set of tangents.

#include "signature.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/csrc/autograd/python_variable.h>

namespace jitmagic {

Signature::~Signature() {
  if (!Py_IsInitialized()) return;
  GilGuard gil;
  for (PyObject* held : {forward, resolve, compile_failed, double_backward, replay, family}) Py_XDECREF(held);
  for (auto& [given, backward] : backwards) Py_XDECREF(backward);
}

PyObject* missing_tangents(const std::vector<char>& given) {
  PyObject* missing = PyTuple_New(std::count(given.begin(), given.end(), 0));
  Py_ssize_t filled = 0;
  for (size_t i = 0; missing && i < given.size(); i++) {
    if (!given[i]) PyTuple_SET_ITEM(missing, filled++, PyLong_FromSize_t(i));
  }
  return missing;
}

PyObject* Signature::get_backward(const std::vector<char>& given) {
  const auto known = backwards.find(given);
  if (known != backwards.end()) return known->second;
  THPObjectPtr missing(missing_tangents(given));
  if (!missing) return nullptr;
  PyObject* made = family ? backward_of(family, given, values) : PyObject_CallOneArg(resolve, missing.get());
  if (!made) return nullptr;
  const auto [place, is_new] = backwards.emplace(given, made);
  if (!is_new) Py_DECREF(made);  // another thread was quicker while the GIL was released
  return place->second;
}

PyObject* Signature::get_replay() {
  if (!replay) replay = replay_of(family, values);
  return replay;
}

Histories::Histories(
    const std::vector<std::vector<size_t>>& reach, const std::vector<size_t>& stages, size_t tangents) {
  const auto stage_of = [&](size_t i) { return stages.empty() ? 0 : stages[i]; };
  std::map<std::pair<size_t, std::vector<size_t>>, size_t> known;  // stage and reach -> group of inputs
  for (size_t i = 0; i < reach.size(); i++) {
    const auto [place, is_new] = known.emplace(std::pair(stage_of(i), reach[i]), inputs.size());
    if (is_new) inputs.emplace_back();
    inputs[place->second].push_back(i);
    are_one = are_one && reach[i].size() == tangents;
  }
  are_one = are_one && inputs.size() <= 1;
  std::ranges::stable_sort(inputs, std::ranges::greater(), [&](const auto& group) { return stage_of(group[0]); });
}

namespace {

PyObject* entry(PyObject* dict, const char* key) {
  PyObject* value = PyDict_GetItemString(dict, key);
  if (!value) throw std::runtime_error(std::string("signature lacks ") + key);
  return value;
}

Geometry to_geometry(PyObject* tuple, Py_ssize_t first) {
  Geometry made;
  made.sizes = integers(item(tuple, first));
  made.strides = integers(item(tuple, first + 1));
  return made;
}

void below(const char* field, size_t limit, const std::vector<size_t>& indices) {
  const bool good = std::ranges::all_of(indices, [&](size_t index) { return index < limit; });
  check(PyExc_ValueError, good, "malformed signature: %s", field);
}

size_t saved_by(const Facts& s) { return s.saved_inputs.size() + s.saved_results.size() + s.intermediates; }

// Checks that every slot and position exists: calls index by them without a check.
void check_facts(const Facts& s, size_t tangents) {
  const size_t saved = saved_by(s);
  below("saved_inputs", s.inputs, s.saved_inputs);
  below("saved_results", s.results, s.saved_results);
  below("grad_inputs", s.inputs, s.grad_inputs);
  below("mutated", s.inputs, s.mutated);
  for (const std::vector<size_t>& behind : s.reach) below("reach", tangents, behind);
  for (const FreedPart& part : s.freed) {
    below("freed", tangents, part.tangents);
    below("freed", saved, part.saved);
  }
  for (const ReplayInput& one : s.replayed) {
    below("replayed", s.inputs, {one.input});
    check(PyExc_ValueError, one.saved < std::ptrdiff_t(saved), "malformed signature: replayed");
  }
  check(PyExc_ValueError, s.reach.size() == s.grad_inputs.size(), "malformed signature: reach");
  const bool staged = s.stages.empty() || s.stages.size() == s.grad_inputs.size();
  check(PyExc_ValueError, staged, "malformed signature: stages");
}

void check_sized(const Signature& s) {
  size_t known = s.inputs + s.results;
  for (const AliasStep& step : s.aliasing) {
    below("aliasing", known, {step.slot});
    known += step.filled();
  }
  below("outputs", s.slots, s.outputs);
  for (const Tangent& tangent : s.tangents) below("tangents", s.results, {tangent.result});
  check(PyExc_ValueError, s.absent.empty() || s.absent.size() == saved_by(s), "malformed signature: absent");
}

}  // namespace

void read_facts(PyObject* dict, Facts& s) {
  s.inputs = size_t(integer(entry(dict, "inputs")));
  s.results = size_t(integer(entry(dict, "results")));
  s.intermediates = size_t(integer(entry(dict, "intermediates")));
  s.saved_inputs = integers<size_t>(entry(dict, "saved_inputs"));
  s.saved_results = integers<size_t>(entry(dict, "saved_results"));
  s.grad_inputs = integers<size_t>(entry(dict, "grad_inputs"));
  s.mutated = integers<size_t>(entry(dict, "mutated"));
  s.outputs = integers<size_t>(entry(dict, "outputs"));
  for (PyObject* behind : items(entry(dict, "reach"))) s.reach.push_back(integers<size_t>(behind));
  s.stages = integers<size_t>(entry(dict, "stages"));
  for (PyObject* part : items(entry(dict, "freed"))) {  // (tangents, saved)
    s.freed.push_back({integers<size_t>(item(part, 0)), integers<size_t>(item(part, 1))});
  }
  // (input, index among the saved ones or -1, large, written)
  for (PyObject* one : items(entry(dict, "replayed"))) {
    s.replayed.push_back(
        {size_t(integer(item(one, 0))), integer(item(one, 1)), truth(item(one, 2)), truth(item(one, 3))});
  }
  for (PyObject* device : items(entry(dict, "draws"))) s.draws.emplace_back(std::string(text(device)));
  PyObject* checks = entry(dict, "checks");
  if (!items(checks).empty()) s.checks = owned(checks);
  const size_t tangents = items(entry(dict, "tangents")).size();
  check_facts(s, tangents);
  s.histories = Histories(s.reach, s.stages, tangents);
}

void read_sized(PyObject* tangents, PyObject* aliasing, PyObject* absent, Signature& s) {
  s.slots = s.inputs + s.results;
  for (PyObject* step : items(aliasing)) {
    s.aliasing.push_back(read_alias_step(step));
    s.slots += s.aliasing.back().filled();
  }
  for (PyObject* tangent : items(tangents)) {  // (result, sizes, strides)
    s.tangents.push_back({size_t(integer(item(tangent, 0))), to_geometry(tangent, 1)});
  }
  for (PyObject* saved : items(absent)) {  // (tensor of one element, sizes)
    check(PyExc_TypeError, THPVariable_Check(item(saved, 0)), "malformed signature: absent");
    s.absent.push_back({THPVariable_Unpack(item(saved, 0)), integers(item(saved, 1))});
  }
  check_sized(s);
}

}  // namespace jitmagic
