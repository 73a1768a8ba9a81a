// The fallback under the dispatch key: records a call in this thread's batch, or runs it now; see lazy.h.

#include <cmath>
#include <cstring>
#include <limits>
#include <typeinfo>

#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

constexpr size_t MOST_OPERATIONS = 1024;  // of a batch; then it runs

enum Tag : int64_t {
  NONE, INT, NAME, FLOAT, BOOL, TEXT, DEVICE, INTS, FLOATS, BOOLS, TENSOR, TENSORS, NUMBER, INPUT, UNDEFINED
};

constexpr int64_t INERT = std::numeric_limits<int64_t>::min() + 1;  // in place of a number
constexpr double LARGEST_HALF = 65504;

constexpr c10::DispatchKeySet BELOW(c10::DispatchKeySet::FULL_AFTER, KEY);
const c10::DispatchKeySet IGNORED = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                    c10::DispatchKeySet(KEY);

bool is_plain(const c10::TensorImpl* impl) {
  const auto keys = impl->key_set() - IGNORED;
  return (keys == c10::DispatchKeySet(c10::DispatchKey::CPU) || keys == c10::DispatchKeySet(c10::DispatchKey::CUDA)) &&
         !impl->has_symbolic_sizes_strides();
}

// Descriptions of a call. `call` decides the layouts of its results: it has the layouts of tensors, and numbers as far as
// they matter. `shape` is what batches of one key have in common: it has neither.
struct Tokenised {
  Tokens call, shape;
  std::vector<Number> numbers;

  void clear() {
    call.clear();
    shape.clear();
    numbers.clear();
  }
  void both(std::initializer_list<int64_t> tokens) {
    call.insert(call.end(), tokens);
    shape.insert(shape.end(), tokens);
  }
  // `is_inert`: the number decides no layout. Kernels refuse zeros (as divisors) and numbers that overflow a dtype.
  void add(int64_t number, bool is_inert) {
    const bool is_usual = number && -(int64_t(1) << 31) <= number && number < (int64_t(1) << 31);
    call.push_back(is_inert && is_usual ? INERT : number);
    numbers.push_back({number, false});
  }
  void add(double number, bool is_inert) {
    int64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    call.push_back(is_inert && std::abs(number) <= LARGEST_HALF ? INERT : bits);
    numbers.push_back({bits, true});
  }
};

// What a call reads: its tensors, and its arguments as tokens.
struct Scan {
  const Facts& facts;
  const torch::jit::Stack& stack;
  size_t first;
  Tokenised& made;
  struct Found {
    int argument, item;
    const at::Tensor* tensor;
    int layout;
    PendingStorage* pending;
  };
  c10::SmallVector<Found, 6> tensors;
  c10::SmallVector<at::Tensor, 6> items;  // of lists, alive as long as the scan
  bool can_record = true;
  bool has_pending = false;
  std::optional<c10::Device> device;

  void read() {
    for (size_t i = first; i < stack.size(); i++) read(stack[i], int(i - first));
    size_t next = 0;
    for (Found& one : tensors)
      if (one.item >= 0) one.tensor = &items[next++];
  }

  void read(const c10::IValue& value, int argument) {
    if (value.isTensor()) {
      add(value.toTensor(), argument, -1);
    } else if (value.isNone()) {
      made.both({NONE});
    } else if (value.isInt() && facts.names[size_t(argument)]) {
      made.both({NAME, value.toInt()});
    } else if (value.isInt()) {
      made.both({INT});
      made.add(value.toInt(), false);
    } else if (value.isDouble()) {
      made.both({FLOAT});
      made.add(value.toDouble(), facts.has_inert_floats);
    } else if (value.isBool()) {
      made.both({BOOL, value.toBool()});
    } else if (value.isIntList()) {
      const auto all = value.toListRef();
      made.both({INTS, int64_t(all.size())});
      for (const c10::IValue& one : all) made.add(one.toInt(), false);
    } else if (value.isDoubleList()) {
      const auto all = value.toListRef();
      made.both({FLOATS, int64_t(all.size())});
      for (const c10::IValue& one : all) made.add(one.toDouble(), false);
    } else if (value.isBoolList()) {
      const auto all = value.toListRef();
      made.both({BOOLS, int64_t(all.size())});
      for (const c10::IValue& one : all) made.both({int64_t(one.toBool())});
    } else if (value.isDevice()) {
      const auto device = value.toDevice();
      made.both({DEVICE, int64_t(device.type()), device.index()});
    } else if (value.isString()) {
      const std::string text = value.toStringRef();
      made.both({TEXT, int64_t(text.size())});
      for (const char one : text) made.both({one});
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      tensor_list(value, argument);
    } else {
      can_record = false;
    }
  }

