// Entry: one compiled variant of a frame: its guards, the callable that runs when they pass, and
// its result template.
#pragma once

#include "template.h"

namespace jitmagic {

struct Entry {
  PyObject_HEAD
  Program* program;
  PyObject* run;
  PyObject* notes;  // data that Python attaches to the entry
  PyObject* comparison;  // chooses what each call runs while the entry is timed against eager; or NULL
  bool residual;    // `run` takes all arguments and returns the frame's result
  bool hook;
  bool mutates;     // a graph that failed halfway may have changed its inputs
  std::vector<int>* inputs;
  std::vector<int>* kept;  // registers that the template reads after the graph
  Template* result;
  long long hits;
  PyObject* weakrefs;
};

extern PyTypeObject EntryType;

// Runs a graph entry whose guards have just filled `registers`; returns the frame's result, or
// NULL.
PyObject* run_graph(Entry* entry, Registers& registers);

bool register_entry(PyObject* module);

}  // namespace jitmagic
