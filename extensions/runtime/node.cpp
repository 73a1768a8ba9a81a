// CallState: the values saved in a call, and the computation of its gradients from them.

#include "node.h"

#include "plan.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

namespace jitmagic {

using torch::autograd::variable_list;

namespace {

std::vector<GeneratorState> generators_of(const Signature& s) {
  std::vector<GeneratorState> states;
  try {
    for (const c10::Device& device : s.draws) states.emplace_back(device);
  } catch (const c10::Error&) {
    states.clear();
  }
  return states;
}

void read_gradients(PyObject* made, variable_list& gradients) {
  if (!made) raise_python_error();
  if (!PyTuple_Check(made) || size_t(PyTuple_GET_SIZE(made)) != gradients.size()) {
    raise_as(PyExc_RuntimeError, "jitmagic: the compiled backward did not return its gradients");
  }
  for (size_t i = 0; i < gradients.size(); i++) {
    PyObject* gradient = PyTuple_GET_ITEM(made, i);
    if (gradient != Py_None) gradients[i] = THPVariable_Unpack(gradient);
  }
}

// Undefined tensors become None.
PyObject* wrapped(const variable_list& tensors) {
  PyObject* tuple = PyTuple_New(Py_ssize_t(tensors.size()));
  for (size_t i = 0; tuple && i < tensors.size(); i++) {
    PyObject* tensor = THPVariable_Wrap(tensors[i]);
    if (!tensor) Py_CLEAR(tuple);
    else PyTuple_SET_ITEM(tuple, Py_ssize_t(i), tensor);
  }
  return tuple;
}

// A batch of gradients (is_grads_batched) is a wrapper without memory that a kernel could read.
bool is_batch(const at::Tensor& grad) {
  constexpr c10::DispatchKeySet batched({c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched});
  return grad.defined() && grad.key_set().has_any(batched);
}

}  // namespace

void add_result_node(const at::Tensor& result, torch::autograd::Edge&& behind) {
  const auto node = make_node<ResultNode>();
  node->add_next_edge(std::move(behind));
  const NodePtr shared = node;
  torch::autograd::set_history(result, shared);
}

namespace {

at::Tensor copy_of(const at::Tensor& value) {
  // A differentiated backward must see that the copy of a parameter requires grad.
  const at::AutoGradMode mode(value.requires_grad());
  return value.requires_grad() ? value.clone() : value.detach().clone();
}

}  // namespace

ForwardSnapshot::ForwardSnapshot(const Signature& s, PyObject* const* args) : drawn(generators_of(s)) {
  for (const ReplayInput& input : s.replayed) {
    if (!input.written) continue;
    written.emplace_back();
    if (input.large && !s.keeps_large) continue;
    written.back() = copy_of(THPVariable_Unpack(args[input.input]));
  }
}

namespace {

// Visits the versions of the tensors in a tuple. Inference tensors have none, and eager does not check them either.
template <class Visit>
void each_version(PyObject* held, Visit visit) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(held); i++) {
    PyObject* object = PyTuple_GET_ITEM(held, i);
    if (THPVariable_Check(object) && !THPVariable_Unpack(object).is_inference()) {
      visit(uint32_t(THPVariable_Unpack(object)._version()));
    }
  }
}

}  // namespace

// Python state is checked when the backward runs, as in eager, natively: 60 ns, and a few more per fact.
Owned CallState::outdated() {
  if (!signature->checks) return nullptr;
  Owned held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    held = held_;
  }
  if (!held) return nullptr;
  const GilGuard gil;
  size_t at = 0;
  bool holds = true;
  each_version(held.get(), [&](uint32_t version) { holds &= version == versions_[at++]; });
  for (PyObject* check : items(signature->checks.get())) {
    if (!holds) break;
    THPObjectPtr answer(PyObject_CallOneArg(check, held.get()));
    if (!answer) raise_python_error();
    holds = answer.get() == Py_True;
  }
  return holds ? nullptr : held;
}

void CallState::save_replay_inputs(PyObject* const* args, ForwardSnapshot&& before) {
  if (PyObject* held = held_objects(); held && signature->checks) {
    held_ = owned(held);
    each_version(held, [&](uint32_t version) { versions_.push_back(version); });
  }
  drawn_ = std::move(before.drawn);
  size_t copied = 0;
  for (const ReplayInput& input : signature->replayed) {
    if (input.saved >= 0) continue;
    const at::Tensor& value = input.written ? before.written[copied++] : THPVariable_Unpack(args[input.input]);
    const bool held = value.defined() && (!input.large || signature->keeps_large);
    // Inference tensors cannot be saved; eager could not either.
    const bool copies = signature->keeps_copies && !input.written;
    if (held && !value.is_inference()) replay_inputs_.emplace_back(copies ? copy_of(value) : value, false);
    else replay_inputs_.emplace_back();
  }
}

