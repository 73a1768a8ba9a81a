// Executable: a Plan (jitmagic/codegen/plan.py), run natively. `Executable(program, constants, owners)` takes
// the tuple that runtime/native.py lowers a Plan to; calling it with the graph inputs returns a tuple of
// tensors. Its Python twin is runtime/execute.py; tests hold the two together.
//
// The hot path allocates results, fills a pointer array and calls kernels; it runs below autograd, holds
// the GIL unless the program says that it is heavy, and touches no Python object but inputs and results.

#include <memory>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "runtime.h"

#include <structmember.h>  // after Python.h, which runtime.h brings

namespace torch::jit {
// Exported by libtorch_python; its own header (pybind_utils.h) costs half a minute of compile time.
TORCH_PYTHON_API c10::IValue toIValue(
    pybind11::handle object, const c10::TypePtr& type, std::optional<int32_t> N);

// Numbers given for tensors become wrapped numbers: 0-d tensors that promote as Python numbers do.
class TORCH_PYTHON_API ToIValueAllowNumbersAsTensors {
  bool old_;

 public:
  ToIValueAllowNumbersAsTensors(bool enable);
  ~ToIValueAllowNumbersAsTensors();
};
}  // namespace torch::jit

namespace jitmagic {
namespace {

using Kernel = int (*)(void* const*);

enum class Kind : uint8_t { Alloc, Pool, Launch, LaunchCuda, Call, View, Address, Free };

// One argument of an ATen call: a constant, a slot, or a list whose entries are slots or None.
struct CallArgument {
  enum class From : uint8_t { Constant, Slot, List, OptionalList } from = From::Constant;
  c10::IValue constant;
  std::vector<int> slots;  // -1: None
};

// What later steps take a result of an ATen call to be.
struct Expected {
  bool known = false;
  bool required = false;  // a kernel or a view reads it: another shape or dtype is an error
  TensorLayout layout;
};

struct Call {
  c10::OperatorHandle op;
  std::vector<CallArgument> arguments;
  std::vector<int> results;  // -1: dropped
  bool out = false;
  std::vector<Expected> expected;  // of the results; empty: whatever comes is right
};

struct Step {
  Kind kind;
  int slot = -1;
  int base = -1;
  int64_t offset = 0;  // Pool, Address: bytes; View: elements from the base's first element
  bool as_tensor = false;  // Pool: some ATen call or view needs a tensor, not only a pointer
  TensorLayout layout;
  Kernel kernel = nullptr;
  std::vector<int> args;
  CudaLaunch cuda;
  std::shared_ptr<Call> call;
};

struct Program {
  int inputs = 0;
  int slots = 0;
  size_t pool_bytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool heavy = false;
  std::vector<at::Tensor> constants;
  std::vector<Step> steps;
  std::vector<int> outputs;  // -1: None
  std::vector<int> aligned;  // inputs that kernels take to be on 16-byte boundaries
};

struct Executable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Program* program;
  PyObject* owners;  // what the kernels' code lives in (loaded libraries)
  PyObject* otherwise;  // called instead when an input in `aligned` is not; may be null
};

// A slot of one running call. `seen` points at the tensor (an input, a constant, or `own`).
struct Slot {
  const at::Tensor* seen = nullptr;
  void* pointer = nullptr;
  at::Tensor own;

  void hold(at::Tensor tensor) {
    own = std::move(tensor);
    seen = &own;
    pointer = own.defined() ? own.data_ptr() : nullptr;
  }
};

struct Frame {
  c10::SmallVector<Slot, 16> slots;
  c10::Storage pool;
};

// The result as the plan counts on it: copied where ATen chose other strides than the meta kernel said.
at::Tensor as_expected(at::Tensor made, const Expected& expected) {
  const TensorLayout& layout = expected.layout;
  const bool same = made.defined() && made.scalar_type() == layout.dtype && made.sizes() == at::IntArrayRef(layout.sizes);
  if (!same) {
    TORCH_CHECK(!expected.required, "jitmagic: an ATen call gave another shape or dtype than expected");
    return made;
  }
  bool strided = made.numel() == 0;
  if (!strided) {
    strided = true;
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
      strided &= layout.sizes[d] == 1 || made.stride(int64_t(d)) == layout.strides[d];
    }
  }
  if (strided) return made;
  at::Tensor copy = at::empty_strided(layout.sizes, layout.strides, made.options());
  copy.copy_(made);
  return copy;
}

