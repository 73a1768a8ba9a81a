// Sizes that differ from call to call: what a compiled graph is like for each vector of values of its symbols.
//
// SizeProgram  computes numbers from the values, and whether they keep to what was assumed (symbols/compiled.py)
// Register     stands in a description for a number that a SizeProgram computes
// Template     what `at(values)` makes an executable of: of a plan (plan_template.cpp), of an autograd function
//              (autograd_template.cpp), of subgraphs (split_graph.cpp)
#pragma once

#include "reading.h"

#include <optional>
#include <span>
#include <vector>

#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {

using Values = std::span<const int64_t>;

// An int, as sizes are, or a float computed of them.
struct Number {
  int64_t whole = 0;
  double real = 0;
  bool is_real = false;
};

using Registers = c10::SmallVector<Number, 64>;

struct Instruction {
  enum Op : uint8_t { Constant, Add, Multiply, Quotient, Remainder, Called, Check } op;
  int compare = 0;  // Check: Py_LT ..
  int a = 0, b = 0;
  Number number;                 // Constant; the divisor of Quotient and Remainder
  PyObject* function = nullptr;  // Called: what Python computes it by
  std::vector<int> arguments;
};

struct SizeProgram {
  PyObject_HEAD
  size_t inputs;
  std::vector<Instruction>* code;
  size_t registers;
};

// A SizeProgram; throws through Python's error state where it is none.
SizeProgram* size_program(PyObject* object);

// Whether all checks hold. Nothing is known, and false, where a number has more than 64 bits or cannot be computed.
bool evaluate(const SizeProgram& program, Values values, Registers& registers);

// As `evaluate`; throws where that is false.
Registers computed(const SizeProgram& program, Values values);

// The number of the register that the object stands for; -1: it is another object.
int register_of(PyObject* object);
bool has_registers(PyObject* structure);

// The structure of tuples and lists with numbers in place of Registers. A new reference.
PyObject* filled(PyObject* structure, const Registers& registers);

struct Template {
  PyObject_HEAD
  PyObject* (*make)(PyObject* self, Values values);  // a new reference; may throw
};

// What runs for these values: made by a Template, or the object itself. A new reference.
PyObject* instance_of(PyObject* object, Values values);
// `traverse`, `clear`: of a type whose objects may be part of a cycle.
PyTypeObject template_type_of(
    const char* full_name, const char* doc, size_t size, newfunc make, destructor dealloc,
    traverseproc traverse = nullptr, inquiry clear = nullptr);

c10::SmallVector<int64_t, 8> values_of(PyObject* tuple);
PyObject* tuple_of(Values values);  // a new reference; nullptr with a Python error set

// sized.cpp: what a BySizes runs for these values; `args` are handed to Python where they are new. A new reference.
PyObject* run_of(PyObject* by_sizes, Values values, PyObject* const* args, Py_ssize_t count);

}  // namespace jitmagic
