// Spread(code, globals): called with a dispatcher's values, runs the code with the original
// arguments.
//
// The values are the parameters in slot order (*args as one tuple, **kwargs as one dictionary),
// then the cells. The overhead over eager is a few nanoseconds (in Python it was 3 us per call):
// keyword-only parameters are already in vectorcall order, and only cells need a new function
// object.

#include "spread.h"

#include "frame.h"

#include <structmember.h>

#include <vector>

namespace jitmagic {
namespace {

struct Spread {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyCodeObject* code;
  PyObject* globals;
  PyObject* function;  // NULL: it has cells, so each call makes one
  PyObject* keywords;  // names of keyword-only parameters
};

Py_ssize_t parameters_of(const PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
         !!(code->co_flags & CO_VARKEYWORDS);
}

PyObject* with_cells(const Spread* self, PyObject* const* cells) {
  PyObject* closure = PyTuple_New(self->code->co_nfreevars);
  if (!closure) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); i++) PyTuple_SET_ITEM(closure, i, Py_NewRef(cells[i]));
  PyObject* function = PyFunction_New(reinterpret_cast<PyObject*>(self->code), self->globals);
  if (function && PyFunction_SetClosure(function, closure) < 0) Py_CLEAR(function);
  Py_DECREF(closure);
  return function;
}

// Expands *args and **kwargs in place; the items are borrowed from `values`.
PyObject* call_with_stars(const Spread* self, PyObject* function, PyObject* const* values) {
  const PyCodeObject* code = self->code;
  const Py_ssize_t named = code->co_argcount + code->co_kwonlyargcount;
  std::vector<PyObject*> all(values, values + code->co_argcount);
  PyObject* const* star = values + named;
  if (code->co_flags & CO_VARARGS) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(*star); i++) all.push_back(PyTuple_GET_ITEM(*star, i));
    star++;
  }
  const size_t positional = all.size();
  all.insert(all.end(), values + code->co_argcount, values + named);
  if (!(code->co_flags & CO_VARKEYWORDS)) return PyObject_Vectorcall(function, all.data(), positional, self->keywords);
  PyObject* names = PyList_New(0);
  PyObject *key, *value;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(self->keywords); i++) {
    if (PyList_Append(names, PyTuple_GET_ITEM(self->keywords, i)) < 0) Py_CLEAR(names);
  }
  for (Py_ssize_t at = 0; names && PyDict_Next(*star, &at, &key, &value);) {
    all.push_back(value);
    if (PyList_Append(names, key) < 0) Py_CLEAR(names);
  }
  PyObject* keywords = names ? PyList_AsTuple(names) : nullptr;
  PyObject* result = keywords ? PyObject_Vectorcall(function, all.data(), positional, keywords) : nullptr;
  Py_XDECREF(keywords);
  Py_XDECREF(names);
  return result;
}

PyObject* call_spread(PyObject* object, PyObject* const* values, size_t flags, PyObject* keywords) {
  auto* self = reinterpret_cast<Spread*>(object);
  const PyCodeObject* code = self->code;
  const Py_ssize_t count = parameters_of(code);
  if (PyVectorcall_NARGS(flags) != count + code->co_nfreevars || (keywords && PyTuple_GET_SIZE(keywords))) {
    PyErr_Format(PyExc_TypeError, "%U takes %zd values of a dispatcher", code->co_name, count + code->co_nfreevars);
    return nullptr;
  }
  PyObject* function = self->function ? Py_NewRef(self->function) : with_cells(self, values + count);
  if (!function) return nullptr;
  const bool stars = code->co_flags & (CO_VARARGS | CO_VARKEYWORDS);
  PyObject* result = stars ? call_with_stars(self, function, values)
                           : PyObject_Vectorcall(function, values, code->co_argcount, self->keywords);
  Py_DECREF(function);
  return result;
}

PyObject* spread_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"code", "globals", nullptr};
  PyObject *code, *globals;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:Spread", const_cast<char**>(names), &PyCode_Type, &code,
                                   &PyDict_Type, &globals)) {
    return nullptr;
  }
  auto* own = reinterpret_cast<PyCodeObject*>(code);
  PyObject* slots = PyObject_GetAttrString(code, "co_varnames");
  if (!slots) return nullptr;
  auto* self = reinterpret_cast<Spread*>(type->tp_alloc(type, 0));
  if (self) {
    self->vectorcall = call_spread;
    self->code = reinterpret_cast<PyCodeObject*>(Py_NewRef(code));
    self->globals = Py_NewRef(globals);
    self->keywords = PyTuple_GetSlice(slots, own->co_argcount, own->co_argcount + own->co_kwonlyargcount);
    if (!own->co_nfreevars) self->function = PyFunction_New(code, globals);
    if (!self->keywords || (!own->co_nfreevars && !self->function)) Py_CLEAR(self);
  }
  Py_DECREF(slots);
  return reinterpret_cast<PyObject*>(self);
}

int spread_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Spread*>(object);
  Py_VISIT(self->code);
  Py_VISIT(self->globals);
  Py_VISIT(self->function);
  Py_VISIT(self->keywords);
  return 0;
}

int spread_clear(PyObject* object) {
  auto* self = reinterpret_cast<Spread*>(object);
  Py_CLEAR(self->code);
  Py_CLEAR(self->globals);
  Py_CLEAR(self->function);
  Py_CLEAR(self->keywords);
  return 0;
}

void spread_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  spread_clear(object);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject SpreadType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.Spread",
    .tp_basicsize = sizeof(Spread),
    .tp_dealloc = spread_dealloc,
    .tp_vectorcall_offset = offsetof(Spread, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Spread(code, globals): runs the code on the values of a dispatcher",
    .tp_traverse = spread_traverse,
    .tp_clear = spread_clear,
    .tp_new = spread_new,
};

}  // namespace

PyObject* code_of(PyObject* callee) {
  if (Py_IS_TYPE(callee, &SpreadType)) return reinterpret_cast<PyObject*>(reinterpret_cast<Spread*>(callee)->code);
  return PyFunction_Check(callee) ? PyFunction_GET_CODE(callee) : nullptr;
}

bool register_spread(PyObject* module) { return PyModule_AddType(module, &SpreadType) == 0; }

}  // namespace jitmagic
