// BySizes: one executable per size tuple that a graph was called with, selected natively.
//
// A symbol's value is read from the inputs: the size of dimension `dim` of input `place`; for `dim` -1 the number in
// it, an int64 on the CPU; below that the stride of dimension -2 - dim (symbols/size.py). Without places the caller
// passes the size tuple (autograd_template.cpp). Size tuples are few, so they are searched linearly, most recently
// used first. A new one is built by the first Template whose predicates hold; otherwise Python returns the callable.
// Beyond `most`, the least recently used is evicted.

#include "callable.h"
#include "sizes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic {
namespace {

using Vector = c10::SmallVector<int64_t, 4>;

struct Dimension {
  Py_ssize_t place;
  int64_t dim;
};

struct Variant {
  Vector values;
  PyObject* run;
};

struct TemplateEntry {
  PyObject* predicates;  // a SizeProgram
  PyObject* made;        // a Template
  PyObject* checked;     // called with the values first, or None
};

struct BySizes : Callable {
  PyObject* miss;
  std::vector<Dimension>* places;
  std::vector<Variant>* known;
  std::vector<TemplateEntry>* templates;
  std::vector<Vector>* excluded;  // size tuples that are not served by templates
  size_t most;
};

// Returns why there is no such number (a format for the input's index), or nullptr.
const char* read_size(const Dimension& where, PyObject* const* args, Py_ssize_t count, int64_t& size) {
  if (where.place >= count || !THPVariable_Check(args[where.place])) return "input %zd is not a tensor";
  const at::Tensor& tensor = THPVariable_Unpack(args[where.place]);
  if (where.dim == -1) {
    const bool is_number = tensor.is_cpu() && tensor.scalar_type() == at::kLong && tensor.numel() == 1;
    if (!is_number) return "input %zd is not an int64 on the CPU";
    size = *static_cast<const int64_t*>(tensor.const_data_ptr());
    return nullptr;
  }
  const bool is_size = where.dim >= 0;
  const int64_t dim = is_size ? where.dim : -2 - where.dim;
  if (dim >= tensor.dim()) return "input %zd has too few dimensions";
  size = (is_size ? tensor.sizes() : tensor.strides())[size_t(dim)];
  return nullptr;
}

// Returns false with a Python error set.
bool read_sizes(const BySizes* self, PyObject* const* args, Py_ssize_t count, Vector& values) {
  for (const Dimension& where : *self->places) {
    if (const char* why = read_size(where, args, count, values.emplace_back())) {
      const bool is_tensor = where.place < count && THPVariable_Check(args[where.place]);
      return PyErr_Format(is_tensor ? PyExc_ValueError : PyExc_TypeError, why, where.place), false;
    }
  }
  return true;
}

// Returns the executable for these values, moved to the front, or nullptr.
PyObject* found(std::vector<Variant>& known, const Vector& values) {
  const auto at = std::ranges::find(known, values, &Variant::values);
  if (at == known.end()) return nullptr;
  std::rotate(known.begin(), at, at + 1);
  return known.front().run;
}

void keep(BySizes* self, const Vector& values, PyObject* run) {
  self->known->insert(self->known->begin(), {values, Py_NewRef(run)});
  if (self->known->size() > self->most) {
    THPObjectPtr forgotten(self->known->back().run);  // destroyed last: that may run code
    self->known->pop_back();
  }
}

// Builds and caches the executable for new values by a Template; nullptr if none applies.
PyObject* made_for(BySizes* self, const Vector& values) {
  if (self->templates->empty() || std::ranges::find(*self->excluded, values) != self->excluded->end()) return nullptr;
  Registers registers;
  for (size_t i = 0; i < self->templates->size(); i++) {  // the called Python code may add others
    if (!evaluate(*size_program((*self->templates)[i].predicates), values, registers)) continue;
    THPObjectPtr made(Py_NewRef((*self->templates)[i].made)), checked(Py_NewRef((*self->templates)[i].checked));
    if (checked.get() != Py_None) {
      THPObjectPtr numbers(tuple_of(values));
      THPObjectPtr answer(numbers ? PyObject_CallOneArg(checked.get(), numbers.get()) : nullptr);
      if (!answer) raise_python_error();
    }
    THPObjectPtr run(instance_of(made.get(), values));
    keep(self, values, run.get());
    return run.release();
  }
  return nullptr;
}

// Asks Python for new values: miss(values, inputs).
PyObject* missed(const BySizes* self, const Vector& values, PyObject* const* args, Py_ssize_t count) {
  THPObjectPtr numbers(tuple_of(values));
  THPObjectPtr inputs(PyTuple_New(count));
  if (!numbers || !inputs) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(inputs.get(), i, Py_NewRef(args[i]));
  PyObject* both[] = {numbers.get(), inputs.get()};
  return PyObject_Vectorcall(self->miss, both, 2, nullptr);
}

// Returns a new reference; nullptr with a Python error set.
PyObject* run_for(BySizes* self, const Vector& values, PyObject* const* args, Py_ssize_t count) {
  if (PyObject* run = found(*self->known, values)) return Py_NewRef(run);  // the call may replace it
  if (PyObject* run = made_for(self, values)) return run;
  return missed(self, values, args, count);
}

PyObject* run_of_new(BySizes* self, const Vector& values, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  return run_for(self, values, args, count);
  END_HANDLE_TH_ERRORS
}

// Variant sizes are selected outside of torch's handler of errors and warnings, which is half of the cost.
PyObject* sized_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  auto* self = reinterpret_cast<BySizes*>(object);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  Vector values;
  if (!read_sizes(self, args, count, values)) return nullptr;
  PyObject* run = found(*self->known, values);
  THPObjectPtr held(run ? Py_NewRef(run) : run_of_new(self, values, args, count));  // the call may replace it
  return held ? PyObject_Vectorcall(held.get(), args, size_t(count), names) : nullptr;
}

