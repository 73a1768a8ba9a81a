// CallState: the values that one call of a compiled graph saves for its backward. CompiledBackward: its autograd node
// if all results have the same history (otherwise: split.h).
#pragma once

#include "generators.h"
#include "signature.h"
#include "staged_run.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace jitmagic {

// Disables autocast: it was applied while tracing, and the casts are in the graph.
struct AutocastOff {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

// The state before the forward that a replay needs.
struct ForwardSnapshot {
  std::vector<GeneratorState> drawn;  // empty if one cannot be read, e.g. during CUDA graph capture
  std::vector<at::Tensor> written;  // copies of inputs that the forward overwrites; undefined: not saved

  ForwardSnapshot() = default;
  ForwardSnapshot(const Signature& s, PyObject* const* args);
};

// shared_ptr<Node> up to torch 2.11, intrusive_ptr<Node> later.
using NodePtr = std::remove_cvref_t<decltype(std::declval<torch::autograd::Edge&>().function)>;

template <class T, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

// The gradients of one backward. Those of later stages are computed when they are first asked for.
class Gradients {
 public:
  using variable_list = torch::autograd::variable_list;

  explicit Gradients(size_t count) : ready_(count), unreached_(count) {}
  Gradients(const Gradients&) = delete;
  ~Gradients();

  // Hands over gradients; call it once for each. Call it without the GIL from any thread.
  variable_list take(const std::vector<size_t>& which);
  variable_list take_all();

 private:
  friend class CallState;

  std::mutex mutex_;  // taken before the GIL
  variable_list ready_;
  std::vector<char> unreached_;  // by the given tangents: these stay undefined
  std::unique_ptr<StagedRun> later_;  // null: all are ready
};

class CallState {
 public:
  using variable_list = torch::autograd::variable_list;

  explicit CallState(std::shared_ptr<Signature> s) : signature(std::move(s)), freed_(signature->freed.size()) {}
  CallState(const CallState&) = delete;

  const std::shared_ptr<Signature> signature;
  std::vector<torch::autograd::SavedVariable> saved;
  std::vector<at::TensorOptions> tangent_options;

  // Saves the inputs that only a replay needs.
  void save_replay_inputs(PyObject* const* args, ForwardSnapshot&& before);

  // Returns the gradients of the signature's `grad_inputs`; `node` is the one that the engine runs. With `ends` no other
  // backward reads what this one does (retain_graph=False): it is freed as the backward runs, as eager's nodes do.
  std::shared_ptr<Gradients> differentiate(const variable_list& grads, const NodePtr& node, bool ends = false);

  // With `ends`, after a backward without retain_graph: frees what only it and earlier ones read. Otherwise no node
  // is left, and everything is freed.
  void release(bool ends);

 private:
  std::mutex mutex_;
  std::vector<torch::autograd::SavedVariable> replay_inputs_;  // of the signature's `replayed`, those not in `saved`
  std::vector<GeneratorState> drawn_;
  std::vector<char> freed_;  // per part in the signature's `freed`
  std::vector<char> running_;  // tangents of the running backward; its end frees what it read
  bool released_ = false;
  Owned held_;  // objects that its backward reads
  std::vector<uint32_t> versions_;  // of the tensors among them

  Owned outdated();  // the call's objects, if facts that the backward relies on have changed
  std::vector<char> parts_of(const std::vector<char>& given) const;
  std::vector<char> begin(const std::vector<char>& given);
  std::vector<char> still_read(const std::vector<char>& done) const;
  variable_list unpack(const std::vector<char>& given, const NodePtr& node, bool ends);
  variable_list unpack_inputs(const std::vector<char>& given, const NodePtr& node, bool outdated);
  at::Tensor unpack_input(torch::autograd::SavedVariable& input, const NodePtr& node, bool outdated);
  void call_backward(variable_list&& arguments, const std::vector<char>& given, Gradients& gradients);
  // `held` is passed to user-defined backwards; null if the compiled one is valid.
  void replay(const std::vector<char>& given, const variable_list& grads, const NodePtr& node, const Owned& held,
              variable_list& gradients);
};

struct CompiledBackward : public torch::autograd::Node {
  const std::shared_ptr<CallState> state;

  explicit CompiledBackward(std::shared_ptr<CallState> s) : state(std::move(s)) {}
  std::string name() const override { return "JitmagicBackward"; }
  void will_release_variables() override { ends_ = true; }
  void release_variables() override { state->release(ends_.exchange(false)); }

 private:
  std::atomic<bool> ends_ = false;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
};

// One of several results. Eager gives each its own node, so hooks of a result without gradient do not run.
struct ResultNode : public torch::autograd::Node {
  std::string name() const override { return "JitmagicBackward"; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override { return std::move(grads); }
};

void add_result_node(const at::Tensor& result, torch::autograd::Edge&& behind);

}  // namespace jitmagic
