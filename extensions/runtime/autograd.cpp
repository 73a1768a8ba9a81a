// AutogradFunction: a compiled forward and backward as one differentiable call (jitmagic/autograd/autograd_function.py).
//
// AutogradFunction(forward, resolve, replay, signature): called with the graph's input tensors, it returns the tuple
// of user outputs. `forward` returns (*results, *saved intermediates), None for a missing one. `resolve(missing)`
// returns the backward for these missing tangents at its first use, called with (*saved, *tangents). Each call that
// needs gradients creates its autograd nodes (node.h, split.h). Views are then replayed and version counters
// incremented, which are not part of the graph (view_replay.h). A backward that is itself differentiated
// (create_graph) calls `replay` instead, with the inputs, their history and the generator states of the call
// (jitmagic/autograd/replay.py). The results' history, version counters and saved tensors are torch's own, so hooks,
// retain_graph, anomaly mode and in-place checks work as for any other operation.

#include "callable.h"
#include "node.h"
#include "split.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace jitmagic {
namespace {

struct AutogradFunction : Callable {
  std::shared_ptr<Signature>* signature;
};

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
         b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Returns the range of bytes in its storage that a tensor spans.
std::pair<int64_t, int64_t> bytes_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto size = int64_t(tensor.element_size());
  const int64_t begin = tensor.storage_offset() * size;
  return {begin, tensor.numel() ? begin + (last + 1) * size : begin};
}

// Parameters that are parts of one flat buffer share its storage, but no memory.
bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!share_storage(a, b)) return false;
  const auto [begin, end] = bytes_of(a);
  const auto [start, stop] = bytes_of(b);
  return std::max(begin, start) < std::min(end, stop);  // an empty one shares none at any offset
}

// Sorted by storage: an optimizer's hundreds of tensors are then compared only within their own buffer.
void refuse_overlap(const Signature& s, PyObject* const* args) {
  if (s.mutated.empty()) return;
  c10::SmallVector<std::pair<const c10::StorageImpl*, size_t>, 32> inputs;
  std::vector<bool> written(s.inputs);
  for (size_t m : s.mutated) written[m] = true;
  for (size_t i = 0; i < s.inputs; i++) {
    const c10::TensorImpl* impl = THPVariable_Unpack(args[i]).unsafeGetTensorImpl();
    inputs.emplace_back(impl->unsafe_storage().unsafeGetStorageImpl(), i);
  }
  std::ranges::sort(inputs);
  for (size_t i = 0; i < inputs.size(); i++) {
    for (size_t j = i + 1; j < inputs.size() && inputs[j].first == inputs[i].first; j++) {
      const size_t a = inputs[i].second, b = inputs[j].second;
      if ((written[a] || written[b]) && share_memory(THPVariable_Unpack(args[a]), THPVariable_Unpack(args[b]))) {
        raise_as(s.compile_failed, "an input that the graph writes to shares memory with another input");
      }
    }
  }
}

const at::Tensor& result_of(PyObject* made, size_t index) {
  return THPVariable_Unpack(PyTuple_GET_ITEM(made, index));
}

void save(const Signature& s, CallState& state, PyObject* const* args, PyObject* made) {
  state.saved.reserve(s.saved_inputs.size() + s.saved_results.size() + s.intermediates);
  for (size_t i : s.saved_inputs) state.saved.emplace_back(THPVariable_Unpack(args[i]), false);
  for (size_t i : s.saved_results) state.saved.emplace_back(result_of(made, i), true);
  for (size_t i = 0; i < s.intermediates; i++) {
    const at::Tensor& value = result_of(made, s.results + i);
    for (size_t r = 0; r < s.results; r++) {
      const at::Tensor& result = result_of(made, r);
      if (share_storage(value, result)) {
        // A write to the result must be detected when the intermediate is unpacked.
        torch::autograd::impl::set_version_counter(value, torch::autograd::impl::version_counter(result));
      }
    }
    state.saved.emplace_back(value, false);
  }
}

// Creates the nodes and makes them the history of the results that require grad.
std::shared_ptr<CallState> attach_nodes(
    const std::shared_ptr<Signature>& signature, PyObject* const* args, PyObject* made) {
  const Signature& s = *signature;
  torch::autograd::edge_list edges;
  edges.reserve(s.grad_inputs.size());
  for (size_t i : s.grad_inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(args[i])));
  }
  torch::autograd::variable_list results;
  for (const Tangent& tangent : s.tangents) results.push_back(result_of(made, tangent.result));
  std::shared_ptr<CallState> state;
  if (s.histories.are_one) {
    state = std::make_shared<CallState>(signature);
    const auto node = make_node<CompiledBackward>(state);
    node->set_next_edges(std::move(edges));
    const NodePtr shared = node;
    for (const at::Tensor& result : results) {
      if (results.size() == 1) torch::autograd::set_history(result, shared);
      else add_result_node(result, {shared, shared->add_input_metadata(result)});
    }
  } else {
    state = SplitCall::attach(signature, results, std::move(edges));
  }
  for (const at::Tensor& result : results) state->tangent_options.push_back(result.options());
  return state;
}

// Saves the call's values in the nodes, with the version counters of this moment.
void fill_state(CallState& state, PyObject* const* args, PyObject* made, ForwardSnapshot&& before) {
  try {
    save(*state.signature, state, args, made);
    state.save_replay_inputs(args, std::move(before));
  } catch (python_error& error) {  // a user hook raised: running in eager would not fix that
    GilGuard gil;
    error.restore();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (PyObject_SetAttrString(value, "__jitmagic_from_hook__", Py_True) < 0) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    raise_python_error();
  }
}

// The tensors of a call by slot.
class Slots {
 public:
  Slots(const Signature& s, PyObject* const* args, PyObject* made) : s_(s), args_(args), made_(made) {}

