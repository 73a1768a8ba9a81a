// The Python type behind WithNumbers and Undoing, see around.h.

#include "around.h"

#include <structmember.h>

namespace jitmagic {
namespace {

int around_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Around*>(self)->run);
  return 0;
}

int around_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Around*>(self)->run);
  return 0;
}

void around_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  around_clear(self);
  delete reinterpret_cast<Around*>(self)->positions;
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef around_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Around, vectorcall), READONLY, nullptr},
    {"run", T_OBJECT, offsetof(Around, run), READONLY, "the graph itself"},
    {nullptr}};

}  // namespace

Around* make_around(PyTypeObject* type, PyObject* run, PyObject* positions, vectorcallfunc call) {
  std::vector<Py_ssize_t> read;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); i++) {
    read.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i)));
    if (PyErr_Occurred()) return nullptr;
    if (read.back() < 0) {
      PyErr_Format(PyExc_ValueError, "position %zd is negative", read.back());
      return nullptr;
    }
  }
  auto* self = reinterpret_cast<Around*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call;
  self->run = Py_NewRef(run);
  self->positions = new std::vector<Py_ssize_t>(std::move(read));
  return self;
}

PyTypeObject around_type(const char* full_name, const char* doc, newfunc make, size_t size) {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = full_name;
  type.tp_doc = doc;
  type.tp_basicsize = Py_ssize_t(size);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  type.tp_vectorcall_offset = offsetof(Around, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_members = around_members;
  type.tp_new = make;
  type.tp_traverse = around_traverse;
  type.tp_clear = around_clear;
  type.tp_dealloc = around_dealloc;
  return type;
}

}  // namespace jitmagic
