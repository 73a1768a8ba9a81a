// SizeProgram, Register and the base of Templates (sizes.h).

#include "constructed.h"
#include "plan.h"

#include <torch/csrc/Exceptions.h>

namespace jitmagic {
namespace {

struct Register {
  PyObject_HEAD
  int index;
};

PyTypeObject register_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject program_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject template_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  Py_ssize_t inputs;
  PyObject* code;
  if (!PyArg_ParseTuple(args, "nO!:SizeProgram", &inputs, &PyTuple_Type, &code)) return nullptr;
  check(PyExc_ValueError, inputs >= 0, "a size program of %zd values", inputs);
  THPObjectPtr made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<SizeProgram*>(made.get());
  const PythonSource from;
  self->code = new SizeCode(SizeCodeReader<PythonSource>(from).read(size_t(inputs), code));
  return made.release();
  END_HANDLE_TH_ERRORS
}

void program_dealloc(PyObject* object) {
  delete reinterpret_cast<SizeProgram*>(object)->code;
  Py_TYPE(object)->tp_free(object);
}

PyObject* program_holds(PyObject* self, PyObject* values) {
  HANDLE_TH_ERRORS
  Registers registers;
  return PyBool_FromLong(evaluate(*size_program(self), values_of(values), registers));
  END_HANDLE_TH_ERRORS
}

PyObject* program_filled(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *structure, *values;
  if (!PyArg_ParseTuple(args, "OO:filled", &structure, &values)) return nullptr;
  return filled(structure, computed(*size_program(self), values_of(values)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef program_methods[] = {
    {"holds", program_holds, METH_O, "holds(values): return whether all checks hold."},
    {"filled", program_filled, METH_VARARGS, "filled(structure, values): replace its Registers by numbers."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* register_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int index;
  if (!PyArg_ParseTuple(args, "i:Register", &index)) return nullptr;
  PyObject* made = type->tp_alloc(type, 0);
  if (made) reinterpret_cast<Register*>(made)->index = index;
  return made;
}

PyObject* template_at(PyObject* self, PyObject* values) {
  HANDLE_TH_ERRORS
  return instance_of(self, values_of(values));
  END_HANDLE_TH_ERRORS
}

PyMethodDef template_methods[] = {
    {"at", template_at, METH_O, "at(values): return the executable at these values of the symbols."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* filled_list(PyObject* list, const Registers& registers) {
  const Py_ssize_t count = PyList_GET_SIZE(list);
  THPObjectPtr made(PyList_New(count));
  if (!made) raise_python_error();
  for (Py_ssize_t i = 0; i < count; i++) PyList_SET_ITEM(made.get(), i, filled(PyList_GET_ITEM(list, i), registers));
  return made.release();
}

}  // namespace

SizeProgram* size_program(PyObject* object) {
  check(PyExc_TypeError, PyObject_TypeCheck(object, &program_type), "expected a SizeProgram");
  return reinterpret_cast<SizeProgram*>(object);
}

PyObject* object_of(const Number& number) {
  return number.is_real ? PyFloat_FromDouble(number.real) : PyLong_FromLongLong(number.whole);
}

bool evaluate(const SizeProgram& program, Values values, Registers& registers) {
  const SizeCode& code = *program.code;
  check(PyExc_ValueError, values.size() == code.inputs, "%zu values are given, not %zu", values.size(), code.inputs);
  return code.evaluate(values, registers);
}

Registers computed(const SizeProgram& program, Values values) {
  Registers registers;
  check(PyExc_OverflowError, evaluate(program, values, registers), "a number cannot be computed from these sizes");
  return registers;
}

int register_of(PyObject* object) {
  return Py_IS_TYPE(object, &register_type) ? reinterpret_cast<Register*>(object)->index : -1;
}

bool has_registers(PyObject* structure) {
  if (!PyTuple_Check(structure) && !PyList_Check(structure)) return register_of(structure) >= 0;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(structure); i++) {
    if (has_registers(PySequence_Fast_GET_ITEM(structure, i))) return true;
  }
  return false;
}

PyObject* filled(PyObject* structure, const Registers& registers) {
  if (!has_registers(structure)) return Py_NewRef(structure);
  if (PyList_Check(structure)) return filled_list(structure, registers);
  if (!PyTuple_Check(structure)) {
    const size_t index = size_t(register_of(structure));
    check(PyExc_ValueError, index < registers.size(), "register %zu is out of range: there are %zu", index,
          registers.size());
    PyObject* made = object_of(registers[index]);
    if (!made) raise_python_error();
    return made;
  }
  THPObjectPtr made(PyTuple_New(PyTuple_GET_SIZE(structure)));
  if (!made) raise_python_error();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(structure); i++) {
    PyTuple_SET_ITEM(made.get(), i, filled(PyTuple_GET_ITEM(structure, i), registers));
  }
  return made.release();
}

PyObject* instance_of(PyObject* object, Values values) {
  if (!PyObject_TypeCheck(object, &template_type)) return Py_NewRef(object);
  return reinterpret_cast<Template*>(object)->make(object, values);
}

c10::SmallVector<int64_t, 8> values_of(PyObject* tuple) {
  c10::SmallVector<int64_t, 8> values;
  for (PyObject* value : items(tuple)) values.push_back(integer(value));
  return values;
}

PyObject* tuple_of(Values values) {
  PyObject* numbers = PyTuple_New(Py_ssize_t(values.size()));
  for (size_t i = 0; numbers && i < values.size(); i++) {
    PyObject* number = PyLong_FromLongLong(values[i]);
    if (!number) Py_CLEAR(numbers);
    else PyTuple_SET_ITEM(numbers, Py_ssize_t(i), number);
  }
  return numbers;
}

PyTypeObject template_type_of(
    const char* full_name, const char* doc, size_t size, newfunc make, destructor dealloc, traverseproc traverse,
    inquiry clear) {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = full_name;
  type.tp_doc = doc;
  type.tp_basicsize = Py_ssize_t(size);
  type.tp_flags = Py_TPFLAGS_DEFAULT | (traverse ? Py_TPFLAGS_HAVE_GC : 0);
  type.tp_base = &template_type;
  type.tp_new = make;
  type.tp_dealloc = dealloc;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_free = free_constructed<Template>;
  return type;
}

bool register_sizes(PyObject* module) {
  program_type.tp_name = "jitmagic._runtime.SizeProgram";
  program_type.tp_doc = "SizeProgram(inputs, code): computes numbers from sizes, and checks them.";
  program_type.tp_basicsize = sizeof(SizeProgram);
  program_type.tp_flags = Py_TPFLAGS_DEFAULT;
  program_type.tp_methods = program_methods;
  program_type.tp_new = program_new;
  program_type.tp_dealloc = program_dealloc;
  program_type.tp_free = free_constructed<SizeProgram>;
  program_type.tp_members = construction_member<SizeProgram>;
  register_type.tp_name = "jitmagic._runtime.Register";
  register_type.tp_doc = "Register(index): a placeholder for a number that a SizeProgram computes.";
  register_type.tp_basicsize = sizeof(Register);
  register_type.tp_flags = Py_TPFLAGS_DEFAULT;
  register_type.tp_new = register_new;
  template_type.tp_name = "jitmagic._runtime.Template";
  template_type.tp_doc = "Makes an executable for each size tuple: `at(values)`.";
  template_type.tp_basicsize = sizeof(Template);
  template_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  template_type.tp_methods = template_methods;
  template_type.tp_members = construction_member<Template>;
  return PyModule_AddType(module, &program_type) == 0 && PyModule_AddType(module, &register_type) == 0 &&
         PyModule_AddType(module, &template_type) == 0;
}

}  // namespace jitmagic
