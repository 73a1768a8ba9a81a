// Runs a batch and gives its live results their memory; see lazy.h.
//
// A batch runs as a compiled graph. Where there is none, or where that raises, its operations run one by one, which also
// finds the operation and the line of an error.
// Inputs are never written to, so running a batch again is safe.

#include <condition_variable>

#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

std::condition_variable_any& finished() {
  static auto* made = new std::condition_variable_any();
  return *made;
}

// The default dtype that operations without a dtype had when they were recorded.
struct DefaultDtype {
  at::ScalarType before = c10::get_default_dtype_as_scalartype();
  explicit DefaultDtype(at::ScalarType wanted) { change(wanted); }
  ~DefaultDtype() { change(before); }
  static void change(at::ScalarType wanted) {
    if (wanted != c10::get_default_dtype_as_scalartype()) c10::set_default_dtype(c10::scalarTypeToTypeMeta(wanted));
  }
};

void wait_for(const std::shared_ptr<Batch>& batch, Locked& lock) {
  TORCH_CHECK(
      batch->runner != PyThread_get_thread_ident(),
      "a pending tensor of jitmagic.lazy() is read while it is being computed");
  lock.unlock();
  PyThreadState* released = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  lock.lock();
  finished().wait(lock, [&] { return !batch->is_running; });
  lock.unlock();
  if (released) PyEval_RestoreThread(released);
  lock.lock();
}

void run_one(const Operation& operation, std::vector<at::Tensor>& values) {
  torch::jit::Stack stack = filled_arguments(operation, values);
  operation.facts->op.callBoxed(stack);
  if (!operation.results) return;
  size_t next = size_t(operation.first_result);
  for (const c10::IValue& one : stack) {
    if (one.isTensor()) {
      values[next++] = one.toTensor();
    } else {
      for (const c10::IValue& item : one.toListRef()) values[next++] = item.toTensor();
    }
  }
}

// Runs the operations one by one; returns the error that ended it.
std::exception_ptr replay(const Batch& batch, std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < values.size(); i++) values[i] = batch.values[i].input;
  for (const Operation& operation : batch.operations) {
    try {
      run_one(operation, values);
    } catch (c10::Error& error) {
      if (operation.line.code) error.add_context("recorded by jitmagic.lazy() at " + text_of(operation.line));
      return std::current_exception();
    } catch (...) {
      return std::current_exception();
    }
  }
  return nullptr;
}

// Returns the tensor, or a copy of it that has the recorded layout and memory of its own.
at::Tensor conforming(at::Tensor tensor, const Layout& layout) {
  TORCH_CHECK(
      tensor.sizes() == c10::IntArrayRef(layout.sizes) && tensor.scalar_type() == layout.dtype,
      "jitmagic.lazy() expected a result of shape ", c10::IntArrayRef(layout.sizes), " and type ", layout.dtype,
      ", the operator returned ", tensor.sizes(), " and ", tensor.scalar_type());
  const auto& storage = tensor.storage();
  const bool fits = tensor.strides() == c10::IntArrayRef(layout.strides) && tensor.storage_offset() == layout.offset &&
                    storage.nbytes() >= size_t(layout.elements()) * tensor.element_size() && storage.use_count() == 1 &&
                    storage.unsafeGetStorageImpl()->resizable();
  if (fits) return tensor;
  const auto options = at::TensorOptions().dtype(layout.dtype).device(layout.device);
  return at::empty_strided(layout.sizes, layout.strides, options).copy_(tensor);
}

std::exception_ptr compute_values(
    const Batch& batch, const std::vector<int>& outputs, const Tokens& key, std::vector<at::Tensor>& values) {
  const Below below;
  const DefaultDtype dtype(batch.default_dtype);
  const std::shared_ptr<Form> form = form_of(batch, outputs, key);
  std::optional<std::string> fault;
  if (form && !(fault = call(*form, batch, outputs, values))) return nullptr;
  counts().replayed++;
  std::exception_ptr error = replay(batch, values);
  if (fault && !error) {
    form->function = nullptr;
    report_fault(*fault);
  }
  return error;
}

