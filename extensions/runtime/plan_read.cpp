// Reads Programs and size programs from the tuples that runtime/native.py and symbols/size_programs.py write.

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

PyObject* held_by(const THPObjectPtr& pointer) { return const_cast<PyObject*>(pointer.get()); }

// Returns whether the object is a number of at most 64 bits.
bool read_number(PyObject* object, Number& number) {
  if (PyFloat_Check(object)) {
    number = {0, PyFloat_AS_DOUBLE(object), true};
    return true;
  }
  check(PyExc_TypeError, PyLong_Check(object), "a size program computes numbers");
  int overflow = 0;
  number = {PyLong_AsLongLongAndOverflow(object, &overflow), 0, false};
  return overflow == 0;
}

// Calls Python's function, so that the meaning of an operation is defined once (symbols/symbolic_numbers.py,
// OPERATIONS).
struct PythonFunction final : SizeFunction {
  THPObjectPtr function;

  explicit PythonFunction(PyObject* function) : function(Py_NewRef(function)) {}

  bool call(std::span<const Number> numbers, Number& made) const override {
    c10::SmallVector<THPObjectPtr, 2> held;
    c10::SmallVector<PyObject*, 2> arguments;
    for (const Number& number : numbers) {
      held.emplace_back(object_of(number));
      if (!held.back()) raise_python_error();
      arguments.push_back(held.back().get());
    }
    THPObjectPtr result(PyObject_Vectorcall(held_by(function), arguments.data(), arguments.size(), nullptr));
    if (result) return read_number(result.get(), made);
    if (!PyErr_ExceptionMatches(PyExc_ArithmeticError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
      raise_python_error();
    }
    PyErr_Clear();  // a division by size zero
    return false;
  }
};

}  // namespace

Number PythonSource::number(PyObject* object) const {
  Number made;
  jitmagic::check(PyExc_OverflowError, read_number(object, made), "a constant of more than 64 bits");
  return made;
}

at::ScalarType PythonSource::dtype(PyObject* object) const {
  return torch::jit::toIValue(object, c10::IntType::get(), std::nullopt).toScalarType();
}

c10::Device PythonSource::device(PyObject* object) const {
  return torch::jit::toIValue(object, c10::DeviceObjType::get(), std::nullopt).toDevice();
}

at::Tensor PythonSource::tensor(PyObject* object) const {
  jitmagic::check(PyExc_TypeError, THPVariable_Check(object), "constants must be tensors");
  return THPVariable_Unpack(object);
}

Kernel PythonSource::kernel(PyObject* described) const {
  const bool has_context = PyTuple_Check(described);
  PyObject* address = has_context ? item(described, 0) : described;
  Kernel kernel{reinterpret_cast<int (*)(void* const*)>(PyLong_AsVoidPtr(address))};
  if (has_context) kernel.context = PyLong_AsVoidPtr(item(described, 1));
  check(kernel.function != nullptr, "malformed program: null kernel");
  return kernel;
}

uint64_t PythonSource::cuda_function(PyObject* address) const {
  const uint64_t function = PyLong_AsUnsignedLongLong(address);
  if (PyErr_Occurred()) raise_python_error();
  return function;
}

std::shared_ptr<const SizeFunction> PythonSource::size_function(PyObject* function) const {
  return std::make_shared<PythonFunction>(function);
}

c10::IValue PythonSource::constant_of(PyObject* object, const c10::Argument& declared) const {
  const torch::jit::ToIValueAllowNumbersAsTensors wrap(true);
  return torch::jit::toIValue(object, declared.type(), declared.N());
}

c10::IValue PythonSource::filled_constant(
    const THPObjectPtr& structure, const Registers& registers, const c10::Argument& declared) const {
  THPObjectPtr value(filled(held_by(structure), registers));
  return constant_of(value.get(), declared);
}

std::vector<int64_t> PythonSource::filled_integers(const THPObjectPtr& structure, const Registers& registers) const {
  THPObjectPtr values(filled(held_by(structure), registers));
  return integers(values.get());
}

std::vector<int> aligned_inputs(PyObject* aligned, const Program& program) {
  std::vector<int> made;
  if (!aligned) return made;
  for (int64_t place : integers(aligned)) {
    check(PyExc_ValueError, place >= 0 && place < program.inputs, "malformed program: slot %lld", (long long)place);
    made.push_back(int(place));
  }
  return made;
}

}  // namespace jitmagic
