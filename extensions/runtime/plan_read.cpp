// Reads a Program from the tuple that runtime/native.py writes, and checks what could corrupt memory. A template's
// tuple has Registers for numbers that depend on sizes; their places are recorded.

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "plan.h"
#include "reading.h"

namespace torch::jit {
// Exported by libtorch_python; including its header (pybind_utils.h) costs half a minute of compile time.
TORCH_PYTHON_API c10::IValue toIValue(
    pybind11::handle object, const c10::TypePtr& type, std::optional<int32_t> N);

// Numbers passed for tensors become wrapped numbers: 0-dim tensors that promote like Python numbers.
class TORCH_PYTHON_API ToIValueAllowNumbersAsTensors {
  bool old_;

 public:
  ToIValueAllowNumbersAsTensors(bool enable);
  ~ToIValueAllowNumbersAsTensors();
};
}  // namespace torch::jit

namespace jitmagic {
namespace {

int slot_number(PyObject* object, int limit, int lowest = 0) {
  const int64_t value = integer(object);
  check(PyExc_ValueError, value >= lowest && value < limit, "malformed program: slot %lld", (long long)value);
  return int(value);
}

std::vector<int> slot_numbers(PyObject* tuple, int limit, int lowest = 0) {
  std::vector<int> slots;
  for (PyObject* value : items(tuple)) slots.push_back(slot_number(value, limit, lowest));
  return slots;
}

constexpr int kNone = -1;  // the lowest number where None may replace a slot

// The position in the program of the numbers being read.
struct Place {
  SizedFields* sizing;  // null: no Registers
  int step = -1;
  int result = -1;  // of an ATen call

