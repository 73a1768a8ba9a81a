// Replay: a callable that replays the recordings of one executable (jitmagic/runtime/cuda_graphs/).
//
// A call whose inputs are where a recording has them, and whose results are not referenced any more, is replayed
// without Python. `choose` of the policy decides about any other call: it returns a recording, None if the kernels are to
// be launched one by one, or what all further calls are to run.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "callable.h"
#include "cuda.h"
#include "reading.h"
#include "recording.h"

namespace jitmagic {
namespace {

// A result that is an input or a constant of the call, or a view of one.
struct PassedThrough {
  std::ptrdiff_t slot = -1;  // -1: a result of the recording
  bool is_view = false;
  TensorLayout layout;
  int64_t offset = 0;
};

struct ReplayFacts {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  size_t inputs = 0;
  std::vector<at::Tensor> constants;
  std::vector<PassedThrough> outputs;
};

struct Replay : Callable {
  PyObject* policy;
  PyObject* recordings;  // a list, which the policy changes
  PyObject* instead;  // called if nothing will be replayed; may be null
  ReplayFacts* facts;
};

// Held while a recording is chosen, ordered and started: all recordings of a device share memory, so that a replay on
// another stream waits for those before. Recursive because torch's replay() may run finalizers.
class LaunchLock {
 public:
  LaunchLock() {
    if (mutex().try_lock()) return;
    const pybind11::gil_scoped_release released;  // the thread that holds it may need the GIL
    mutex().lock();
  }
  ~LaunchLock() { mutex().unlock(); }
  LaunchLock(const LaunchLock&) = delete;

  // Orders work of the stream that follows after all earlier replays on the device.
  void order(c10::DeviceIndex device, void* stream) {
    static std::map<c10::DeviceIndex, void*> last;
    const auto [place, is_first] = last.try_emplace(device, stream);
    if (!is_first && place->second != stream) wait_for_stream(stream, place->second, device);
    place->second = stream;
  }

 private:
  static std::recursive_mutex& mutex() {
    static auto* own = new std::recursive_mutex;
    return *own;
  }
};

// Returns a new reference, or null if there is none.
PyObject* recording_for(const Replay& self, PyObject* const* args) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self.recordings); ++i) {
    PyObject* one = PyList_GET_ITEM(self.recordings, i);
    check(PyExc_TypeError, Py_IS_TYPE(one, &recording_type), "recordings are a list of Recordings");
    const RecordingData& data = *reinterpret_cast<Recording*>(one)->data;
    if (fits(data, args) && is_free(data)) return Py_NewRef(one);
  }
  return nullptr;
}

PyObject* wrapped(const ReplayFacts& facts, PyObject* const* args, c10::ArrayRef<at::Tensor> results) {
  THPObjectPtr tuple(PyTuple_New(Py_ssize_t(results.size())));
  if (!tuple) throw python_error();
  for (size_t i = 0; i < results.size(); ++i) {
    const PassedThrough& source = facts.outputs[i];
    PyObject* made;
    if (source.slot < 0) {
      made = results[i].defined() ? THPVariable_Wrap(results[i]) : Py_NewRef(Py_None);
    } else {
      const auto slot = size_t(source.slot);
      const at::Tensor& base =
          slot < facts.inputs ? THPVariable_Unpack(args[slot]) : facts.constants[slot - facts.inputs];
      made = THPVariable_Wrap(
          source.is_view ? tensor_over(
                               base.storage(), source.layout, base.scalar_type(), base.storage_offset() + source.offset)
                         : base);
    }
    if (!made) throw python_error();
    PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), made);
  }
  return tuple.release();
}

void check_arguments(const ReplayFacts& facts, PyObject* const* args, Py_ssize_t given, PyObject* names) {
  const bool is_right = size_t(given) == facts.inputs && (!names || PyTuple_GET_SIZE(names) == 0);
  check(PyExc_TypeError, is_right, "a compiled graph takes %zu tensors, got %zd", facts.inputs, given);
  for (Py_ssize_t i = 0; i < given; ++i) {
    check(PyExc_TypeError, THPVariable_Check(args[i]), "argument %zd of a compiled graph is not a tensor", i);
  }
}

