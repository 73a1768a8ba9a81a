// Launches Triton kernels that the user wrote. The first launch goes through Triton, which compiles, specialises and
// tunes (runtime/user_kernels.py); further launches of the same specialisation go to the driver, as those of generated
// kernels do.
//
// Triton specialises a kernel on whether a pointer is a multiple of 16, and a number 1, a multiple of 16 or more than
// 32 bits wide. Within one Program only pointers and floats vary, and it does not specialise on floats: a call
// compares the alignment of its pointers. Another one, and other sizes, look for the specialisation in a map that the
// programs of a template share.

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include "plan.h"
#include "reading.h"

namespace torch::jit {
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);  // see plan_read.cpp on its header
}  // namespace torch::jit

namespace jitmagic {
namespace user_kernels {

using Tensors = c10::ArrayRef<const at::Tensor*>;

// A pointer that the kernel takes: of a tensor argument, or of a view of it.
struct Pointer {
  int argument;
  int rank;   // of the view; -1: the tensor itself
  int start;  // of the view's sizes, strides and offset in the operator's last argument
};

struct Parameter {
  enum Kind : uint8_t { Address, Word, Int, Float, Double } kind;
  int64_t value;  // Address: the number of a pointer; Word: the value; others: the position of an argument
};

// A specialisation that Triton has compiled.
struct Compiled {
  CudaLaunch launch;
  c10::DeviceIndex device = 0;
  int grid_start = 0, grid_rank = 0;  // in the numbers of the operator's grid argument
  std::vector<Parameter> parameters;
};

using Key = std::vector<int64_t>;

// Shared by the programs of a template; read and written with the GIL.
struct Shared {
  PyObject* launch = nullptr;  // launches by Triton and describes what it launched
  PyObject* hooks = nullptr;  // lists: Triton calls their functions at a launch
  bool exact = false;  // tuning or heuristics read the numbers themselves
  std::vector<Pointer> pointers;
  std::map<Key, std::unique_ptr<const Compiled>> compiled;  // null: Triton has to launch it each time

  Shared() = default;
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    const pybind11::gil_scoped_acquire gil;
    Py_XDECREF(launch);
    Py_XDECREF(hooks);
  }
};

// A launch for pointers of one alignment. The words of `varying` are set at each call.
struct Prepared {
  uint64_t unaligned;  // a bit for each pointer
  bool is_native = false;
  CudaLaunch launch;
  c10::DeviceIndex device = 0;
  std::vector<uint64_t> words;
  std::vector<std::pair<size_t, Parameter>> varying;
};

struct Address {
  int argument;
  int64_t elements;
  bool is_null;
};

}  // namespace user_kernels

struct UserKernel final : NativeLaunch {
  std::shared_ptr<user_kernels::Shared> shared;
  std::vector<user_kernels::Address> addresses;
  user_kernels::Key numbers;
  std::atomic<const user_kernels::Prepared*> last = nullptr;
  std::vector<std::unique_ptr<const user_kernels::Prepared>> prepared;  // read and written with the GIL

  explicit UserKernel(std::shared_ptr<user_kernels::Shared> shared) : shared(std::move(shared)) {}
  std::shared_ptr<NativeLaunch> specialised(const Call& call) const override;
  bool launch(const Call& call, user_kernels::Tensors given) override;
};

