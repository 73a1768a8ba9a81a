// GuardProgram: validates the steps, tuples made by frame/native.py, once and stores them.
//
//   GuardProgram(steps: tuple[tuple, ...])
//     .check(args: tuple) -> bool      .first_failure(args: tuple) -> int (-1: passes)      .alive

#include "guards.h"
#include "profiled.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#ifdef JITMAGIC_WITHOUT_TORCH
struct at::RecordFunction {};
#endif

namespace jitmagic {
namespace {

constexpr std::string_view kPartNames[kParts] = {"__code__",       "__closure__", "__defaults__",
                                                 "__kwdefaults__", "__globals__", "__annotations__",
                                                 "__self__",       "__func__"};

// The operands of a step by the field that they fill. Those without a comment fill Step::object.
struct Operands {
enum Operand : unsigned char {
  End,
  Base, Other,                                    // registers
  Index, Number, PartName,                        // Step::number
  Key,                                            // and Step::number if it is an int
  Name, Object, Tuple, Slice, CFunction, Getset, Weak, WeakType,
  SpaceDict, SpaceName, SpaceObject, SpaceTuple, SpaceType, SpaceFunction,  // Step::space
  AbsentKeys,                                     // Step::space and Step::tables
  Registers, OtherRegisters, SizesProgram, NumbersProgram,
  Class, Namespace, Tensor, TensorKind, Range, State, Autocast,  // facts: several items each
};
};
using Operand = Operands::Operand;

constexpr int items_of(Operand kind) {
  switch (kind) {
    case Operand::End: return 0;
    case Operand::Namespace: return 2;   // dict, facts (namespace_facts.h)
    case Operand::Class: return 3;       // class, MRO, facts (class_facts.h)
    case Operand::TensorKind: return 3;  // class, keys, whether it is dual
    case Operand::Range: return 3;       // low, high, whole
    case Operand::Autocast: return 4;    // the fields of AutocastDetails
    case Operand::Tensor: return 9;      // class, dtype, device, sizes, strides, ...
    case Operand::State: return 10;      // the fields of StateFacts
    default: return 1;
  }
}

struct StepRow {
  std::string_view name;
  Op op;
  bool is_load;  // its tuple has the target register after the name
  Operand operands[3];
};

struct StepRows : Operands {  // g++ 10 has no `using enum`
#define OPERANDS(...) {__VA_ARGS__}
#define LOAD(op, name, operands, ...) {name, Op::op, true, OPERANDS operands},
#define CHECK(op, name, operands, ...) {name, Op::op, false, OPERANDS operands},
  static constexpr StepRow all[] = {
#include "guard_steps.h"
  };
#undef LOAD
#undef CHECK
#undef OPERANDS
};

const StepRow* find_row(std::string_view name) {
  const auto* found = std::ranges::find(StepRows::all, name, &StepRow::name);
  return found == std::end(StepRows::all) ? nullptr : found;
}

// Reads one step tuple; every failure sets a Python error that names the step.
class StepReader {
 public:
  StepReader(PyObject* tuple, const std::vector<bool>& written) : tuple_(tuple), written_(written) {}

  bool read(Step& step) {
    const StepRow* row = find();
    if (!row) return false;
    step.op = row->op;
    int next = 1;
    if (row->is_load && !target(next++, step.target)) return false;
    for (Operand kind : row->operands) {
      if (kind == Operand::End) break;
      if (!operand(kind, next, step)) return false;
      next += items_of(kind);
    }
    return true;
  }

 private:
  PyObject* at(int index) const { return PyTuple_GET_ITEM(tuple_, index); }

  bool refuse(const char* why) const {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "guard step %R: %s", tuple_, why);
    return false;
  }

  const StepRow* find() const {
    if (!PyTuple_Check(tuple_) || PyTuple_GET_SIZE(tuple_) < 1 || !PyUnicode_Check(at(0))) {
      return refuse("not a tuple that begins with a name"), nullptr;
    }
    const char* text = PyUnicode_AsUTF8(at(0));
    const StepRow* row = text ? find_row(text) : nullptr;
    if (!row) return refuse("no such step"), nullptr;
    Py_ssize_t items = 1 + row->is_load;
    for (Operand kind : row->operands) items += items_of(kind);
    if (items != PyTuple_GET_SIZE(tuple_)) return refuse("wrong number of operands"), nullptr;
    return row;
  }

