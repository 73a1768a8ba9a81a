// ExecutableTemplate: a Plan for all sizes. A size tuple costs a copy of the steps with numbers filled in.

#include "plan.h"

#include <algorithm>
#include <vector>

#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>

namespace jitmagic {
namespace {

struct ExecutableTemplate : Template {
  Program* program;
  SizedFields* sizing;
  PyObject* sizes;   // a SizeProgram
  PyObject* owners;  // keep kernel code loaded
  PyObject* otherwise;  // (values) -> executable for unaligned inputs; may be null
  std::vector<int>* calls;  // steps whose ATen call depends on sizes, or launches a user's kernel
  std::vector<int>* layouts;  // steps whose layout does
};

void fill(Program& program, const SizedField& field, int64_t value) {
  if (field.kind == SizedField::Pool) {
    program.pool_bytes = size_t(value);
    return;
  }
  Step& step = program.steps[size_t(field.step)];
  if (field.kind == SizedField::Offset) {
    step.offset = value;
    return;
  }
  if (field.kind == SizedField::Grid) {
    step.cuda.grid[field.dim] = unsigned(value);
    return;
  }
  TensorLayout& layout = field.result < 0 ? step.layout : step.call->expected[size_t(field.result)].layout;
  (field.kind == SizedField::Size ? layout.sizes : layout.strides)[size_t(field.dim)] = value;
}

// Returns an argument of an ATen call, converted by its schema.
c10::IValue argument_of(const Call& call, const SizedFields::Argument& argument, const Registers& registers) {
  THPObjectPtr value(filled(argument.structure, registers));
  return constant_of(value.get(), call.op.schema().arguments()[size_t(argument.number)]);
}

// Returns sizes that a kernel takes as the int64 tensor it reads.
at::Tensor vector_of(PyObject* structure, const Registers& registers) {
  const c10::InferenceMode usual(false);
  THPObjectPtr values(filled(structure, registers));
  const std::vector<int64_t> numbers = integers(values.get());
  TensorLayout layout{{std::ssize(numbers)}, {1}, at::kLong};
  set_nbytes(layout);
  at::Tensor made = make_tensor(layout);
  std::ranges::copy(numbers, static_cast<int64_t*>(made.mutable_data_ptr()));
  return made;
}

PyObject* make_executable(PyObject* object, Values values) {
  const auto* self = reinterpret_cast<ExecutableTemplate*>(object);
  const Registers registers = computed(*size_program(self->sizes), values);
  auto program = std::make_unique<Program>(*self->program);
  for (int step : *self->calls) {
    std::shared_ptr<Call>& call = program->steps[size_t(step)].call;
    call = std::make_shared<Call>(*call);
  }
  for (const SizedField& field : self->sizing->fields) fill(*program, field, registers[size_t(field.index)].whole);
  for (int step : *self->layouts) set_nbytes(program->steps[size_t(step)].layout);
  for (const SizedFields::Argument& argument : self->sizing->arguments) {
    Call& call = *program->steps[size_t(argument.step)].call;
    call.arguments[size_t(argument.number)].constant = argument_of(call, argument, registers);
  }
  for (int step : *self->calls) {
    if (Call& call = *program->steps[size_t(step)].call; call.kernel) specialise(call);
  }
  for (const SizedFields::Vector& vector : self->sizing->vectors) {
    program->constants[size_t(vector.constant)] = vector_of(vector.structure, registers);
  }
  if (program->aligned.empty()) return executable_of(std::move(program), self->owners);
  THPObjectPtr known(tuple_of(values));
  THPObjectPtr otherwise(known ? PyObject_CallOneArg(self->otherwise, known) : nullptr);
  if (!otherwise) throw python_error();
  return executable_of(std::move(program), self->owners, otherwise);
}

// Records each step once.
void note_steps(ExecutableTemplate* self, const SizeProgram& sizes) {
  self->calls = new std::vector<int>();
  self->layouts = new std::vector<int>();
  const auto note = [](std::vector<int>& steps, int step) {
    if (std::ranges::find(steps, step) == steps.end()) steps.push_back(step);
  };
  for (const SizedField& field : self->sizing->fields) {
    check(PyExc_ValueError, size_t(field.index) < sizes.registers, "malformed program: register %d", field.index);
    const bool is_layout = field.kind == SizedField::Size || field.kind == SizedField::Stride;
    if (!is_layout) continue;
    note(field.result < 0 ? *self->layouts : *self->calls, field.step);
  }
  for (const SizedFields::Argument& argument : self->sizing->arguments) note(*self->calls, argument.step);
  for (size_t step = 0; step < self->program->steps.size(); ++step) {
    if (const auto& call = self->program->steps[step].call; call && call->kernel) note(*self->calls, int(step));
  }
}

PyObject* plan_template_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *tuple, *constants, *owners, *sizes, *aligned = nullptr, *otherwise = nullptr;
  if (!PyArg_ParseTuple(
          args, "O!O!OO|O!O:ExecutableTemplate", &PyTuple_Type, &tuple, &PyTuple_Type, &constants, &owners, &sizes,
          &PyTuple_Type, &aligned, &otherwise)) {
    return nullptr;
  }
  const SizeProgram& numbers = *size_program(sizes);
  THPObjectPtr made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<ExecutableTemplate*>(made.get());
  self->make = make_executable;
  self->sizing = new SizedFields();
  self->program = read_program(tuple, constants, aligned, self->sizing).release();
  if (!self->program->aligned.empty() && !otherwise) raise_as(PyExc_ValueError, "aligned inputs need an alternative");
  note_steps(self, numbers);
  self->sizes = Py_NewRef(sizes);
  self->owners = Py_NewRef(owners);
  self->otherwise = Py_XNewRef(otherwise);
  return made.release();
  END_HANDLE_TH_ERRORS
}

void plan_template_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<ExecutableTemplate*>(object);
  if (self->sizing) {
    for (const SizedFields::Argument& argument : self->sizing->arguments) Py_DECREF(argument.structure);
    for (const SizedFields::Vector& vector : self->sizing->vectors) Py_DECREF(vector.structure);
  }
  delete self->sizing;
  delete self->program;
  delete self->calls;
  delete self->layouts;
  Py_XDECREF(self->sizes);
  Py_XDECREF(self->owners);
  Py_XDECREF(self->otherwise);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject executable_template_type;

}  // namespace

bool register_plan_template(PyObject* module) {
  executable_template_type = template_type_of(
      "jitmagic._runtime.ExecutableTemplate",
      "ExecutableTemplate(program, constants, owners, sizes, aligned=(), otherwise=None): makes Executables; where the "
      "program has Registers, or a constant is a tuple of them, the numbers are those of `sizes`, a SizeProgram. "
      "`otherwise(values)` is what an Executable calls when an input listed in `aligned` is not.",
      sizeof(ExecutableTemplate), plan_template_new, plan_template_dealloc);
  return PyModule_AddType(module, &executable_template_type) == 0;
}

}  // namespace jitmagic