  int64_t number(PyObject* object, SizedField::Field field, int dim = 0) const {
    const int index = sizing ? register_of(object) : -1;
    if (index < 0) return integer(object);
    sizing->fields.push_back({field, step, result, dim, index});
    return 0;
  }
};

// (sizes, strides)
TensorLayout read_sizes(PyObject* tuple, const Place& place) {
  TensorLayout layout;
  int dim = 0;
  for (PyObject* n : items(item(tuple, 0))) layout.sizes.push_back(place.number(n, SizedField::Size, dim++));
  dim = 0;
  for (PyObject* n : items(item(tuple, 1))) layout.strides.push_back(place.number(n, SizedField::Stride, dim++));
  return layout;
}

// (sizes, strides, dtype, device)
TensorLayout read_layout(PyObject* tuple, const Place& place) {
  TensorLayout layout = read_sizes(tuple, place);
  layout.dtype = torch::jit::toIValue(item(tuple, 2), c10::IntType::get(), std::nullopt).toScalarType();
  layout.device =
      torch::jit::toIValue(item(tuple, 3), c10::DeviceObjType::get(), std::nullopt).toDevice();
  set_nbytes(layout);
  return layout;
}

// `place.result` is the index of the argument.
CallArgument read_argument(PyObject* entry, const c10::Argument& declared, int limit, const Place& place) {
  const std::string_view tag = text(item(entry, 0));
  CallArgument argument;
  if (tag == "slot" || tag == "number") {
    argument.from = tag == "slot" ? CallArgument::From::Slot : CallArgument::From::Number;
    argument.slots = {slot_number(item(entry, 1), limit)};
    argument.is_tensor = declared.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
  } else if (tag == "list") {
    const auto elements = declared.type()->cast<c10::ListType>();
    const bool optional =
        elements && elements->getElementType()->kind() == c10::TypeKind::OptionalType;
    argument.from = optional ? CallArgument::From::OptionalList : CallArgument::From::List;
    argument.slots = slot_numbers(item(entry, 1), limit, optional ? kNone : 0);
  } else if (tag == "default") {
    check(PyExc_ValueError, declared.default_value().has_value(), "argument %s has no default", declared.name().c_str());
    argument.constant = *declared.default_value();
  } else if (place.sizing && has_registers(item(entry, 1))) {
    place.sizing->arguments.push_back({place.step, place.result, Py_NewRef(item(entry, 1))});
  } else {
    argument.constant = constant_of(item(entry, 1), declared);
  }
  return argument;
}

// (sizes, strides, dtype, device, required) | None
Expected read_expected(PyObject* entry, const Place& place) {
  Expected expected;
  if (entry == Py_None) return expected;
  expected.known = true;
  expected.layout = read_layout(entry, place);
  expected.required = truth(item(entry, 4));
  return expected;
}

// ("call", name, overload, arguments, results, out, layouts, foreign, kernel, file, line)
std::shared_ptr<Call> read_call(PyObject* step, int limit, const Place& place) {
  const char* name = text(item(step, 1));
  const char* overload = text(item(step, 2));
  Call call{c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), {}, {}, false, {}};
  const auto& declared = call.op.schema().arguments();
  const auto given = items(item(step, 3));
  check(PyExc_ValueError, given.size() == declared.size(), "wrong arguments for %s", name);
  for (size_t i = 0; i < declared.size(); ++i) {
    call.arguments.push_back(read_argument(given[i], declared[i], limit, {place.sizing, place.step, int(i)}));
  }
  call.results = slot_numbers(item(step, 4), limit, kNone);
  call.out = truth(item(step, 5));
  int result = 0;
  for (PyObject* layout : items(item(step, 6))) {
    call.expected.push_back(read_expected(layout, {place.sizing, place.step, result++}));
  }
  call.foreign = truth(item(step, 7));
  if (item(step, 8) != Py_None) {
    call.kernel = read_user_kernel(item(step, 8));
    if (!place.sizing) specialise(call);
  }
  call.file = text(item(step, 9));
  call.line = int(integer(item(step, 10)));
  return std::make_shared<Call>(std::move(call));
}

void read_cuda_launch(PyObject* tuple, Step& step, int limit, const Place& place) {
  step.kind = Kind::LaunchCuda;
  step.cuda.function = PyLong_AsUnsignedLongLong(item(tuple, 1));
  if (PyErr_Occurred()) raise_python_error();
  for (int i = 0; i < 3; ++i) step.cuda.grid[i] = unsigned(place.number(item(item(tuple, 2), i), SizedField::Grid, i));
  step.cuda.block = unsigned(integer(item(tuple, 3)));
  step.cuda.shared = unsigned(integer(item(tuple, 4)));
  step.cuda.scratch = int(integer(item(tuple, 5)));
  step.layout.device = c10::Device(c10::DeviceType::CUDA, c10::DeviceIndex(integer(item(tuple, 6))));
  step.args = slot_numbers(item(tuple, 7), limit);
  step.by_value = slot_numbers(item(tuple, 8), int(step.args.size()));
}

Step read_step(PyObject* tuple, int limit, const Place& place) {
  const std::string_view tag = text(item(tuple, 0));
  Step step{};
  if (tag == "alloc") {
    step.kind = Kind::Alloc;
    step.slot = slot_number(item(tuple, 1), limit);
    step.layout = read_layout(item(tuple, 2), place);
  } else if (tag == "over") {
    step.kind = Kind::Reuse;
    step.slot = slot_number(item(tuple, 1), limit);
    step.base = slot_number(item(tuple, 2), limit);
    step.layout = read_layout(item(tuple, 3), place);
  } else if (tag == "pool") {
    step.kind = Kind::Pool;
    step.slot = slot_number(item(tuple, 1), limit);
    step.layout = read_layout(item(tuple, 2), place);
    step.offset = place.number(item(tuple, 3), SizedField::Offset);
    step.as_tensor = truth(item(tuple, 4));
  } else if (tag == "launch") {
    step.kind = Kind::Launch;
    step.kernel = reinterpret_cast<Kernel>(PyLong_AsVoidPtr(item(tuple, 1)));
    check(PyExc_ValueError, step.kernel != nullptr, "malformed program: null kernel");
    step.args = slot_numbers(item(tuple, 2), limit);
  } else if (tag == "launch_cuda") {
    read_cuda_launch(tuple, step, limit, place);
  } else if (tag == "call") {
    step.kind = Kind::Call;
    step.call = read_call(tuple, limit, place);
  } else if (tag == "view") {
    step.kind = Kind::View;
    step.slot = slot_number(item(tuple, 1), limit);
    step.base = slot_number(item(tuple, 2), limit);
    step.layout = read_sizes(item(tuple, 3), place);
    step.offset = place.number(item(tuple, 4), SizedField::Offset);
  } else if (tag == "address") {
    step.kind = Kind::Address;
    step.slot = slot_number(item(tuple, 1), limit);
    step.base = slot_number(item(tuple, 2), limit);
    step.offset = place.number(item(tuple, 3), SizedField::Offset);
  } else if (tag == "free") {
    step.kind = Kind::Free;
    step.slot = slot_number(item(tuple, 1), limit);
  } else {
    check(PyExc_ValueError, false, "malformed program: unknown step %s", tag.data());
  }
  return step;
}

void read_constants(PyObject* constants, Program& program, SizedFields* sizing) {
  for (PyObject* constant : items(constants)) {
    if (sizing && PyTuple_Check(constant)) {
      sizing->vectors.push_back({int(program.constants.size()), Py_NewRef(constant)});
      program.constants.emplace_back();
      continue;
    }
    check(PyExc_TypeError, THPVariable_Check(constant), "constants must be tensors");
    program.constants.push_back(THPVariable_Unpack(constant));
  }
}

}  // namespace

