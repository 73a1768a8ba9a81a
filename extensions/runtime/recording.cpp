// The type Recording, and how one is replayed; see recording.h.

#include "recording.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/copy.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "execute.h"
#include "reading.h"

namespace jitmagic {
namespace {

// The memory of all recordings, by the number of recordings: each replay writes it again.
std::unordered_map<const void*, int>& recorded_memory() {
  static auto* memory = new std::unordered_map<const void*, int>;
  return *memory;
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().data() : nullptr;
}

uint64_t span_of(const at::Tensor& tensor) {
  TensorLayout layout{
      {tensor.sizes().begin(), tensor.sizes().end()}, {tensor.strides().begin(), tensor.strides().end()},
      tensor.scalar_type()};
  set_nbytes(layout);
  return layout.nbytes;
}

const at::Tensor& tensor_of(PyObject* object) {
  check(PyExc_TypeError, THPVariable_Check(object), "a recording takes tensors");
  return THPVariable_Unpack(object);
}

bool is_held(const ResultMemory& memory) {
  return !memory.is_copied && memory.storage.use_count() > memory.own_uses;
}

}  // namespace

bool fits(const RecordingData& data, PyObject* const* args) {
  for (size_t i = 0; i < data.addresses.size(); ++i) {
    if (data.addresses[i] && data.addresses[i] != THPVariable_Unpack(args[i]).const_data_ptr()) return false;
  }
  return true;
}

bool is_free(const RecordingData& data) {
  return !data.is_busy && std::ranges::none_of(data.memories, is_held);
}

namespace {

// -- replaying --------------------------------------------------------------------------------------------------------

at::Tensor alias_of(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
}

// Fills the ranges that the graph copies before its kernels and after them. Returns the storages of results that the
// caller gets.
c10::SmallVector<c10::Storage, 4> set_copies(
    Recording& self, PyObject* const* args, std::vector<CopyRange>& head, std::vector<CopyRange>& tail) {
  RecordingData& data = *self.data;
  c10::SmallVector<c10::Storage, 4> given;
  for (const ResultMemory& memory : data.memories) {
    given.push_back(memory.storage);
    if (!memory.is_copied) continue;
    given.back() = make_storage(memory.storage.nbytes(), data.device);
    tail.push_back({memory.storage.data(), given.back().mutable_data(), memory.storage.nbytes()});
  }
  for (const MovingInput& input : data.moving) {
    const at::Tensor& tensor = THPVariable_Unpack(args[input.input]);
    void* buffer = input.buffer.mutable_data_ptr();
    const bool is_elsewhere = tensor.device() != input.buffer.device();  // a generator's state: a CPU scalar
    if (is_elsewhere) at::Tensor(input.buffer).copy_(tensor, /*non_blocking=*/true);
    head.push_back({tensor.const_data_ptr(), buffer, is_elsewhere ? 0 : input.bytes});
    if (input.is_written) tail.push_back({buffer, const_cast<void*>(tensor.const_data_ptr()), input.bytes});
  }
  for (const auto* ranges : {&head, &tail}) {
    for (const CopyRange& range : *ranges) self.copied_bytes += range.bytes;
  }
  return given;
}

void copy_now(const std::vector<CopyRange>& ranges) {
  for (const CopyRange& range : ranges) std::memcpy(range.to, range.from, range.bytes);
}

void replay_by_torch(Recording& self) {
  self.data->is_busy = true;
  THPObjectPtr done(PyObject_CallMethod(self.graph, "replay", nullptr));
  self.data->is_busy = false;
  if (!done) throw python_error();
}

// torch.cuda.CUDAGraph.replay() also writes the generator's state to the GPU, for graphs that draw. Whether one does is
// known after its first replay.
void replay_first(Recording& self) {
  const at::Generator& generator = at::globalContext().defaultGenerator(self.data->device);
  const uint64_t before = generator.get_offset();
  replay_by_torch(self);
  self.data->launch = generator.get_offset() == before ? Launch::Direct : Launch::ByTorch;
}

void run_graph(Recording& self, const std::vector<CopyRange>& head, const std::vector<CopyRange>& tail, void* stream) {
  RecordingData& data = *self.data;
  if (!data.device.is_cuda()) {
    copy_now(head);
    replay_by_torch(self);
    copy_now(tail);
    return;
  }
  const c10::DeviceIndex device = data.device.index();
  data.head.update(data.exec, head, device);
  data.tail.update(data.exec, tail, device);
  switch (data.launch) {
    case Launch::Direct:
      return launch_graph(data.exec, stream, device);
    case Launch::ByTorch:
      return replay_by_torch(self);
    case Launch::Unknown:
      return replay_first(self);
  }
}

uint64_t replays_of_process = 0;

}  // namespace

c10::SmallVector<at::Tensor, 4> replay(Recording& self, PyObject* const* args, void* stream) {
  RecordingData& data = *self.data;
  std::vector<CopyRange> head, tail;
  const auto memory = set_copies(self, args, head, tail);
  c10::SmallVector<at::Tensor, 4> results;  // made first: they say that the recording is in use
  for (const Result& result : data.results) {
    if (!result.tensor.defined()) {
      results.emplace_back();
    } else if (data.memories[result.memory].is_copied) {
      const int64_t offset = result.tensor.storage_offset();
      results.push_back(tensor_over(memory[result.memory], result.layout, result.layout.dtype, offset));
    } else {
      results.push_back(alias_of(result.tensor));
    }
  }
  // Results of the last replay that share the recording's memory were dropped, but may still be read by kernels that
  // wait on its stream.
  if (data.stream && data.stream != stream) wait_for_stream(stream, data.stream, data.device.index());
  data.stream = stream;
  self.replays++;
  self.last_use = ++replays_of_process;
  run_graph(self, head, tail, stream);
  return results;
}

namespace {

// -- Recording --------------------------------------------------------------------------------------------------------

std::vector<CopyNode> read_nodes(PyObject* tuple) {
  std::vector<CopyNode> nodes;
  for (PyObject* one : items(tuple)) {
    nodes.push_back({uint64_t(integer(item(one, 0))), unsigned(integer(item(one, 1))), unsigned(integer(item(one, 2)))});
  }
  return nodes;
}

void read_results(PyObject* outputs, RecordingData& data) {
  std::map<const c10::StorageImpl*, size_t> known;
  for (PyObject* output : items(outputs)) {
    Result& made = data.results.emplace_back();
    if (output == Py_None) continue;
    made.tensor = alias_of(tensor_of(output));
    const c10::Storage& storage = made.tensor.storage();
    const auto [place, is_new] = known.emplace(storage.unsafeGetStorageImpl(), data.memories.size());
    if (is_new) data.memories.push_back({storage, 1, false});
    made.memory = place->second;
    data.memories[made.memory].own_uses++;
    made.layout.sizes = {made.tensor.sizes().begin(), made.tensor.sizes().end()};
    made.layout.strides = {made.tensor.strides().begin(), made.tensor.strides().end()};
    made.layout.dtype = made.tensor.scalar_type();
  }
}

// Recording(graph, exec, kept, device, addresses, moving, written, outputs, copied, head, tail)
PyObject* recording_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *graph, *kept, *device, *addresses, *moving, *written, *outputs, *copied, *head, *tail;
  unsigned long long exec;
  if (!PyArg_ParseTuple(
          args, "OKOOOOOOOOO:Recording", &graph, &exec, &kept, &device, &addresses, &moving, &written, &outputs, &copied, &head,
          &tail)) {
    return nullptr;
  }
  auto data = std::make_unique<RecordingData>();
  data->exec = exec;
  data->device = c10::Device(std::string(text(device)));
  for (PyObject* address : items(addresses)) data->addresses.push_back(PyLong_AsVoidPtr(address));
  const auto writes = integers<size_t>(written);
  for (PyObject* one : items(moving)) {  // (input, buffer)
    const auto input = size_t(integer(item(one, 0)));
    check(PyExc_ValueError, input < data->addresses.size(), "malformed recording: inputs");
    const at::Tensor& buffer = tensor_of(item(one, 1));
    data->moving.push_back({input, buffer, span_of(buffer), std::ranges::count(writes, input) > 0});
  }
  read_results(outputs, *data);
  for (size_t output : integers<size_t>(copied)) {
    check(PyExc_ValueError, output < data->results.size() && data->results[output].tensor.defined(),
          "malformed recording: results");
    data->memories[data->results[output].memory].is_copied = true;
  }
  data->head = GraphCopies(read_nodes(head));
  data->tail = GraphCopies(read_nodes(tail));
  const size_t copies = size_t(std::ranges::count_if(data->memories, &ResultMemory::is_copied));
  const bool is_whole = data->head.size() == data->moving.size() && data->tail.size() == copies + writes.size();
  check(PyExc_ValueError, is_whole || !data->device.is_cuda(), "malformed recording: copies");
  auto* self = reinterpret_cast<Recording*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  for (const ResultMemory& memory : data->memories) recorded_memory()[memory.storage.data()]++;
  self->graph = Py_NewRef(graph);
  self->kept = Py_NewRef(kept);
  self->data = data.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int recording_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Recording*>(object)->graph);
  Py_VISIT(reinterpret_cast<Recording*>(object)->kept);
  return 0;
}

