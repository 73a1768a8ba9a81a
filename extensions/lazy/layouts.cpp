// Numbers the layouts of tensors, and caches those of results, which Python infers; see lazy.h.

#include <deque>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "lazy.h"
#include "outside.h"

namespace jitmagic::lazy {
namespace {

constexpr size_t MOST_CALLS = 20000;  // then the cache starts anew
constexpr size_t MOST_LAYOUTS = 20000;

struct Layouts {
  std::deque<Layout> all;
  std::unordered_map<Tokens, int, TokensHash> numbers;
};
Layouts& layouts() {
  static auto* made = new Layouts();
  return *made;
}

std::unordered_map<Tokens, Results, TokensHash>& calls() {
  static auto* made = new std::unordered_map<Tokens, Results, TokensHash>();
  return *made;
}

void describe(Tokens& tokens, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset, at::ScalarType dtype,
              c10::Device device) {
  tokens.clear();
  tokens.push_back((int64_t(dtype) << 32) | (int64_t(device.type()) << 16) | int64_t(uint8_t(device.index())));
  tokens.push_back(offset);
  tokens.insert(tokens.end(), sizes.begin(), sizes.end());
  tokens.insert(tokens.end(), strides.begin(), strides.end());
}

template <class Make>
int number_of(const Tokens& tokens, Make&& make) {
  auto& known = layouts();
  const auto found = known.numbers.find(tokens);
  if (found != known.numbers.end()) return found->second;
  const int number = int(known.all.size());
  known.all.push_back(make());
  known.numbers.emplace(tokens, number);
  return number;
}

at::Tensor on_meta(const Layout& layout) {
  const auto options = at::TensorOptions().dtype(layout.dtype).device(c10::kMeta);
  if (!layout.offset) return at::empty_strided(layout.sizes, layout.strides, options);
  const int64_t elements[] = {layout.elements()}, one[] = {1};
  at::Tensor made = at::empty_strided(elements, one, options);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  return made;
}

// Returns a meta tensor of the same layout; numbers of Python stay.
at::Tensor meta_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  Locked lock(mutex());
  const Layout& layout = layout_at(layout_of(tensor));
  lock.unlock();
  return on_meta(layout);
}

c10::IValue meta_argument(const c10::IValue& value) {
  if (value.isTensor()) return meta_of(value.toTensor());
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  auto list = value.toList().copy();
  for (size_t i = 0; i < list.size(); i++) {
    const c10::IValue item = list.get(i);
    if (item.isTensor()) list.set(i, meta_of(item.toTensor()));
  }
  return list;
}

// Returns the device of the results: the one that the call names, or that of its tensors.
c10::Device device_of(const Facts& facts, const torch::jit::Stack& arguments) {
  if (facts.device >= 0 && arguments[size_t(facts.device)].isDevice()) {
    const c10::Device device = arguments[size_t(facts.device)].toDevice();
    if (device.is_cpu() || device.has_index()) return device;
    return c10::impl::getDeviceGuardImpl(device.type())->getDevice();
  }
  for (const c10::IValue& one : arguments) {
    if (one.isTensor() && one.toTensor().defined() && !one.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
      return one.toTensor().device();
    if (!one.isTensorList() && !one.isOptionalTensorList()) continue;
    for (const c10::IValue& item : one.toListRef())
      if (item.isTensor() && item.toTensor().defined()) return item.toTensor().device();
  }
  return c10::kCPU;
}

// Adds the layout of a result; returns whether it can be recorded.
bool add(Results& results, const at::Tensor& meta, c10::Device device) {
  if (!meta.defined()) {
    results.layouts.push_back(-1);
    return true;
  }
  if (meta.layout() != c10::kStrided || !meta.is_meta() || meta.is_complex() || meta.is_conj() || meta.is_neg() ||
      c10::isQIntType(meta.scalar_type()))
    return false;
  Layout layout;
  layout.sizes.assign(meta.sizes().begin(), meta.sizes().end());
  layout.strides.assign(meta.strides().begin(), meta.strides().end());
  layout.offset = meta.storage_offset();
  layout.dtype = meta.scalar_type();
  layout.device = device;
  Locked lock(mutex());
  results.layouts.push_back(layout_number(layout));
  return true;
}

}  // namespace

int64_t Layout::elements() const {
  int64_t last = offset;
  for (size_t i = 0; i < sizes.size(); i++) {
    if (!sizes[i]) return offset;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

int layout_of(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  static Tokens tokens;  // under the mutex
  describe(tokens, impl->sizes(), impl->strides(), impl->storage_offset(), tensor.scalar_type(), impl->device());
  return number_of(tokens, [&] {
    Layout made;
    made.sizes.assign(impl->sizes().begin(), impl->sizes().end());
    made.strides.assign(impl->strides().begin(), impl->strides().end());
    made.offset = impl->storage_offset();
    made.dtype = tensor.scalar_type();
    made.device = impl->device();
    return made;
  });
}

int layout_number(const Layout& layout) {
  static Tokens tokens;  // under the mutex
  describe(tokens, layout.sizes, layout.strides, layout.offset, layout.dtype, layout.device);
  return number_of(tokens, [&] { return layout; });
}

const Layout& layout_at(int number) { return layouts().all[size_t(number)]; }

const Results* cached_results(const Tokens& call) {
  const auto found = calls().find(call);
  return found == calls().end() ? nullptr : &found->second;
}

void cache_results(const Tokens& call, const Results& results) {
  if (calls().size() >= MOST_CALLS) calls().clear();
  calls().emplace(call, results);
}

void forget_old_layouts() {
  if (layouts().all.size() < MOST_LAYOUTS || Batch::alive) return;
  layouts().all.clear();
  layouts().numbers.clear();
  calls().clear();
}

Results infer_results(const Facts& facts, const torch::jit::Stack& arguments) {
  Results results;
  const Gil gil;
  const Outside outside;
  const c10::Device device = device_of(facts, arguments);
  torch::jit::Stack metas;
  for (const c10::IValue& one : arguments) metas.push_back(meta_argument(one));
  THPObjectPtr call(describe_call(facts, metas, device));
  THPObjectPtr made(call ? PyObject_CallObject(callbacks().infer, call) : nullptr);
  if (!made) throw python_error();
  if (!PyList_Check(made.get())) return results;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(made.get()); i++) {
    PyObject* one = PyList_GET_ITEM(made.get(), i);
    const bool is_list = PyList_Check(one);
    results.counts.push_back(is_list ? int(PyList_GET_SIZE(one)) : -1);
    for (Py_ssize_t item = 0; item < (is_list ? PyList_GET_SIZE(one) : 1); item++) {
      PyObject* result = is_list ? PyList_GET_ITEM(one, item) : one;
      if (!add(results, THPVariable_Check(result) ? THPVariable_Unpack(result) : at::Tensor(), device)) return results;
    }
  }
  results.known = true;
  return results;
}

}  // namespace jitmagic::lazy