void run_call(const Call& call, Frame& frame) {
  torch::jit::Stack stack;
  stack.reserve(call.arguments.size());
  for (const CallArgument& argument : call.arguments) {
    switch (argument.from) {
      case CallArgument::From::Constant:
        stack.push_back(argument.constant);
        break;
      case CallArgument::From::Slot:
        stack.emplace_back(*frame.slots[argument.slots[0]].seen);
        break;
      case CallArgument::From::List: {
        c10::List<at::Tensor> list;
        for (int slot : argument.slots) list.push_back(*frame.slots[slot].seen);
        stack.emplace_back(std::move(list));
        break;
      }
      case CallArgument::From::OptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int slot : argument.slots) {
          list.push_back(slot < 0 ? std::nullopt : std::optional<at::Tensor>(*frame.slots[slot].seen));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  call.op.callBoxed(stack);
  if (call.out) return;
  std::vector<at::Tensor> made;
  for (c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) made.push_back(tensor);
    } else {
      made.push_back(value.isTensor() ? std::move(value).toTensor() : at::Tensor());
    }
  }
  TORCH_CHECK(made.size() >= call.results.size(), "jitmagic: an ATen call returned too few tensors");
  for (size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i] < 0) continue;
    const bool known = i < call.expected.size() && call.expected[i].known;
    frame.slots[call.results[i]].hold(
        known ? as_expected(std::move(made[i]), call.expected[i]) : std::move(made[i]));
  }
}

void run_launch(const Step& step, Frame& frame) {
  c10::SmallVector<void*, 24> pointers(step.args.size());
  for (size_t i = 0; i < step.args.size(); ++i) pointers[i] = frame.slots[step.args[i]].pointer;
  if (step.kind == Kind::LaunchCuda) {
    launch_cuda(step.cuda, pointers.data(), pointers.size(), step.layout.device.index());
    return;
  }
  TORCH_CHECK_INDEX(step.kernel(pointers.data()) == 0, "index out of range in a compiled kernel");
}

void run_view(const Step& step, Frame& frame) {
  const at::Tensor& base = *frame.slots[step.base].seen;
  frame.slots[step.slot].hold(
      tensor_over(base.storage(), step.layout, base.scalar_type(), base.storage_offset() + step.offset));
}

void run_pool(const Step& step, Frame& frame) {
  Slot& slot = frame.slots[step.slot];
  slot.pointer = static_cast<char*>(frame.pool.mutable_data()) + step.offset;
  if (step.as_tensor) {
    const auto width = int64_t(c10::elementSize(step.layout.dtype));
    slot.hold(tensor_over(frame.pool, step.layout, step.layout.dtype, step.offset / width));
  }
}

void run_steps(const Program& program, Frame& frame) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::OptionalDeviceGuard on_device;  // allocators and the driver act on the current device
  if (program.device.is_cuda() && program.device.has_index()) on_device.reset_device(program.device);
  if (program.pool_bytes) frame.pool = make_storage(program.pool_bytes, program.device);
  for (const Step& step : program.steps) {
    switch (step.kind) {
      case Kind::Alloc:
        frame.slots[step.slot].hold(make_tensor(step.layout));
        break;
      case Kind::Pool:
        run_pool(step, frame);
        break;
      case Kind::Launch:
      case Kind::LaunchCuda:
        run_launch(step, frame);
        break;
      case Kind::Call:
        run_call(*step.call, frame);
        break;
      case Kind::View:
        run_view(step, frame);
        break;
      case Kind::Address:
        frame.slots[step.slot].pointer = static_cast<char*>(frame.slots[step.base].pointer) + step.offset;
        break;
      case Kind::Free:
        frame.slots[step.slot].hold(at::Tensor());
        break;
    }
  }
}

void bind_inputs(const Program& program, Frame& frame, PyObject* const* args) {
  for (int i = 0; i < program.inputs; ++i) {
    const at::Tensor& tensor = THPVariable_Unpack(args[i]);
    frame.slots[i].seen = &tensor;
    frame.slots[i].pointer = const_cast<void*>(tensor.const_data_ptr());
  }
  for (size_t i = 0; i < program.constants.size(); ++i) {
    Slot& slot = frame.slots[program.inputs + i];
    slot.seen = &program.constants[i];
    slot.pointer = const_cast<void*>(program.constants[i].const_data_ptr());
  }
}