  bool integer(PyObject* object, Py_ssize_t& value) const {
    value = PyLong_Check(object) ? PyLong_AsSsize_t(object) : -1;
    return PyLong_Check(object) && !PyErr_Occurred() ? true : refuse("an integer is expected");
  }

  bool target(int index, int& slot) const {
    Py_ssize_t value;
    if (!integer(at(index), value)) return false;
    if (value < 0 || value > 0xffff) return refuse("bad target register");
    if (value < (Py_ssize_t)written_.size() && written_[value]) return refuse("register written twice");
    slot = static_cast<int>(value);
    return true;
  }

  bool source(PyObject* object, int& slot) const {
    Py_ssize_t value;
    if (!integer(object, value)) return false;
    if (value < 0 || value >= (Py_ssize_t)written_.size() || !written_[value]) {
      return refuse("reads a register that no earlier step has written");
    }
    slot = static_cast<int>(value);
    return true;
  }

  bool keep(PyObject* object, PyObject*& place, const char* unless = nullptr) const {
    if (unless) return refuse(unless);
    place = Py_NewRef(object);
    return true;
  }

  bool name(PyObject* object, PyObject*& place) const {
    if (!PyUnicode_CheckExact(object)) return refuse("a name is expected");
    place = Py_NewRef(object);
    PyUnicode_InternInPlace(&place);
    return true;
  }

  bool weakly(PyObject* object, PyObject*& place) const {
    place = PyWeakref_NewRef(object, nullptr);
    return place != nullptr;
  }

  bool part(PyObject* object, Py_ssize_t& number) const {
    for (number = 0; number < kParts; number++) {
      if (PyUnicode_Check(object) && !PyUnicode_CompareWithASCIIString(object, kPartNames[number].data())) {
        return true;
      }
    }
    return refuse("no such part of a function");
  }

  bool key(PyObject* object, Step& step) const {
    keep(object, step.object);
    if (!PyLong_CheckExact(object)) return true;
    step.number = PyLong_AsSsize_t(object);
    if (step.number == -1 && PyErr_Occurred()) {  // only a dict can have such a key
      PyErr_Clear();
      step.number = PY_SSIZE_T_MAX;
    }
    return true;
  }

  bool many(PyObject* object, Step& step) const {
    if (!PyTuple_Check(object)) return refuse("a tuple of registers is expected");
    if (!step.registers) step.registers = std::make_unique<std::vector<int>>();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
      int slot;
      if (!source(PyTuple_GET_ITEM(object, i), slot)) return false;
      step.registers->push_back(slot);
    }
    return true;
  }

  bool operand(Operand kind, int index, Step& step) const {
    PyObject* given = at(index);
    const auto unless = [](bool fits, const char* why) { return fits ? nullptr : why; };
    switch (kind) {
      case Operand::Base: return source(given, step.source);
      case Operand::Other: return source(given, step.other);
      case Operand::Index:
        return integer(given, step.number) && (step.number >= 0 || refuse("bad argument index"));
      case Operand::Number: return integer(given, step.number);
      case Operand::PartName: return part(given, step.number);
      case Operand::Key: return key(given, step);
      case Operand::Name: return name(given, step.object);
      case Operand::Object: return keep(given, step.object);
      case Operand::Tuple:
        return keep(given, step.object, unless(PyTuple_Check(given), "a tuple is expected"));
      case Operand::Slice:
        return keep(given, step.object, unless(PySlice_Check(given), "a slice is expected"));
      case Operand::CFunction:
        return keep(given, step.object, unless(PyCFunction_Check(given), "a C function is expected"));
      case Operand::Getset:
        return keep(given, step.object, unless(Py_IS_TYPE(given, &PyGetSetDescr_Type), "a getset descriptor is expected"));
      case Operand::Weak: return weakly(given, step.object);
      case Operand::WeakType:
        return PyType_Check(given) ? weakly(given, step.object) : refuse("a type is expected");
      case Operand::SpaceDict:
        return keep(given, step.space, unless(PyDict_Check(given), "a dictionary is expected"));
      case Operand::SpaceName: return name(given, step.space);
      case Operand::SpaceObject: return keep(given, step.space);
      case Operand::AbsentKeys: step.tables = std::make_unique<EmptyTables>(); [[fallthrough]];
      case Operand::SpaceTuple:
        return keep(given, step.space, unless(PyTuple_Check(given), "a tuple is expected"));
      case Operand::SpaceType:
        return keep(given, step.space, unless(PyType_Check(given), "a type is expected"));
      case Operand::SpaceFunction:
        return keep(given, step.space, unless(PyCallable_Check(given), "a function is expected"));
      case Operand::OtherRegisters: step.number = std::ssize(*step.registers); [[fallthrough]];
      case Operand::Registers: return many(given, step);
      default: return facts(kind, index, step);
    }
  }

