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
                                                 "__kwdefaults__", "__globals__", "__self__",
                                                 "__func__"};

struct OpName {
  std::string_view name;
  Op op;
  int length;  // of the tuple, name included
};

constexpr OpName kOps[] = {
    {"ARGUMENT", Op::Argument, 3},              // target, index
    {"NAMESPACE_ITEM", Op::NamespaceItem, 4},   // target, dict, name
    {"CELL", Op::Cell, 3},                      // target, source
    {"INSTANCE_DICT", Op::InstanceDict, 3},     // target, source
    {"INSTANCE_ITEM", Op::InstanceItem, 4},     // target, source, name
    {"ITEM", Op::Item, 4},                      // target, source, key
    {"DICT_KEY", Op::DictKey, 4},               // target, source, index
    {"DICT_VALUE", Op::DictValue, 4},           // target, source, index
    {"TYPE", Op::Type, 3},                      // target, source
    {"TYPE_ATTR", Op::TypeAttr, 4},             // target, source, name
    {"SLOT", Op::Slot, 4},                      // target, source, name
    {"FUNCTION_PART", Op::FunctionPart, 4},     // target, source, part
    {"MODULE_ITEM", Op::ModuleItem, 4},         // target, source, name
    {"ITERATOR_PARTS", Op::IteratorParts, 3},   // target, source
    {"CONTENTS", Op::Contents, 3},              // target, source
    {"LENGTH_OF", Op::LengthOf, 3},             // target, source
    {"INT_OF", Op::IntOf, 4},                   // target, source, classes
    {"ITEM_AT", Op::ItemAt, 4},                 // target, source, source of the index
    {"ATTRIBUTE_AT", Op::AttributeAt, 5},       // target, source, source of the name, tables
    {"JOINED", Op::Joined, 5},                  // target, source, text before, text after
    {"PART", Op::Part, 4},                      // target, source, slice
    {"REDUCED", Op::Reduced, 4},                // target, source, sum, min or max
    {"GRADIENT", Op::Gradient, 5},              // target, source, descriptor, classes
    {"ARRAY_MEMORY", Op::ArrayMemory, 5},       // target, source, torch.from_numpy, numpy.ndarray
    {"REFERENT", Op::Referent, 3},              // target, source
    {"CACHE_ENTRY", Op::CacheEntry, 4},         // target, source, key
    {"TYPE_IS", Op::TypeIs, 3},                 // source, type
    {"IS", Op::Is, 3},                          // source, object
    {"IS_WEAK", Op::IsWeak, 3},                 // source, object
    {"EQUALS", Op::Equals, 3},                  // source, constant
    {"LENGTH", Op::Length, 3},                  // source, length
    {"DICT_KEYS", Op::DictKeys, 4},             // source, keys, marker for any key
    {"SET_HAS", Op::SetHas, 4},                 // source, item, whether it is present
    {"KEY_ABSENT", Op::KeyAbsent, 3},           // source, key
    {"ENTRIES_EMPTY", Op::EntriesEmpty, 4},     // source, keys, absent
    {"INSTANCE_ABSENT", Op::InstanceAbsent, 3}, // source, name
    {"NAMESPACE_ABSENT", Op::NamespaceAbsent, 3},  // dict, name
    {"CLASS", Op::Class, 4},                    // class, MRO, facts (class_facts.h)
    {"NAMESPACE", Op::Namespace, 3},            // dict, facts (namespace_facts.h)
    {"STATE_READ", Op::StateRead, 4},           // function, its result, whether a change is final
    {"CELL_EMPTY", Op::CellEmpty, 2},           // source
    {"CACHE_LACKS", Op::CacheLacks, 4},         // source, key, results that are allowed
    {"TENSOR", Op::Tensor, 10},                 // source, class, dtype, device, sizes, strides, ...
    {"TENSOR_KIND", Op::Tensor, 5},             // source, class, keys, whether it is dual
    {"UNHOOKED", Op::Unhooked, 2},              // source
    {"IN_RANGE", Op::InRange, 5},               // source, low, high, whole
    {"SAME", Op::Same, 3},                      // source, source
    {"HAS_KEY_AT", Op::HasKeyAt, 4},            // source, source of the key, whether it is there
    {"DIFFERENT", Op::Different, 3},            // sources, others
    {"NO_OVERLAP", Op::NoOverlap, 2},           // sources
    {"SIZES", Op::Sizes, 3},                    // sources, programs
    {"NUMBERS", Op::Numbers, 3},                // sources, program
    {"STATE", Op::State, 10},                   // the fields of StateFacts
    {"AUTOCAST", Op::Autocast, 5},              // the fields of AutocastDetails
};

