// Checks tensors and the thread's torch state.
//
// The Python object of a torch.Tensor contains one pointer, whose offset is found on a real tensor
// at import. Autograd's metadata is read directly: torch's functions for it would be most of a
// guard's cost.

#include "function_modes.h"
#include "tensors.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

// Exported by libtorch_cpu; <ATen/autocast_mode.h> includes every operator and costs 6 s.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device);
TORCH_API int increment_nesting();
TORCH_API int decrement_nesting();
TORCH_API bool is_autocast_cache_enabled();
}  // namespace at::autocast

namespace jitmagic {
namespace {

std::optional<at::ScalarType> dtype_of(PyObject* object) {
  if (!THPDtype_Check(object)) return refuse_step("guard step: a torch.dtype is expected"), std::nullopt;
  return reinterpret_cast<THPDtype*>(object)->scalar_type;
}

bool integers(PyObject* tuple, c10::SmallVector<int64_t, 4>& values) {
  if (!PyTuple_Check(tuple)) return refuse_step("guard step: sizes and strides are tuples");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (value == -1 && PyErr_Occurred()) return false;
    values.push_back(value);
  }
  return true;
}

// ("TENSOR", source, class, dtype, device, sizes, strides, requires_grad, is_leaf, keys,
//  hiding)
struct TensorCheck final : TorchCheck {
  PyObject* cls = nullptr;  // weak reference: a class of the user's may be redefined
  PyObject* hiding = nullptr;  // names of attributes, a tuple
  uint64_t keys = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  at::Device device = at::kCPU;
  c10::SmallVector<int64_t, 4> sizes, strides;
  bool requires_grad = false, is_leaf = true;
  bool in_python = false;  // of a class with __torch_dispatch__, which may compute sizes in Python

  ~TensorCheck() override {
    Py_XDECREF(cls);
    Py_XDECREF(hiding);
  }

  // A loop, because a call of memcmp costs more for the few numbers of a shape.
  static bool same(at::IntArrayRef found, const c10::SmallVector<int64_t, 4>& wanted) {
    if (found.size() != wanted.size()) return false;
    for (size_t i = 0; i < wanted.size(); i++) {
      if (found[i] != wanted[i] && wanted[i] != -1) return false;  // -1: any size
    }
    return true;
  }

  bool passes(PyObject* object) const override {
    if ((PyObject*)Py_TYPE(object) != reinterpret_cast<PyWeakReference*>(cls)->wr_object) return false;
    const at::TensorBase& tensor = tensor_of(object);
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl->key_set().raw_repr() != keys || impl->dtype() != at::scalarTypeToTypeMeta(dtype)) {
      return false;
    }
    if (in_python ? !same_layout(*impl)
                  : impl->device() != device || !same(impl->sizes(), sizes) ||
                        !same(impl->strides(), strides)) {
      return false;
    }
    return has_gradient_of(tensor) && jm_instance_hides_only(object, hiding);
  }

  // Python that computes sizes may raise, and symbolic sizes raise when they are read as ints.
  bool same_layout(const c10::TensorImpl& impl) const {
    try {
      return impl.device() == device && same(impl.sizes(), sizes) && same(impl.strides(), strides);
    } catch (const std::exception&) {
      return PyErr_Clear(), false;
    }
  }

  bool has_gradient_of(const at::TensorBase& tensor) const {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
    if (!meta) return !requires_grad;
    if (!meta->is_view_ && !meta->fw_grad_) {  // independent of other tensors
      const bool made = static_cast<bool>(meta->grad_fn_);
      return (meta->requires_grad_ || made) == requires_grad && (!requires_grad || !made == is_leaf);
    }
    if (impl->requires_grad() != requires_grad) return false;
    // Forward-mode AD has one level. torch.func.jvp wraps its dual tensors, and graphs take those.
    const bool wrapped = impl->key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
    if (!wrapped && impl->_fw_grad(0, tensor).defined()) return false;
    return !requires_grad || tensor.is_leaf() == is_leaf;
  }

  void visit_refs(visitproc visit, void* arg, int& stopped) const override {
    if (cls && !stopped) stopped = visit(cls, arg);
  }
};

