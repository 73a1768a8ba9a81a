// The Python type behind WithNumbers, Holding, Undoing and Spent, see around.h.

#include "around.h"

#include "reading.h"

#include <memory>

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

std::unique_ptr<std::vector<Py_ssize_t>> read_positions(PyObject* positions) {
  auto read = std::make_unique<std::vector<Py_ssize_t>>(integers<Py_ssize_t>(positions));
  for (Py_ssize_t position : *read) check(PyExc_ValueError, position >= 0, "position %zd is negative", position);
  return read;
}

}  // namespace

void around_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  around_clear(self);
  delete reinterpret_cast<Around*>(self)->positions;
  delete reinterpret_cast<Around*>(self)->others;
  Py_TYPE(self)->tp_free(self);
}

Around* make_around(PyTypeObject* type, PyObject* run, PyObject* positions, vectorcallfunc call, PyObject* others) {
  auto read = read_positions(positions), second = others ? read_positions(others) : nullptr;
  auto* self = reinterpret_cast<Around*>(type->tp_alloc(type, 0));
  if (!self) raise_python_error();
  self->vectorcall = call;
  self->run = Py_NewRef(run);
  self->positions = read.release();
  self->others = second.release();
  return self;
}

PyTypeObject around_type(const char* full_name, const char* doc, newfunc make, size_t size) {
  return callable_type({full_name, doc, size, make, around_dealloc, around_traverse, around_clear});
}

}  // namespace jitmagic