bool is_load(Op op) { return op <= Op::CacheEntry; }

// Reads one step tuple; every failure sets a Python error that names the step.
class StepReader {
 public:
  StepReader(PyObject* tuple, const std::vector<bool>& written) : tuple_(tuple), written_(written) {}

  bool read(Step& step) {
    const OpName* known = find();
    if (!known) return false;
    step.op = known->op;
    int next = 1;
    if (is_load(step.op) && !target(next++, step.target)) return false;
    return operands(step, next);
  }

 private:
  PyObject* at(int index) const { return PyTuple_GET_ITEM(tuple_, index); }

  bool refuse(const char* why) const {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "guard step %R: %s", tuple_, why);
    return false;
  }

  const OpName* find() const {
    if (!PyTuple_Check(tuple_) || PyTuple_GET_SIZE(tuple_) < 1 || !PyUnicode_Check(at(0))) {
      refuse("not a tuple that begins with a name");
      return nullptr;
    }
    const char* text = PyUnicode_AsUTF8(at(0));
    if (!text) return nullptr;
    for (const OpName& candidate : kOps) {
      if (candidate.name != text) continue;
      if (candidate.length == PyTuple_GET_SIZE(tuple_)) return &candidate;
      refuse("wrong number of operands");
      return nullptr;
    }
    refuse("no such step");
    return nullptr;
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

  bool source(int index, int& slot) const { return source(at(index), slot); }

  bool keep(PyObject* object, PyObject*& place) const {
    place = Py_NewRef(object);
    return true;
  }

  bool name(int index, PyObject*& place) const {
    if (!PyUnicode_CheckExact(at(index))) return refuse("a name is expected");
    place = Py_NewRef(at(index));
    PyUnicode_InternInPlace(&place);
    return true;
  }

  bool space(int index, PyObject*& place) const {
    return PyDict_Check(at(index)) ? keep(at(index), place) : refuse("a dictionary is expected");
  }

  bool weakly(int index, PyObject*& place) const {
    place = PyWeakref_NewRef(at(index), nullptr);
    return place != nullptr;
  }

  bool part(int index, Py_ssize_t& number) const {
    for (number = 0; number < kParts; number++) {
      if (PyUnicode_Check(at(index)) && !PyUnicode_CompareWithASCIIString(
                                            at(index), kPartNames[number].data())) {
        return true;
      }
    }
    return refuse("no such part of a function");
  }

  bool key(int index, Step& step) const {
    keep(at(index), step.object);
    if (!PyLong_CheckExact(step.object)) return true;
    step.number = PyLong_AsSsize_t(step.object);
    if (step.number == -1 && PyErr_Occurred()) {  // only a dict can have such a key
      PyErr_Clear();
      step.number = PY_SSIZE_T_MAX;
    }
    return true;
  }

  bool gradient(int index, Step& step) const {
    if (!Py_IS_TYPE(at(index), &PyGetSetDescr_Type)) return refuse("a getset descriptor is expected");
    if (!PyTuple_Check(at(index + 1))) return refuse("a tuple of classes is expected");
    return keep(at(index), step.object) && keep(at(index + 1), step.space);
  }

  bool array_memory(int index, Step& step) const {
    if (!PyCFunction_Check(at(index))) return refuse("a C function is expected");
    if (!PyType_Check(at(index + 1))) return refuse("a type is expected");
    return keep(at(index), step.object) && keep(at(index + 1), step.space);
  }

  bool state_read(int index, Step& step) const {
    if (!PyCallable_Check(at(index))) return refuse("a function is expected");
    return keep(at(index), step.space) && keep(at(index + 1), step.object) &&
           integer(at(index + 2), step.number);
  }

  bool keys(int index, PyObject*& place) const {
    return PyTuple_Check(at(index)) ? keep(at(index), place) : refuse("a tuple of keys is expected");
  }

  bool many(int index, std::vector<int>& registers) const {
    if (!PyTuple_Check(at(index))) return refuse("a tuple of registers is expected");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(at(index)); i++) {
      int slot;
      if (!source(PyTuple_GET_ITEM(at(index), i), slot)) return false;
      registers.push_back(slot);
    }
    return true;
  }

  bool relation(PyObject* code, Step& step) const {
    step.sizes = step.op == Op::Sizes ? make_sizes_check(code, *step.registers)
                                      : make_numbers_check(code, step.registers->size());
    return step.sizes != nullptr;
  }

  bool operands(Step& step, int next) const {
    switch (step.op) {
      case Op::Argument:
        return integer(at(next), step.number) && (step.number >= 0 || refuse("bad argument index"));
      case Op::NamespaceItem: return space(next, step.space) && name(next + 1, step.object);
      case Op::NamespaceAbsent: return space(next, step.space) && name(next + 1, step.object);
      case Op::NoOverlap:
        step.registers = std::make_unique<std::vector<int>>();
        return many(next, *step.registers);
      case Op::Different:
        step.registers = std::make_unique<std::vector<int>>();
        if (!many(next, *step.registers)) return false;
        step.number = static_cast<Py_ssize_t>(step.registers->size());
        return many(next + 1, *step.registers);
      case Op::Sizes: case Op::Numbers:
        step.registers = std::make_unique<std::vector<int>>();
        return many(next, *step.registers) && relation(at(next + 1), step);
      case Op::Class:
        return (step.facts = ClassFacts::make(at(next), at(next + 1), at(next + 2))) != nullptr;
      case Op::Namespace: return (step.names = NamespaceFacts::make(at(next), at(next + 1))) != nullptr;
      case Op::StateRead: return state_read(next, step);
      case Op::State: return (step.torch = make_state_check(tuple_)) != nullptr;
      case Op::Autocast: return (step.torch = make_autocast_check(tuple_)) != nullptr;
      default: break;
    }
    if (!source(next++, step.source)) return false;
    switch (step.op) {
      case Op::Cell: case Op::InstanceDict: case Op::Type: case Op::Referent: case Op::CellEmpty:
      case Op::IteratorParts: case Op::Contents: case Op::LengthOf: case Op::Unhooked: return true;
      case Op::InstanceItem: case Op::TypeAttr: case Op::Slot: case Op::ModuleItem:
      case Op::InstanceAbsent: return name(next, step.object);
      case Op::Item: return key(next, step);
      case Op::IntOf: return keys(next, step.object);
      case Op::FunctionPart: return part(next, step.number);
      case Op::Gradient: return gradient(next, step);
      case Op::ArrayMemory: return array_memory(next, step);
      case Op::DictKey: case Op::DictValue: case Op::Length: return integer(at(next), step.number);
      case Op::TypeIs:
        return PyType_Check(at(next)) ? weakly(next, step.object) : refuse("a type is expected");
      case Op::IsWeak: return weakly(next, step.object);
      case Op::Is: case Op::Equals: case Op::KeyAbsent: case Op::CacheEntry:
        return keep(at(next), step.object);
      case Op::CacheLacks: return keep(at(next), step.object) && keys(next + 1, step.space);
      case Op::SetHas: return keep(at(next), step.object) && integer(at(next + 1), step.number);
      case Op::DictKeys: return keys(next, step.object) && keep(at(next + 1), step.space);
      case Op::EntriesEmpty:
        step.tables = std::make_unique<EmptyTables>();
        return keys(next, step.object) && keys(next + 1, step.space);
      case Op::Tensor: return (step.torch = make_tensor_check(tuple_)) != nullptr;
      case Op::InRange: return (step.torch = make_range_check(tuple_)) != nullptr;
      case Op::Same: case Op::ItemAt: return source(next, step.other);
      case Op::AttributeAt: return source(next, step.other) && keys(next + 1, step.object);
      case Op::HasKeyAt: return source(next, step.other) && integer(at(next + 1), step.number);
      case Op::Joined: return name(next, step.object) && name(next + 1, step.space);
      case Op::Part:
        return PySlice_Check(at(next)) ? keep(at(next), step.object) : refuse("a slice is expected");
      case Op::Reduced:
        return PyCFunction_Check(at(next)) ? keep(at(next), step.object)
                                           : refuse("a function in C is expected");
      default: return refuse("no such step");
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
