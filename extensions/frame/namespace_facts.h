// What is relied on of one namespace that lives as long as the process: the dictionary of a module of
// torch, of builtins, of an enum member. Names that are bound to certain objects, and names it lacks.
//
// A dictionary has a clock that moves whenever it is changed. While the clock stands where it stood at
// the last look, the facts hold and nothing is looked up. Nothing here runs user code.
#pragma once

#include "class_facts.h"
#include "frame.h"

#include <memory>
#include <vector>

namespace jitmagic {

// Moves with every change of the dictionary, which must outlive the pointer's use; nullptr: this dictionary
// has none. CPython 3.11 and 3.12 keep one in the dictionary (PEP 509), from 3.13 on a dictionary watcher
// moves ours, before the change.
const uint64_t* clock_of(PyObject* dict);

class NamespaceFacts {
 public:
  // The dictionary, and the facts as tuples (frame/native.py):
  //   ("IS", name, object)      it has that object under the name, or an equal constant
  //   ("ABSENT", name)          it has no such name
  static std::unique_ptr<NamespaceFacts> make(PyObject* dict, PyObject* facts);  // raises: nullptr
  ~NamespaceFacts() { Py_DECREF(dict_); }
  bool hold();
  bool alive() const;
  int visit_refs(visitproc visit, void* arg) const;

 private:
  struct Fact {
    Held name;
    Held object;  // empty: absent
    bool absent;
  };

  explicit NamespaceFacts(PyObject* dict) : dict_(Py_NewRef(dict)), clock_(clock_of(dict)) {}
  bool add(PyObject* fact);
  bool holds(const Fact& fact) const;

  PyObject* dict_;
  const uint64_t* clock_;
  uint64_t time_ = 0;  // of the last look that found all facts true
  std::vector<Fact> facts_;
};

}  // namespace jitmagic
