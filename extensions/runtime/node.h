// CompiledBackward: the autograd node of one call of a compiled graph, and what has to be noted before that call
// for a backward that is differentiated itself.
#pragma once

#include "generators.h"
#include "signature.h"

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace jitmagic {

// Autocast was applied while tracing: the casts are in the graph.
struct AutocastOff {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

// What a replay of the forward needs of the time before it.
struct Before {
  std::vector<GeneratorState> drawn;  // empty where one cannot be read, as while a CUDA graph is captured
  std::vector<at::Tensor> written;    // copies of the inputs that the forward overwrites; undefined: not kept

  Before() = default;
  Before(const Signature& s, PyObject* const* args);
};

struct CompiledBackward : public torch::autograd::Node {
  std::shared_ptr<Signature> signature;
  std::vector<torch::autograd::SavedVariable> saved;
  std::vector<torch::autograd::SavedVariable> kept;  // of the signature's `replayed`, those not among `saved`
  std::vector<GeneratorState> drawn;
  std::vector<at::TensorOptions> tangent_options;
  std::vector<char> used_up;  // of the signature's `spent`

  std::string name() const override { return "JitmagicBackward"; }
  void will_release_variables() override;
  void release_variables() override;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

  // The inputs that only a replay needs.
  void keep(PyObject* const* args, Before&& before);

 private:
  using variable_list = torch::autograd::variable_list;

  std::vector<char> running;  // the tangents of the backward whose end uses up what it read
  bool ends = false, released = false;

  std::vector<char> parts_of(const std::vector<char>& given) const;
  std::vector<char> begin(const std::vector<char>& given);
  variable_list unpack(const std::vector<char>& given);
  variable_list unpack_inputs(const std::vector<char>& given);
  void call_backward(variable_list&& arguments, const std::vector<char>& given, variable_list& gradients);
  void replay(const std::vector<char>& given, variable_list&& grads, variable_list& gradients);
};

}  // namespace jitmagic
