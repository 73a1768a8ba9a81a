// Tensors without memory. Every reader of a tensor's memory goes through `storage()`, or through a data pointer, which
// asks `has_storage()` first; both are virtual, so both can compute the memory before they answer. See lazy.h.

#include <typeinfo>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

// A tensor of torch's own class whose memory was replaced by pending memory cannot compute it when its data pointer is
// read; torch raises this text then.
const char* const NO_DATA = "the memory is pending: call jitmagic.lazy.flush() before its address is read";

struct KeyAccess : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::* member() { return &KeyAccess::key_set_; }
};

bool c10::StorageImpl::* refuses_reads();

// Only an explicit instantiation may name a private member. clear_data_ptr_access_error_msg_(), which resets this one,
// came after torch 2.11.
template <bool c10::StorageImpl::* Member>
struct PrivateMember {
  friend bool c10::StorageImpl::* refuses_reads() { return Member; }
};
template struct PrivateMember<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

void remove_key(c10::TensorImpl* impl) {
  auto& keys = impl->*KeyAccess::member();
  keys = keys.remove(KEY);
}

c10::DispatchKeySet keys_for(const Layout& layout) {
  const auto backend = layout.device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return c10::DispatchKeySet(backend).add(KEY);
}

}  // namespace

PendingStorage::PendingStorage(std::shared_ptr<Batch> batch, int value, const Layout& layout)
    : c10::StorageImpl(
          use_byte_size_t(), size_t(layout.elements()) * c10::elementSize(layout.dtype),
          c10::DataPtr(nullptr, layout.device), c10::GetAllocator(layout.device.type()), true),
      batch(std::move(batch)),
      value(value) {
  release_data_and_set_meta_custom_data_ptr_error_msg_(NO_DATA);
}

PendingStorage::~PendingStorage() {
  std::shared_ptr<Batch> dropped;  // dies after the lock
  const Locked lock(mutex());
  if (batch) batch->values[size_t(value)].storage = nullptr;
  std::swap(dropped, batch);
}

void PendingStorage::fill(c10::Storage source, const Layout& layout) {
  c10::DataPtr data = source.set_data_ptr(c10::DataPtr(nullptr, layout.device));
  set_nbytes(source.nbytes());
  this->*refuses_reads() = false;
  set_data_ptr_noswap(std::move(data));  // reads that flag
  is_pending = false;
  for (PendingTensor* tensor : tensors) tensor->settle();
  tensors.clear();
}

PendingStorage* storage_of(const c10::TensorImpl* impl) {
  if (!impl->key_set().has(KEY)) return nullptr;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (!storage || typeid(*storage) != typeid(PendingStorage)) return nullptr;
  auto* pending = static_cast<PendingStorage*>(storage);
  return pending->is_pending ? pending : nullptr;
}

void drop_key(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.key_set().has(KEY)) remove_key(tensor.unsafeGetTensorImpl());
}

PendingTensor::PendingTensor(c10::intrusive_ptr<PendingStorage> storage, int value, int layout)
    : TensorImpl(
          c10::Storage(std::move(storage)), keys_for(layout_at(layout)),
          c10::scalarTypeToTypeMeta(layout_at(layout).dtype)),
      value(value),
      layout(layout) {
  const Layout& known = layout_at(layout);
  set_sizes_and_strides(known.sizes, known.strides, known.offset);
  attach();
}

PendingTensor::PendingTensor(c10::Storage storage, c10::DispatchKeySet keys, int value, int layout)
    : TensorImpl(TensorImpl::VIEW, std::move(storage), keys, c10::scalarTypeToTypeMeta(layout_at(layout).dtype)),
      value(value),
      layout(layout) {
  const Layout& known = layout_at(layout);
  set_sizes_and_strides(known.sizes, known.strides, known.offset);
  attach();
}

PendingTensor::~PendingTensor() { detach(); }

void PendingTensor::attach() {
  auto* storage = static_cast<PendingStorage*>(storage_.unsafeGetStorageImpl());
  storage->tensors.push_back(this);
  is_attached = true;
}

void PendingTensor::detach() {
  if (!is_attached) return;
  const Locked lock(mutex());
  if (!is_attached) return;
  is_attached = false;
  auto& all = static_cast<PendingStorage*>(storage_.unsafeGetStorageImpl())->tensors;
  for (auto*& one : all)
    if (one == this) {
      one = all.back();
      all.pop_back();
      return;
    }
}

// `x.data = y`: x gets y's memory, which may be pending too.
void PendingTensor::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& from) {
  const Gil gil;
  const Locked lock(mutex());
  detach();
  TensorImpl::shallow_copy_from(from);
  if (!storage_of(this)) return;
  const bool known = typeid(*from) == typeid(PendingTensor);
  value = known ? static_cast<const PendingTensor&>(*from).value : UNKNOWN;
  layout = known ? static_cast<const PendingTensor&>(*from).layout : UNKNOWN;
  attach();
}

void PendingTensor::release_resources() {
  detach();
  TensorImpl::release_resources();
}

void PendingTensor::settle() {
  remove_key(this);
  is_attached = false;
}

bool PendingTensor::has_storage() const {
  if (auto* pending = storage_of(this)) compute(pending);
  return TensorImpl::has_storage();
}

const c10::Storage& PendingTensor::storage() const {
  if (auto* pending = storage_of(this)) compute(pending);
  return TensorImpl::storage();
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> PendingTensor::copy(Version&& version, bool allow_change) const {
  const Gil gil;
  const Locked lock(mutex());
  if (!storage_of(this)) return TensorImpl::shallow_copy_and_detach(std::forward<Version>(version), allow_change);
  auto made = c10::make_intrusive<PendingTensor>(c10::Storage(storage_), key_set(), value, layout);
  copy_tensor_metadata(this, made.get(), std::forward<Version>(version), allow_change);
  return made;
}

c10::intrusive_ptr<c10::TensorImpl> PendingTensor::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_change) const {
  return copy(version, allow_change);
}

c10::intrusive_ptr<c10::TensorImpl> PendingTensor::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_change) const {
  return copy(std::move(version), allow_change);
}

at::Tensor make_pending(const std::shared_ptr<Batch>& batch, int value, int layout) {
  auto storage = c10::make_intrusive<PendingStorage>(batch, value, layout_at(layout));
  batch->values[size_t(value)].storage = storage.get();
  return at::Tensor(c10::make_intrusive<PendingTensor>(std::move(storage), value, layout));
}

at::Tensor make_pending_view(const at::Tensor& base, int value, int layout) {
  const auto* impl = base.unsafeGetTensorImpl();
  return at::Tensor(
      c10::make_intrusive<PendingTensor>(c10::Storage(impl->unsafe_storage()), impl->key_set(), value, layout));
}

}  // namespace jitmagic::lazy