void set_nbytes(TensorLayout& layout) {
  int64_t last = 0;
  bool empty = false;
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    empty |= layout.sizes[d] == 0;
    last += (layout.sizes[d] - 1) * layout.strides[d];
  }
  layout.nbytes = empty ? 0 : size_t(last + 1) * c10::elementSize(layout.dtype);
}

c10::IValue constant_of(PyObject* object, const c10::Argument& declared) {
  const torch::jit::ToIValueAllowNumbersAsTensors wrap(true);
  return torch::jit::toIValue(object, declared.type(), declared.N());
}

// (inputs, slots, pool_bytes, device, heavy, steps, outputs, titles)
std::unique_ptr<Program> read_program(PyObject* tuple, PyObject* constants, PyObject* aligned, SizedFields* sizing) {
  auto program = std::make_unique<Program>();
  program->inputs = int(integer(item(tuple, 0)));
  program->slots = int(integer(item(tuple, 1)));
  program->pool_bytes = size_t(Place{sizing}.number(item(tuple, 2), SizedField::Pool));
  program->device =
      torch::jit::toIValue(item(tuple, 3), c10::DeviceObjType::get(), std::nullopt).toDevice();
  program->heavy = truth(item(tuple, 4));
  int launches = 0;
  for (PyObject* step : items(item(tuple, 5))) {
    program->steps.push_back(read_step(step, program->slots, {sizing, int(program->steps.size())}));
    Step& made = program->steps.back();
    if (made.kind == Kind::Launch || made.kind == Kind::LaunchCuda) made.number = ++launches;
  }
  program->outputs = slot_numbers(item(tuple, 6), program->slots, kNone);
  std::vector<std::string> titles;
  for (PyObject* title : items(item(tuple, 7))) titles.emplace_back(text(title));
  check(
      PyExc_ValueError, titles.empty() || int(titles.size()) == launches + 1,
      "malformed program: %d launches have %zd titles", launches, Py_ssize_t(titles.size()) - 1);
  program->titles = std::make_shared<const std::vector<std::string>>(std::move(titles));
  read_constants(constants, *program, sizing);
  check(
      PyExc_ValueError,
      program->inputs + int(program->constants.size()) <= program->slots, "malformed program: slots");
  if (aligned) program->aligned = slot_numbers(aligned, program->inputs);
  return program;
}

}  // namespace jitmagic