  // Operands that another file parses, from one item or from the whole tuple.
  bool facts(Operand kind, int index, Step& step) const {
    switch (kind) {
      case Operand::SizesProgram: return bool(step.sizes = make_sizes_check(at(index), *step.registers));
      case Operand::NumbersProgram: return bool(step.sizes = make_numbers_check(at(index), step.registers->size()));
      case Operand::Class: return bool(step.facts = ClassFacts::make(at(index), at(index + 1), at(index + 2)));
      case Operand::Namespace: return bool(step.names = NamespaceFacts::make(at(index), at(index + 1)));
      case Operand::Tensor: case Operand::TensorKind: return bool(step.torch = make_tensor_check(tuple_));
      case Operand::Range: return bool(step.torch = make_range_check(tuple_));
      case Operand::State: return bool(step.torch = make_state_check(tuple_));
      case Operand::Autocast: return bool(step.torch = make_autocast_check(tuple_));
      default: return refuse("no such operand");
    }
  }

  PyObject* tuple_;
  const std::vector<bool>& written_;
};

bool add_step(Program* program, PyObject* tuple, std::vector<bool>& written) {
  // The step is added before it is read, so that its references are released with the program.
  Step& step = program->steps->emplace_back();
  if (!StepReader(tuple, written).read(step)) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "guard step %R is malformed", tuple);
    return false;
  }
  if (step.target >= 0) {
    if (step.target >= (int)written.size()) written.resize(step.target + 1);
    written[step.target] = true;
    program->registers = std::max(program->registers, step.target + 1);
  }
  if (step.op == Op::Argument) program->arguments = std::max(program->arguments, (int)step.number + 1);
  return true;
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* tuples;
  if (kwargs && PyDict_GET_SIZE(kwargs)) {
    PyErr_SetString(PyExc_TypeError, "GuardProgram(steps) takes no keywords");
    return nullptr;
  }
  if (!PyArg_ParseTuple(args, "O!:GuardProgram", &PyTuple_Type, &tuples)) return nullptr;
  auto* self = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->steps = new std::vector<Step>();
  self->steps->reserve(PyTuple_GET_SIZE(tuples));
  std::vector<bool> written;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuples); i++) {
    if (!add_step(self, PyTuple_GET_ITEM(tuples, i), written)) {
      Py_DECREF(self);
      return nullptr;
    }
  }
  return reinterpret_cast<PyObject*>(self);
}

int program_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* program = reinterpret_cast<Program*>(self);
  if (!program->steps) return 0;
  for (const Step& step : *program->steps) {
    Py_VISIT(step.object);
    Py_VISIT(step.space);
    int stopped = 0;
    if (step.torch) step.torch->visit_refs(visit, arg, stopped);
    if (!stopped && step.facts) stopped = step.facts->visit_refs(visit, arg);
    if (!stopped && step.names) stopped = step.names->visit_refs(visit, arg);
    if (stopped) return stopped;
  }
  return 0;
}

int program_clear(PyObject* self) {
  auto* program = reinterpret_cast<Program*>(self);
  std::vector<Step>* steps = program->steps;
  program->steps = nullptr;
  if (!steps) return 0;
  for (Step& step : *steps) {
    Py_CLEAR(step.object);
    Py_CLEAR(step.space);
  }
  delete steps;
  return 0;
}

void program_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  program_clear(self);
  Py_TYPE(self)->tp_free(self);
}

int run_on_tuple(PyObject* self, PyObject* args) {
  auto* program = reinterpret_cast<Program*>(self);
  if (!PyTuple_Check(args)) {
    PyErr_SetString(PyExc_TypeError, "the arguments must be a tuple");
    return -2;
  }
  Registers registers(program);
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  return first_failure(program, &PyTuple_GET_ITEM(args, 0), count, registers);
}

PyObject* program_check(PyObject* self, PyObject* args) {
  const int failed = run_on_tuple(self, args);
  return failed == -2 ? nullptr : PyBool_FromLong(failed == -1);
}

PyObject* program_first_failure(PyObject* self, PyObject* args) {
  const int failed = run_on_tuple(self, args);
  return failed == -2 ? nullptr : PyLong_FromLong(failed);
}