bool fill(TensorCheck& check, PyObject* step) {
  PyObject* cls = PyTuple_GET_ITEM(step, 2);
  if (!PyType_Check(cls)) return refuse_step("guard step: a tensor class is expected");
  PyObject* device = PyTuple_GET_ITEM(step, 4);
  if (!THPDevice_Check(device)) return refuse_step("guard step: a torch.device is expected");
  const auto dtype = dtype_of(PyTuple_GET_ITEM(step, 3));
  if (!dtype || !integers(PyTuple_GET_ITEM(step, 5), check.sizes) ||
      !integers(PyTuple_GET_ITEM(step, 6), check.strides)) {
    return false;
  }
  check.dtype = *dtype;
  check.device = reinterpret_cast<THPDevice*>(device)->device;
  check.requires_grad = PyObject_IsTrue(PyTuple_GET_ITEM(step, 7)) == 1;
  check.is_leaf = PyObject_IsTrue(PyTuple_GET_ITEM(step, 8)) == 1;
  check.keys = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(step, 9));
  if (PyErr_Occurred()) return false;
  PyObject* hiding = PyTuple_GET_ITEM(step, 10);
  if (!PyTuple_Check(hiding)) return refuse_step("guard step: names of attributes are a tuple");
  check.hiding = Py_NewRef(hiding);
  const c10::DispatchKeySet keys(c10::DispatchKeySet::RAW, check.keys);
  check.in_python = keys.has(c10::DispatchKey::Python);
  check.cls = PyWeakref_NewRef(cls, nullptr);
  return check.cls != nullptr;
}

// ("TENSOR_KIND", source, class, keys, dual): the property that keeps a tensor out of graphs. Sizes
// are not read, since some are computed in Python. `dual` is only set if a tangent is the sole
// reason.
struct KindCheck final : TorchCheck {
  PyObject* cls = nullptr;  // weak reference
  uint64_t keys = 0;
  bool dual = false;

  ~KindCheck() override { Py_XDECREF(cls); }

  bool passes(PyObject* object) const override {
    if ((PyObject*)Py_TYPE(object) != reinterpret_cast<PyWeakReference*>(cls)->wr_object) return false;
    const at::TensorBase& tensor = tensor_of(object);
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return impl->key_set().raw_repr() == keys && (!dual || impl->_fw_grad(0, tensor).defined());
  }

  void visit_refs(visitproc visit, void* arg, int& stopped) const override {
    if (cls && !stopped) stopped = visit(cls, arg);
  }
};

bool fill(KindCheck& check, PyObject* step) {
  PyObject* cls = PyTuple_GET_ITEM(step, 2);
  if (!PyType_Check(cls)) return refuse_step("guard step: a tensor class is expected");
  check.keys = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(step, 3));
  if (PyErr_Occurred()) return false;
  check.dual = PyObject_IsTrue(PyTuple_GET_ITEM(step, 4)) == 1;
  check.cls = PyWeakref_NewRef(cls, nullptr);
  return check.cls != nullptr;
}

// ("STATE", grad, inference, autocast_cpu, autocast_cuda, default_dtype, deterministic, function
// modes, dispatch modes, transformed, default device)
struct StateCheck final : TorchCheck {
  bool grad = true, inference = false, deterministic = false, transformed = false;
  std::optional<at::ScalarType> autocast_cpu, autocast_cuda, default_dtype;
  int64_t watching = 0, dispatch_modes = 0;
  std::optional<c10::Device> default_device;
  const at::Context* context = &at::globalContext();

  // Autocast is on if its dispatch key is not excluded, and a dispatch mode includes the Python
  // key: one read of the thread's key sets decides the usual case.
  static bool casts(bool enabled, at::DeviceType device, std::optional<at::ScalarType> wanted) {
    if (enabled != wanted.has_value()) return false;
    return !enabled || at::autocast::get_autocast_dtype(device) == *wanted;
  }

  bool same_keys() const {
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    const bool cpu = !keys.excluded_.has(c10::DispatchKey::AutocastCPU);
    const bool cuda = !keys.excluded_.has(c10::DispatchKey::AutocastCUDA);
    if (!casts(cpu, at::kCPU, autocast_cpu) || !casts(cuda, at::kCUDA, autocast_cuda)) return false;
    if (keys.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) != transformed) return false;
    const bool modes = keys.included_.has(c10::DispatchKey::Python);
    return (modes ? c10::impl::TorchDispatchModeTLS::stack_len() : 0) == dispatch_modes;
  }

  bool same_modes() const {
    const FunctionModes modes = function_modes();
    return modes.watching == watching && modes.device == default_device;
  }

  bool passes(PyObject*) const override {
    using Functions = at::impl::PythonTorchFunctionTLS;
    const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
    return autograd.get_grad_mode() == grad && autograd.get_inference_mode() == inference &&
           same_keys() && c10::get_default_dtype_as_scalartype() == *default_dtype &&
           context->deterministicAlgorithms() == deterministic &&
           same_modes() &&
           Functions::get_disabled_state() == at::impl::ENABLED;
  }
};