  void tensor_list(const c10::IValue& value, int argument) {
    const auto all = value.toListRef();
    made.both({TENSORS, int64_t(all.size())});
    int item = 0;
    for (const c10::IValue& one : all) {
      if (one.isTensor())
        add(one.toTensor(), argument, item);
      else
        made.both({NONE});
      item++;
    }
  }

  void add(const at::Tensor& tensor, int argument, int item) {
    if (!tensor.defined()) {
      made.both({UNDEFINED});
      return;
    }
    const auto* impl = tensor.unsafeGetTensorImpl();
    if (impl->is_wrapped_number()) {
      can_record &= item < 0;
      return number(tensor);
    }
    PendingStorage* pending = storage_of(impl);
    has_pending |= pending != nullptr;
    int layout = -1;
    if (pending && typeid(*impl) == typeid(PendingTensor)) {
      layout = static_cast<const PendingTensor*>(impl)->layout;
      can_record &= layout != PendingTensor::UNKNOWN;
    } else if (pending || !is_plain(impl) || !has_memory(impl)) {
      can_record = false;
    } else {
      layout = layout_of(tensor);
    }
    if (tensor.is_complex() || (device && *device != impl->device())) can_record = false;
    device = impl->device();
    made.call.insert(made.call.end(), {TENSOR, layout});
    made.shape.push_back(TENSOR);
    if (item >= 0) {
      items.push_back(tensor);
      tensors.push_back({argument, item, nullptr, layout, pending});
    } else {
      tensors.push_back({argument, item, &tensor, layout, pending});
    }
  }

  static bool has_memory(const c10::TensorImpl* impl) {
    if (!impl->has_storage() || !impl->storage().unsafeGetStorageImpl()) return false;
    return impl->numel() == 0 || impl->storage().data();
  }

  // A number of Python among tensors, of which only the type decides layouts.
  void number(const at::Tensor& tensor) {
    const auto type = tensor.scalar_type();
    made.both({NUMBER, int64_t(type)});
    if (type == at::kDouble)
      made.add(*tensor.const_data_ptr<double>(), true);
    else if (type == at::kLong)
      made.add(*tensor.const_data_ptr<int64_t>(), true);
    else if (type == at::kBool)
      made.both({*tensor.const_data_ptr<bool>()});
    else
      can_record = false;
  }
};

// Makes a tensor an input of the batch. The copy keeps its layout and its memory, whatever becomes of the tensor
// (`x.data = y`). Tensors of one layout over the same memory are one input: each `weight.t()` is a new tensor.
int input_of(Batch& batch, const at::Tensor& tensor, int layout) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto* memory = impl->storage().unsafeGetStorageImpl();
  auto& known = batch.inputs[memory];
  for (const int number : known)
    if (batch.values[size_t(number)].layout == layout) return number;
  const int number = int(batch.values.size());
  batch.values.push_back({layout, at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(0), false))});
  known.push_back(number);
  const auto device = impl->device();
  const auto dtype = int64_t(tensor.scalar_type());
  batch.key.insert(batch.key.end(), {INPUT, dtype, int64_t(device.type()), device.index(), impl->dim()});
  batch.reads_shared |= !memory->resizable();
  return number;
}

c10::IValue without_tensors(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number() ? value : c10::IValue(at::Tensor());
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  auto list = value.toList().copy();
  for (size_t i = 0; i < list.size(); i++)
    if (list.get(i).isTensor()) list.set(i, at::Tensor());
  return list;
}

using Dropped = c10::SmallVector<c10::IValue, 4>;  // arguments of a recorded call, released without the mutex

Batch& batch_of(Recorder& recorder) {
  if (!recorder.batch) {
    recorder.batch = std::make_shared<Batch>();
    recorder.batch->owner = &recorder;
    recorder.batch->default_dtype = c10::get_default_dtype_as_scalartype();
    recorder.batch->key.push_back(int64_t(recorder.batch->default_dtype));
  }
  return *recorder.batch;
}