int recording_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<Recording*>(object)->graph);
  Py_CLEAR(reinterpret_cast<Recording*>(object)->kept);
  return 0;
}

void recording_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* self = reinterpret_cast<Recording*>(object);
  for (const ResultMemory& memory : self->data->memories) {
    const auto found = recorded_memory().find(memory.storage.data());
    if (--found->second == 0) recorded_memory().erase(found);
  }
  recording_clear(object);  // before the memory that its kernels write to
  delete self->data;
  Py_TYPE(object)->tp_free(object);
}

bool are_inputs(const RecordingData& data, PyObject* tuple) {
  return items(tuple).size() == data.addresses.size() && std::ranges::all_of(items(tuple), THPVariable_Check);
}

// Returns the inputs that are not where the recording has them.
PyObject* recording_moved(PyObject* object, PyObject* inputs) {
  HANDLE_TH_ERRORS
  const RecordingData& data = *reinterpret_cast<Recording*>(object)->data;
  check(PyExc_TypeError, are_inputs(data, inputs), "a recording takes its inputs");
  THPObjectPtr moved(PyList_New(0));
  for (size_t i = 0; moved && i < data.addresses.size(); ++i) {
    const void* address = THPVariable_Unpack(PyTuple_GET_ITEM(inputs, i)).const_data_ptr();
    if (!data.addresses[i] || data.addresses[i] == address) continue;
    THPObjectPtr number(PyLong_FromSize_t(i));
    if (!number || PyList_Append(moved.get(), number.get()) < 0) return nullptr;
  }
  return moved.release();
  END_HANDLE_TH_ERRORS
}

