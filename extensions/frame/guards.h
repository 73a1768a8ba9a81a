// Guard programs: a register machine over borrowed objects that checks the facts a trace relied on.
#pragma once

#include "class_facts.h"
#include "frame.h"
#include "memo.h"
#include "namespace_facts.h"

#include <memory>
#include <vector>

namespace jitmagic {

// Equality that runs no user code: same exact type and the same constant, float bits included.
// Containers of constants are compared item by item; anything else by identity.
bool same_constant(PyObject* left, PyObject* right);

// Sets ValueError for a malformed step, unless an error is set.
inline bool refuse_step(const char* why) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, why);
  return false;
}

// A tensor's facts or the thread's torch state as plain C++ values (guards_tensor.cpp).
struct TorchCheck {
  virtual ~TorchCheck() = default;
  virtual bool passes(PyObject* tensor) const = 0;                // one tensor, or nullptr for state
  virtual void visit_refs(visitproc, void*, int&) const {}
};
std::unique_ptr<TorchCheck> make_tensor_check(PyObject* step);  // raises: nullptr
std::unique_ptr<TorchCheck> make_state_check(PyObject* step);
std::unique_ptr<TorchCheck> make_autocast_check(PyObject* step);
std::unique_ptr<TorchCheck> make_range_check(PyObject* step);
// Whether two of them share memory; also true if that is unknown.
bool tensors_overlap(PyObject* const* objects, size_t count);
// Comparisons of sizes and strides of several tensors, or of numbers: programs for a stack machine.
struct SizesCheck {
  virtual ~SizesCheck() = default;
  virtual bool passes(PyObject* const* tensors, size_t count) const = 0;
};
std::unique_ptr<SizesCheck> make_sizes_check(PyObject* codes, const std::vector<int>& registers);  // raises: nullptr
std::unique_ptr<SizesCheck> make_numbers_check(PyObject* code, size_t count);  // of floats and ints
// Whether it is a tensor whose gradient is accumulated without running hooks.
bool is_unhooked(PyObject* object);
bool register_tensor_guards(PyObject* module);

enum class Op : unsigned char {
#define LOAD(op, ...) op,
#define CHECK(op, ...) op,
#include "guard_steps.h"
#undef LOAD
#undef CHECK
};

// The attribute that Op::FunctionPart reads, stored in Step::number.
enum Part : Py_ssize_t { kCode, kClosure, kDefaults, kKwDefaults, kGlobals, kAnnotations, kSelf, kFunc, kParts };

struct Step {
  Op op;
  int target = -1;             // register written
  int source = -1;             // register read
  int other = -1;              // second register read
  Py_ssize_t number = 0;       // index, length, or number of `registers` that must differ from all others
  PyObject* object = nullptr;  // strong: constant, name, weak reference, ...
  PyObject* space = nullptr;   // strong: namespace dictionary, or a second constant
  mutable Lookup lookup;       // cached lookup of `object` in a dictionary
  std::unique_ptr<TorchCheck> torch;
  std::unique_ptr<EmptyTables> tables;          // EntriesEmpty
  std::unique_ptr<ClassFacts> facts;            // Class
  std::unique_ptr<NamespaceFacts> names;        // Namespace
  std::unique_ptr<SizesCheck> sizes;            // Sizes, Numbers
  std::unique_ptr<std::vector<int>> registers;  // NoOverlap, Different, Sizes, Numbers
};

struct Program {
  PyObject_HEAD
  std::vector<Step>* steps;
  int arguments;  // minimum number of arguments
  int registers;
};

extern PyTypeObject ProgramType;

// The registers of one check. They own objects that a step had to create.
class Registers {
 public:
  explicit Registers(const Program* program);
  ~Registers();
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
  PyObject*& operator[](int index) { return values_[index]; }
  // Takes a new reference and returns it borrowed; clears the error if it is NULL.
  PyObject* keep(PyObject* made);

 private:
  static constexpr int kInline = 48;
  PyObject* inline_[kInline];
  PyObject** values_;
  std::vector<PyObject*> made_;
};

// The state of a built-in iterator, which is not advanced: a new tuple, or nullptr without an error
// if it is unknown (iterator_parts.cpp; the reference is jitmagic/guards/iterator_parts.py).
PyObject* iterator_parts(PyObject* iterator);

// Index of the first step that fails, or -1.
int first_failure(const Program* program, PyObject* const* args, Py_ssize_t count, Registers& registers);

// False once the program can never pass again, because a weakly referenced object has died.
bool is_alive(const Program* program);

bool register_guards(PyObject* module);

// observers_tensor.cpp: whether a tracer or a mode observes every operation of this thread.
bool torch_is_observed();
bool register_observers(PyObject* module);

}  // namespace jitmagic
