// Runs guard programs: a register machine over borrowed objects.
//
// Every load checks what it reads, so any order of the steps is safe; an absent object or one of
// another type fails the step. Nothing here runs user code, so borrowed references stay valid.

#include "guards.h"

#include <algorithm>

namespace jitmagic {
namespace {

PyObject* sequence_item(PyObject* base, Py_ssize_t index) {
  const bool tuple = PyTuple_Check(base);
  if (!tuple && !PyList_Check(base)) return nullptr;
  const Py_ssize_t size = Py_SIZE(base);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return nullptr;
  return tuple ? PyTuple_GET_ITEM(base, index) : PyList_GET_ITEM(base, index);
}

// base[key] of a list, tuple or dict, as stored. Step::number is the key if it is an integer.
PyObject* item(PyObject* base, const Step& step) {
  if (PyDict_Check(base)) return step.lookup.in(base, step.object);
  return PyLong_CheckExact(step.object) ? sequence_item(base, step.number) : nullptr;
}

// Calls `visit` with each key in the dictionary's order, which an OrderedDict stores separately.
// Stops when `visit` returns false; returns false if the keys cannot be iterated.
template <class Visit>
bool walk_keys(PyObject* dict, Visit visit) {
  if (!PyODict_Check(dict)) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
      if (!visit(key)) break;
    }
    return true;
  }
  PyObject* keys = PyODict_Type.tp_iter(dict);  // a subclass may define __iter__
  if (!keys) return PyErr_Clear(), false;
  while (PyObject* key = PyIter_Next(keys)) {
    const bool more = visit(key);
    Py_DECREF(key);  // the dictionary still holds it
    if (!more) break;
  }
  Py_DECREF(keys);
  if (!PyErr_Occurred()) return true;
  return PyErr_Clear(), false;
}

PyObject* key_at(PyObject* dict, Py_ssize_t index) {
  if (!PyDict_Check(dict)) return nullptr;
  PyObject* found = nullptr;
  const bool walked = walk_keys(dict, [&](PyObject* key) {
    found = key;
    return index-- > 0;
  });
  return walked && index < 0 ? found : nullptr;
}

// The value under that key, found by the key's identity, because its hash may run user code.
PyObject* value_at(PyObject* dict, Py_ssize_t index) {
  PyObject* wanted = key_at(dict, index);
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (wanted && PyDict_Next(dict, &position, &key, &value)) {
    if (key == wanted) return value;
  }
  return nullptr;
}

// `any` in `keys` matches every key; facts about that key have guards of their own.
bool same_keys(PyObject* dict, PyObject* keys, PyObject* any) {
  const Py_ssize_t count = PyTuple_GET_SIZE(keys);
  if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != count) return false;
  Py_ssize_t index = 0;
  bool same = true;
  const bool walked = walk_keys(dict, [&](PyObject* key) {
    PyObject* wanted = index < count ? PyTuple_GET_ITEM(keys, index++) : nullptr;
    same = wanted && (wanted == any || same_constant(key, wanted));
    return same;
  });
  return walked && same && index == count;
}

// Raw attribute of a type through its MRO, without __get__ and metaclasses.
PyObject* type_attribute(PyObject* type, PyObject* name) {
  return PyType_Check(type) ? _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type), name) : nullptr;
}

// Reads a member or getset of a C type; the registers own the new value until the check ends.
PyObject* slot(PyObject* object, PyObject* name, Registers& registers) {
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  if (!descriptor) return nullptr;
  if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type) && !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
    return nullptr;
  }
  PyTypeObject* type = Py_TYPE(object);
  return registers.keep(Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject*)type));
}

// Reads .grad through its descriptor, if that runs no Python: step.space is torch.Tensor, and the __torch_function__ of
// classes that torch handles in C alone.
PyObject* gradient(PyObject* tensor, const Step& step, Registers& registers) {
  static PyObject* const handler = PyUnicode_InternFromString("__torch_function__");
  static PyObject* const attribute = PyUnicode_InternFromString("grad");
  PyTypeObject* type = Py_TYPE(tensor);
  PyObject* get = step.object;
  if ((PyObject*)type != PyTuple_GET_ITEM(step.space, 0)) {
    const bool plain = _PyType_Lookup(type, handler) == PyTuple_GET_ITEM(step.space, 1);
    if (!plain || _PyType_Lookup(type, attribute) != get) return nullptr;
  }
  return registers.keep(Py_TYPE(get)->tp_descr_get(get, tensor, (PyObject*)Py_TYPE(tensor)));
}

