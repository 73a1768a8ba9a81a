// Signature: reading it, and the backward executable of each set of tangents.

#include "signature.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include <torch/csrc/autograd/python_variable.h>

namespace jitmagic {

Signature::~Signature() {
  if (!Py_IsInitialized()) return;
  GilGuard gil;
  for (PyObject* held : {forward, resolve, compile_failed, double_backward, replay}) Py_XDECREF(held);
  for (auto& [given, backward] : backwards) Py_XDECREF(backward);
  for (PyObject* held : absent) Py_XDECREF(held);
}

PyObject* Signature::get_backward(const std::vector<char>& given) {
  const auto known = backwards.find(given);
  if (known != backwards.end()) return known->second;
  Ref missing(PyTuple_New(std::count(given.begin(), given.end(), 0)));
  if (!missing.object) return nullptr;
  Py_ssize_t filled = 0;
  for (size_t i = 0; i < given.size(); i++) {
    if (!given[i]) PyTuple_SET_ITEM(missing.object, filled++, PyLong_FromSize_t(i));
  }
  PyObject* made = PyObject_CallOneArg(resolve, missing.object);
  if (!made) return nullptr;
  const auto [place, is_new] = backwards.emplace(given, made);
  if (!is_new) Py_DECREF(made);  // another thread was quicker while the GIL was released
  return place->second;
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

// (kind, index) | (kView, base, of_input, requires_grad, sizes, strides, offset, numbers)
Output to_output(PyObject* tuple) {
  Output made;
  made.kind = Output::Kind(integer(item(tuple, 0)));
  made.index = size_t(integer(item(tuple, 1)));
  if (made.kind == Output::kView) {
    made.of_input = integer(item(tuple, 2)) != 0;
    made.requires_grad = integer(item(tuple, 3)) != 0;
    made.view = to_geometry(tuple, 4);
    made.view.offset = integer(item(tuple, 6));
    made.numbers = Output::Numbers(integer(item(tuple, 7)));
  }
  return made;
}

}  // namespace

void read_signature(PyObject* dict, Signature& s) {
  s.inputs = size_t(integer(entry(dict, "inputs")));
  s.results = size_t(integer(entry(dict, "results")));
  s.intermediates = size_t(integer(entry(dict, "intermediates")));
  s.saved_inputs = integers<size_t>(entry(dict, "saved_inputs"));
  s.saved_results = integers<size_t>(entry(dict, "saved_results"));
  s.grad_inputs = integers<size_t>(entry(dict, "grad_inputs"));
  s.mutated = integers<size_t>(entry(dict, "mutated"));
  PyObject* outputs = entry(dict, "outputs");
  for (Py_ssize_t i = 0; i < PyTuple_Size(outputs); i++) {
    s.outputs.push_back(to_output(PyTuple_GET_ITEM(outputs, i)));
  }
  PyObject* tangents = entry(dict, "tangents");  // (result, sizes, strides)
  for (Py_ssize_t i = 0; i < PyTuple_Size(tangents); i++) {
    PyObject* tangent = PyTuple_GET_ITEM(tangents, i);
    s.tangents.push_back({size_t(integer(item(tangent, 0))), to_geometry(tangent, 1)});
  }
  PyObject* reach = entry(dict, "reach");
  for (Py_ssize_t i = 0; i < PyTuple_Size(reach); i++) {
    s.reach.push_back(integers<size_t>(PyTuple_GET_ITEM(reach, i)));
  }
  check(PyExc_ValueError, s.reach.size() == s.grad_inputs.size(), "malformed signature: reach");
  PyObject* spent = entry(dict, "spent");  // (tangents, saved)
  for (Py_ssize_t i = 0; i < PyTuple_Size(spent); i++) {
    PyObject* part = PyTuple_GET_ITEM(spent, i);
    s.spent.push_back({integers<size_t>(item(part, 0)), integers<size_t>(item(part, 1))});
  }
  PyObject* replayed = entry(dict, "replayed");  // (input, place among the saved ones or -1, large, written)
  for (Py_ssize_t i = 0; i < PyTuple_Size(replayed); i++) {
    PyObject* one = PyTuple_GET_ITEM(replayed, i);
    s.replayed.push_back(
        {size_t(integer(item(one, 0))), integer(item(one, 1)), integer(item(one, 2)) != 0, integer(item(one, 3)) != 0});
  }
  PyObject* draws = entry(dict, "draws");
  for (Py_ssize_t i = 0; i < PyTuple_Size(draws); i++) {
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(draws, i));
    if (!name) raise_python_error();
    s.draws.emplace_back(std::string(name));
  }
  PyObject* absent = entry(dict, "absent");
  for (Py_ssize_t i = 0; i < PyTuple_Size(absent); i++) {
    s.absent.push_back(Py_NewRef(PyTuple_GET_ITEM(absent, i)));
    check(PyExc_ValueError, THPVariable_Check(s.absent.back()), "malformed signature: absent");
  }
}

}  // namespace jitmagic