void CallState::release(bool ends) {
  Owned held;  // destroyed after the lock: it needs the GIL, which a thread waiting for the lock may hold
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<char> still(saved.size());
  if (ends) {
    const std::vector<char> done = parts_of(std::exchange(running_, {}));
    for (size_t p = 0; p < done.size(); p++) freed_[p] |= done[p];
    still = still_read(done);
  }
  released_ = true;
  for (size_t i = 0; i < saved.size(); i++) {
    if (!still[i]) saved[i].reset_data();
  }
  if (std::ranges::count(still, 0) < std::ssize(still)) return;
  for (torch::autograd::SavedVariable& input : replay_inputs_) input.reset_data();
  drawn_.clear();
  held.swap(held_);
}

// Returns which saved tensors parts read that have neither been freed nor are `done`.
std::vector<char> CallState::still_read(const std::vector<char>& done) const {
  std::vector<char> still(saved.size());
  for (size_t p = 0; p < done.size(); p++) {
    for (size_t i : signature->freed[p].saved) still[i] |= !freed_[p] && !done[p];
  }
  return still;
}

variable_list CompiledBackward::apply(variable_list&& grads) {
  try {
    return state->differentiate(grads, getptr(), ends_)->take_all();
  } catch (...) {
    ends_ = false;  // the engine releases nothing now, and a later backward may retain the graph
    throw;
  }
}

Gradients::~Gradients() {
  if (!later_) return;
  const GilGuard gil;
  later_.reset();
}

variable_list Gradients::take(const std::vector<size_t>& which) {
  variable_list taken(which.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  std::optional<GilGuard> gil;
  if (later_) gil.emplace();
  const AutocastOff autocast;
  for (size_t i = 0; i < which.size(); i++) {
    if (unreached_[which[i]]) continue;
    taken[i] = later_ ? later_->take(which[i]) : std::move(ready_[which[i]]);
  }
  return taken;
}

variable_list Gradients::take_all() {
  std::vector<size_t> all(ready_.size());
  std::iota(all.begin(), all.end(), size_t(0));
  return take(all);
}

std::shared_ptr<Gradients> CallState::differentiate(const variable_list& grads, const NodePtr& node, bool ends) {
  const Signature& s = *signature;
  const auto gradients = std::make_shared<Gradients>(s.grad_inputs.size());
  bool any = false;
  std::vector<char> given;
  for (const at::Tensor& grad : grads) {
    given.push_back(grad.defined());
    any |= grad.defined();
  }
  if (!any) return gradients;
  const Owned held = outdated();
  if (held || at::GradMode::is_enabled() || std::ranges::any_of(grads, is_batch)) {
    replay(given, grads, node, held, gradients->ready_);
    return gradients;
  }
  std::vector<at::Tensor> arguments = unpack(given, node, ends);
  for (size_t i = 0; i < grads.size(); i++) {
    const Geometry& layout = s.tangents[i].layout;
    arguments.push_back(
        grads[i].defined()
            ? laid_out(grads[i], layout.sizes, layout.strides)
            : at::empty_strided(layout.sizes, layout.strides, tangent_options[i]).zero_());
  }
  for (size_t i = 0; i < s.reach.size(); i++) {
    gradients->unreached_[i] = std::ranges::none_of(s.reach[i], [&](size_t tangent) { return given[tangent] != 0; });
  }
  GilGuard gil;
  call_backward(std::move(arguments), given, *gradients);
  return gradients;
}

// Returns which parts of the backward these tangents run through.
std::vector<char> CallState::parts_of(const std::vector<char>& given) const {
  std::vector<char> parts;
  for (const FreedPart& part : signature->freed) {
    parts.push_back(!given.empty() && std::ranges::any_of(part.tangents, [&](size_t t) { return given[t]; }));
  }
  return parts;
}

// Marks the parts that these tangents run through as running. None of them may have been freed.
std::vector<char> CallState::begin(const std::vector<char>& given) {
  std::vector<char> parts = parts_of(given);
  for (size_t p = 0; p < parts.size(); p++) {
    TORCH_CHECK(!parts[p] || !freed_[p], torch::autograd::ERR_BACKWARD_TWICE);
  }
  running_ = given;
  return parts;
}

variable_list CallState::unpack(const std::vector<char>& given, const NodePtr& node, bool ends) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<char> parts = begin(given);
  std::vector<char> read(saved.size(), signature->absent.empty() || (!released_ && !std::ranges::count(given, 0)));
  for (size_t p = 0; p < parts.size(); p++) {
    for (size_t i : signature->freed[p].saved) read[i] |= parts[p];
  }
  variable_list values;
  values.reserve(saved.size() + tangent_options.size());
  for (size_t i = 0; i < saved.size(); i++) {
    if (read[i]) {
      values.push_back(saved[i].unpack(node));
    } else {
      const StandIn& absent = signature->absent[i];
      values.push_back(absent.element.expand(absent.sizes));
    }
  }
  if (!ends) return values;
  const std::vector<char> still = still_read(parts);
  for (size_t i = 0; i < saved.size(); i++) {
    if (read[i] && !still[i]) saved[i].reset_data();
  }
  return values;
}