bool is_writeable(PyObject* array) {
  PyObject* flags = PyObject_GetAttrString(array, "flags");
  PyObject* answer = flags ? PyObject_GetAttrString(flags, "writeable") : nullptr;
  const bool yes = answer == Py_True;
  Py_XDECREF(flags);
  Py_XDECREF(answer);
  return yes;
}

// A tensor that shares an array's memory. Read-only arrays fail, because torch would warn.
PyObject* array_memory(PyObject* array, const Step& step, Registers& registers) {
  if ((PyObject*)Py_TYPE(array) != step.space) return nullptr;
  return registers.keep(is_writeable(array) ? PyObject_CallOneArg(step.object, array) : nullptr);
}

int note_dictionary(PyObject* object, void* found) {
  if (!PyDict_CheckExact(object) && !PyODict_CheckExact(object)) return 0;
  *static_cast<PyObject**>(found) = object;
  return 1;
}

// The dictionary behind a mappingproxy, found through tp_traverse.
PyObject* shown_dictionary(PyObject* proxy) {
  PyObject* found = nullptr;
  PyDictProxy_Type.tp_traverse(proxy, note_dictionary, &found);
  return found;
}

// The referent of a weakref.ref, None once it has died. Calling an exact weakref.ref runs no user
// code.
PyObject* referent_of(PyObject* reference, Registers& registers) {
  if (Py_IS_TYPE(reference, &PyDictProxy_Type)) return shown_dictionary(reference);
  if (!Py_IS_TYPE(reference, &_PyWeakref_RefType)) return nullptr;
  return registers.keep(PyObject_CallNoArgs(reference));
}

PyObject* function_part(PyObject* object, Py_ssize_t part) {
  if (PyMethod_Check(object)) {
    if (part == kSelf) return PyMethod_GET_SELF(object);
    if (part == kFunc) return PyMethod_GET_FUNCTION(object);
    return nullptr;
  }
  if (PyCFunction_Check(object) && part == kSelf) return PyCFunction_GET_SELF(object);
  if (!PyFunction_Check(object)) return nullptr;
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  PyObject* found = nullptr;
  switch (part) {
    case kCode: return function->func_code;
    case kGlobals: return function->func_globals;
    case kClosure: found = function->func_closure; break;
    case kDefaults: found = function->func_defaults; break;
    case kKwDefaults: found = function->func_kwdefaults; break;
    case kAnnotations:  // the getter would evaluate them
      if (function->func_annotations && PyDict_Check(function->func_annotations)) {
        found = function->func_annotations;
      }
      break;
    default: return nullptr;
  }
  return found ? found : Py_None;
}

// The program reads the dictionary itself, so materialising it is allowed.
PyObject* instance_dict(PyObject* object) {
  PyObject** place = _PyObject_GetDictPtr(object);
  if (!place || *place) return place ? *place : nullptr;
  PyObject* made = PyObject_GenericGetDict(object, nullptr);
  if (!made) return PyErr_Clear(), nullptr;
  Py_DECREF(made);  // the object holds it
  return made;
}

bool is_deque(PyObject* object) {
  static PyObject* type = [] {
    PyObject* module = PyImport_ImportModule("collections");
    PyObject* found = module ? PyObject_GetAttrString(module, "deque") : nullptr;
    Py_XDECREF(module);
    if (!found) PyErr_Clear();
    return found;
  }();
  return (PyObject*)Py_TYPE(object) == type;
}

// The items of a set or deque in order, as a tuple owned by the registers; nothing is hashed.
PyObject* contents(PyObject* object, Registers& registers) {
  if (!PyAnySet_CheckExact(object) && !is_deque(object)) return nullptr;
  return registers.keep(PySequence_Tuple(object));
}

// The length of a built-in container, or -1 for other objects.
Py_ssize_t length_of(PyObject* object) {
  if (PyTuple_Check(object) || PyList_Check(object)) return Py_SIZE(object);
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  if (is_deque(object)) return PyObject_Size(object);
  return PyAnySet_Check(object) ? PySet_GET_SIZE(object) : -1;
}

