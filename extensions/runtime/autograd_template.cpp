// AutogradTemplate: a differentiable compiled call for all sizes. Makes the AutogradFunction of each size tuple.
//
// What a call saves, and which results have which history, does not depend on sizes; layouts of tangents, views and
// stand-ins are filled in. The backward for some tangents is a BySizes, which Python returns once from
// `resolve(missing)`. A replay (`replay(values)`) is created when a backward is differentiated.

#include "signature.h"

#include <map>
#include <memory>
#include <vector>

#include <torch/csrc/Exceptions.h>

namespace jitmagic {
namespace {

struct AutogradTemplate : Template {
  Facts* facts;
  std::map<std::vector<char>, PyObject*>* backwards;  // by which tangents are given
  PyObject* forward;  // a Template, an executable or None
  PyObject* resolve;
  PyObject* replay;
  PyObject* compile_failed;
  PyObject* double_backward;
  PyObject* sized;  // (tangents, aliasing, absent), with Registers
  PyObject* sizes;  // a SizeProgram
};

AutogradTemplate* autograd_template(PyObject* object) { return reinterpret_cast<AutogradTemplate*>(object); }

PyObject* make_function(PyObject* object, Values values) {
  const AutogradTemplate* self = autograd_template(object);
  THPObjectPtr sized(filled(self->sized, computed(*size_program(self->sizes), values)));
  auto signature = std::make_shared<Signature>(*self->facts);
  signature->forward = instance_of(self->forward, values);
  signature->compile_failed = Py_NewRef(self->compile_failed);
  signature->double_backward = Py_NewRef(self->double_backward);
  signature->family = Py_NewRef(object);
  signature->keeps_large = bool(signature->checks);
  signature->values.assign(values.begin(), values.end());
  read_sized(item(sized.get(), 0), item(sized.get(), 1), item(sized.get(), 2), *signature);
  return autograd_function_of(std::move(signature));
}

int autograd_template_traverse(PyObject* object, visitproc visit, void* arg) {
  const AutogradTemplate* self = autograd_template(object);
  for (PyObject* held : {self->forward, self->resolve, self->replay, self->construction}) Py_VISIT(held);
  if (!self->backwards) return 0;
  for (const auto& [given, backward] : *self->backwards) Py_VISIT(backward);
  return 0;
}

int autograd_template_clear(PyObject* object) {
  AutogradTemplate* self = autograd_template(object);
  Py_CLEAR(self->forward);
  Py_CLEAR(self->resolve);
  Py_CLEAR(self->replay);
  Py_CLEAR(self->construction);
  if (!self->backwards) return 0;
  std::map<std::vector<char>, PyObject*> dropped;
  std::swap(dropped, *self->backwards);
  for (const auto& [given, backward] : dropped) Py_DECREF(backward);
  return 0;
}

void autograd_template_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  autograd_template_clear(object);
  AutogradTemplate* self = autograd_template(object);
  for (PyObject* held : {self->compile_failed, self->double_backward, self->sized, self->sizes}) Py_XDECREF(held);
  delete self->facts;
  delete self->backwards;
  Py_TYPE(object)->tp_free(object);
}

PyObject* autograd_template_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *forward, *resolve, *replay, *dict, *sized, *sizes, *failed, *twice;
  if (!PyArg_ParseTuple(
          args, "OOOO!O!OOO:AutogradTemplate", &forward, &resolve, &replay, &PyDict_Type, &dict, &PyTuple_Type, &sized,
          &sizes, &failed, &twice)) {
    return nullptr;
  }
  size_program(sizes);
  THPObjectPtr made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  AutogradTemplate* self = autograd_template(made.get());
  self->make = make_function;
  self->facts = new Facts();
  self->backwards = new std::map<std::vector<char>, PyObject*>();
  read_facts(dict, *self->facts);
  self->forward = Py_NewRef(forward);
  self->resolve = Py_NewRef(resolve);
  self->replay = Py_NewRef(replay);
  self->compile_failed = Py_NewRef(failed);
  self->double_backward = Py_NewRef(twice);
  self->sized = Py_NewRef(sized);
  self->sizes = Py_NewRef(sizes);
  return made.release();
  END_HANDLE_TH_ERRORS
}

PyTypeObject autograd_template_type;

}  // namespace

PyObject* backward_of(PyObject* family, const std::vector<char>& given, Values values) {
  AutogradTemplate* self = autograd_template(family);
  const auto known = self->backwards->find(given);
  THPObjectPtr by_sizes(known == self->backwards->end() ? nullptr : Py_NewRef(known->second));
  if (!by_sizes) {
    THPObjectPtr missing(missing_tangents(given));
    if (!missing) raise_python_error();
    by_sizes = PyObject_CallOneArg(self->resolve, missing.get());
    if (!by_sizes) raise_python_error();
    const auto [place, is_new] = self->backwards->emplace(given, by_sizes.get());
    if (is_new) Py_INCREF(by_sizes.get());
  }
  return run_of(by_sizes.get(), values, nullptr, 0);
}

PyObject* replay_of(PyObject* family, Values values) {
  THPObjectPtr numbers(tuple_of(values));
  if (!numbers) raise_python_error();
  PyObject* made = PyObject_CallOneArg(autograd_template(family)->replay, numbers.get());
  if (!made) raise_python_error();
  return made;
}

bool register_autograd_template(PyObject* module) {
  autograd_template_type = template_type_of(
      "jitmagic._runtime.AutogradTemplate",
      "AutogradTemplate(forward, resolve, replay, signature, sized, sizes, failed, twice): makes AutogradFunctions; "
      "`sized` are the tangents, aliasing and absent of the signature, with Registers.",
      sizeof(AutogradTemplate), autograd_template_new, autograd_template_dealloc, autograd_template_traverse, autograd_template_clear);
  return PyModule_AddType(module, &autograd_template_type) == 0;
}

}  // namespace jitmagic
