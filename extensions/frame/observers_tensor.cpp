// Detects observers of this thread's operations: torch.jit.trace, modes (including fake tensors,
// make_fx and torch.export), and torch.fx.symbolic_trace. The original also runs under
// torch.compiler.set_stance("force_eager").
//
// A tracer records the operations that it sees. A compiled graph shows it none, so its results
// would be recorded as constants. Therefore the original runs while an observer is active. It also
// runs where torch's own code has disabled __torch_function__, because that code is in the middle
// of one operation. Function transforms of torch.func do not count: guards compare whether one is
// active. Hooks of saved tensors count, unless they are known to return what they were given,
// because a compiled graph saves other tensors than eager.

#include "function_modes.h"
#include "guards.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/PyInterpreter.h>

namespace jitmagic {
namespace {

// Fake: jitmagic.lazy() records the operations of this thread (extensions/lazy/).
constexpr c10::DispatchKeySet kWatching(
    {c10::DispatchKey::Tracer, c10::DispatchKey::Python, c10::DispatchKey::PreDispatch, c10::DispatchKey::Fake});
PyObject* fx_globals = nullptr;  // globals of torch.fx._symbolic_trace
PyObject* fx_flag = nullptr;     // name of its global that is True during a trace
Lookup fx_lookup;

bool fx_traces() { return fx_lookup.in(fx_globals, fx_flag) == Py_True; }

PyObject* modules = nullptr;      // sys.modules
PyObject* stance_module = nullptr;  // name of the module with the stance
PyObject* stance_name = nullptr;
Lookup module_lookup, stance_lookup;

// torch stores the stance in a global of a Python module, as an object that set_stance replaces. It
// is read again only if the object's address has changed; the reference kept here makes that safe.
bool forces_eager() {
  static PyObject* known = nullptr;
  static bool forced = false;
  PyObject* module = module_lookup.in(modules, stance_module);
  if (!module || !PyModule_Check(module)) return false;
  PyObject* stance = stance_lookup.in(PyModule_GetDict(module), stance_name);
  if (stance == known) return forced;
  PyObject* name = stance ? PyObject_GetAttrString(stance, "stance") : nullptr;
  forced = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "force_eager") == 0;
  Py_XDECREF(name);
  PyErr_Clear();
  Py_XINCREF(stance);
  Py_XSETREF(known, stance);
  return forced;
}

using Functions = at::impl::PythonTorchFunctionTLS;

// torch.utils._device.DeviceContext, or nullptr while that module is not imported.
PyObject* device_context() {
  static PyObject* found = nullptr;
  if (found) return found;
  PyObject* name = PyUnicode_FromString("torch.utils._device");
  PyObject* module = name ? PyImport_GetModule(name) : nullptr;
  if (module) found = PyObject_GetAttrString(module, "DeviceContext");
  Py_XDECREF(module);
  Py_XDECREF(name);
  PyErr_Clear();
  return found;
}

std::optional<c10::Device> device_of(PyObject* mode) {
  if ((PyObject*)Py_TYPE(mode) != device_context()) return std::nullopt;
  PyObject* device = PyObject_GetAttrString(mode, "device");
  std::optional<c10::Device> found;
  if (device && THPDevice_Check(device)) found = reinterpret_cast<THPDevice*>(device)->device;
  Py_XDECREF(device);
  PyErr_Clear();
  return found;
}

bool is_text(PyObject* text, const char* wanted) {
  return text && PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, wanted) == 0;
}

// Recognises the hooks of torch.utils.checkpoint, which recomputes the same values, and of
// save_on_cpu. The former are wrapped in a function of that module.
bool is_lossless(PyObject* pack) {
  if (!PyFunction_Check(pack)) return false;
  const auto* function = reinterpret_cast<PyFunctionObject*>(pack);
  return is_text(function->func_module, "torch.utils.checkpoint") ||
         (is_text(function->func_module, "torch.autograd.graph") &&
          is_text(function->func_qualname, "save_on_cpu.__init__.<locals>.pack_to_cpu"));
}

// Only the innermost pair of hooks is called.
bool saved_tensors_change() {
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  return !hooks.stack.empty() && !is_lossless(hooks.stack.top().first.ptr(getPyInterpreter()));
}

PyObject* packs(PyObject*, PyObject*) { return PyBool_FromLong(saved_tensors_change()); }

PyObject* observed(PyObject*, PyObject*) { return PyBool_FromLong(torch_is_observed()); }

PyObject* traced(PyObject*, PyObject*) { return PyBool_FromLong(PyThreadState_Get()->c_tracefunc != nullptr); }

PyMethodDef observer_functions[] = {
    {"observed", observed, METH_NOARGS, "Whether a tracer or mode of torch observes this thread."},
    {"traced", traced, METH_NOARGS, "Whether a debugger or another sys.settrace function traces this thread."},
    {"packs", packs, METH_NOARGS, "Whether hooks of saved tensors may change the values saved in this thread."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

FunctionModes function_modes() {
  FunctionModes modes{Functions::stack_len(), std::nullopt};
  if (modes.watching == 0) return modes;
  modes.device = device_of(Functions::get_stack_at(0)->ptr(getPyInterpreter()));
  if (modes.device) --modes.watching;
  return modes;
}

bool torch_is_observed() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has_any(kWatching) ||
         !keys.excluded_.has(c10::DispatchKey::AutocastPrivateUse1) ||  // the trace has no rules for its casts
         function_modes().watching != 0 ||
         Functions::get_disabled_state() != at::impl::ENABLED || fx_traces() || forces_eager() ||
         saved_tensors_change();
}

bool register_observers(PyObject* module) {
  PyObject* tracer = PyImport_ImportModule("torch.fx._symbolic_trace");
  if (!tracer) return false;
  fx_globals = Py_NewRef(PyModule_GetDict(tracer));
  fx_flag = PyUnicode_InternFromString("_is_fx_tracing_flag");
  Py_DECREF(tracer);
  modules = Py_XNewRef(PySys_GetObject("modules"));
  stance_module = PyUnicode_InternFromString("torch._dynamo.eval_frame");
  stance_name = PyUnicode_InternFromString("_stance");
  const bool named = fx_flag && modules && stance_module && stance_name;
  return named && PyModule_AddFunctions(module, observer_functions) == 0;
}

}  // namespace jitmagic