PyObject* length_as_int(PyObject* object, Registers& registers) {
  const Py_ssize_t length = length_of(object);
  return registers.keep(length < 0 ? nullptr : PyLong_FromSsize_t(length));
}

// The int or float of a numpy scalar of these exact classes; a user's subclass may redefine it.
PyObject* number_of(PyObject* scalar, PyObject* classes, Registers& registers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
    const bool known = (PyObject*)Py_TYPE(scalar) == PyTuple_GET_ITEM(classes, i);
    const bool whole = known && PyIndex_Check(scalar);
    if (known) return registers.keep(whole ? PyNumber_Index(scalar) : PyNumber_Float(scalar));
  }
  return nullptr;
}

bool is_plain_sequence(PyObject* object) {
  return PyList_CheckExact(object) || PyTuple_CheckExact(object);
}

// sequence[index] with Python's negative indices, or the value under a str key of a dict.
PyObject* item_at(PyObject* sequence, PyObject* index) {
  if (PyDict_CheckExact(sequence) && PyUnicode_CheckExact(index)) {
    PyObject* found = PyDict_GetItemWithError(sequence, index);
    return found ? found : (PyErr_Clear(), nullptr);
  }
  if (!is_plain_sequence(sequence) || !PyLong_CheckExact(index)) return nullptr;
  const Py_ssize_t place = PyLong_AsSsize_t(index);
  if (place == -1 && PyErr_Occurred()) return PyErr_Clear(), nullptr;
  return sequence_item(sequence, place);
}

// Whether a dict has (or, unless `wanted`, lacks) a str key; false for other objects and keys.
bool has_key_at(PyObject* table, PyObject* key, bool wanted) {
  if (!PyDict_CheckExact(table) || !PyUnicode_CheckExact(key)) return false;
  const int found = PyDict_Contains(table, key);
  if (found < 0) PyErr_Clear();
  return found == static_cast<int>(wanted);
}

// before + text + after, of an exact str.
PyObject* joined(PyObject* text, const Step& step, Registers& registers) {
  if (!PyUnicode_CheckExact(text)) return nullptr;
  return registers.keep(PyUnicode_FromFormat("%U%U%U", step.object, text, step.space));
}

// The attribute of a name that the class lacks: from the object's dictionary, or the first of the
// tables in it that has the name. Runs no user code.
PyObject* attribute_at(PyObject* object, PyObject* name, PyObject* tables) {
  if (!PyUnicode_CheckExact(name) || _PyType_Lookup(Py_TYPE(object), name)) return nullptr;
  PyObject* own = instance_dict(object);
  PyObject* found = own && PyDict_CheckExact(own) ? PyDict_GetItemWithError(own, name) : nullptr;
  for (Py_ssize_t i = 0; own && !found && i < PyTuple_GET_SIZE(tables); i++) {
    PyObject* table = PyDict_GetItemWithError(own, PyTuple_GET_ITEM(tables, i));
    if (!table || !PyDict_CheckExact(table)) break;
    found = PyDict_GetItemWithError(table, name);
  }
  return found ? found : (PyErr_Clear(), nullptr);
}

PyObject* part(PyObject* sequence, PyObject* slice, Registers& registers) {
  return registers.keep(is_plain_sequence(sequence) ? PyObject_GetItem(sequence, slice) : nullptr);
}

// function(numbers) if all items are floats and ints, so that no user code runs.
PyObject* reduced(PyObject* numbers, PyObject* function, Registers& registers) {
  if (!is_plain_sequence(numbers)) return nullptr;
  PyObject** items = PySequence_Fast_ITEMS(numbers);
  for (Py_ssize_t i = 0; i < Py_SIZE(numbers); i++) {
    if (!PyFloat_CheckExact(items[i]) && !PyLong_CheckExact(items[i])) return nullptr;
  }
  return registers.keep(PyObject_CallOneArg(function, numbers));
}

// The item is a constant or a class, so its hash and equality are C code.
bool set_has(PyObject* object, PyObject* item, bool wanted) {
  if (!PyAnySet_Check(object)) return false;
  const int found = PySet_Contains(object, item);
  if (found < 0) PyErr_Clear();
  return found == wanted;
}

