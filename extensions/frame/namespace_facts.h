// The facts that a trace relies on about a namespace that lives as long as the process (the
// dictionary of a torch module, of builtins, of an enum member): names bound to given objects, and
// names it lacks.
//
// A dictionary has a version counter. While it equals that of the last successful check, the facts
// hold and nothing is looked up. Nothing here runs user code.
#pragma once

#include "class_facts.h"
#include "frame.h"

#include <memory>
#include <vector>

namespace jitmagic {

// Returns the version counter of a dictionary, which must outlive the pointer's use; nullptr if it
// has none. CPython 3.11 and 3.12 store one in the dictionary (PEP 509); since 3.13 a dictionary
// watcher increments jitmagic's counter before each change.
const uint64_t* version_counter(PyObject* dict);

class NamespaceFacts {
 public:
  // The dictionary, and the facts as tuples (frame/native.py):
  //   ("IS", name, object)      the name is bound to that object or an equal constant
  //   ("ABSENT", name)          there is no such name
  static std::unique_ptr<NamespaceFacts> make(PyObject* dict, PyObject* facts);  // raises: nullptr
  ~NamespaceFacts() { Py_DECREF(dict_); }
  bool hold();
  bool alive() const;
  int visit_refs(visitproc visit, void* arg) const;

 private:
  struct Fact {
    ObjectRef name;
    ObjectRef object;  // empty: absent
    bool absent;
  };

  explicit NamespaceFacts(PyObject* dict) : dict_(Py_NewRef(dict)), counter_(version_counter(dict)) {}
  bool add(PyObject* fact);
  bool holds(const Fact& fact) const;

  PyObject* dict_;
  const uint64_t* counter_;
  uint64_t checked_ = 0;  // version at the last successful check
  std::vector<Fact> facts_;
};

}  // namespace jitmagic
