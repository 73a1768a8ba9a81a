// Sizes that differ from call to call: specialises compiled graphs for the values of their symbols.
//
// SizeProgram computes numbers from the values and checks the assumptions on them (executor/size_code.h).
// Register is a placeholder in a description for a number that a SizeProgram computes. Template builds an
// executable, `at(values)`: of a plan (plan_template.cpp), of an autograd function (autograd_template.cpp), of
// subgraphs (split_graph.cpp).
#pragma once

#include "reading.h"
#include "size_code.h"

#include <optional>
#include <vector>

#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {

struct SizeProgram {
  PyObject_HEAD
  SizeCode* code;
  PyObject* construction;  // see constructed.h
};

// Casts to a SizeProgram; throws with Python's error state set for another object.
SizeProgram* size_program(PyObject* object);

// Returns whether all checks hold; false, too, if a number exceeds 64 bits or cannot be computed.
bool evaluate(const SizeProgram& program, Values values, Registers& registers);

// Returns the registers; throws if `evaluate` is false.
Registers computed(const SizeProgram& program, Values values);

PyObject* object_of(const Number& number);  // a new reference; nullptr with a Python error set

// Returns the index of a Register, or -1 for another object.
int register_of(PyObject* object);
bool has_registers(PyObject* structure);

// Returns nested tuples and lists with numbers in place of Registers, a new reference.
PyObject* filled(PyObject* structure, const Registers& registers);

struct Template {
  PyObject_HEAD
  PyObject* (*make)(PyObject* self, Values values);  // a new reference; may throw
  PyObject* construction;  // see constructed.h
};

// Returns the executable for these values, built by a Template, or the object itself. A new reference.
PyObject* instance_of(PyObject* object, Values values);
// `traverse` and `clear` are for types whose objects may be part of a cycle.
PyTypeObject template_type_of(
    const char* full_name, const char* doc, size_t size, newfunc make, destructor dealloc,
    traverseproc traverse = nullptr, inquiry clear = nullptr);

c10::SmallVector<int64_t, 8> values_of(PyObject* tuple);
PyObject* tuple_of(Values values);  // a new reference; nullptr with a Python error set

// sized.cpp: the executable of a BySizes for these values; `args` are passed to Python if they are new. A new
// reference.
PyObject* run_of(PyObject* by_sizes, Values values, PyObject* const* args, Py_ssize_t count);

}  // namespace jitmagic