  void replay_views() {
    for (const AliasStep& step : s_.aliasing) perform(step, tensor(step.slot), views_);
  }

  // Returns a new reference.
  PyObject* object(size_t slot) {
    if (slot < s_.inputs) return Py_NewRef(args_[slot]);
    if (slot < s_.inputs + s_.results) return Py_NewRef(PyTuple_GET_ITEM(made_, slot - s_.inputs));
    return THPVariable_Wrap(views_[slot - s_.inputs - s_.results]);
  }

 private:
  const Signature& s_;
  PyObject* const* args_;
  PyObject* made_;
  c10::SmallVector<at::Tensor, 4> views_;

  // Returns a copy, since `views_` may reallocate while it is used.
  at::Tensor tensor(size_t slot) const {
    if (slot < s_.inputs) return THPVariable_Unpack(args_[slot]);
    if (slot < s_.inputs + s_.results) return result_of(made_, slot - s_.inputs);
    return views_[slot - s_.inputs - s_.results];
  }
};

PyObject* assemble(const Signature& s, Slots& slots) {
  THPObjectPtr tuple(PyTuple_New(Py_ssize_t(s.outputs.size())));
  if (!tuple) raise_python_error();
  for (size_t i = 0; i < s.outputs.size(); i++) {
    PyObject* value = slots.object(s.outputs[i]);
    if (!value) raise_python_error();
    PyTuple_SET_ITEM(tuple.get(), i, value);
  }
  return tuple.release();
}

THPObjectPtr run_forward(const Signature& s, PyObject* const* args) {
  if (s.forward == Py_None) return THPObjectPtr(PyTuple_New(0));  // all outputs are inputs or views of them
  at::AutoGradMode no_grad(false);
  at::AutoDispatchBelowADInplaceOrView plain;  // the graph's views are plain tensors to the caller
  AutocastOff autocast;
  THPObjectPtr made(PyObject_Vectorcall(s.forward, args, s.inputs, nullptr));
  if (!made) raise_python_error();
  if (!PyTuple_Check(made.get()) || size_t(PyTuple_GET_SIZE(made.get())) != s.results + s.intermediates) {
    raise_as(PyExc_RuntimeError, "jitmagic: the compiled forward did not return its results");
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made.get()); i++) {
    if (!THPVariable_Check(PyTuple_GET_ITEM(made.get(), i))) {
      raise_as(s.compile_failed, "an operation returned no tensor where the graph expects one");
    }
  }
  return made;
}

PyObject* function_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<Signature>& signature = *reinterpret_cast<AutogradFunction*>(self)->signature;
  const Signature& s = *signature;
  if (size_t(PyVectorcall_NARGS(nargsf)) != s.inputs || (kwnames && PyTuple_GET_SIZE(kwnames))) {
    return PyErr_Format(PyExc_TypeError, "expected %zu input tensors and no keywords", s.inputs);
  }
  for (size_t i = 0; i < s.inputs; i++) {
    if (!THPVariable_Check(args[i])) return PyErr_Format(PyExc_TypeError, "input %zu is not a tensor", i);
  }
  refuse_overlap(s, args);
  ForwardSnapshot before = s.tangents.empty() ? ForwardSnapshot() : ForwardSnapshot(s, args);
  THPObjectPtr made = run_forward(s, args);
  const std::shared_ptr<CallState> state =
      s.tangents.empty() ? nullptr : attach_nodes(signature, args, made.get());
  Slots slots(s, args, made.get());
  slots.replay_views();
  if (state) fill_state(*state, args, made.get(), std::move(before));
  return assemble(s, slots);
  END_HANDLE_TH_ERRORS
}

PyObject* function_new(PyTypeObject*, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *forward, *resolve, *replay, *dict, *failed, *twice;
  if (!PyArg_ParseTuple(
          args, "OOOO!OO:AutogradFunction", &forward, &resolve, &replay, &PyDict_Type, &dict, &failed, &twice)) {
    return nullptr;
  }
  auto signature = std::make_shared<Signature>();
  signature->forward = Py_NewRef(forward);
  signature->resolve = Py_NewRef(resolve);
  signature->compile_failed = Py_NewRef(failed);
  signature->double_backward = Py_NewRef(twice);
  signature->replay = Py_NewRef(replay);
  read_facts(dict, *signature);
  signature->keeps_large = bool(signature->checks);  // a user-defined backward may have to run
  const auto sized = [&](const char* name) {
    PyObject* part = PyDict_GetItemString(dict, name);
    check(PyExc_ValueError, part != nullptr, "malformed signature: %s", name);
    return part;
  };
  read_sized(sized("tangents"), sized("aliasing"), sized("absent"), *signature);
  return autograd_function_of(std::move(signature));
  END_HANDLE_TH_ERRORS
}

void function_dealloc(PyObject* self) {
  delete reinterpret_cast<AutogradFunction*>(self)->signature;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject function_type = callable_type({
    .full_name = "jitmagic._runtime.AutogradFunction",
    .doc = "AutogradFunction(forward, resolve, replay, signature, failed, twice): a differentiable compiled call.",
    .size = sizeof(AutogradFunction),
    .make = function_new,
    .dealloc = function_dealloc,
});

}  // namespace

PyObject* autograd_function_of(std::shared_ptr<Signature> signature) {
  auto* self = reinterpret_cast<AutogradFunction*>(function_type.tp_alloc(&function_type, 0));
  if (!self) raise_python_error();
  self->vectorcall = function_call;
  self->signature = new std::shared_ptr<Signature>(std::move(signature));
  return reinterpret_cast<PyObject*>(self);
}

bool register_autograd(PyObject* module) { return PyModule_AddType(module, &function_type) == 0; }

}  // namespace jitmagic
