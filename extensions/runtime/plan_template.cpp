// ExecutableTemplate: a Plan for all sizes (executor/sized_program.h).

#include "plan.h"
#include "sized_program.h"

#include <torch/csrc/Exceptions.h>

namespace jitmagic {
namespace {

struct ExecutableTemplate : Template {
  SizedProgram<PythonSource>* program;
  PyObject* sizes;   // a SizeProgram
  PyObject* owners;  // keep kernel code loaded
  PyObject* otherwise;  // (values) -> executable for unaligned inputs; may be null
};

PyObject* make_executable(PyObject* object, Values values) {
  const auto* self = reinterpret_cast<ExecutableTemplate*>(object);
  auto program = self->program->at(PythonSource(), computed(*size_program(self->sizes), values));
  if (program->aligned.empty()) return executable_of(std::move(program), self->owners);
  THPObjectPtr known(tuple_of(values));
  THPObjectPtr otherwise(known ? PyObject_CallOneArg(self->otherwise, known) : nullptr);
  if (!otherwise) throw python_error();
  return executable_of(std::move(program), self->owners, otherwise);
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
  self->program = new SizedProgram<PythonSource>(PythonSource(), tuple, constants, numbers.code->registers);
  Program& program = self->program->program();
  program.aligned = aligned_inputs(aligned, program);
  if (!program.aligned.empty() && !otherwise) raise_as(PyExc_ValueError, "aligned inputs need an alternative");
  self->sizes = Py_NewRef(sizes);
  self->owners = Py_NewRef(owners);
  self->otherwise = Py_XNewRef(otherwise);
  return made.release();
  END_HANDLE_TH_ERRORS
}

void plan_template_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<ExecutableTemplate*>(object);
  delete self->program;
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
