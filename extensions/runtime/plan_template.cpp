// ExecutableTemplate: a Plan for all sizes (executor/sized_program.h). CalledTemplate: a function that makes executables.

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

struct CalledTemplate : Template {
  PyObject* function;
};

PyObject* call_function(PyObject* object, Values values) {
  THPObjectPtr known(tuple_of(values));
  PyObject* made = known ? PyObject_CallOneArg(reinterpret_cast<CalledTemplate*>(object)->function, known) : nullptr;
  if (!made) throw python_error();
  return made;
}

PyObject* called_template_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* function;
  if (!PyArg_ParseTuple(args, "O:CalledTemplate", &function)) return nullptr;
  auto* self = reinterpret_cast<CalledTemplate*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->make = call_function;
  self->function = Py_NewRef(function);
  return reinterpret_cast<PyObject*>(self);
}

void called_template_dealloc(PyObject* object) {
  Py_XDECREF(reinterpret_cast<CalledTemplate*>(object)->function);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject called_template_type;

}  // namespace

bool register_plan_template(PyObject* module) {
  executable_template_type = template_type_of(
      "jitmagic._runtime.ExecutableTemplate",
      "ExecutableTemplate(program, constants, owners, sizes, aligned=(), otherwise=None): makes Executables; where the "
      "program has Registers, or a constant is a tuple of them, the numbers are those of `sizes`, a SizeProgram. "
      "`otherwise(values)` is what an Executable calls when an input listed in `aligned` is not.",
      sizeof(ExecutableTemplate), plan_template_new, plan_template_dealloc);
  called_template_type = template_type_of(
      "jitmagic._runtime.CalledTemplate",
      "CalledTemplate(function): makes what `function(values)` returns, a tuple of ints to an executable.",
      sizeof(CalledTemplate), called_template_new, called_template_dealloc);
  return PyModule_AddType(module, &executable_template_type) == 0 &&
         PyModule_AddType(module, &called_template_type) == 0;
}

}  // namespace jitmagic
