#include "split.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace jitmagic {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

// Passes a result's tangent on, and records it for GradientNodes that it does not lead to.
struct TangentNode : public torch::autograd::Node {
  TangentNode(std::shared_ptr<SplitCall> call, size_t tangent) : call_(std::move(call)), tangent_(tangent) {}
  std::string name() const override { return "JitmagicBackward"; }

 private:
  const std::shared_ptr<SplitCall> call_;
  const size_t tangent_;

  variable_list apply(variable_list&& grads) override {
    if (!num_outputs()) return {};
    call_->take_tangent(tangent_, grads[0]);
    return variable_list(num_outputs(), grads[0]);
  }
};

// Returns the gradients of its group of inputs.
struct GradientNode : public torch::autograd::Node {
  GradientNode(std::shared_ptr<SplitCall> call, size_t group) : call_(std::move(call)), group_(group) {}
  ~GradientNode() override { call_->leave(group_, next_edges_); }
  std::string name() const override { return "JitmagicBackward"; }
  void will_release_variables() override { ends_ = true; }

  void release_variables() override {
    if (!ends_.exchange(false)) call_->leave(group_, next_edges_);  // the node is about to be destroyed
    else if (std::exchange(last_, false)) call_->state.release(true);
  }

 private:
  const std::shared_ptr<SplitCall> call_;
  const size_t group_;
  std::atomic<bool> ends_ = false;
  bool last_ = false;

  variable_list apply(variable_list&& grads) override {
    return call_->gradients_of(group_, grads, getptr(), last_);
  }
};

SplitCall::SplitCall(std::shared_ptr<Signature> signature)
    : state(std::move(signature)), alive_(state.signature->histories.inputs.size()) {}

std::shared_ptr<CallState> SplitCall::attach(
    std::shared_ptr<Signature> signature, const variable_list& results, edge_list&& edges) {
  const auto call = std::make_shared<SplitCall>(std::move(signature));
  const Signature& s = *call->state.signature;
  std::vector<edge_list> below(s.tangents.size());  // the tangents' edges
  // Created first, they run last: the engine prefers nodes with higher sequence numbers.
  for (size_t group = 0; group < s.histories.inputs.size(); group++) {
    const std::vector<size_t>& inputs = s.histories.inputs[group];
    const auto node = make_node<GradientNode>(call, group);
    call->alive_[group] = node.get();
    for (size_t i : inputs) node->add_next_edge(std::move(edges[i]));
    for (size_t t : s.reach[inputs[0]]) below[t].emplace_back(node, node->add_input_metadata(results[t]));
  }
  for (size_t t = 0; t < results.size(); t++) {
    const auto node = make_node<TangentNode>(call, t);
    for (Edge& edge : below[t]) node->add_next_edge(std::move(edge));
    const NodePtr shared = node;
    torch::autograd::set_history(results[t], shared);
  }
  return {call, &call->state};
}

// Counts the GradientNodes that this backward reaches and needs.
size_t SplitCall::nodes_to_run() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  return std::ranges::count_if(alive_, [&](torch::autograd::Node* node) {
    if (!nodes || !nodes->count(node)) return false;
    if (!wanted || wanted->empty()) return true;
    const auto known = wanted->find(node);
    return known != wanted->end() && known->second.needed_;
  });
}

// Call with the mutex held.
SplitCall::Pass& SplitCall::current_pass() {
  const auto [place, is_new] = passes_.try_emplace(torch::autograd::get_current_graph_task_id());
  if (is_new) {
    place->second.tangents.resize(state.signature->tangents.size());
    place->second.left = nodes_to_run();
  }
  return place->second;
}

void SplitCall::take_tangent(size_t tangent, const at::Tensor& grad) {
  std::lock_guard<std::mutex> lock(mutex_);
  current_pass().tangents[tangent] = grad;
}

// Returns whether gradients of inputs with this reach are computed already.
bool SplitCall::has_gradients(const std::vector<size_t>& reach, const variable_list& grads) {
  std::lock_guard<std::mutex> lock(mutex_);
  Pass& pass = current_pass();
  bool known = !pass.given.empty();
  for (size_t k = 0; k < reach.size(); k++) {
    pass.tangents[reach[k]] = grads[k];
    known = known && pass.given[reach[k]] == grads[k].defined();
  }
  return known;
}

std::shared_ptr<Gradients> SplitCall::compute(const NodePtr& node) {
  variable_list tangents;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tangents = current_pass().tangents;
  }
  const std::shared_ptr<Gradients> made = state.differentiate(tangents, node);
  std::shared_ptr<Gradients> outdated = made;  // destroyed after the lock: it needs the GIL
  std::lock_guard<std::mutex> lock(mutex_);
  Pass& pass = current_pass();
  std::swap(pass.gradients, outdated);
  pass.given.clear();
  for (const at::Tensor& tangent : tangents) pass.given.push_back(tangent.defined());
  return made;
}

void SplitCall::end_pass() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ended = passes_.extract(torch::autograd::get_current_graph_task_id());
  lock.unlock();  // the gradients are destroyed with the GIL
}

variable_list SplitCall::gradients_of(size_t group, const variable_list& grads, const NodePtr& node, bool& last) {
  const std::vector<size_t>& inputs = state.signature->histories.inputs[group];
  const bool any = std::ranges::any_of(grads, [](const at::Tensor& grad) { return grad.defined(); });
  const bool known = !any || has_gradients(state.signature->reach[inputs[0]], grads);
  std::shared_ptr<Gradients> gradients;
  try {
    variable_list own(inputs.size());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (known) gradients = current_pass().gradients;
    }
    if (!known) gradients = compute(node);
    if (any) own = gradients->take(inputs);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last = current_pass().left-- <= 1;
    }
    if (last) end_pass();
    return own;
  } catch (...) {  // the engine stops
    end_pass();
    throw;
  }
}

// Called when a GradientNode is destroyed. The call's edges are freed with its last node, by torch's loop over edges:
// a long history freed by recursion through saved values would overflow the stack.
void SplitCall::leave(size_t group, edge_list& edges) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!std::exchange(alive_[group], nullptr)) return;
  if (std::ranges::any_of(alive_, [](torch::autograd::Node* node) { return node != nullptr; })) {
    orphaned_edges_.insert(orphaned_edges_.end(), edges.begin(), edges.end());
    return;
  }
  auto& orphaned = orphaned_edges_;
  edges.insert(edges.end(), std::make_move_iterator(orphaned.begin()), std::make_move_iterator(orphaned.end()));
  orphaned_edges_.clear();
  lock.unlock();
  state.release(false);
}

}  // namespace jitmagic