THPObjectPtr given_inputs(PyObject* const* args, Py_ssize_t given) {
  THPObjectPtr tuple(PyTuple_New(given));
  if (!tuple) throw python_error();
  for (Py_ssize_t i = 0; i < given; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  return tuple;
}

// Returns a recording, None, or what all further calls are to run.
THPObjectPtr chosen_for(const Replay& self, PyObject* const* args) {
  THPObjectPtr chosen(recording_for(self, args));
  if (chosen) return chosen;
  THPObjectPtr inputs = given_inputs(args, Py_ssize_t(self.facts->inputs));
  chosen = PyObject_CallMethod(self.policy, "choose", "(O)", inputs.get());
  if (!chosen) throw python_error();
  return chosen;
}

PyObject* replay_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  auto& self = *reinterpret_cast<Replay*>(object);
  if (self.instead) return PyObject_Vectorcall(self.instead, args, nargsf, names);
  const ReplayFacts& facts = *self.facts;
  const auto given = PyVectorcall_NARGS(nargsf);
  check_arguments(facts, args, given, names);
  const bool on_cuda = facts.device.is_cuda();
  const c10::OptionalDeviceGuard on_device(on_cuda ? std::optional(facts.device) : std::nullopt);
  void* stream = on_cuda ? current_cuda_stream(facts.device.index()) : nullptr;
  if (!on_cuda || !is_capturing(stream, facts.device.index())) {
    LaunchLock lock;  // from the choice on: another thread must not take the recording meanwhile
    THPObjectPtr chosen = chosen_for(self, args);
    if (Py_IS_TYPE(chosen.get(), &recording_type)) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      if (on_cuda) lock.order(facts.device.index(), stream);
      const auto results = replay(*reinterpret_cast<Recording*>(chosen.get()), args, stream);
      check(PyExc_ValueError, results.size() == facts.outputs.size(), "malformed recording: results");
      return wrapped(facts, args, results);
    }
    if (chosen.get() != Py_None) Py_XSETREF(self.instead, Py_NewRef(chosen.get()));
  }
  if (self.instead) return PyObject_Vectorcall(self.instead, args, nargsf, names);
  THPObjectPtr inputs = given_inputs(args, given);
  return PyObject_CallMethod(self.policy, "run_plainly", "(O)", inputs.get());
  END_HANDLE_TH_ERRORS
}

// An output is None, (slot,) or (slot, sizes, strides, offset).
PassedThrough read_output(PyObject* described, size_t slots) {
  PassedThrough made;
  if (described == Py_None) return made;
  made.slot = std::ptrdiff_t(integer(item(described, 0)));
  check(PyExc_ValueError, made.slot >= 0 && size_t(made.slot) < slots, "malformed replay: outputs");
  made.is_view = items(described).size() > 1;
  if (!made.is_view) return made;
  for (int64_t n : integers(item(described, 1))) made.layout.sizes.push_back(n);
  for (int64_t n : integers(item(described, 2))) made.layout.strides.push_back(n);
  made.offset = integer(item(described, 3));
  return made;
}

// Replay(policy, recordings, device, inputs, constants, outputs)
PyObject* replay_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *policy, *recordings, *device, *constants, *outputs;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(
          args, "OO!OnOO:Replay", &policy, &PyList_Type, &recordings, &device, &inputs, &constants, &outputs)) {
    return nullptr;
  }
  auto facts = std::make_unique<ReplayFacts>();
  facts->device = c10::Device(std::string(text(device)));
  facts->inputs = size_t(inputs);
  for (PyObject* constant : items(constants)) facts->constants.push_back(tensor_of(constant));
  const size_t slots = facts->inputs + facts->constants.size();
  for (PyObject* output : items(outputs)) facts->outputs.push_back(read_output(output, slots));
  auto* self = reinterpret_cast<Replay*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = replay_call;
  self->policy = Py_NewRef(policy);
  self->recordings = Py_NewRef(recordings);
  self->facts = facts.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int replay_traverse(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<Replay*>(object);
  Py_VISIT(self->policy);
  Py_VISIT(self->recordings);
  Py_VISIT(self->instead);
  Py_VISIT(self->construction);
  return 0;
}

int replay_clear(PyObject* object) {
  auto* self = reinterpret_cast<Replay*>(object);
  Py_CLEAR(self->policy);
  Py_CLEAR(self->recordings);
  Py_CLEAR(self->instead);
  Py_CLEAR(self->construction);
  return 0;
}

void replay_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  replay_clear(object);
  delete reinterpret_cast<Replay*>(object)->facts;
  Py_TYPE(object)->tp_free(object);
}

PyObject* get_policy(PyObject* object, void*) { return Py_NewRef(reinterpret_cast<Replay*>(object)->policy); }

PyGetSetDef replay_attributes[] = {
    {"policy", get_policy, nullptr, "decides what is recorded", nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject replay_type_of() {
  PyTypeObject type = callable_type({
      .full_name = "jitmagic._runtime.Replay",
      .doc = "Replay(policy, recordings, device, inputs, constants, outputs): replays the recordings in a list, which "
             "`policy.choose(inputs)` adds to. An output is None, or one of the inputs and constants, (slot,), or a view "
             "of one, (slot, sizes, strides, offset).",
      .size = sizeof(Replay),
      .make = replay_new,
      .dealloc = replay_dealloc,
      .traverse = replay_traverse,
      .clear = replay_clear,
  });
  type.tp_getset = replay_attributes;
  return type;
}

PyTypeObject replay_type = replay_type_of();

}  // namespace

bool register_replay(PyObject* module) { return PyModule_AddType(module, &replay_type) == 0; }

}  // namespace jitmagic