bool fill(StateCheck& check, PyObject* step) {
  check.grad = PyObject_IsTrue(PyTuple_GET_ITEM(step, 1)) == 1;
  check.inference = PyObject_IsTrue(PyTuple_GET_ITEM(step, 2)) == 1;
  PyObject* cpu = PyTuple_GET_ITEM(step, 3);
  PyObject* cuda = PyTuple_GET_ITEM(step, 4);
  if (cpu != Py_None && !(check.autocast_cpu = dtype_of(cpu))) return false;
  if (cuda != Py_None && !(check.autocast_cuda = dtype_of(cuda))) return false;
  if (!(check.default_dtype = dtype_of(PyTuple_GET_ITEM(step, 5)))) return false;
  check.deterministic = PyObject_IsTrue(PyTuple_GET_ITEM(step, 6)) == 1;
  check.watching = PyLong_AsLongLong(PyTuple_GET_ITEM(step, 7));
  check.dispatch_modes = PyLong_AsLongLong(PyTuple_GET_ITEM(step, 8));
  check.transformed = PyObject_IsTrue(PyTuple_GET_ITEM(step, 9)) == 1;
  PyObject* device = PyTuple_GET_ITEM(step, 10);
  if (device != Py_None) {
    if (!THPDevice_Check(device)) return refuse_step("guard step: a torch.device is expected");
    check.default_device = reinterpret_cast<THPDevice*>(device)->device;
  }
  return !PyErr_Occurred();
}

// ("AUTOCAST", dtype of the CPU, of CUDA, cache, nesting)
struct AutocastCheck final : TorchCheck {
  at::ScalarType cpu = at::kFloat, cuda = at::kFloat;
  bool cache = true;
  long nesting = 0;

  bool passes(PyObject*) const override {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting() == nesting &&
           at::autocast::is_autocast_cache_enabled() == cache &&
           at::autocast::get_autocast_dtype(at::kCPU) == cpu &&
           at::autocast::get_autocast_dtype(at::kCUDA) == cuda;
  }
};

bool fill(AutocastCheck& check, PyObject* step) {
  const auto cpu = dtype_of(PyTuple_GET_ITEM(step, 1)), cuda = dtype_of(PyTuple_GET_ITEM(step, 2));
  if (!cpu || !cuda) return false;
  check.cpu = *cpu;
  check.cuda = *cuda;
  check.cache = PyObject_IsTrue(PyTuple_GET_ITEM(step, 3)) == 1;
  check.nesting = PyLong_AsLong(PyTuple_GET_ITEM(step, 4));
  return !PyErr_Occurred();
}

// ("IN_RANGE", source, low, high, whole): a Python float or int, or the value of a CPU tensor with
// one element. An int of more than 64 bits is in no range. Smaller ones that no double represents
// are rounded; they are beyond the ends of every range.
struct RangeCheck final : TorchCheck {
  double low = 0, high = 0;
  bool whole = false;  // the value has no fraction
  static std::optional<double> value_of_int(PyObject* object) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow) return std::nullopt;
    return static_cast<double>(value);
  }

  static std::optional<double> value_of(PyObject* object) {
    if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
    if (PyLong_CheckExact(object)) return value_of_int(object);
    if (!is_tensor(object)) return std::nullopt;
    const c10::TensorImpl* impl = tensor_of(object).unsafeGetTensorImpl();
    if (!impl->has_storage() || impl->layout() != at::kStrided || !impl->device().is_cpu() || impl->numel() != 1) {
      return std::nullopt;
    }
    const void* data = impl->data();
    if (!data || impl->is_conj() || impl->is_neg()) return std::nullopt;
    switch (c10::typeMetaToScalarType(impl->dtype())) {
      case at::kDouble: return *static_cast<const double*>(data);
      case at::kFloat: return *static_cast<const float*>(data);
      case at::kLong: return static_cast<double>(*static_cast<const int64_t*>(data));
      case at::kInt: return *static_cast<const int32_t*>(data);
      case at::kShort: return *static_cast<const int16_t*>(data);
      case at::kChar: return *static_cast<const int8_t*>(data);
      case at::kByte: return *static_cast<const uint8_t*>(data);
      case at::kBool: return *static_cast<const bool*>(data) ? 1.0 : 0.0;
      default: return std::nullopt;
    }
  }

  bool passes(PyObject* object) const override {
    const auto value = value_of(object);
    return value && low <= *value && *value <= high && (!whole || std::trunc(*value) == *value);
  }
};

