// Redraws: a compiled graph that draws random numbers on the CPU.
//
// When it raises, the frame runs again as eager and draws again: the numbers have to be the same ones, so
// torch's default generator goes back to where it was. Ctrl-C and the like run nothing again.

#include "runtime.h"

#include <structmember.h>

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Exceptions.h>

namespace jitmagic {
namespace {

struct Redraws {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* run;
};

at::Generator copy_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> alone(generator.mutex());
  return generator.clone();
}

PyObject* redraws_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Generator before = copy_of(generator);
  PyObject* made = PyObject_Vectorcall(reinterpret_cast<Redraws*>(self)->run, args, nargsf, names);
  if (!made && PyErr_ExceptionMatches(PyExc_Exception)) {
    const at::Tensor state = before.get_state();
    const std::lock_guard<std::mutex> alone(generator.mutex());
    generator.set_state(state);
  }
  return made;
  END_HANDLE_TH_ERRORS
}

PyObject* redraws_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* run;
  if (!PyArg_ParseTuple(args, "O:Redraws", &run)) return nullptr;
  auto* self = reinterpret_cast<Redraws*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = redraws_call;
  self->run = Py_NewRef(run);
  return reinterpret_cast<PyObject*>(self);
}

int redraws_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Redraws*>(self)->run);
  return 0;
}

int redraws_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Redraws*>(self)->run);
  return 0;
}

void redraws_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  redraws_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef redraws_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Redraws, vectorcall), READONLY, nullptr},
    {"run", T_OBJECT, offsetof(Redraws, run), READONLY, "the graph itself"},
    {nullptr}};

PyTypeObject redraws_type = [] {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "jitmagic._runtime.Redraws";
  type.tp_doc = "Redraws(run): calls run; when it raises, torch's default CPU generator is where it was.";
  type.tp_basicsize = sizeof(Redraws);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  type.tp_vectorcall_offset = offsetof(Redraws, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_members = redraws_members;
  type.tp_new = redraws_new;
  type.tp_traverse = redraws_traverse;
  type.tp_clear = redraws_clear;
  type.tp_dealloc = redraws_dealloc;
  return type;
}();

}  // namespace

bool register_redraws(PyObject* module) {
  if (PyType_Ready(&redraws_type) < 0) return false;
  return PyModule_AddObjectRef(module, "Redraws", reinterpret_cast<PyObject*>(&redraws_type)) == 0;
}

}  // namespace jitmagic
