// Shared declarations of jitmagic._runtime: the native half of runtime/ and autograd/.
//
// plan.cpp      Executable: a Plan (allocations, kernel launches, ATen calls, views, frees), run by extensions/executor
// plan_read.cpp reads the tuple that describes one
// user_kernels.cpp  launches Triton kernels that the user wrote
// issued.cpp    passes the warnings of ATen calls to Python
// recording.cpp  CUDA graphs of an executable, with the memory of their inputs and results
// replay.cpp    replays them; graph_copies.cpp  copies within a CUDA graph, whose addresses change
// profiled.cpp  detects a running profiler
// errors.cpp    Python errors thrown from C++
// autograd.cpp  native autograd nodes around a compiled forward and backward
// node.cpp      one such node, and the values it saves
// split.cpp     several nodes, for results with different histories
// signature.cpp the nodes' description of their graphs
// view_replay.cpp  replays views of inputs and results after the graph ran
// numbers.cpp   passes Python numbers to a compiled graph as 0-dim tensors
// undo.cpp      restores inputs and the generator when a graph raises
// spent.cpp     results whose history a backward inside the graph has freed
// held.cpp      objects that a call's backwards read
// around.cpp    the common Python type of these wrappers
// callable.h    the common base of all types
// sized.cpp     one executable per size tuple
// size_program.cpp  numbers computed from sizes, for Python; the base of templates
// plan_template.cpp, autograd_template.cpp  executables and functions for all sizes
// split_graph.cpp  subgraphs chained into one callable
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "memory.h"

namespace jitmagic {

// errors.cpp: throws with Python's error state set; HANDLE_TH_ERRORS passes it on.
[[noreturn]] void raise_python_error();
[[noreturn]] void raise_as(PyObject* type, const char* message);

// Each adds its types and functions to the module; returns false with a Python error set.
bool register_plan(PyObject* module);
bool register_autograd(PyObject* module);
bool register_numbers(PyObject* module);
bool register_undo_on_error(PyObject* module);
bool register_split_graph(PyObject* module);
bool register_recording(PyObject* module);
bool register_replay(PyObject* module);
bool register_torch_call(PyObject* module);
bool register_freed_results(PyObject* module);
bool register_inner_tensors(PyObject* module);
bool register_holding_objects(PyObject* module);
bool register_sized(PyObject* module);
bool register_sizes(PyObject* module);  // before those of templates: it defines their base type
bool register_plan_template(PyObject* module);
bool register_autograd_template(PyObject* module);
bool register_blocks(PyObject* module);  // interpreter/python_type.cpp

}  // namespace jitmagic