// Kernels built for aligned pointers read 16 bytes at once: an input that is an offset view must not reach
// them. Looked at before anything runs, because a plan may write to its inputs.
bool misaligned(const Program& program, PyObject* const* args) {
  for (int i : program.aligned) {
    if (reinterpret_cast<uintptr_t>(THPVariable_Unpack(args[i]).const_data_ptr()) % 16) return true;
  }
  return false;
}

PyObject* wrap_outputs(const Program& program, Frame& frame) {
  THPObjectPtr result(PyTuple_New(Py_ssize_t(program.outputs.size())));
  if (!result) throw python_error();
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const int slot = program.outputs[i];
    PyObject* item;
    if (slot < 0) {
      item = Py_NewRef(Py_None);
    } else {
      item = THPVariable_Wrap(*frame.slots[slot].seen);
      if (!item) throw python_error();
    }
    PyTuple_SET_ITEM(result.get(), Py_ssize_t(i), item);
  }
  return result.release();
}

// Python errors at once: nothing has been made yet that would have to be unwound.
bool check_arguments(const Program& program, PyObject* const* args, Py_ssize_t given, PyObject* names) {
  if (given != program.inputs || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
    PyErr_Format(
        PyExc_TypeError, "a compiled graph takes %d tensors, got %zd", program.inputs, given);
    return false;
  }
  for (Py_ssize_t i = 0; i < given; ++i) {
    if (!THPVariable_Check(args[i])) {
      PyErr_Format(PyExc_TypeError, "argument %zd of a compiled graph is no tensor", i);
      return false;
    }
  }
  return true;
}

PyObject* executable_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const Program& program = *reinterpret_cast<Executable*>(self)->program;
  const auto given = PyVectorcall_NARGS(nargsf);
  if (!check_arguments(program, args, given, names)) return nullptr;
  if (misaligned(program, args)) {
    return PyObject_Vectorcall(reinterpret_cast<Executable*>(self)->otherwise, args, given, nullptr);
  }
  Frame frame;
  frame.slots.resize(program.slots);
  bind_inputs(program, frame, args);
  if (program.heavy) {
    pybind11::gil_scoped_release released;
    run_steps(program, frame);
  } else {
    run_steps(program, frame);
  }
  return wrap_outputs(program, frame);
  END_HANDLE_TH_ERRORS
}

// ---- construction: reading the tuple that runtime/native.py writes ------------------------------------

// `format` as for PyErr_Format. (c10::str writes through an ostringstream, which crashed under torch 2.11.)
template <class... Parts>
void check(PyObject* error, bool holds, const char* format, Parts... parts) {
  if (holds) return;
  PyErr_Format(error, format, parts...);
  raise_python_error();
}

PyObject* item(PyObject* tuple, Py_ssize_t index) {
  check(PyExc_TypeError, PyTuple_Check(tuple) && index < PyTuple_GET_SIZE(tuple), "malformed program");
  return PyTuple_GET_ITEM(tuple, index);
}

int64_t integer(PyObject* object) {
  const auto value = static_cast<int64_t>(PyLong_AsLongLong(object));
  if (value == -1 && PyErr_Occurred()) throw python_error();
  return value;
}

std::vector<int64_t> integers(PyObject* tuple) {
  check(PyExc_TypeError, PyTuple_Check(tuple), "malformed program: expected a tuple of integers");
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    values.push_back(integer(PyTuple_GET_ITEM(tuple, i)));
  }
  return values;
}

std::vector<int> slot_numbers(PyObject* tuple, int limit) {
  std::vector<int> slots;
  for (int64_t value : integers(tuple)) {
    check(PyExc_ValueError, value >= -1 && value < limit, "malformed program: slot %lld", (long long)value);
    slots.push_back(int(value));
  }
  return slots;
}

// (sizes, strides)
TensorLayout read_sizes(PyObject* tuple) {
  TensorLayout layout;
  for (int64_t n : integers(item(tuple, 0))) layout.sizes.push_back(n);
  for (int64_t n : integers(item(tuple, 1))) layout.strides.push_back(n);
  return layout;
}

// (sizes, strides, dtype, device)
TensorLayout read_layout(PyObject* tuple) {
  TensorLayout layout = read_sizes(tuple);
  layout.dtype = torch::jit::toIValue(item(tuple, 2), c10::IntType::get(), std::nullopt).toScalarType();
  layout.device =
      torch::jit::toIValue(item(tuple, 3), c10::DeviceObjType::get(), std::nullopt).toDevice();
  int64_t last = 0;
  bool empty = false;
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    empty |= layout.sizes[d] == 0;
    last += (layout.sizes[d] - 1) * layout.strides[d];
  }
  layout.nbytes = empty ? 0 : size_t(last + 1) * c10::elementSize(layout.dtype);
  return layout;
}