void push_results(const Facts& facts, Recorder& recorder, const Results& results, int first, torch::jit::Stack* stack,
                  const at::Tensor& base) {
  Batch& batch = *recorder.batch;
  size_t next = 0;
  const auto make = [&]() -> at::Tensor {
    const int layout = results.layouts[next], value = first + int(next);
    next++;
    batch.values[size_t(value)].layout = layout;
    if (layout < 0) return {};
    return facts.kind == Kind::view ? make_pending_view(base, value, layout)
                                    : make_pending(recorder.batch, value, layout);
  };
  for (const int count : results.counts) {
    if (count < 0) {
      stack->emplace_back(make());
      continue;
    }
    c10::List<at::Tensor> list;
    for (int i = 0; i < count; i++) list.push_back(make());
    stack->emplace_back(std::move(list));
  }
}

// Records the call and replaces its arguments on the stack by its results. `dropped` gets the arguments.
void record(const Facts& facts, Recorder& recorder, const Scan& scan, const Results& results, const Line& line,
            torch::jit::Stack* stack, Dropped& dropped) {
  Batch& batch = batch_of(recorder);
  Operation operation{&facts};
  for (const auto& one : scan.tensors) {
    const auto* impl = one.tensor->unsafeGetTensorImpl();
    const int value = one.pending ? static_cast<const PendingTensor*>(impl)->value
                                  : input_of(batch, *one.tensor, one.layout);
    operation.tensors.push_back({one.argument, one.item, value});
  }
  // After its inputs: the operator, the arguments, and the values that its tensors are.
  batch.key.push_back(reinterpret_cast<int64_t>(&facts));
  batch.key.insert(batch.key.end(), scan.made.shape.begin(), scan.made.shape.end());
  batch.key.insert(batch.key.end(), results.counts.begin(), results.counts.end());
  batch.numbers.insert(batch.numbers.end(), scan.made.numbers.begin(), scan.made.numbers.end());
  for (const Place& one : operation.tensors) batch.key.push_back(one.value);
  operation.first_result = int(batch.values.size());
  operation.results = facts.kind == Kind::in_place ? 0 : int(results.layouts.size());
  operation.counts = results.counts;
  operation.line = line;
  for (size_t i = scan.first; i < stack->size(); i++) {
    operation.arguments.push_back(without_tensors((*stack)[i]));
    dropped.push_back(std::move((*stack)[i]));
  }
  stack->resize(scan.first);
  batch.values.resize(batch.values.size() + size_t(operation.results));
  const int first = operation.first_result;
  batch.operations.push_back(std::move(operation));
  counts().recorded++;
  if (facts.kind == Kind::in_place) {
    stack->push_back(dropped.front());
    return;
  }
  const at::Tensor base = facts.kind == Kind::view ? dropped.front().toTensor() : at::Tensor();
  push_results(facts, recorder, results, first, stack, base);
}

void make_real(const at::Tensor& tensor) {
  if (auto* pending = storage_of(tensor.unsafeGetTensorImpl())) compute(pending);
  drop_key(tensor);
}

// Returns tensors like those of an `empty` operator, whose arguments need no memory: masks of dropout are drawn into
// tensors like pending ones.
void allocate(const Results& results, size_t first, torch::jit::Stack* stack) {
  stack->resize(first);
  const Below below;
  for (const int number : results.layouts) {
    Locked lock(mutex());
    const Layout& layout = layout_at(number);
    lock.unlock();
    const auto options = at::TensorOptions().dtype(layout.dtype).device(layout.device);
    stack->emplace_back(at::empty_strided(layout.sizes, layout.strides, options));
  }
}

// Runs the batch of this thread if an operation about to run may write to memory that the batch still reads.
void before_writes(const Facts& facts, const Scan& scan) {
  std::shared_ptr<Batch> batch;
  {
    const Locked lock(mutex());
    Recorder* recorder = recorder_of_thread();
    if (!recorder || !recorder->batch) return;
    bool needed = facts.is_opaque;
    for (const auto& one : scan.tensors) {
      if (needed || !facts.writes[size_t(one.argument)] || !one.tensor->unsafeGetTensorImpl()->has_storage()) continue;
      needed = recorder->batch->inputs.count(one.tensor->storage().unsafeGetStorageImpl());
    }
    if (!needed) return;
    batch = recorder->batch;
  }
  run(batch);
}

