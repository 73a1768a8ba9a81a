// The Python type behind WithNumbers, HoldingObjects, UndoOnError and FreedResults, see around.h.

#include "around.h"

#include "reading.h"

#include <memory>

namespace jitmagic {
namespace {

int wrapper_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<GraphWrapper*>(self)->run);
  Py_VISIT(reinterpret_cast<GraphWrapper*>(self)->construction);
  return 0;
}

int wrapper_clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<GraphWrapper*>(self)->run);
  Py_CLEAR(reinterpret_cast<GraphWrapper*>(self)->construction);
  return 0;
}

std::unique_ptr<std::vector<Py_ssize_t>> read_positions(PyObject* positions) {
  auto read = std::make_unique<std::vector<Py_ssize_t>>(integers<Py_ssize_t>(positions));
  for (Py_ssize_t position : *read) check(PyExc_ValueError, position >= 0, "position %zd is negative", position);
  return read;
}

}  // namespace

void wrapper_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  wrapper_clear(self);
  delete reinterpret_cast<GraphWrapper*>(self)->positions;
  delete reinterpret_cast<GraphWrapper*>(self)->others;
  Py_TYPE(self)->tp_free(self);
}

GraphWrapper* make_wrapper(
    PyTypeObject* type, PyObject* run, PyObject* positions, vectorcallfunc call, PyObject* others) {
  auto read = read_positions(positions), second = others ? read_positions(others) : nullptr;
  auto* self = reinterpret_cast<GraphWrapper*>(type->tp_alloc(type, 0));
  if (!self) raise_python_error();
  self->vectorcall = call;
  self->run = Py_NewRef(run);
  self->positions = read.release();
  self->others = second.release();
  return self;
}

PyTypeObject wrapper_type(const char* full_name, const char* doc, newfunc make, size_t size) {
  return callable_type({full_name, doc, size, make, wrapper_dealloc, wrapper_traverse, wrapper_clear});
}

}  // namespace jitmagic
