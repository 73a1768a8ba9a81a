// Shared declarations of jitmagic._lazy, which records torch operations and runs them later as one graph.
//
// Inside `with jitmagic.lazy():` the dispatch key Fake is on. It is below autograd and above all kernels, and torch
// registers nothing under it, so one boxed fallback sees every operation of forward and backward.
//
// operators.cpp  which operators are recorded; facts of their schemas, found once for each
// layouts.cpp    numbers for layouts of tensors, and layouts of results, cached for each operator and its arguments
// outside.h      the state in which compiled graphs and jitmagic's Python code run
// pending.cpp    tensors without memory: they get it when anything reads their storage or data pointer
// lines.cpp      the user's line that called an operation, found in the interpreter's frames by user_frame.c
// record.cpp     the fallback: records a call in the batch of this thread, or runs it now
// run.cpp        runs a batch: compiled, or operation by operation
// compiled.cpp   the compiled graphs of batches, and which of their numbers are inputs
// describe.cpp   batches as Python objects, for compiling and for `pending()`
// module.cpp     the Python functions
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/object_ptr.h>

namespace jitmagic::lazy {

constexpr auto KEY = c10::DispatchKey::Fake;

// torch's bindings release the GIL around operations; taking a reference to a tensor may request it (its Python object
// lives as long as both have references).
struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  Gil() = default;
  Gil(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state); }
};

// Protects batches, layouts and the links between pending tensors. Recursive, because a tensor may die while it is
// held. The GIL comes first: it is never requested while this is held, and where references are taken under this, the
// thread has it already.
std::recursive_mutex& mutex();
using Locked = std::unique_lock<std::recursive_mutex>;

// Exact keys of caches; equal vectors mean equal calls or equal batches.
using Tokens = std::vector<int64_t>;
struct TokensHash {
  size_t operator()(const Tokens& tokens) const {
    uint64_t hash = tokens.size();
    for (const int64_t token : tokens) hash = (hash ^ uint64_t(token)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
    return size_t(hash);
  }
};

// ---- operators.cpp

enum class Kind {
  composite,  // its kernel calls other operators, which are recorded
  pure,       // results own new memory
  view,       // results share the memory of the first tensor
  in_place,   // writes to the first argument, which it returns
  now,        // is never recorded
};

struct Facts {
  c10::OperatorHandle op;
  Kind kind = Kind::now;
  bool is_opaque = false;  // may read or write memory that its schema does not name
  bool is_empty = false;   // returns memory that is not initialised
  bool has_inert_floats = false;  // no float decides the layout of a result
  c10::SmallVector<bool, 8> writes;  // of each argument, whether it is written to
  c10::SmallVector<bool, 8> names;   // of each argument, whether its ints name things: dtypes, layouts
  bool writes_any = false;
  int device = -1;  // the argument that has the result's device
  int pinned = -1;  // the argument that asks for pinned memory
};
const Facts& facts_of(const c10::OperatorHandle& op);

// ---- layouts.cpp

struct Layout {
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;  // in elements
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::kCPU;

  int64_t elements() const;  // of the memory that it needs, from its start
};
// All are called with the mutex held. Numbers are valid while a batch is alive.
void forget_old_layouts();
int layout_of(const at::Tensor& tensor);
int layout_number(const Layout& layout);
const Layout& layout_at(int number);

// Layouts of all results; -1 is an undefined tensor. `is_list` of each result of the schema: how many it has, or -1.
struct Results {
  bool known = false;  // false: run the call now
  c10::SmallVector<int, 4> layouts;
  c10::SmallVector<int, 4> counts;
};
const Results* cached_results(const Tokens& call);
Results infer_results(const Facts& facts, const torch::jit::Stack& arguments);
void cache_results(const Tokens& call, const Results& results);

// ---- lines.cpp

struct Line {
  std::shared_ptr<PyCodeObject> code;
  int lasti = 0;
  bool is_printing = false;  // torch formats a tensor: compiling that would take longer than it does
};
Line users_line();  // with the GIL; a backward's is that of the call which started it
void set_library(std::vector<std::string> folders);
std::string text_of(const Line& line);  // ` in file.py:12, in f`, needs the GIL
PyObject* describe(const Line& line);   // (file, line number, function)

// ---- pending.cpp and record.cpp

struct PendingStorage;
struct Recorder;

// A tensor of a batch: read by it (`input`), or a result.
struct Value {
  int layout = -1;
  at::Tensor input;
  PendingStorage* storage = nullptr;  // set while memory that begins with this result is alive and pending
};

// A tensor argument: `item` is its position in a list, or -1.
struct Place {
  int argument, item, value;
};

struct Operation {
  const Facts* facts;
  c10::SmallVector<c10::IValue, 4> arguments;  // tensors are left out
  c10::SmallVector<Place, 4> tensors;
  int first_result, results;
  c10::SmallVector<int, 4> counts;  // results of each return; -1: one tensor
  Line line;
};

// A Python float or int among the arguments, or an item of a list of them. Floats are compared by their bits: -0.0 is
// another number than 0.0, and nan is one number.
struct Number {
  int64_t bits;
  bool is_float;
  bool operator==(const Number& other) const { return bits == other.bits && is_float == other.is_float; }
};

// Operations recorded since the last run. `key` describes all of them, except for sizes and strides of inputs and for
// `numbers`, which are in the order of the arguments.
struct Batch {
  static inline std::atomic<int> alive{0};
  Batch() { alive++; }
  Batch(const Batch&) = delete;
  ~Batch() { alive--; }