// Whether a functools.lru_cache has no result for a key, or an allowed constant.
bool cache_lacks(PyObject* wrapper, const Step& step) {
  PyObject* found = jm_cached_result(wrapper, step.object);
  if (!found) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(step.space); i++) {
    if (same_constant(PyTuple_GET_ITEM(step.space, i), found)) return true;
  }
  return false;
}

// Whether the attributes are equal: (context, (name, value), ...), of which the first is not one.
bool attributes_equal(PyObject* object, PyObject* context_and_pairs) {
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(context_and_pairs); i++) {
    PyObject* pair = PyTuple_GET_ITEM(context_and_pairs, i);
    PyObject* now = PyObject_GetAttr(object, PyTuple_GET_ITEM(pair, 0));
    const bool same = now && PyObject_RichCompareBool(now, PyTuple_GET_ITEM(pair, 1), Py_EQ) == 1;
    Py_XDECREF(now);
    if (!same) return false;
  }
  return true;
}

// Whether `__tensor_flatten__()` names the same attributes, with an equal context.
bool flattens_to(PyObject* tensor, const Step& step) {
  // Looked up on the class first: no user code runs for an object of another kind.
  static PyObject* const name = PyUnicode_InternFromString("__tensor_flatten__");
  if (!_PyType_Lookup(Py_TYPE(tensor), name)) return false;
  PyObject* now = PyObject_CallMethodNoArgs(tensor, name);
  bool same = false;
  if (now && PyTuple_Check(now) && PyTuple_GET_SIZE(now) == 2) {
    PyObject* names = PySequence_Tuple(PyTuple_GET_ITEM(now, 0));
    same = names && PyObject_RichCompareBool(names, step.object, Py_EQ) == 1 &&
           PyObject_RichCompareBool(PyTuple_GET_ITEM(now, 1), PyTuple_GET_ITEM(step.space, 0),
                                    Py_EQ) == 1 &&
           attributes_equal(tensor, step.space);
    Py_XDECREF(names);
  }
  Py_XDECREF(now);
  PyErr_Clear();
  return same;
}

// Whether what lies at the path of attribute names is equal.
bool field_equals(PyObject* owner, PyObject* path, PyObject* expected) {
  PyObject* now = Py_NewRef(owner);
  for (Py_ssize_t i = 0; now && i < PyTuple_GET_SIZE(path); i++) {
    PyObject* next = PyObject_GetAttr(now, PyTuple_GET_ITEM(path, i));
    Py_SETREF(now, next);
  }
  const bool same = now && PyObject_RichCompareBool(now, expected, Py_EQ) == 1;
  Py_XDECREF(now);
  return same;
}

// Whether the slot has the object in (name, object), or one of its class with equal fields:
// (path, value), ... Slots are read without user code.
bool fields_equal(PyObject* base, const Step& step) {
  PyObject* const expected = PyTuple_GET_ITEM(step.object, 1);
  PyObject* slot = _PyType_Lookup(Py_TYPE(base), PyTuple_GET_ITEM(step.object, 0));
  if (!slot || Py_TYPE(slot) != &PyMemberDescr_Type) return false;
  PyObject* owner = Py_TYPE(slot)->tp_descr_get(slot, base, (PyObject*)Py_TYPE(base));
  bool same = owner == expected;
  if (owner && !same && Py_TYPE(owner) == Py_TYPE(expected)) {
    same = true;
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(step.space); i++) {
      PyObject* fact = PyTuple_GET_ITEM(step.space, i);
      same = field_equals(owner, PyTuple_GET_ITEM(fact, 0), PyTuple_GET_ITEM(fact, 1));
    }
  }
  Py_XDECREF(owner);
  PyErr_Clear();
  return same;
}

// Whether each of the first `number` objects differs from all others. A model has some hundreds of
// modules, so more than a few objects are sorted.
bool all_different(const Step& step, Registers& registers) {
  constexpr size_t kFew = 16;
  const size_t first = static_cast<size_t>(step.number), count = step.registers->size();
  const auto at = [&](size_t i) { return registers[(*step.registers)[i]]; };
  if (count <= kFew) {
    for (size_t i = 0; i < first; i++) {
      for (size_t j = i + 1; j < count; j++) {
        if (at(i) == at(j)) return false;
      }
    }
    return true;
  }
  std::vector<PyObject*> sorted(first);
  for (size_t i = 0; i < first; i++) sorted[i] = at(i);
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
  for (size_t i = first; i < count; i++) {
    if (std::binary_search(sorted.begin(), sorted.end(), at(i))) return false;
  }
  return true;
}