PyObject* program_alive(PyObject* self, void*) {
  return PyBool_FromLong(is_alive(reinterpret_cast<Program*>(self)));
}

Py_ssize_t program_length(PyObject* self) {
  auto* program = reinterpret_cast<Program*>(self);
  return program->steps ? static_cast<Py_ssize_t>(program->steps->size()) : 0;
}

PyMethodDef program_methods[] = {
    {"check", program_check, METH_O, "Whether all steps pass for this tuple of arguments."},
    {"first_failure", program_first_failure, METH_O, "Index of the first failing step, or -1."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef program_getset[] = {
    {"alive", program_alive, nullptr, "False once a weakly referenced object has died.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PySequenceMethods program_sequence = {.sq_length = program_length};

// The plain sum of floats, and the compensation that sum() adds to it on CPython 3.12 and later.
struct FloatSum {
  double rounded = 0, lost = 0;
};

bool add_up(PyObject* numbers, FloatSum& sum) {
  const bool listed = PyList_CheckExact(numbers) || PyTuple_CheckExact(numbers);
  for (Py_ssize_t i = 0; listed && i < Py_SIZE(numbers); i++) {
    PyObject* item = PySequence_Fast_GET_ITEM(numbers, i);
    if (!PyFloat_CheckExact(item)) return PyErr_SetString(PyExc_TypeError, "contains something other than floats"), false;
    const double x = PyFloat_AS_DOUBLE(item), made = sum.rounded + x;
    sum.lost += std::fabs(sum.rounded) >= std::fabs(x) ? (sum.rounded - made) + x
                                                       : (x - made) + sum.rounded;
    sum.rounded = made;
  }
  return listed || (PyErr_SetString(PyExc_TypeError, "neither a list nor a tuple"), false);
}

PyObject* rounded_sum(PyObject*, PyObject* numbers) {
  FloatSum sum;
  return add_up(numbers, sum) ? PyFloat_FromDouble(sum.rounded) : nullptr;
}

PyObject* sum_compensation(PyObject*, PyObject* numbers) {
  FloatSum sum;
  if (!add_up(numbers, sum)) return nullptr;
  return PyFloat_FromDouble(std::isfinite(sum.lost) ? sum.lost : 0.0);
}

PyMethodDef sum_functions[] = {
    {"rounded_sum", rounded_sum, METH_O, "The sum of floats, rounded after each addition."},
    {"sum_compensation", sum_compensation, METH_O, "The accumulated rounding error of these additions; 0 if it is not finite."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyTypeObject ProgramType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "jitmagic._frame.GuardProgram",
    .tp_basicsize = sizeof(Program),
    .tp_dealloc = program_dealloc,
    .tp_as_sequence = &program_sequence,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "GuardProgram(steps): a validated guard program.",
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_methods = program_methods,
    .tp_getset = program_getset,
    .tp_new = program_new,
};

#ifdef JITMAGIC_WITHOUT_TORCH
static std::nullptr_t torch_is_missing() {
  PyErr_SetString(PyExc_RuntimeError, "this build of jitmagic._frame has no tensor guards");
  return nullptr;
}
std::unique_ptr<TorchCheck> make_tensor_check(PyObject*) { return torch_is_missing(); }
std::unique_ptr<TorchCheck> make_state_check(PyObject*) { return torch_is_missing(); }
std::unique_ptr<TorchCheck> make_autocast_check(PyObject*) { return torch_is_missing(); }
std::unique_ptr<TorchCheck> make_range_check(PyObject*) { return torch_is_missing(); }
std::unique_ptr<SizesCheck> make_sizes_check(PyObject*, const std::vector<int>&) { return torch_is_missing(); }
bool tensors_overlap(PyObject* const*, size_t) { return true; }
bool is_unhooked(PyObject*) { return false; }
bool register_tensor_guards(PyObject*) { return true; }
bool torch_is_observed() { return false; }
bool register_observers(PyObject*) { return true; }
bool register_profiled() { return true; }
bool profiler_is_on() { return false; }
ProfiledCall::ProfiledCall(PyObject*) {}
ProfiledCall::~ProfiledCall() = default;
#endif

bool register_guards(PyObject* module) {
  return PyModule_AddType(module, &ProgramType) == 0 && PyModule_AddFunctions(module, sum_functions) == 0;
}

}  // namespace jitmagic