CallArgument read_argument(PyObject* entry, const c10::Argument& declared, int limit) {
  const std::string_view tag = PyUnicode_AsUTF8(item(entry, 0));
  CallArgument argument;
  if (tag == "slot") {
    argument.from = CallArgument::From::Slot;
    argument.slots = {int(integer(item(entry, 1)))};
  } else if (tag == "list") {
    const auto elements = declared.type()->cast<c10::ListType>();
    const bool optional =
        elements && elements->getElementType()->kind() == c10::TypeKind::OptionalType;
    argument.from = optional ? CallArgument::From::OptionalList : CallArgument::From::List;
    argument.slots = slot_numbers(item(entry, 1), limit);
  } else if (tag == "default") {
    check(PyExc_ValueError, declared.default_value().has_value(), "argument %s has no default", declared.name().c_str());
    argument.constant = *declared.default_value();
  } else {
    const torch::jit::ToIValueAllowNumbersAsTensors wrap(true);
    argument.constant = torch::jit::toIValue(item(entry, 1), declared.type(), declared.N());
  }
  return argument;
}

// ("call", name, overload, arguments, results, out)
// (sizes, strides, dtype, device, required) | None
Expected read_expected(PyObject* entry) {
  Expected expected;
  if (entry == Py_None) return expected;
  expected.known = true;
  expected.layout = read_layout(entry);
  expected.required = PyObject_IsTrue(item(entry, 4));
  return expected;
}

std::shared_ptr<Call> read_call(PyObject* step, int limit) {
  const char* name = PyUnicode_AsUTF8(item(step, 1));
  const char* overload = PyUnicode_AsUTF8(item(step, 2));
  if (!name || !overload) throw python_error();
  Call call{c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), {}, {}, false, {}};
  const auto& declared = call.op.schema().arguments();
  PyObject* given = item(step, 3);
  check(PyExc_ValueError, size_t(PyTuple_Size(given)) == declared.size(), "wrong arguments for %s", name);
  for (size_t i = 0; i < declared.size(); ++i) {
    call.arguments.push_back(read_argument(PyTuple_GET_ITEM(given, i), declared[i], limit));
  }
  call.results = slot_numbers(item(step, 4), limit);
  call.out = PyObject_IsTrue(item(step, 5));
  PyObject* layouts = item(step, 6);
  for (Py_ssize_t i = 0; i < PyTuple_Size(layouts); ++i) {
    call.expected.push_back(read_expected(item(layouts, i)));
  }
  return std::make_shared<Call>(std::move(call));
}

int slot_number(PyObject* object, int limit) {
  const int64_t value = integer(object);
  check(PyExc_ValueError, value >= 0 && value < limit, "malformed program: slot %lld", (long long)value);
  return int(value);
}

void read_cuda_launch(PyObject* tuple, Step& step, int limit) {
  step.kind = Kind::LaunchCuda;
  step.cuda.function = PyLong_AsUnsignedLongLong(item(tuple, 1));
  const auto grid = integers(item(tuple, 2));
  for (size_t i = 0; i < 3; ++i) step.cuda.grid[i] = unsigned(grid.at(i));
  step.cuda.block = unsigned(integer(item(tuple, 3)));
  step.cuda.shared = unsigned(integer(item(tuple, 4)));
  step.cuda.scratch = int(integer(item(tuple, 5)));
  step.layout.device = c10::Device(c10::DeviceType::CUDA, c10::DeviceIndex(integer(item(tuple, 6))));
  step.args = slot_numbers(item(tuple, 7), limit);
}