// Returns the results whose memory is referenced outside of the recording.
PyObject* recording_held(PyObject* object, PyObject*) {
  const RecordingData& data = *reinterpret_cast<Recording*>(object)->data;
  THPObjectPtr held(PyList_New(0));
  for (size_t i = 0; held && i < data.results.size(); ++i) {
    const Result& result = data.results[i];
    if (!result.tensor.defined() || !is_held(data.memories[result.memory])) continue;
    THPObjectPtr number(PyLong_FromSize_t(i));
    if (!number || PyList_Append(held.get(), number.get()) < 0) return nullptr;
  }
  return held.release();
}

PyObject* recording_is_free(PyObject* object, PyObject*) {
  return PyBool_FromLong(is_free(*reinterpret_cast<Recording*>(object)->data));
}

// Returns whether the tensor is in memory that holds results of this recording.
PyObject* recording_owns(PyObject* object, PyObject* tensor) {
  HANDLE_TH_ERRORS
  const void* memory = memory_of(tensor_of(tensor));
  const auto& memories = reinterpret_cast<Recording*>(object)->data->memories;
  return PyBool_FromLong(memory && std::ranges::any_of(memories, [&](const ResultMemory& own) {
                           return own.storage.data() == memory;
                         }));
  END_HANDLE_TH_ERRORS
}

