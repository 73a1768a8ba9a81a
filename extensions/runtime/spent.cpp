// FreedResults: a compiled graph with a backward inside, whose results have a history that this backward has freed.
//
// In eager such a loss still requires grad, and a second backward raises. The graph's result is a plain tensor; here
// it gets a node that raises the same error, with edges to the leaves of that history.

#include "around.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "reading.h"

namespace jitmagic {
namespace {

using torch::autograd::Error;
using torch::autograd::Node;

using NodePtr = decltype(torch::autograd::Edge::function);  // intrusive since torch 2.13

template <class T>
NodePtr error_node(torch::autograd::edge_list&& edges) {
  const char* message = torch::autograd::ERR_BACKWARD_TWICE;
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    return std::shared_ptr<T>(new T(message, std::move(edges)), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(message, std::move(edges));
  }
}

PyObject* freed_results_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto& wrapper = *reinterpret_cast<GraphWrapper*>(self);
  PyObject* made = PyObject_Vectorcall(wrapper.run, args, nargsf, names);
  if (!made) return nullptr;
  torch::autograd::edge_list edges;
  for (Py_ssize_t leaf : *wrapper.others) {
    if (leaf < PyVectorcall_NARGS(nargsf) && THPVariable_Check(args[leaf])) {
      edges.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(args[leaf])));
    }
  }
  const auto node = error_node<Error>(std::move(edges));
  for (Py_ssize_t position : *wrapper.positions) {
    if (position >= PyTuple_GET_SIZE(made)) continue;
    torch::autograd::set_history(THPVariable_Unpack(PyTuple_GET_ITEM(made, position)), node);
  }
  return made;
  END_HANDLE_TH_ERRORS
}

PyObject* freed_results_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *run, *positions, *leaves;
  if (!PyArg_ParseTuple(args, "OOO:FreedResults", &run, &positions, &leaves)) return nullptr;
  return reinterpret_cast<PyObject*>(make_wrapper(type, run, positions, freed_results_call, leaves));
  END_HANDLE_TH_ERRORS
}

PyTypeObject freed_results_type = wrapper_type(
    "jitmagic._runtime.FreedResults",
    "FreedResults(run, positions, leaves): calls run; the results at these positions require grad, and their backward "
    "raises because the history has been freed. It led to the inputs at `leaves`.",
    freed_results_new, sizeof(GraphWrapper));

// Returns whether Python or C++ hooks run when a gradient of the leaf is accumulated, as guards_tensor.cpp does.
PyObject* has_gradient_hooks(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  if (!THPVariable_Check(object)) raise_as(PyExc_TypeError, "has_gradient_hooks: a tensor is expected");
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!torch::autograd::impl::get_autograd_meta(tensor)) Py_RETURN_FALSE;
  bool hooked = !torch::autograd::impl::hooks(tensor).empty() || torch::autograd::impl::post_acc_grad_hooks(tensor);
  if (const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor)) {
    hooked = hooked || !node->pre_hooks().empty() || !node->post_hooks().empty() || !node->tensor_pre_hooks().empty();
  }
  return PyBool_FromLong(hooked);
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"has_gradient_hooks", has_gradient_hooks, METH_O, "Return whether a leaf has hooks that run in a backward."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool register_freed_results(PyObject* module) {
  return PyModule_AddType(module, &freed_results_type) == 0 && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace jitmagic
