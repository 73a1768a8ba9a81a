// The facts that a trace relies on about one class: its bases, and attributes that it has, lacks,
// or lets instances override.
//
// A class has a version tag for the state of itself and its bases (jm_type_version). While the tag
// equals that of the last successful check, the facts still hold and nothing is looked up; after
// any change they are checked once. Nothing here runs user code.
#pragma once

#include "frame.h"

#include <memory>
#include <utility>
#include <vector>

namespace jitmagic {

// A reference to an object, weak if its type supports that.
class ObjectRef {
 public:
  explicit ObjectRef(PyObject* object);
  ObjectRef(ObjectRef&& other) noexcept : stored_(std::exchange(other.stored_, nullptr)), weak_(other.weak_) {}
  ObjectRef(const ObjectRef&) = delete;
  ~ObjectRef() { Py_XDECREF(stored_); }
  PyObject* get() const;  // borrowed; nullptr: it died
  PyObject* stored() const { return stored_; }

 private:
  PyObject* stored_;
  bool weak_;
};

// The referent of a weak reference: borrowed, or nullptr.
PyObject* referent(PyObject* weak);

class ClassFacts {
 public:
  // The class, its MRO as a tuple, and the facts as tuples (frame/native.py):
  //   ("IS", name, start, object)  the lookup from position `start` of the MRO gives that object
  //   ("ABSENT", name, start)      the lookup finds nothing
  //   ("YIELDS", name)             it finds nothing, or an attribute that instances always override
  //   ("SLOT", name)               it finds a slot of that name
  static std::unique_ptr<ClassFacts> make(PyObject* type, PyObject* mro, PyObject* facts);  // raises: nullptr
  bool hold();
  bool alive() const;
  int visit_refs(visitproc visit, void* arg) const;

 private:
  enum class Kind { Is, Absent, Yields, Slot };
  struct Fact {
    Kind kind;
    ObjectRef name;
    Py_ssize_t start;
    ObjectRef object;  // of Is
  };

  explicit ClassFacts(PyObject* type) : type_(type) {}
  bool add(PyObject* fact);
  bool same_bases(PyTypeObject* type) const;
  static bool holds(PyTypeObject* type, const Fact& fact);

  ObjectRef type_;
  std::vector<ObjectRef> mro_;
  std::vector<Fact> facts_;
  unsigned version_ = 0;
};

}  // namespace jitmagic
