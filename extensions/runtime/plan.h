// Programs that Python describes, and Executables of them.
#pragma once

#include <memory>

#include <torch/csrc/utils/object_ptr.h>

#include "program_reader.h"
#include "runtime.h"
#include "sizes.h"

namespace jitmagic {

// Reads the tuples from runtime/native.py (program_reader.h says what each member does). Throws with Python's error
// state set.
struct PythonSource {
  using Value = PyObject*;
  using Kept = THPObjectPtr;

  PyObject* item(PyObject* tuple, Py_ssize_t index) const { return jitmagic::item(tuple, index); }
  std::span<PyObject* const> items(PyObject* tuple) const { return jitmagic::items(tuple); }
  int64_t integer(PyObject* object) const { return jitmagic::integer(object); }
  bool truth(PyObject* object) const { return jitmagic::truth(object); }
  const char* text(PyObject* object) const { return jitmagic::text(object); }
  Number number(PyObject* object) const;
  at::ScalarType dtype(PyObject* object) const;
  c10::Device device(PyObject* object) const;
  bool is_none(PyObject* object) const { return object == Py_None; }
  bool is_tuple(PyObject* object) const { return PyTuple_Check(object); }
  at::Tensor tensor(PyObject* object) const;
  Kernel kernel(PyObject* described) const;  // an address, or (address, address of its context)
  uint64_t cuda_function(PyObject* address) const;
  std::shared_ptr<NativeLaunch> native_launch(PyObject* tuple) const;  // user_kernels.cpp
  std::shared_ptr<const SizeFunction> size_function(PyObject* function) const;
  int register_of(PyObject* object) const { return jitmagic::register_of(object); }
  bool has_registers(PyObject* object) const { return jitmagic::has_registers(object); }
  THPObjectPtr keep(PyObject* object) const { return THPObjectPtr(Py_NewRef(object)); }
  c10::IValue constant_of(PyObject* object, const c10::Argument& declared) const;
  c10::IValue filled_constant(
      const THPObjectPtr& structure, const Registers& registers, const c10::Argument& declared) const;
  std::vector<int64_t> filled_integers(const THPObjectPtr& structure, const Registers& registers) const;
  void check(bool holds, const char* message) const { jitmagic::check(PyExc_ValueError, holds, "%s", message); }
};

// Returns inputs of a program that must be aligned; `aligned` may be null.
std::vector<int> aligned_inputs(PyObject* aligned, const Program& program);

// plan.cpp: the Executable, a new reference. `otherwise` is called for unaligned inputs; may be null if none must be
// aligned.
PyObject* executable_of(std::unique_ptr<Program> program, PyObject* owners, PyObject* otherwise = nullptr);

// plan.cpp: runs an Executable on arguments that are its own: it takes them, and frees each after its last use. Sets the
// results, undefined for None. Returns false, with all as it was, if the graph must be called from Python: it is no
// Executable, or its arguments are not aligned. Needs the GIL and throws.
bool run_owned(PyObject* graph, std::vector<at::Tensor>& arguments, std::vector<at::Tensor>& results);

}  // namespace jitmagic
