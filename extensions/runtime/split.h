// SplitCall: the autograd nodes of a call whose results have different histories, or whose backward has stages.
//
// The engine calls every node that a loss leads to, even without a gradient, and a node that was called has freed
// its saved values. A result must therefore lead to exactly the nodes that it leads to in eager:
//
//     result ──▶ TangentNode ──▶ GradientNode ──▶ inputs that the same results reach
//
// with an edge for each GradientNode that it reaches. Before a GradientNode the engine runs all TangentNodes of a
// backward that lead to it. The first GradientNode to run computes all gradients with the tangents available, by one
// call of the compiled backward; the others take theirs. They compute again only if the tangent of another result
// arrived later (results used on several devices or threads).
//
// With stages, each stage has GradientNodes of its own. The engine runs them in the order of the stages, and hands each
// one's gradients to AccumulateGrad, with its hooks, before it runs the next: DistributedDataParallel reduces gradients
// while later stages compute.
#pragma once

#include "node.h"

#include <map>

namespace jitmagic {

class SplitCall {
 public:
  using variable_list = torch::autograd::variable_list;

  CallState state;

  explicit SplitCall(std::shared_ptr<Signature> signature);

  // Creates the nodes as the history of these results, with these edges (one per input in `grad_inputs`).
  static std::shared_ptr<CallState> attach(
      std::shared_ptr<Signature> signature, const variable_list& results, torch::autograd::edge_list&& edges);

 private:
  friend struct TangentNode;
  friend struct GradientNode;

  // One backward run of the engine.
  struct Pass {
    variable_list tangents;
    std::shared_ptr<Gradients> gradients;
    std::vector<char> given;  // the tangents that `gradients` belong to
    size_t left;  // GradientNodes yet to run
  };

  std::mutex mutex_;
  std::map<int, Pass> passes_;
  std::vector<torch::autograd::Node*> alive_;  // the GradientNodes by group
  torch::autograd::edge_list orphaned_edges_;  // edges of destroyed GradientNodes

  Pass& current_pass();
  size_t nodes_to_run() const;
  void take_tangent(size_t tangent, const at::Tensor& grad);
  bool has_gradients(const std::vector<size_t>& reach, const variable_list& grads);
  std::shared_ptr<Gradients> compute(const NodePtr& node);
  void end_pass();
  variable_list gradients_of(size_t group, const variable_list& grads, const NodePtr& node, bool& last);
  void leave(size_t group, torch::autograd::edge_list& edges);
};

}  // namespace jitmagic
