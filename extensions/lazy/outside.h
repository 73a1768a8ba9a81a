// The state of a thread that has used nothing of torch yet, without autograd.
//
// What the program has switched on (modes, transforms, autocast) sees operations when they are recorded, not when they
// are compiled and run: jitmagic's Python code and compiled graphs run in this state.
#pragma once

#include <memory>

#include <ATen/FuncTorchTLS.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace jitmagic::lazy {

struct Outside {
  c10::impl::ForceDispatchKeyGuard keys{c10::default_included_set, c10::default_excluded_set};
  c10::AutogradState autograd = c10::AutogradState::get_tls_state();
  at::impl::PythonTorchFunctionTLS functions = at::impl::PythonTorchFunctionTLS::get_state();
  c10::impl::TorchDispatchModeTLS modes = c10::impl::TorchDispatchModeTLS::get_state();
  std::unique_ptr<at::functorch::FuncTorchTLSBase> transforms = std::move(at::functorch::functorchTLSAccessor());

  Outside() {
    const bool grad = false, inference = false, forward_grad = true, multithreading = true;
    c10::AutogradState::set_tls_state({grad, inference, forward_grad, multithreading});
    at::impl::PythonTorchFunctionTLS::set_state({});
    c10::impl::TorchDispatchModeTLS::set_state({});
  }
  Outside(const Outside&) = delete;
  ~Outside() {
    at::functorch::functorchTLSAccessor() = std::move(transforms);
    c10::impl::TorchDispatchModeTLS::set_state(std::move(modes));
    at::impl::PythonTorchFunctionTLS::set_state(functions);
    c10::AutogradState::set_tls_state(autograd);
  }
};

}  // namespace jitmagic::lazy
