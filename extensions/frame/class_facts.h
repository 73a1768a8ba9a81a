// What is relied on of one class: its bases, and attributes it has, lacks, or keeps free for its
// instances.
//
// A class has a number for the state that it and its bases are in (jm_type_version). While that is
// what it was at the last look, the facts hold still and nothing is looked up; a class that changed in
// other ways is looked through once. Nothing here runs user code.
#pragma once

#include "frame.h"

#include <memory>
#include <utility>
#include <vector>

namespace jitmagic {

// An object held weakly where it allows that.
class Held {
 public:
  explicit Held(PyObject* object);
  Held(Held&& other) noexcept : kept_(std::exchange(other.kept_, nullptr)), weak_(other.weak_) {}
  Held(const Held&) = delete;
  ~Held() { Py_XDECREF(kept_); }
  PyObject* get() const;  // borrowed; nullptr: it died
  PyObject* kept() const { return kept_; }

 private:
  PyObject* kept_;
  bool weak_;
};

// What a weak reference leads to: borrowed, or nullptr.
PyObject* referent(PyObject* weak);

class ClassFacts {
 public:
  // The class, its MRO as a tuple, and the facts as tuples (frame/native.py):
  //   ("IS", name, start, object)  what is found from position `start` of the MRO on is that object
  //   ("ABSENT", name, start)      nothing is found there
  //   ("YIELDS", name)             what is found, if anything, gives way to an instance's own
  //   ("SLOT", name)               what is found is a slot of that name
  static std::unique_ptr<ClassFacts> make(PyObject* type, PyObject* mro, PyObject* facts);  // raises: nullptr
  bool hold();
  bool alive() const;
  int visit_refs(visitproc visit, void* arg) const;

 private:
  enum class Kind { Is, Absent, Yields, Slot };
  struct Fact {
    Kind kind;
    Held name;
    Py_ssize_t start;
    Held object;  // of Is
  };

  explicit ClassFacts(PyObject* type) : type_(type) {}
  bool add(PyObject* fact);
  bool same_bases(PyTypeObject* type) const;
  static bool holds(PyTypeObject* type, const Fact& fact);

  Held type_;
  std::vector<Held> mro_;
  std::vector<Fact> facts_;
  unsigned version_ = 0;
};

}  // namespace jitmagic