Step read_step(PyObject* tuple, int limit) {
  const char* text = PyUnicode_AsUTF8(item(tuple, 0));
  if (!text) throw python_error();
  const std::string_view tag = text;
  Step step{};
  if (tag == "alloc") {
    step.kind = Kind::Alloc;
    step.slot = slot_number(item(tuple, 1), limit);
    step.layout = read_layout(item(tuple, 2));
  } else if (tag == "pool") {
    step.kind = Kind::Pool;
    step.slot = slot_number(item(tuple, 1), limit);
    step.layout = read_layout(item(tuple, 2));
    step.offset = integer(item(tuple, 3));
    step.as_tensor = PyObject_IsTrue(item(tuple, 4));
  } else if (tag == "launch") {
    step.kind = Kind::Launch;
    step.kernel = reinterpret_cast<Kernel>(PyLong_AsVoidPtr(item(tuple, 1)));
    check(PyExc_ValueError, step.kernel != nullptr, "malformed program: null kernel");
    step.args = slot_numbers(item(tuple, 2), limit);
  } else if (tag == "launch_cuda") {
    read_cuda_launch(tuple, step, limit);
  } else if (tag == "call") {
    step.kind = Kind::Call;
    step.call = read_call(tuple, limit);
  } else if (tag == "view") {
    step.kind = Kind::View;
    step.slot = slot_number(item(tuple, 1), limit);
    step.base = slot_number(item(tuple, 2), limit);
    step.layout = read_sizes(item(tuple, 3));
    step.offset = integer(item(tuple, 4));
  } else if (tag == "address") {
    step.kind = Kind::Address;
    step.slot = slot_number(item(tuple, 1), limit);
    step.base = slot_number(item(tuple, 2), limit);
    step.offset = integer(item(tuple, 3));
  } else if (tag == "free") {
    step.kind = Kind::Free;
    step.slot = slot_number(item(tuple, 1), limit);
  } else {
    check(PyExc_ValueError, false, "malformed program: unknown step %s", text);
  }
  return step;
}

// (inputs, slots, pool_bytes, device, heavy, steps, outputs)
std::unique_ptr<Program> read_program(PyObject* tuple, PyObject* constants) {
  auto program = std::make_unique<Program>();
  program->inputs = int(integer(item(tuple, 0)));
  program->slots = int(integer(item(tuple, 1)));
  program->pool_bytes = size_t(integer(item(tuple, 2)));
  program->device =
      torch::jit::toIValue(item(tuple, 3), c10::DeviceObjType::get(), std::nullopt).toDevice();
  program->heavy = PyObject_IsTrue(item(tuple, 4));
  PyObject* steps = item(tuple, 5);
  for (Py_ssize_t i = 0; i < PyTuple_Size(steps); ++i) {
    program->steps.push_back(read_step(item(steps, i), program->slots));
  }
  program->outputs = slot_numbers(item(tuple, 6), program->slots);
  for (Py_ssize_t i = 0; i < PyTuple_Size(constants); ++i) {
    PyObject* constant = item(constants, i);
    check(PyExc_TypeError, THPVariable_Check(constant), "constants must be tensors");
    program->constants.push_back(THPVariable_Unpack(constant));
  }
  check(
      PyExc_ValueError,
      program->inputs + int(program->constants.size()) <= program->slots, "malformed program: slots");
  return program;
}

PyObject* executable_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *tuple, *constants, *owners, *aligned = nullptr, *otherwise = nullptr;
  if (!PyArg_ParseTuple(
          args, "O!O!O|O!O:Executable", &PyTuple_Type, &tuple, &PyTuple_Type, &constants, &owners,
          &PyTuple_Type, &aligned, &otherwise)) {
    return nullptr;
  }
  auto program = read_program(tuple, constants);
  if (aligned) program->aligned = slot_numbers(aligned, program->inputs);
  check(PyExc_ValueError, program->aligned.empty() || otherwise, "aligned inputs need an alternative");
  auto* self = reinterpret_cast<Executable*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = executable_call;
  self->program = program.release();
  self->owners = Py_NewRef(owners);
  self->otherwise = Py_XNewRef(otherwise);
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

void executable_dealloc(PyObject* self) {
  delete reinterpret_cast<Executable*>(self)->program;
  Py_XDECREF(reinterpret_cast<Executable*>(self)->owners);
  Py_XDECREF(reinterpret_cast<Executable*>(self)->otherwise);
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef executable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Executable, vectorcall), READONLY, nullptr},
    {nullptr}};

PyTypeObject executable_type = [] {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "jitmagic._runtime.Executable";
  type.tp_doc = "Executable(program, constants, owners, aligned=(), otherwise=None): a compiled graph; call it with its "
                "input tensors. When an input listed in `aligned` is not on a 16-byte boundary, `otherwise` is called.";
  type.tp_basicsize = sizeof(Executable);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Executable, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_members = executable_members;
  type.tp_new = executable_new;
  type.tp_dealloc = executable_dealloc;
  return type;
}();

}  // namespace

bool register_plan(PyObject* module) {
  if (PyType_Ready(&executable_type) < 0) return false;
  return PyModule_AddObjectRef(module, "Executable", reinterpret_cast<PyObject*>(&executable_type)) == 0;
}

}  // namespace jitmagic