void run_now(const Facts& facts, c10::DispatchKeySet keys, torch::jit::Stack* stack, Scan& scan) {
  for (const auto& one : scan.tensors) make_real(*one.tensor);
  before_writes(facts, scan);
  scan.items.clear();
  const c10::impl::ExcludeDispatchKeyGuard off(KEY);
  facts.op.redispatchBoxed(keys & BELOW, stack);
}

// Returns the recorder of this thread; a thread of the autograd engine records for the thread that waits for it.
Recorder* recorder_for(const Scan& scan) {
  if (Recorder* own = recorder_of_thread()) return own;
  if (!c10::impl::tls_is_dispatch_key_included(KEY)) return nullptr;
  for (const auto& one : scan.tensors)
    if (one.pending && one.pending->batch && !one.pending->batch->is_running) return one.pending->batch->owner;
  return nullptr;
}

bool asks_for_pinned(const Facts& facts, const torch::jit::Stack& stack, size_t first) {
  const auto at = first + size_t(facts.pinned);
  return facts.pinned >= 0 && stack[at].isBool() && stack[at].toBool();
}

bool can_record(const Facts& facts, const Scan& scan, const Line& line, const Recorder* recorder) {
  if (facts.kind == Kind::now || line.is_printing || !scan.can_record || !recorder) return false;
  const bool needs_pending = facts.kind == Kind::view || facts.kind == Kind::in_place;
  if (needs_pending && (scan.tensors.empty() || scan.tensors[0].argument || !scan.tensors[0].pending)) return false;
  for (const auto& one : scan.tensors)
    if (one.pending && (one.pending->failed || one.pending->batch != recorder->batch)) return false;
  return !asks_for_pinned(facts, scan.stack, scan.first);
}

// Whether the batch has to run before the next operation: other code may change what it reads, or it is long.
bool is_due(const Batch& batch) { return batch.reads_shared || batch.operations.size() >= MOST_OPERATIONS; }

enum class Outcome { recorded, unknown_results, allocate, now, run_first };

Outcome try_record(const Facts& facts, Scan& scan, const Line& line, torch::jit::Stack* stack,
                   Dropped& dropped, std::shared_ptr<Batch>& due) {
  Recorder* recorder = recorder_for(scan);
  if (!can_record(facts, scan, line, recorder)) return Outcome::now;
  const auto default_dtype = c10::get_default_dtype_as_scalartype();
  if (recorder->batch && recorder->batch->default_dtype != default_dtype) {
    due = recorder->batch;
    return Outcome::run_first;
  }
  scan.made.call.push_back(int64_t(default_dtype));
  const Results* results = cached_results(scan.made.call);
  if (!results) return Outcome::unknown_results;
  if (!results->known) return Outcome::now;
  if (facts.is_empty) return Outcome::allocate;
  record(facts, *recorder, scan, *results, line, stack, dropped);
  if (is_due(*recorder->batch)) due = recorder->batch;
  return Outcome::recorded;
}

}  // namespace

Recorder*& recorder_of_thread() {
  static thread_local Recorder* recorder = nullptr;
  return recorder;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Facts& facts = facts_of(op);
  if (facts.kind == Kind::composite) {
    op.redispatchBoxed(keys & BELOW, stack);
    return;
  }
  static thread_local Tokenised tokens;
  const size_t first = stack->size() - facts.writes.size();
  Line line;
  for (;;) {
    std::optional<Gil> gil(std::in_place);
    if (facts.kind != Kind::now && !line.code) line = users_line();
    Dropped dropped;
    std::shared_ptr<Batch> due;
    tokens.clear();
    tokens.call.push_back(reinterpret_cast<int64_t>(&facts));
    Scan scan{facts, *stack, first, tokens};
    Outcome outcome;
    {
      const Locked lock(mutex());
      forget_old_layouts();
      scan.read();
      outcome = try_record(facts, scan, line, stack, dropped, due);
    }
    gil.reset();
    if (outcome == Outcome::now) return run_now(facts, keys, stack, scan);
    if (outcome == Outcome::allocate) return allocate(*cached_results(tokens.call), first, stack);
    if (outcome == Outcome::recorded) {
      dropped.clear();
      if (due) run(due);
      return;
    }
    if (outcome == Outcome::run_first) {
      run(due);
      continue;
    }
    const Tokens call = tokens.call;
    const Results inferred = infer_results(facts, {stack->begin() + int64_t(first), stack->end()});
    const Locked lock(mutex());
    cache_results(call, inferred);
  }
}

}  // namespace jitmagic::lazy
