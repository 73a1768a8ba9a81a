// Who watches the operations of this thread: torch.jit.trace, modes (fake tensors, make_fx and
// torch.export are such), torch.fx.symbolic_trace.
//
// A tracer records the operations it is shown; a graph of ours shows it none, and its results would
// be constants of what is recorded. While anybody watches, the original runs. So it does where
// torch's own code has switched __torch_function__ off: such code is in the middle of one operation.

#include "guards.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace jitmagic {
namespace {

constexpr c10::DispatchKeySet kWatching(
    {c10::DispatchKey::Tracer, c10::DispatchKey::Python, c10::DispatchKey::PreDispatch});
PyObject* fx_globals = nullptr;  // of torch.fx._symbolic_trace
PyObject* fx_flag = nullptr;     // the name of what it sets while it traces
Lookup fx_lookup;

bool fx_traces() { return fx_lookup.in(fx_globals, fx_flag) == Py_True; }

PyObject* observed(PyObject*, PyObject*) { return PyBool_FromLong(torch_is_observed()); }

PyMethodDef functions[] = {
    {"observed", observed, METH_NOARGS, "Whether a tracer or a mode of torch's watches this thread."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool torch_is_observed() {
  using Functions = at::impl::PythonTorchFunctionTLS;
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has_any(kWatching) || Functions::stack_len() != 0 ||
         Functions::get_disabled_state() != at::impl::ENABLED || fx_traces();
}

bool register_observers(PyObject* module) {
  PyObject* tracer = PyImport_ImportModule("torch.fx._symbolic_trace");
  if (!tracer) return false;
  fx_globals = Py_NewRef(PyModule_GetDict(tracer));
  fx_flag = PyUnicode_InternFromString("_is_fx_tracing_flag");
  Py_DECREF(tracer);
  return fx_flag && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace jitmagic