namespace user_kernels {

using Pointers = c10::SmallVector<uint64_t, 16>;

std::vector<int64_t> whole_numbers(const c10::IValue& list) {
  if (list.isIntList()) return list.toIntVector();
  std::vector<int64_t> values;
  for (const c10::IValue& value : list.toListRef()) values.push_back(value.toInt());
  return values;
}

const c10::IValue& views_of(const Call& call) { return call.arguments.back().constant; }
const c10::IValue& grid_of(const Call& call) { return call.arguments[call.arguments.size() - 2].constant; }

int64_t specialisation(int64_t number) {
  const bool is_wide = number != int64_t(int32_t(number));
  return number == 1 ? 1 : (number % 16 == 0 ? 16 : 0) + (is_wide ? 2 : 0);
}

Address address_of(const Pointer& pointer, const std::vector<int64_t>& views) {
  if (pointer.rank < 0) return {pointer.argument, 0, false};
  const auto size = views.begin() + pointer.start;
  const bool is_empty = std::find(size, size + pointer.rank, 0) != size + pointer.rank;  // data_ptr() is then null
  return {pointer.argument, *(size + 2 * pointer.rank), is_empty};
}

Pointers pointers_of(const UserKernel& kernel, Tensors given, uint64_t& unaligned) {
  Pointers pointers;
  for (const Address& address : kernel.addresses) {
    const at::Tensor& tensor = *given[size_t(address.argument)];
    const auto start = reinterpret_cast<uint64_t>(tensor.mutable_data_ptr());
    const uint64_t moved = start + uint64_t(address.elements * int64_t(tensor.element_size()));
    pointers.push_back(address.is_null ? 0 : moved);
    unaligned |= uint64_t(pointers.back() % 16 != 0) << (pointers.size() - 1);
  }
  return pointers;
}

double number_of(const Call& call, Tensors given, size_t argument) {
  if (given[argument]) return given[argument]->item().toDouble();
  const c10::IValue& constant = call.arguments[argument].constant;
  return constant.isInt() ? double(constant.toInt()) : constant.toDouble();
}

// Returns the arguments of the operator, a new tuple.
PyObject* python_arguments(const Call& call, Tensors given) {
  THPObjectPtr made(PyTuple_New(Py_ssize_t(call.arguments.size())));
  if (!made) raise_python_error();
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const bool is_number = call.arguments[i].from == CallArgument::From::Number;
    PyObject* value = !given[i]   ? torch::jit::toPyObject(call.arguments[i].constant).release().ptr()
                      : is_number ? PyFloat_FromDouble(number_of(call, given, i))
                                  : THPVariable_Wrap(*given[i]);
    if (!value) raise_python_error();
    PyTuple_SET_ITEM(made.get(), Py_ssize_t(i), value);
  }
  return made.release();
}

// (function, threads, shared bytes, scratch, device, grid start, grid rank, ((kind, value), ..)) | None
std::unique_ptr<const Compiled> read_compiled(PyObject* tuple) {
  if (tuple == Py_None) return nullptr;
  auto made = std::make_unique<Compiled>();
  made->launch.function = PyLong_AsUnsignedLongLong(item(tuple, 0));
  if (PyErr_Occurred()) raise_python_error();
  made->launch.block = unsigned(integer(item(tuple, 1)));
  made->launch.shared = unsigned(integer(item(tuple, 2)));
  made->launch.scratch = int(integer(item(tuple, 3)));
  made->device = c10::DeviceIndex(integer(item(tuple, 4)));
  made->grid_start = int(integer(item(tuple, 5)));
  made->grid_rank = int(integer(item(tuple, 6)));
  check(PyExc_ValueError, made->grid_rank <= 3, "a grid has at most 3 numbers");
  const std::vector<std::string_view> kinds{"address", "word", "int", "float", "double"};
  for (PyObject* parameter : items(item(tuple, 7))) {
    const auto kind = std::ranges::find(kinds, text(item(parameter, 0))) - kinds.begin();
    check(PyExc_ValueError, size_t(kind) < kinds.size(), "malformed parameter of a kernel");
    made->parameters.push_back({Parameter::Kind(kind), integer(item(parameter, 1))});
  }
  return made;
}

uint64_t word_of(const Parameter& parameter, const Call& call, Tensors given, const Pointers& pointers) {
  const auto at = size_t(parameter.value);
  switch (parameter.kind) {
    case Parameter::Address: return pointers[at];
    case Parameter::Word: return uint64_t(parameter.value);
    case Parameter::Int: return uint64_t(call.arguments[at].constant.toInt());
    case Parameter::Float: return std::bit_cast<uint32_t>(float(number_of(call, given, at)));
    case Parameter::Double: return std::bit_cast<uint64_t>(number_of(call, given, at));
  }
  return 0;
}

bool varies(const Parameter& parameter, Tensors given) {
  const bool is_number = parameter.kind == Parameter::Float || parameter.kind == Parameter::Double;
  return parameter.kind == Parameter::Address || (is_number && given[size_t(parameter.value)]);
}

std::unique_ptr<Prepared> prepare(const Compiled* compiled, const Call& call, Tensors given, const Pointers& pointers) {
  auto made = std::make_unique<Prepared>();
  if (!compiled) return made;
  made->is_native = true;
  made->launch = compiled->launch;
  made->device = compiled->device;
  const std::vector<int64_t> grid = whole_numbers(grid_of(call));
  for (int i = 0; i < compiled->grid_rank; ++i) {
    // Triton launches nothing if the grid is empty, and if a number of it is negative.
    made->launch.grid[i] = unsigned(std::max<int64_t>(grid[size_t(compiled->grid_start + i)], 0));
  }
  for (const Parameter& parameter : compiled->parameters) {
    if (varies(parameter, given)) made->varying.emplace_back(made->words.size(), parameter);
    made->words.push_back(word_of(parameter, call, given, pointers));
  }
  return made;
}