// Gives the live results of a batch their memory, or the error.
void finish(Batch& batch, const std::vector<int>& outputs, std::vector<at::Tensor>& values, std::exception_ptr& error) {
  std::vector<c10::Storage> made(outputs.size());  // not tensors: freeing one lets go of the GIL for a moment
  {
    const Below below;
    std::vector<at::Tensor> results;
    for (const int output : outputs) results.push_back(std::move(values[size_t(output)]));
    values.clear();
    for (size_t i = 0; i < outputs.size(); i++) {
      if (!results[i].defined()) continue;
      try {
        Locked lock(mutex());
        const Layout& layout = layout_at(batch.values[size_t(outputs[i])].layout);
        lock.unlock();
        made[i] = conforming(std::move(results[i]), layout).storage();
      } catch (...) {
        error = std::current_exception();
      }
    }
  }
  const Locked lock(mutex());
  for (size_t i = 0; i < outputs.size(); i++) {
    const Value& value = batch.values[size_t(outputs[i])];
    if (!value.storage) continue;
    if (made[i])
      value.storage->fill(std::move(made[i]), layout_at(value.layout));
    else
      value.storage->failed = error;
  }
}

}  // namespace

Below::Below()
    : guard(
          c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
          c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(KEY) |
              c10::DispatchKeySet(
                  {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PreDispatch,
                   c10::DispatchKey::PythonDispatcher, c10::DispatchKey::Functionalize,
                   c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})) {
}

Counts& counts() {
  static Counts made;
  return made;
}

std::recursive_mutex& mutex() {
  static auto* made = new std::recursive_mutex();
  return *made;
}

torch::jit::Stack filled_arguments(const Operation& operation, const std::vector<at::Tensor>& values) {
  torch::jit::Stack stack;
  for (const c10::IValue& one : operation.arguments) {
    const bool is_list = one.isTensorList() || one.isOptionalTensorList();
    stack.push_back(is_list ? c10::IValue(one.toList().copy()) : one);
  }
  for (const Place& one : operation.tensors) {
    c10::IValue& argument = stack[size_t(one.argument)];
    if (one.item < 0)
      argument = values[size_t(one.value)];
    else
      argument.toList().set(size_t(one.item), values[size_t(one.value)]);
  }
  return stack;
}

void run(const std::shared_ptr<Batch>& batch) {
  std::vector<int> outputs;
  Tokens key;
  {
    Locked lock(mutex());
    if (batch->is_running) return wait_for(batch, lock);
    if (!batch->owner) return;  // it has run
    batch->owner->batch.reset();
    batch->owner = nullptr;
    batch->is_running = true;
    batch->runner = PyThread_get_thread_ident();
    for (size_t i = 0; i < batch->values.size(); i++)
      if (batch->values[i].storage) outputs.push_back(int(i));
    key = batch->key;
    key.insert(key.end(), outputs.begin(), outputs.end());
    key.push_back(int64_t(outputs.size()));
    counts().batches++;
  }
  const Gil gil;
  std::vector<at::Tensor> values(batch->values.size());
  std::exception_ptr error;
  try {
    if (!outputs.empty()) error = compute_values(*batch, outputs, key, values);
  } catch (...) {  // an interrupt, or a compile that has to raise
    error = std::current_exception();
  }
  finish(*batch, outputs, values, error);
  std::vector<Operation> operations;  // released without the mutex
  std::vector<Value> inputs;
  {
    const Locked lock(mutex());
    for (const int output : outputs) {
      PendingStorage* storage = batch->values[size_t(output)].storage;
      if (storage && !storage->failed) storage->batch.reset();
      batch->values[size_t(output)].storage = nullptr;
    }
    batch->is_running = false;
    std::swap(operations, batch->operations);
  }
  finished().notify_all();
  if (error) std::rethrow_exception(error);
}

void compute(PendingStorage* storage) {
  std::shared_ptr<Batch> batch;
  {
    const Locked lock(mutex());
    if (!storage->is_pending) return;
    if (storage->failed) std::rethrow_exception(storage->failed);
    batch = storage->batch;
  }
  run(batch);
  const Locked lock(mutex());
  if (storage->failed) std::rethrow_exception(storage->failed);
}

}  // namespace jitmagic::lazy
