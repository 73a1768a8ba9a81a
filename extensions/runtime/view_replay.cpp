// Reads AliasSteps from Python and performs them.

#include "view_replay.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace jitmagic {

namespace {

// Converts non-tensor arguments of view operations: numbers, lists of them, dtypes.
c10::IValue argument(PyObject* object) {
  if (object == Py_None) return {};
  if (PyBool_Check(object)) return object == Py_True;
  if (PyTuple_Check(object)) return integers(object);
  if (THPDtype_Check(object)) return int64_t(reinterpret_cast<THPDtype*>(object)->scalar_type);
  return integer(object);
}

void read_view(PyObject* tuple, AliasStep& step) {
  const c10::OperatorName name(text(item(tuple, 2)), text(item(tuple, 3)));
  step.op = c10::Dispatcher::singleton().findOp(name);
  check(PyExc_ValueError, step.op.has_value(), "malformed signature: aliasing");
  for (PyObject* value : items(item(tuple, 4))) step.arguments.push_back(argument(value));
  const auto& expected = step.op->schema().arguments();
  check(PyExc_ValueError, step.arguments.size() < expected.size(), "malformed signature: aliasing");
  for (size_t i = step.arguments.size() + 1; i < expected.size(); i++) {
    step.arguments.push_back(expected[i].default_value().value_or(c10::IValue()));
  }
  step.grad = truth(item(tuple, 5));
  step.count = size_t(integer(item(tuple, 6)));
}

void call(const AliasStep& step, const at::Tensor& tensor, c10::SmallVectorImpl<at::Tensor>& views) {
  torch::jit::Stack stack;
  stack.reserve(1 + step.arguments.size());
  stack.emplace_back(tensor);
  stack.insert(stack.end(), step.arguments.begin(), step.arguments.end());
  const at::AutoGradMode mode(step.grad);
  step.op->callBoxed(stack);
  const size_t before = views.size();
  if (stack[0].isTensor()) {
    views.push_back(std::move(stack[0]).toTensor());
  } else {
    for (at::Tensor& part : stack[0].toTensorVector()) views.push_back(std::move(part));
  }
  check(PyExc_RuntimeError, views.size() - before == step.count,
        "jitmagic: a view call returned another number of results");
}

}  // namespace

// (kView, slot, name, overload, arguments, grad mode, results) | (kData, slot) | (kBump, slot, times) | (kLeaf, slot)
AliasStep read_alias_step(PyObject* tuple) {
  AliasStep step;
  step.kind = AliasStep::Kind(integer(item(tuple, 0)));
  step.slot = size_t(integer(item(tuple, 1)));
  if (step.kind == AliasStep::kView) read_view(tuple, step);
  if (step.kind == AliasStep::kBump) step.count = size_t(integer(item(tuple, 2)));
  return step;
}

void perform(const AliasStep& step, const at::Tensor& tensor, c10::SmallVectorImpl<at::Tensor>& views) {
  switch (step.kind) {
    case AliasStep::kView: call(step, tensor, views); break;
    case AliasStep::kData: views.push_back(tensor.variable_data()); break;
    case AliasStep::kLeaf: tensor.set_requires_grad(true); break;
    case AliasStep::kBump:
      if (tensor.is_inference()) break;  // inference tensors have no counter
      for (size_t i = 0; i < step.count; i++) torch::autograd::impl::bump_version(tensor);
      break;
  }
}

}  // namespace jitmagic
