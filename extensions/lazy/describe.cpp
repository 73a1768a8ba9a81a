// Describes batches to Python; see lazy.h.

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

namespace py = pybind11;

// A reference to a value of the batch: a tuple of one number. No argument of an operator is a tuple otherwise.
py::object reference(int value) { return py::make_tuple(value); }

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

std::vector<py::object> arguments_of(const Operation& operation) {
  const auto& schema = operation.facts->op.schema().arguments();
  std::vector<py::object> made;
  for (size_t i = 0; i < operation.arguments.size(); i++) {
    const c10::IValue& value = operation.arguments[i];
    if (!value.isTensorList() && !value.isOptionalTensorList()) {
      made.push_back(constant(value, schema[i].real_type()));
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
py::object describe(const Operation& operation) {
  const auto& schema = operation.facts->op.schema();
  const auto all = arguments_of(operation);
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

py::object dtype_of(const Layout& layout) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(layout.dtype)));
}

}  // namespace

// (operations, inputs, outputs): an input is (value, tensor).
PyObject* describe_batch(const Batch& batch, const std::vector<int>& outputs) {
  HANDLE_TH_ERRORS
  py::list operations, inputs;
  for (const Operation& one : batch.operations) operations.append(describe(one));
  for (size_t i = 0; i < batch.values.size(); i++) {
    if (!batch.values[i].input.defined()) continue;
    const auto tensor = py::reinterpret_steal<py::object>(THPVariable_Wrap(batch.values[i].input));
    inputs.append(py::make_tuple(i, tensor));
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