void launch(const Prepared& prepared, const Call& call, Tensors given, const Pointers& pointers) {
  c10::SmallVector<uint64_t, 24> words(prepared.words.begin(), prepared.words.end());
  for (const auto& [at, parameter] : prepared.varying) words[at] = word_of(parameter, call, given, pointers);
  c10::SmallVector<void*, 24> arguments;
  for (uint64_t& word : words) arguments.push_back(&word);  // the driver knows the size of each
  launch_cuda(prepared.launch, arguments, prepared.device, current_cuda_stream(prepared.device));
}

bool launch_by(const Prepared& prepared, const Call& call, Tensors given, const Pointers& pointers) {
  if (prepared.is_native) launch(prepared, call, given, pointers);
  return prepared.is_native;
}

// Finds or makes the launch for these pointers. The first launch of a specialisation is Triton's.
bool launch_first(UserKernel& kernel, const Call& call, Tensors given, const Pointers& pointers, uint64_t unaligned) {
  const pybind11::gil_scoped_acquire gil;
  for (const auto& one : kernel.prepared) {
    if (one->unaligned != unaligned) continue;
    kernel.last = one.get();
    return launch_by(*one, call, given, pointers);
  }
  Key key = kernel.numbers;
  key.push_back(int64_t(unaligned));
  Shared& shared = *kernel.shared;
  const bool is_new = !shared.compiled.contains(key);
  if (is_new) {
    THPObjectPtr arguments(python_arguments(call, given));
    THPObjectPtr made(PyObject_CallObject(shared.launch, arguments.get()));
    if (!made) raise_python_error();
    shared.compiled.emplace(key, read_compiled(made.get()));
  }
  kernel.prepared.push_back([&] {
    auto made = prepare(shared.compiled.at(key).get(), call, given, pointers);
    made->unaligned = unaligned;
    return made;
  }());
  kernel.last = kernel.prepared.back().get();
  return is_new || launch_by(*kernel.last, call, given, pointers);
}

bool has_hooks(const Shared& shared) {
  for (PyObject* list : items(shared.hooks)) {
    if (PyList_GET_SIZE(list)) return true;
  }
  return false;
}

}  // namespace user_kernels

using namespace user_kernels;

// (launch, exact, hooks, pointers), see runtime/user_kernels.py
std::shared_ptr<NativeLaunch> PythonSource::native_launch(PyObject* tuple) const {
  auto shared = std::make_shared<Shared>();
  shared->launch = Py_NewRef(item(tuple, 0));
  shared->exact = truth(item(tuple, 1));
  shared->hooks = Py_NewRef(item(tuple, 2));
  for (PyObject* list : items(shared->hooks)) jitmagic::check(PyExc_TypeError, PyList_Check(list), "hooks are no list");
  for (PyObject* pointer : items(item(tuple, 3))) {
    const std::vector<int> parts = integers<int>(pointer);
    jitmagic::check(PyExc_ValueError, parts.size() == 3, "malformed pointer of a kernel");
    shared->pointers.push_back({parts[0], parts[1], parts[2]});
  }
  return std::make_shared<UserKernel>(std::move(shared));
}

std::shared_ptr<NativeLaunch> UserKernel::specialised(const Call& call) const {
  auto made = std::make_shared<UserKernel>(shared);
  const std::vector<int64_t> views = whole_numbers(views_of(call));
  for (const Pointer& pointer : shared->pointers) made->addresses.push_back(address_of(pointer, views));
  for (size_t i = 0; i + 2 < call.arguments.size(); ++i) {
    const CallArgument& argument = call.arguments[i];
    if (argument.from == CallArgument::From::Number && shared->exact) {
      return nullptr;  // tuning or heuristics may choose by a float that varies
    }
    if (argument.constant.isInt()) {
      const int64_t number = argument.constant.toInt();
      made->numbers.push_back(shared->exact ? number : specialisation(number));
    } else if (argument.constant.isDouble() && shared->exact) {
      made->numbers.push_back(std::bit_cast<int64_t>(argument.constant.toDouble()));
    }
  }
  return made;
}

bool UserKernel::launch(const Call& call, Tensors given) {
  if (has_hooks(*shared)) return false;
  uint64_t unaligned = 0;
  const Pointers pointers = pointers_of(*this, given, unaligned);
  const Prepared* known = last;
  if (known && known->unaligned == unaligned) return launch_by(*known, call, given, pointers);
  return launch_first(*this, call, given, pointers, unaligned);
}

}  // namespace jitmagic
