// NamespaceFacts: a lookup after the dictionary has changed, a comparison of two integers
// otherwise.

#include "namespace_facts.h"

#include "guards.h"

#include <algorithm>
#include <unordered_map>

namespace jitmagic {
namespace {

#if PY_VERSION_HEX >= 0x030D0000

// One version counter per watched dictionary. There are few (torch modules), so they are never
// freed. A later dictionary at the same address may reuse the counter, because it only grows.
std::unordered_map<PyObject*, std::unique_ptr<uint64_t>>& counters() {
  static auto* all = new std::unordered_map<PyObject*, std::unique_ptr<uint64_t>>();
  return *all;
}

int count_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  auto found = counters().find(dict);
  if (found != counters().end()) ++*found->second;
  return 0;
}

#endif

bool refuse_read(PyObject* fact) {
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%R is not a fact about a namespace", fact);
  return false;
}

bool is_named(PyObject* text, const char* name) {
  return PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, name) == 0;
}

}  // namespace

#if PY_VERSION_HEX >= 0x030D0000

const uint64_t* version_counter(PyObject* dict) {
  // A dictionary that shares an instance's inline values: attribute stores bypass its watcher.
  if (reinterpret_cast<PyDictObject*>(dict)->ma_values) return nullptr;
  static const int watcher = PyDict_AddWatcher(count_change);
  if (watcher < 0 || PyDict_Watch(watcher, dict) < 0) return PyErr_Clear(), nullptr;
  std::unique_ptr<uint64_t>& counter = counters()[dict];
  if (!counter) counter = std::make_unique<uint64_t>(1);
  return counter.get();
}

#else

const uint64_t* version_counter(PyObject* dict) { return jm_dict_version_address(dict); }

#endif

// A name, or the empty tuple: the key of a call without arguments in a functools cache.
bool is_name(PyObject* object) {
  return PyUnicode_CheckExact(object) || (PyTuple_CheckExact(object) && !PyTuple_GET_SIZE(object));
}

std::unique_ptr<NamespaceFacts> NamespaceFacts::make(PyObject* dict, PyObject* facts) {
  if (!PyDict_CheckExact(dict) || !PyTuple_Check(facts)) {
    PyErr_SetString(PyExc_ValueError, "a dictionary and facts about it are expected");
    return nullptr;
  }
  std::unique_ptr<NamespaceFacts> made(new NamespaceFacts(dict));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(facts); i++) {
    if (!made->add(PyTuple_GET_ITEM(facts, i))) return nullptr;
  }
  return made;
}

bool NamespaceFacts::add(PyObject* fact) {
  const Py_ssize_t length = PyTuple_Check(fact) ? PyTuple_GET_SIZE(fact) : 0;
  const bool is = length == 3 && is_named(PyTuple_GET_ITEM(fact, 0), "IS");
  const bool absent = length == 2 && is_named(PyTuple_GET_ITEM(fact, 0), "ABSENT");
  if ((!is && !absent) || !is_name(PyTuple_GET_ITEM(fact, 1))) return refuse_read(fact);
  facts_.push_back({ObjectRef(PyTuple_GET_ITEM(fact, 1)), ObjectRef(is ? PyTuple_GET_ITEM(fact, 2) : nullptr), absent});
  return true;
}

bool NamespaceFacts::holds(const Fact& fact) const {
  PyObject* found = jm_dict_get(dict_, fact.name.get());
  if (!found || fact.absent) return !found && fact.absent;
  PyObject* wanted = fact.object.get();
  return wanted && same_constant(found, wanted);
}

bool NamespaceFacts::hold() {
  if (counter_ && *counter_ == checked_) return true;
  const uint64_t now = counter_ ? *counter_ : 0;
  if (!std::all_of(facts_.begin(), facts_.end(), [this](const Fact& fact) { return holds(fact); })) {
    checked_ = 0;
    return false;
  }
  checked_ = now;
  return true;
}

bool NamespaceFacts::alive() const {
  return std::all_of(facts_.begin(), facts_.end(), [](const Fact& fact) {
    return fact.absent || fact.object.get();
  });
}

int NamespaceFacts::visit_refs(visitproc visit, void* arg) const {
  Py_VISIT(dict_);
  for (const Fact& fact : facts_) {
    Py_VISIT(fact.name.stored());
    Py_VISIT(fact.object.stored());
  }
  return 0;
}

}  // namespace jitmagic