bool no_overlap(const Step& step, Registers& registers) {
  constexpr size_t kInline = 64;
  PyObject* inline_[kInline];
  std::vector<PyObject*> many;
  const size_t count = step.registers->size();
  if (count > kInline) many.resize(count);
  PyObject** objects = count > kInline ? many.data() : inline_;
  for (size_t i = 0; i < count; i++) objects[i] = registers[(*step.registers)[i]];
  return !tensors_overlap(objects, count);
}

// Whether a function without arguments returns the recorded value.
bool reads_the_same(const Step& step) {
  PyObject* now = PyObject_CallNoArgs(step.space);
  if (!now) return PyErr_Clear(), false;
  const bool same = same_constant(now, step.object);
  Py_DECREF(now);
  return same;
}

// False permanently once a weakly referenced object has died or final state has changed.
bool may_pass(const Step& step) {
  switch (step.op) {
    case Op::IsWeak: case Op::TypeIs: return referent(step.object);
    case Op::Class: return step.facts->alive();
    case Op::Namespace: return step.names->alive();
    case Op::StateRead: return !step.number || reads_the_same(step);
    default: return true;
  }
}

bool sizes_relate(const Step& step, Registers& registers) {
  constexpr size_t kFew = 8;
  PyObject* few[kFew];
  const size_t count = step.registers->size();
  std::vector<PyObject*> many(count > kFew ? count : 0);
  PyObject** tensors = count > kFew ? many.data() : few;
  for (size_t i = 0; i < count; i++) tensors[i] = registers[(*step.registers)[i]];
  return step.sizes->passes(tensors, count);
}

// Inlined: as a call, a check of eight loads takes 87 ns instead of 77.
inline __attribute__((always_inline)) PyObject* load(const Step& step, PyObject* base,
                                                     PyObject* const* args, Registers& registers) {
  switch (step.op) {
#define LOAD(op, name, operands, ...) case Op::op: return __VA_ARGS__;
#define CHECK(...)
#include "guard_steps.h"
#undef LOAD
#undef CHECK
    default: return nullptr;
  }
}

bool passes(const Step& step, PyObject* base, Registers& registers) {
  switch (step.op) {
#define LOAD(...)
#define CHECK(op, name, operands, ...) case Op::op: return __VA_ARGS__;
#include "guard_steps.h"
#undef LOAD
#undef CHECK
    default: return false;
  }
}

}  // namespace

Registers::Registers(const Program* program) {
  const bool fits = program->registers <= kInline;
  values_ = fits ? inline_ : static_cast<PyObject**>(PyMem_Malloc(program->registers * sizeof(PyObject*)));
  if (!values_) Py_FatalError("jitmagic: no memory for guard registers");
}

Registers::~Registers() {
  if (values_ != inline_) PyMem_Free(values_);
  for (PyObject* object : made_) Py_DECREF(object);
}

PyObject* Registers::keep(PyObject* made) {
  if (!made) return PyErr_Clear(), nullptr;
  made_.push_back(made);
  return made;
}

int first_failure(const Program* program, PyObject* const* args, Py_ssize_t count, Registers& registers) {
  if (!program->steps || count < program->arguments) return 0;
  const Step* begin = program->steps->data();
  const Step* end = begin + program->steps->size();
  for (const Step* step = begin; step != end; step++) {
    PyObject* base = step->source >= 0 ? registers[step->source] : nullptr;
    if (step->target >= 0) {
      PyObject* value = load(*step, base, args, registers);
      if (!value) return static_cast<int>(step - begin);
      registers[step->target] = value;
    } else if (!passes(*step, base, registers)) {
      return static_cast<int>(step - begin);
    }
  }
  return -1;
}

bool is_alive(const Program* program) {
  if (!program->steps) return false;
  return std::all_of(program->steps->begin(), program->steps->end(), may_pass);
}

}  // namespace jitmagic
