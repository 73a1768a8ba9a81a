// TimedGraph(run): calls `run`, a compiled graph, for a residual, which is Python and reads no clock itself.

#include "timed_graph.h"

#include <structmember.h>

namespace jitmagic {
namespace {

struct TimedGraph {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* run;
};

PyObject* call_timed(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  PyObject* run = Py_NewRef(reinterpret_cast<TimedGraph*>(object)->run);
  PyObject* result;
  {
    GraphClock clock;
    result = PyObject_Vectorcall(run, args, flags, keywords);
  }
  Py_DECREF(run);
  return result;
}

PyObject* timed_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"run", nullptr};
  PyObject* run;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:TimedGraph", const_cast<char**>(names), &run)) return nullptr;
  auto* self = reinterpret_cast<TimedGraph*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call_timed;
  self->run = Py_NewRef(run);
  return reinterpret_cast<PyObject*>(self);
}

int timed_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<TimedGraph*>(object)->run);
  return 0;
}

int timed_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<TimedGraph*>(object)->run);
  return 0;
}

void timed_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  timed_clear(object);
  Py_TYPE(object)->tp_free(object);
}

PyMemberDef timed_members[] = {
    {"run", T_OBJECT, offsetof(TimedGraph, run), READONLY, "the compiled graph"},
    {nullptr, 0, 0, 0, nullptr},
};

PyTypeObject TimedGraphType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.TimedGraph",
    .tp_basicsize = sizeof(TimedGraph),
    .tp_dealloc = timed_dealloc,
    .tp_vectorcall_offset = offsetof(TimedGraph, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "TimedGraph(run): calls a compiled graph, whose time counts where the call around it is timed.",
    .tp_traverse = timed_traverse,
    .tp_clear = timed_clear,
    .tp_members = timed_members,
    .tp_new = timed_new,
};

}  // namespace

bool register_timed_graph(PyObject* module) { return PyModule_AddType(module, &TimedGraphType) == 0; }

}  // namespace jitmagic
