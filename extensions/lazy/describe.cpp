// Describes batches to Python; see lazy.h.

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

namespace py = pybind11;

// A reference to a value of the batch: a tuple of one number. No argument of an operator is a tuple otherwise.
py::object reference(int value) { return py::make_tuple(value); }

// Counts the numbers of a batch in the order in which they were recorded, and replaces those at varying positions by
// (position, number).
struct Numbers {
  const std::vector<int>& varying;
  int position = 0;
  size_t next = 0;

  py::object place(py::object number) {
    const int here = position++;
    if (next == varying.size() || varying[next] != here) return number;
    next++;
    return py::make_tuple(here, number);
  }

  py::object in(const c10::IValue& value, py::object constant, bool names) {
    const bool is_list = value.isIntList() || value.isDoubleList();
    if (is_list) {
      py::list items = constant.cast<py::list>();
      for (size_t i = 0; i < items.size(); i++) items[i] = place(items[i]);
      return items;
    }
    const bool is_number = value.isTensor() && !py::isinstance<py::bool_>(constant) && !constant.is_none();
    return is_number || value.isDouble() || (value.isInt() && !names) ? place(constant) : constant;
  }
};

py::object constant(const c10::IValue& value, const c10::TypePtr& type) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() ? torch::jit::toPyObject(c10::IValue(tensor.item())) : py::none();
  }
  if (value.isInt()) {
    auto kind = type;
    if (const auto optional = kind->cast<c10::OptionalType>()) kind = optional->getElementType();
    const int64_t number = value.toInt();
    if (kind->kind() == c10::TypeKind::ScalarTypeType)
      return py::reinterpret_borrow<py::object>(
          reinterpret_cast<PyObject*>(torch::getTHPDtype(at::ScalarType(number))));
    if (kind->kind() == c10::TypeKind::LayoutType)
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(at::Layout(number))));
    if (kind->kind() == c10::TypeKind::MemoryFormatType)
      return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(at::MemoryFormat(number)));
  }
  return torch::jit::toPyObject(value);
}

std::vector<py::object> arguments_of(const Operation& operation, Numbers& numbers) {
  const auto& schema = operation.facts->op.schema().arguments();
  std::vector<py::object> made;
  for (size_t i = 0; i < operation.arguments.size(); i++) {
    const c10::IValue& value = operation.arguments[i];
    if (!value.isTensorList() && !value.isOptionalTensorList()) {
      made.push_back(numbers.in(value, constant(value, schema[i].real_type()), operation.facts->names[i]));
      continue;
    }
    made.push_back(py::list(value.toListRef().size()));
    for (size_t item = 0; item < value.toListRef().size(); item++) py::list(made.back())[item] = py::none();
  }
  for (const Place& one : operation.tensors) {
    if (one.item < 0)
      made[size_t(one.argument)] = reference(one.value);
    else
      made[size_t(one.argument)].cast<py::list>()[size_t(one.item)] = reference(one.value);
  }
  return made;
}

// (operator, overload, arguments, keyword arguments, first result, counts, line)
py::object describe(const Operation& operation, Numbers& numbers) {
  const auto& schema = operation.facts->op.schema();
  const auto all = arguments_of(operation, numbers);
  py::list positional;
  py::dict named;
  for (size_t i = 0; i < all.size(); i++) {
    if (schema.arguments()[i].kwarg_only())
      named[py::str(schema.arguments()[i].name())] = all[i];
    else
      positional.append(all[i]);
  }
  py::list counts;
  for (const int count : operation.counts) counts.append(count);
  const auto line = py::reinterpret_steal<py::object>(describe(operation.line));
  return py::make_tuple(schema.name(), schema.overload_name(), py::tuple(positional), named, operation.first_result,
                        operation.results ? py::object(py::tuple(counts)) : py::object(py::none()), line);
}

py::object device_object(c10::Device device) {
  return py::reinterpret_steal<py::object>(THPDevice_New(device));
}

py::object dtype_of(const Layout& layout) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(layout.dtype)));
}

}  // namespace

// (operator, overload, arguments, keyword arguments, device)
PyObject* describe_call(const Facts& facts, const torch::jit::Stack& arguments, c10::Device device) {
  HANDLE_TH_ERRORS
  const auto& schema = facts.op.schema();
  py::list positional;
  py::dict named;
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& argument = schema.arguments()[i];
    const c10::IValue& value = arguments[i];
    const bool is_tensor = value.isTensor() && value.toTensor().defined() &&
                           !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    const py::object made = is_tensor ? torch::jit::toPyObject(value) : constant(value, argument.real_type());
    if (argument.kwarg_only())
      named[py::str(argument.name())] = made;
    else
      positional.append(made);
  }
  return py::make_tuple(schema.name(), schema.overload_name(), py::tuple(positional), named, device_object(device))
      .release()
      .ptr();
  END_HANDLE_TH_ERRORS
}

// (operations, inputs, outputs): an input is its value's number.
PyObject* describe_batch(const Batch& batch, const std::vector<int>& outputs, const std::vector<int>& varying) {
  HANDLE_TH_ERRORS
  py::list operations, inputs;
  Numbers numbers{varying};
  for (const Operation& one : batch.operations) operations.append(describe(one, numbers));
  for (size_t i = 0; i < batch.values.size(); i++) {
    if (!batch.values[i].input.defined()) continue;
    inputs.append(i);
  }
  return py::make_tuple(operations, inputs, py::cast(outputs)).release().ptr();
  END_HANDLE_TH_ERRORS
}

// [(operator, ((sizes, dtype), ...), line), ...]
PyObject* describe_pending(const Batch& batch) {
  HANDLE_TH_ERRORS
  py::list made;
  for (const Operation& one : batch.operations) {
    py::list results;
    for (int i = 0; i < one.results; i++) {
      const int number = batch.values[size_t(one.first_result + i)].layout;
      if (number < 0) continue;
      const Layout& layout = layout_at(number);
      py::list sizes;
      for (const int64_t size : layout.sizes) sizes.append(size);
      results.append(py::make_tuple(py::tuple(sizes), dtype_of(layout)));
    }
    const auto line = py::reinterpret_steal<py::object>(describe(one.line));
    made.append(py::make_tuple(one.facts->op.schema().name(), py::tuple(results), line));
  }
  return made.release().ptr();
  END_HANDLE_TH_ERRORS
}

}  // namespace jitmagic::lazy