PyMethodDef recording_methods[] = {
    {"moved", recording_moved, METH_O, "Return the inputs, of a tuple, that are not where the recording has them."},
    {"held", recording_held, METH_NOARGS, "Return the results whose memory is referenced elsewhere."},
    {"is_free", recording_is_free, METH_NOARGS, "Return whether it can be replayed."},
    {"owns", recording_owns, METH_O, "Return whether a tensor is in memory of its results."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef recording_members[] = {
    {"replays", T_ULONGLONG, offsetof(Recording, replays), READONLY, "number of replays"},
    {"last_use", T_ULONGLONG, offsetof(Recording, last_use), READONLY, "when it was last replayed, a count of replays"},
    {"copied_bytes", T_ULONGLONG, offsetof(Recording, copied_bytes), READONLY, "what all replays copied"},
    {nullptr}};

PyTypeObject recording_type_of() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "jitmagic._runtime.Recording";
  type.tp_doc =
      "Recording(graph, exec, kept, device, addresses, moving, written, outputs, copied, head, tail): a CUDA graph. "
      "`kept` is referenced as long. `addresses`: of the inputs, 0 for those in `moving`, (input, buffer), which are "
      "copied; the graph writes to those in `written`. `copied`: positions of outputs that are copied; `head`, `tail`: "
      "the nodes of the copies.";
  type.tp_basicsize = sizeof(Recording);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = recording_traverse;
  type.tp_clear = recording_clear;
  type.tp_new = recording_new;
  type.tp_dealloc = recording_dealloc;
  type.tp_methods = recording_methods;
  type.tp_members = recording_members;
  return type;
}

// Returns whether replays write results to the storage at this address.
PyObject* is_recorded(PyObject*, PyObject* address) {
  const void* memory = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(recorded_memory().count(memory));
}

// share_temporaries(tensor or None)
PyObject* share_memory_of(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  share_temporaries(object == Py_None ? c10::Storage() : tensor_of(object).storage());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* load_copies(PyObject*, PyObject* device) {
  HANDLE_TH_ERRORS
  load_copy_kernel(c10::DeviceIndex(integer(device)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Returns a tuple of (node, ranges, blocks).
PyObject* captured_copies(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  int device;
  PyObject* sizes;
  if (!PyArg_ParseTuple(args, "iO:captured_copies", &device, &sizes)) return nullptr;
  const auto nodes = capture_copies(integers<uint64_t>(sizes), c10::DeviceIndex(device));
  THPObjectPtr tuple(PyTuple_New(Py_ssize_t(nodes.size())));
  for (size_t i = 0; tuple && i < nodes.size(); ++i) {
    PyObject* one = Py_BuildValue("(KII)", nodes[i].node, nodes[i].ranges, nodes[i].blocks);
    if (!one) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), one);
  }
  return tuple.release();
  END_HANDLE_TH_ERRORS
}

// Returns (identity, address, bytes) of a tensor's storage. tensor.untyped_storage() would add a reference that stays.
PyObject* storage_of(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const c10::Storage& storage = tensor_of(object).storage();
  return Py_BuildValue(
      "(KKK)", reinterpret_cast<unsigned long long>(storage.unsafeGetStorageImpl()),
      reinterpret_cast<unsigned long long>(storage.data()), static_cast<unsigned long long>(storage.nbytes()));
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"storage_of", storage_of, METH_O, "Return the identity, the address and the bytes of a tensor's storage."},
    {"is_recorded", is_recorded, METH_O, "Return whether replays write results to the storage at an address."},
    {"share_temporaries", share_memory_of, METH_O,
     "Let the executables that this thread runs have temporaries in a tensor's memory, until it is set to None."},
    {"load_copies", load_copies, METH_O, "Load the copy kernel on a device, before a capture."},
    {"captured_copies", captured_copies, METH_VARARGS,
     "captured_copies(device, sizes): add copies of so many bytes to the graph that is being captured."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyTypeObject recording_type = recording_type_of();

bool register_recording(PyObject* module) {
  return PyModule_AddType(module, &recording_type) == 0 && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace jitmagic
