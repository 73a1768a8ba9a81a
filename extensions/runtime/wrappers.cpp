// WithInnerTensors: a compiled graph that gets inner tensors of wrapper subclasses which require grad.
//
// An inner tensor has no history of its own. The graph gets an alias of it whose gradient is a part of the wrapper's:
// the node of a wrapper takes the gradients of its parts, calls a Python function that wraps them, and passes the
// result to the history of the wrapper.

#include "around.h"
#include "held.h"
#include "node.h"
#include "reading.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <optional>

namespace jitmagic {
namespace {

using torch::autograd::variable_list;

// A size of a gradient: a number, or that dimension of the wrapper or of the part; as in wrapping.py.
enum class From : int64_t { number = 0, wrapper = 1, part = 2 };

struct Extent {
  From from;
  int64_t number;
};

struct Part {
  PyObject* name;  // borrowed from the description
  bool is_differentiable;
  std::optional<std::vector<Extent>> shape;  // of the gradient, if it is not that of the tensor
};

struct Wrapper {
  std::vector<Part> parts;
  Py_ssize_t parent, place;  // the wrapper in which it is, and its part there; parent -1: an argument
  PyObject* rebuild;  // borrowed
};

struct Taken {
  Py_ssize_t input, wrapper, part;
};

struct InnerTensors : GraphWrapper {
  PyObject* description;
  std::vector<Wrapper>* wrappers;
  std::vector<Taken>* taken;
};

// Wraps the gradients of the parts.
class WrapperNode : public torch::autograd::Node {
 public:
  WrapperNode(Owned rebuild, Owned inner, const at::Tensor& wrapper)
      : rebuild_(std::move(rebuild)), inner_(std::move(inner)) {
    if (wrapper.is_nested()) return;  // its class computes them of the inner tensors
    sizes_ = wrapper.sizes().vec();
    strides_ = wrapper.strides().vec();
  }

  std::string name() const override { return "WrapperBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const auto is_defined = [](const at::Tensor& one) { return one.defined(); };
    if (std::none_of(gradients.begin(), gradients.end(), is_defined)) return {at::Tensor()};
    for (size_t i = 0; i < gradients.size(); i++) {
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    }
    const GilGuard gil;
    THPObjectPtr parts(PySequence_List(inner_.get()));  // None for those with gradients
    for (Py_ssize_t i = 0, next = 0; parts && i < PyList_GET_SIZE(parts.get()); i++) {
      if (PyList_GET_ITEM(parts.get(), i) != Py_None) continue;
      if (PyList_SetItem(parts.get(), i, THPVariable_Wrap(gradients.at(next++))) < 0) raise_python_error();
    }
    THPObjectPtr sizes(from(sizes_)), strides(from(strides_));
    if (!parts || !sizes || !strides) raise_python_error();
    THPObjectPtr made(
        PyObject_CallFunctionObjArgs(rebuild_.get(), parts.get(), sizes.get(), strides.get(), nullptr));
    if (!made) raise_python_error();
    return {THPVariable_Unpack(made.get())};
  }

 private:
  static PyObject* from(const std::vector<int64_t>& numbers) {
    PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(numbers.size()));
    for (size_t i = 0; made && i < numbers.size(); i++) PyTuple_SET_ITEM(made, i, PyLong_FromLongLong(numbers[i]));
    return made;
  }