PyObject* sized_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *places, *miss, *excluded = nullptr;
  Py_ssize_t most = PY_SSIZE_T_MAX;
  if (!PyArg_ParseTuple(args, "OO|nO!:BySizes", &places, &miss, &most, &PyTuple_Type, &excluded)) return nullptr;
  check(PyExc_ValueError, most > 0, "at least one size has to be kept");
  THPObjectPtr made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<BySizes*>(made.get());
  self->vectorcall = sized_call;
  self->places = new std::vector<Dimension>();
  self->known = new std::vector<Variant>();
  self->templates = new std::vector<TemplateEntry>();
  self->excluded = new std::vector<Vector>();
  self->most = size_t(most);
  for (PyObject* place : items(places)) {
    self->places->push_back({Py_ssize_t(integer(item(place, 0))), integer(item(place, 1))});
    const Dimension& last = self->places->back();
    check(PyExc_ValueError, last.place >= 0, "a size is named by an input and a dimension");
  }
  if (excluded) {
    for (PyObject* values : items(excluded)) {
      const auto numbers = values_of(values);
      self->excluded->emplace_back(numbers.begin(), numbers.end());
    }
  }
  self->miss = Py_NewRef(miss);
  return made.release();
  END_HANDLE_TH_ERRORS
}

// add(values, run): sets the executable for these sizes.
PyObject* sized_add(PyObject* object, PyObject* args) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<BySizes*>(object);
  PyObject *values, *run;
  if (!PyArg_ParseTuple(args, "OO:add", &values, &run)) return nullptr;
  const std::vector<int64_t> numbers = integers(values);
  check(PyExc_ValueError, self->places->empty() || numbers.size() == self->places->size(),
        "%zu sizes are given, not %zu", numbers.size(), self->places->size());
  const Vector key(numbers.begin(), numbers.end());
  if (found(*self->known, key)) Py_SETREF(self->known->front().run, Py_NewRef(run));
  else keep(self, key, run);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// add_template(predicates, template, checked): adds a template for values that satisfy the predicates.
PyObject* sized_add_template(PyObject* object, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *predicates, *made, *checked;
  if (!PyArg_ParseTuple(args, "OOO:add_template", &predicates, &made, &checked)) return nullptr;
  const SizeProgram& program = *size_program(predicates);
  const auto* self = reinterpret_cast<BySizes*>(object);
  check(PyExc_ValueError, self->places->empty() || program.code->inputs == self->places->size(),
        "predicates of %zu sizes, not %zu", program.code->inputs, self->places->size());
  self->templates->push_back({Py_NewRef(predicates), Py_NewRef(made), Py_NewRef(checked)});
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

int sized_traverse(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<BySizes*>(object);
  Py_VISIT(self->miss);
  Py_VISIT(self->construction);
  if (!self->templates) return 0;
  for (const Variant& one : *self->known) Py_VISIT(one.run);
  for (const TemplateEntry& family : *self->templates) {
    Py_VISIT(family.made);
    Py_VISIT(family.checked);
  }
  return 0;
}

int sized_clear(PyObject* object) {
  auto* self = reinterpret_cast<BySizes*>(object);
  Py_CLEAR(self->miss);
  Py_CLEAR(self->construction);
  if (!self->templates) return 0;
  std::vector<Variant> dropped;
  std::swap(dropped, *self->known);
  for (Variant& one : dropped) Py_DECREF(one.run);
  std::vector<TemplateEntry> left;
  std::swap(left, *self->templates);
  for (TemplateEntry& family : left) {
    for (PyObject* held : {family.predicates, family.made, family.checked}) Py_DECREF(held);
  }
  return 0;
}

void sized_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  sized_clear(object);
  delete reinterpret_cast<BySizes*>(object)->places;
  delete reinterpret_cast<BySizes*>(object)->known;
  delete reinterpret_cast<BySizes*>(object)->templates;
  delete reinterpret_cast<BySizes*>(object)->excluded;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef sized_methods[] = {
    {"add", sized_add, METH_VARARGS, "add(values, run): set the executable for these sizes."},
    {"add_template", sized_add_template, METH_VARARGS,
     "add_template(predicates, template, checked): add a template for values that satisfy the predicates; `checked`, "
     "unless None, is called with them first."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject sized_type = callable_type({
    .full_name = "jitmagic._runtime.BySizes",
    .doc = "BySizes(places, miss, most, excluded): calls the executable for the sizes of the inputs, read at places, "
           "pairs of an input and a dimension; miss(values, inputs) returns one for new sizes. At most `most` are "
           "kept. Size tuples in `excluded` are not served by templates.",
    .size = sizeof(BySizes),
    .make = sized_new,
    .dealloc = sized_dealloc,
    .traverse = sized_traverse,
    .clear = sized_clear,
});

}  // namespace

PyObject* run_of(PyObject* by_sizes, Values values, PyObject* const* args, Py_ssize_t count) {
  check(PyExc_TypeError, Py_IS_TYPE(by_sizes, &sized_type), "expected a BySizes");
  PyObject* run = run_for(reinterpret_cast<BySizes*>(by_sizes), Vector(values.begin(), values.end()), args, count);
  if (!run) raise_python_error();
  return run;
}

bool register_sized(PyObject* module) {
  sized_type.tp_methods = sized_methods;
  return PyModule_AddType(module, &sized_type) == 0;
}

}  // namespace jitmagic
