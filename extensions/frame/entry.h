// Entry: one compiled variant of a frame: guards, what runs when they pass, how its result is shaped.
#pragma once

#include "template.h"

namespace jitmagic {

struct Entry {
  PyObject_HEAD
  Program* program;
  PyObject* run;
  PyObject* notes;  // what Python wants to remember about the entry
  PyObject* comparison;  // asked what each call runs while the entry is compared with eager; or NULL
  bool residual;    // `run` takes all arguments and gives the frame's result
  bool hook;
  bool mutates;     // a graph that failed half way may have changed its inputs
  std::vector<int>* inputs;
  std::vector<int>* kept;  // registers the template reads when the graph has run
  Template* result;
  long long hits;
  PyObject* weakrefs;
};

extern PyTypeObject EntryType;

// Runs a graph entry whose guards have just filled `registers`: the frame's result, or NULL.
PyObject* run_graph(Entry* entry, Registers& registers);

bool register_entry(PyObject* module);

}  // namespace jitmagic
