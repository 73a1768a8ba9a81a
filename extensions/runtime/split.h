// SplitCall: the autograd nodes of a call whose results have different histories.
//
// The engine calls every node that a loss leads to, those that no gradient reaches too, and a node that is
// called has used up what it saved. So a result must lead to no other nodes than it does in eager:
//
//     result ──▶ TangentNode ──▶ GradientNode ──▶ inputs that the same results reach
//
// with an edge for each GradientNode that it reaches. The engine has run all TangentNodes of a backward that lead
// to a GradientNode before it. The first GradientNode to run computes the gradients of all with all tangents that are
// there, by one call of the compiled backward; the others take theirs. Only where the tangent of another result came
// later (results used on several devices or threads) they compute again.
#pragma once

#include "node.h"

#include <map>

namespace jitmagic {

class SplitCall {
 public:
  using variable_list = torch::autograd::variable_list;

  CallState state;

  explicit SplitCall(std::shared_ptr<Signature> signature);

  // The nodes, as the history of these results and with these edges (one for each of the signature's `grad_inputs`).
  static std::shared_ptr<CallState> attach(
      std::shared_ptr<Signature> signature, const variable_list& results, torch::autograd::edge_list&& edges);

 private:
  friend struct TangentNode;
  friend struct GradientNode;

  // One backward of the engine's.
  struct Pass {
    variable_list tangents, gradients;
    std::vector<char> given;  // the tangents that `gradients` were computed with
    size_t left;              // GradientNodes that have still to run
  };

  std::mutex mutex_;
  std::map<int, Pass> passes_;
  std::vector<torch::autograd::Node*> alive_;  // the GradientNodes by their groups
  torch::autograd::edge_list lent_;            // of GradientNodes that have died

  Pass& current_pass();
  size_t nodes_to_run() const;
  void take_tangent(size_t tangent, const at::Tensor& grad);
  bool has_gradients(const std::vector<size_t>& reach, const variable_list& grads);
  void compute(const NodePtr& node);
  variable_list gradients_of(size_t group, const variable_list& grads, const NodePtr& node, bool& last);
  void leave(size_t group, torch::autograd::edge_list& edges);
};

}  // namespace jitmagic