bool fill(RangeCheck& check, PyObject* step) {
  check.low = PyFloat_AsDouble(PyTuple_GET_ITEM(step, 2));
  check.high = PyFloat_AsDouble(PyTuple_GET_ITEM(step, 3));
  check.whole = PyTuple_GET_ITEM(step, 4) == Py_True;
  return !PyErr_Occurred();
}

template <class Check>
std::unique_ptr<TorchCheck> make(PyObject* step) {
  auto check = std::make_unique<Check>();
  if (!fill(*check, step)) return nullptr;
  return check;
}

struct Range {
  uintptr_t begin, end;
};

// The address range of a tensor's elements.
std::optional<Range> range_of(const c10::TensorImpl* impl) {
  if (!impl->has_storage() || impl->layout() != at::kStrided) return std::nullopt;
  if (impl->numel() == 0) return Range{0, 0};
  const void* data = impl->unsafe_storage().data();
  if (!data) return std::nullopt;
  int64_t last = 0;
  for (int64_t i = 0; i < impl->dim(); i++) last += (impl->size(i) - 1) * impl->stride(i);
  const auto itemsize = static_cast<int64_t>(impl->itemsize());
  const auto begin = reinterpret_cast<uintptr_t>(data) + impl->storage_offset() * itemsize;
  return Range{begin, begin + (last + 1) * itemsize};
}

// Finds the offset of the at::Tensor in a torch.Tensor: torch 2.11 and 2.12 have a flag before it,
// 2.13 does not.
bool find_tensor_offset() {
  PyObject* torch = PyImport_ImportModule("torch");
  if (!tensor_class && torch) {  // never released
    tensor_class = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(torch, "Tensor"));
  }
  PyObject* tensor = torch ? PyObject_CallMethod(torch, "empty", "i", 0) : nullptr;
  PyObject* address = tensor ? PyObject_GetAttrString(tensor, "_cdata") : nullptr;
  const void* wanted = address ? PyLong_AsVoidPtr(address) : nullptr;
  if (wanted) {
    for (std::ptrdiff_t place : {sizeof(PyObject), sizeof(PyObject) + sizeof(void*)}) {
      const char* at = reinterpret_cast<char*>(tensor) + place;
      if (*reinterpret_cast<const void* const*>(at) == wanted) {
        tensor_offset = place;
        break;
      }
    }
  }
  Py_XDECREF(address);
  Py_XDECREF(tensor);
  Py_XDECREF(torch);
  if (!tensor_offset && !PyErr_Occurred()) {
    PyErr_SetString(PyExc_ImportError, "the layout of torch.Tensor is unknown to this build");
  }
  return tensor_offset != 0;
}

}  // namespace

std::ptrdiff_t tensor_offset = 0;
PyTypeObject* tensor_class = nullptr;

std::unique_ptr<TorchCheck> make_tensor_check(PyObject* step) {
  constexpr Py_ssize_t kind = 5;  // "TENSOR_KIND" and its operands; "TENSOR" has more
  return PyTuple_GET_SIZE(step) == kind ? make<KindCheck>(step) : make<TensorCheck>(step);
}
std::unique_ptr<TorchCheck> make_state_check(PyObject* step) { return make<StateCheck>(step); }
std::unique_ptr<TorchCheck> make_autocast_check(PyObject* step) { return make<AutocastCheck>(step); }
std::unique_ptr<TorchCheck> make_range_check(PyObject* step) { return make<RangeCheck>(step); }

bool tensors_overlap(PyObject* const* objects, size_t count) {
  c10::SmallVector<Range, 64> ranges;
  for (size_t i = 0; i < count; i++) {
    if (!is_tensor(objects[i])) return true;
    const auto range = range_of(tensor_of(objects[i]).unsafeGetTensorImpl());
    if (!range) return true;
    if (range->begin != range->end) ranges.push_back(*range);
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  for (size_t i = 1; i < ranges.size(); i++) {
    if (ranges[i].begin < ranges[i - 1].end) return true;
  }
  return false;
}

bool is_unhooked(PyObject* object) {
  if (!is_tensor(object)) return false;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(
      tensor_of(object).unsafeGetTensorImpl()->autograd_meta());
  if (!meta) return true;
  if (!meta->hooks_.empty() || meta->post_acc_grad_hooks_) return false;
  const auto accumulator = meta->grad_accumulator_.lock();
  return !accumulator || (accumulator->pre_hooks().empty() && accumulator->post_hooks().empty() &&
                          accumulator->tensor_pre_hooks().empty());
}

bool register_tensor_guards(PyObject* module) {
  return find_tensor_offset() &&
         PyModule_AddStringConstant(module, "TORCH_VERSION", JITMAGIC_TORCH_VERSION) == 0;
}

}  // namespace jitmagic