// Returns inputs with their history. One is undefined if it was not saved, or if it was written to since and a
// user-defined backward (`outdated`) must not read it.
variable_list CallState::unpack_inputs(const std::vector<char>& given, const NodePtr& node, bool outdated) {
  std::lock_guard<std::mutex> lock(mutex_);
  begin(given);
  variable_list inputs;
  size_t separate = 0;
  for (const ReplayInput& input : signature->replayed) {
    auto& kept = input.saved < 0 ? replay_inputs_[separate++] : saved[size_t(input.saved)];
    inputs.push_back(unpack_input(kept, node, outdated));
  }
  return inputs;
}

at::Tensor CallState::unpack_input(torch::autograd::SavedVariable& input, const NodePtr& node, bool outdated) {
  try {
    return input.unpack(node);
  } catch (const c10::Error& error) {  // written to since, where eager does not save it
    signature->keeps_copies = true;
    const bool written = std::string(error.what_without_backtrace()).find("inplace operation") != std::string::npos;
    if (outdated && written) return at::Tensor();
    throw;
  }
}

void CallState::call_backward(
    variable_list&& arguments, const std::vector<char>& given, Gradients& gradients) {
  PyObject* backward = signature->get_backward(given);
  if (!backward) raise_python_error();
  {
    const AutocastOff autocast;
    if (signature->stages.empty() && run_owned(backward, arguments, gradients.ready_)) return;
  }
  const size_t count = arguments.size();
  std::vector<THPObjectPtr> held;
  std::vector<PyObject*> stack(count + 1);
  held.reserve(count);
  for (size_t i = 0; i < count; i++) {
    held.emplace_back(THPVariable_Wrap(std::move(arguments[i])));
    if (!held.back()) raise_python_error();
    stack[i + 1] = held.back().get();
  }
  if (!signature->stages.empty()) gradients.later_ = StagedRun::start(backward, &stack[1], count);
  if (gradients.later_) return;
  AutocastOff autocast;
  THPObjectPtr made(
      PyObject_Vectorcall(backward, &stack[1], count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  read_gradients(made.get(), gradients.ready_);
}

void CallState::replay(
    const std::vector<char>& given, const variable_list& grads, const NodePtr& node, const Owned& held,
    variable_list& gradients) {
  variable_list inputs = unpack_inputs(given, node, held != nullptr);
  GilGuard gil;
  // A backward that reads nothing of the forward may run after release: it repeats no draws.
  const bool any = signature->freed.empty();
  const std::vector<GeneratorState> now = any ? generators_of(*signature) : std::vector<GeneratorState>();
  const std::vector<GeneratorState>& then = any ? now : drawn_;
  if (then.size() != signature->draws.size()) {
    raise_as(signature->double_backward, "where the random generator stood could not be read");
  }
  THPObjectPtr values(wrapped(inputs)), tangents(wrapped(grads));
  if (!values || !tangents) raise_python_error();
  signature->keeps_large = true;
  THPObjectPtr differentiate;
  {
    const RewoundGenerators rewound(then);
    differentiate = PyObject_CallFunctionObjArgs(
        signature->get_replay(), values.get(), tangents.get(), held ? held.get() : Py_None, nullptr);
  }
  if (!differentiate) raise_python_error();
  THPObjectPtr made(PyObject_CallNoArgs(differentiate.get()));  // user-defined backwards draw new numbers
  read_gradients(made.get(), gradients);
}

}  // namespace jitmagic