  Owned rebuild_, inner_;
  std::vector<int64_t> sizes_, strides_;
};

std::vector<int64_t> sizes_at(const std::vector<Extent>& shape, const at::Tensor& wrapper, const at::Tensor& part) {
  std::vector<int64_t> sizes;
  for (const Extent& one : shape) {
    sizes.push_back(one.from == From::wrapper ? wrapper.size(one.number)
                    : one.from == From::part  ? part.size(one.number)
                                              : one.number);
  }
  return sizes;
}

// Returns the inner tensors of a wrapper: aliases with a history if it requires grad. Throws python_error.
std::vector<THPObjectPtr> take_apart(const Wrapper& form, PyObject* object) {
  if (!THPVariable_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor subclass");
    raise_python_error();
  }
  const at::Tensor& wrapper = THPVariable_Unpack(object);
  std::vector<THPObjectPtr> inner;
  for (const Part& part : form.parts) {
    inner.emplace_back(PyObject_GetAttr(object, part.name));
    if (!inner.back()) raise_python_error();
  }
  if (!wrapper.requires_grad()) return inner;
  THPObjectPtr others(PyTuple_New(static_cast<Py_ssize_t>(inner.size())));
  if (!others) raise_python_error();
  for (size_t i = 0; i < inner.size(); i++) {
    PyTuple_SET_ITEM(others.get(), i, Py_NewRef(form.parts[i].is_differentiable ? Py_None : inner[i].get()));
  }
  auto node = make_node<WrapperNode>(owned(form.rebuild), owned(others.get()), wrapper);
  node->add_next_edge(torch::autograd::impl::gradient_edge(wrapper));
  for (size_t i = 0; i < inner.size(); i++) {
    const Part& part = form.parts[i];
    if (!part.is_differentiable) continue;
    // An alias shares the version counter, so that writes to the tensor are noticed by the graph's backward.
    at::Tensor alias = THPVariable_Unpack(inner[i].get()).detach();
    const at::Tensor like =
        part.shape ? alias.new_empty({}).expand(sizes_at(*part.shape, wrapper, alias)) : alias;
    torch::autograd::impl::set_gradient_edge(
        alias, {node, static_cast<uint32_t>(node->add_input_metadata(like))});
    inner[i] = THPVariable_Wrap(std::move(alias));
    if (!inner[i]) raise_python_error();
  }
  return inner;
}

PyObject* inner_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* graph = reinterpret_cast<InnerTensors*>(self);
  const size_t inputs = graph->positions->front(), count = PyVectorcall_NARGS(nargsf);
  const size_t last = inputs + graph->wrappers->size();
  if (count < last || names) return PyErr_Format(PyExc_TypeError, "expected %zu arguments", last);
  std::vector<std::vector<THPObjectPtr>> parts;
  for (size_t i = 0; i < graph->wrappers->size(); i++) {
    const Wrapper& form = (*graph->wrappers)[i];
    PyObject* object = form.parent < 0 ? args[inputs + i] : parts.at(form.parent).at(form.place).get();
    parts.push_back(take_apart(form, object));
  }
  std::vector<PyObject*> given(args, args + inputs);
  for (const Taken& one : *graph->taken) given.at(one.input) = parts.at(one.wrapper).at(one.part).get();
  given.insert(given.end(), args + last, args + count);
  return PyObject_Vectorcall(graph->run, given.data(), given.size(), nullptr);
  END_HANDLE_TH_ERRORS
}

Part read_part(PyObject* form) {
  Part part{};
  PyObject* shape;
  int is_differentiable;
  if (!PyArg_ParseTuple(form, "UpO", &part.name, &is_differentiable, &shape)) raise_python_error();
  part.is_differentiable = is_differentiable;
  if (shape == Py_None) return part;
  part.shape.emplace();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++) {
    long long from, number;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(shape, i), "LL", &from, &number)) raise_python_error();
    part.shape->push_back({static_cast<From>(from), number});
  }
  return part;
}

Wrapper read_wrapper(PyObject* form) {
  Wrapper made{};
  PyObject* parts;
  if (!PyArg_ParseTuple(form, "O!nnO", &PyTuple_Type, &parts, &made.parent, &made.place, &made.rebuild)) {
    raise_python_error();
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
    made.parts.push_back(read_part(PyTuple_GET_ITEM(parts, i)));
  }
  return made;
}

PyObject* inner_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *run, *inputs, *wrappers, *taken;
  if (!PyArg_ParseTuple(args, "OO!O!O!:WithInnerTensors", &run, &PyTuple_Type, &inputs, &PyTuple_Type, &wrappers,
                        &PyTuple_Type, &taken)) {
    return nullptr;
  }
  auto forms = std::make_unique<std::vector<Wrapper>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(wrappers); i++) {
    forms->push_back(read_wrapper(PyTuple_GET_ITEM(wrappers, i)));
  }
  auto rows = std::make_unique<std::vector<Taken>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(taken); i++) {
    Taken one{};
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(taken, i), "nnn", &one.input, &one.wrapper, &one.part)) return nullptr;
    rows->push_back(one);
  }
  auto* made = static_cast<InnerTensors*>(make_wrapper(type, run, inputs, inner_call));
  made->description = Py_NewRef(wrappers);
  made->wrappers = forms.release();
  made->taken = rows.release();
  return reinterpret_cast<PyObject*>(made);
  END_HANDLE_TH_ERRORS
}

void inner_dealloc(PyObject* self) {
  auto* graph = reinterpret_cast<InnerTensors*>(self);
  delete graph->wrappers;
  delete graph->taken;
  Py_CLEAR(graph->description);
  wrapper_dealloc(self);
}

PyTypeObject inner_type() {
  PyTypeObject made = wrapper_type(
      "jitmagic._runtime.WithInnerTensors",
      "WithInnerTensors(run, (inputs,), wrappers, taken): calls run with its first `inputs` arguments, in which "
      "(input, wrapper, part) of `taken` are replaced by parts of the wrappers that follow. Of each wrapper: its parts "
      "(name, whether it has a gradient, the shape of that as (from, number) or None), the wrapper and part that it is "
      "or -1, and the function that wraps gradients.",
      inner_new, sizeof(InnerTensors));
  made.tp_dealloc = inner_dealloc;
  return made;
}

PyTypeObject type_of_inner = inner_type();

}  // namespace

bool register_inner_tensors(PyObject* module) { return PyModule_AddType(module, &type_of_inner) == 0; }

}  // namespace jitmagic