  std::vector<Operation> operations;
  std::vector<Number> numbers;
  std::vector<Value> values;
  std::unordered_map<const c10::StorageImpl*, c10::SmallVector<int, 2>> inputs;  // by their memory
  Tokens key;
  at::ScalarType default_dtype = at::kFloat;
  Recorder* owner = nullptr;
  bool is_running = false;
  unsigned long runner = 0;   // the thread that runs it
  bool reads_shared = false;  // an input's memory may be written by other than torch
};

// What a `with` block records, in its thread.
struct Recorder {
  std::shared_ptr<Batch> batch;
  int depth = 1;
};
Recorder*& recorder_of_thread();

struct PendingTensor;

// Memory that has an owner and a size, and no bytes yet.
struct PendingStorage final : c10::StorageImpl {
  PendingStorage(std::shared_ptr<Batch> batch, int value, const Layout& layout);
  ~PendingStorage() override;

  std::shared_ptr<Batch> batch;  // null once it is filled
  int value;
  std::atomic<bool> is_pending{true};
  std::exception_ptr failed;  // what computing it has raised
  c10::SmallVector<PendingTensor*, 2> tensors;

  void fill(c10::Storage computed, const Layout& layout);
};

// Returns the storage if it is pending. `storage_of` also finds it under a tensor of another class, whose memory was
// replaced: `x.data = y`.
PendingStorage* storage_of(const c10::TensorImpl* impl);

struct PendingTensor final : c10::TensorImpl {
  PendingTensor(c10::intrusive_ptr<PendingStorage> storage, int value, int layout);
  PendingTensor(c10::Storage storage, c10::DispatchKeySet keys, int value, int layout);  // shares memory
  ~PendingTensor() override;

  bool has_storage() const override;
  const c10::Storage& storage() const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version, bool allow_change)
      const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& from) override;
  void release_resources() override;

  static constexpr int UNKNOWN = -1;
  int value, layout;  // in the batch, while the memory is pending
  bool is_attached = false;

  void attach();  // to the storage, which settles its tensors once it is filled
  void detach();
  void settle();

 private:
  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const;
};

at::Tensor make_pending(const std::shared_ptr<Batch>& batch, int value, int layout);
at::Tensor make_pending_view(const at::Tensor& base, int value, int layout);
// Makes a tensor of torch's own class ordinary again, if its memory was pending and is filled.
void drop_key(const at::Tensor& tensor);

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// ---- run.cpp

struct Counts {
  int64_t recorded = 0, batches = 0, compiled = 0, cached = 0, replayed = 0;
};
Counts& counts();
void compute(PendingStorage* storage);          // runs its batch; throws what that raised
void run(const std::shared_ptr<Batch>& batch);  // throws too; results computed before the error are there

// Runs kernels of real tensors: nothing is recorded, autograd and modes do not see it.
struct Below {
  Below();
  c10::impl::ForceDispatchKeyGuard guard;
};

torch::jit::Stack filled_arguments(const Operation& operation, const std::vector<at::Tensor>& values);

// ---- compiled.cpp, with the GIL

// A compiled graph for all batches of one key whose numbers are equal at all positions but the varying ones. Those are
// passed to it, after the inputs.
struct Form {
  std::vector<Number> numbers;
  std::vector<int> varying;  // ascending
  THPObjectPtr function;     // null: its batches run one by one
};
// Returns the form that serves a batch, compiled if there is none; null if the batch is to run one by one.
std::shared_ptr<Form> form_of(const Batch& batch, const std::vector<int>& outputs, const Tokens& key);
// Calls the compiled graph, which may be compiled for other sizes then; returns what it raised.
std::optional<std::string> call(
    const Form& form, const Batch& batch, const std::vector<int>& outputs, std::vector<at::Tensor>& values);
void report_fault(const std::string& error);  // of a compiled graph whose operations raise nothing
void forget_compiled();

// Functions of jitmagic/lazy_mode, set before the first block begins.
struct Callbacks {
  PyObject* infer = nullptr;         // (operator, overload, arguments, keyword arguments, device): results or None
  PyObject* compile = nullptr;       // (description): a callable of the inputs and the varying numbers
  PyObject* report_fault = nullptr;  // (error)
};
Callbacks& callbacks();

// ---- describe.cpp, with the GIL

PyObject* describe_batch(const Batch& batch, const std::vector<int>& outputs, const std::vector<int>& varying);
PyObject* describe_call(const Facts& facts, const torch::jit::Stack& arguments, c10::Device device);
PyObject* describe_pending(const Batch& batch);

}  // namespace jitmagic::lazy
