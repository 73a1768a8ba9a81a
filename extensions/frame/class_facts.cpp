// ClassFacts: a lookup after the class has changed, a comparison of two integers at every other
// call.

#include "class_facts.h"

#include <algorithm>
#include <iterator>

namespace jitmagic {

PyObject* referent(PyObject* weak) {
  PyObject* object = reinterpret_cast<PyWeakReference*>(weak)->wr_object;
  return object && object != Py_None && Py_REFCNT(object) > 0 ? object : nullptr;
}

ObjectRef::ObjectRef(PyObject* object) : stored_(nullptr), weak_(false) {
  if (!object) return;
  stored_ = PyWeakref_NewRef(object, nullptr);
  weak_ = stored_ != nullptr;
  if (weak_) return;
  PyErr_Clear();
  stored_ = Py_NewRef(object);
}

PyObject* ObjectRef::get() const { return weak_ ? referent(stored_) : stored_; }

namespace {

// Looks up `name` from position `start` of the MRO, without __get__ and metaclasses.
PyObject* look_up(PyTypeObject* type, PyObject* name, Py_ssize_t start) {
  // Also for start > 0: _PyType_Lookup is what assigns a version tag to the class.
  PyObject* found = _PyType_Lookup(type, name);
  if (start == 0 || !found) return found;
  for (Py_ssize_t i = start; i < PyTuple_GET_SIZE(type->tp_mro); i++) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (PyObject* there = jm_dict_get(jm_type_dict(base), name)) return there;
  }
  return nullptr;
}

// Whether an instance attribute always overrides it. A mutable descriptor class may get a __set__
// later.
bool yields(PyObject* found) {
  PyTypeObject* type = Py_TYPE(found);
  return PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE) && !type->tp_descr_set;
}

bool is_slot(PyObject* found, PyObject* name) {
  return Py_IS_TYPE(found, &PyMemberDescr_Type) && PyDescr_NAME(found) == name;
}

bool refuse_fact(PyObject* fact) {
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%R is not a fact about a class", fact);
  return false;
}

}  // namespace

std::unique_ptr<ClassFacts> ClassFacts::make(PyObject* type, PyObject* mro, PyObject* facts) {
  if (!PyType_Check(type) || !PyTuple_Check(mro) || !PyTuple_Check(facts)) {
    PyErr_SetString(PyExc_ValueError, "a class, its MRO and facts about it are expected");
    return nullptr;
  }
  std::unique_ptr<ClassFacts> made(new ClassFacts(type));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) made->mro_.emplace_back(PyTuple_GET_ITEM(mro, i));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(facts); i++) {
    if (!made->add(PyTuple_GET_ITEM(facts, i))) return nullptr;
  }
  return made;
}

bool ClassFacts::add(PyObject* fact) {
  struct Form {
    const char* name;
    Kind kind;
    Py_ssize_t length;
  };
  static constexpr Form forms[] = {
      {"IS", Kind::Is, 4}, {"ABSENT", Kind::Absent, 3}, {"YIELDS", Kind::Yields, 2}, {"SLOT", Kind::Slot, 2}};
  const Py_ssize_t length = PyTuple_Check(fact) ? PyTuple_GET_SIZE(fact) : 0;
  if (length < 2 || !PyUnicode_Check(PyTuple_GET_ITEM(fact, 0))) return refuse_fact(fact);
  const Form* form = std::find_if(std::begin(forms), std::end(forms), [&](const Form& one) {
    return one.length == length && !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(fact, 0), one.name);
  });
  if (form == std::end(forms) || !PyUnicode_CheckExact(PyTuple_GET_ITEM(fact, 1))) return refuse_fact(fact);
  Py_ssize_t start = 0;
  if (length > 2) {
    PyObject* given = PyTuple_GET_ITEM(fact, 2);
    start = PyLong_Check(given) ? PyLong_AsSsize_t(given) : -1;
    if (start < 0) return refuse_fact(fact);
  }
  PyObject* name = Py_NewRef(PyTuple_GET_ITEM(fact, 1));
  PyUnicode_InternInPlace(&name);
  facts_.push_back({form->kind, ObjectRef(name), start, ObjectRef(length == 4 ? PyTuple_GET_ITEM(fact, 3) : nullptr)});
  Py_DECREF(name);
  return true;
}

bool ClassFacts::same_bases(PyTypeObject* type) const {
  PyObject* mro = type->tp_mro;
  if (!mro || PyTuple_GET_SIZE(mro) != static_cast<Py_ssize_t>(mro_.size())) return false;
  for (size_t i = 0; i < mro_.size(); i++) {
    if (PyTuple_GET_ITEM(mro, i) != mro_[i].get()) return false;
  }
  return true;
}

bool ClassFacts::holds(PyTypeObject* type, const Fact& fact) {
  PyObject* found = look_up(type, fact.name.get(), fact.start);
  switch (fact.kind) {
    case Kind::Is: return found && found == fact.object.get();
    case Kind::Absent: return !found;
    case Kind::Yields: return !found || yields(found);
    case Kind::Slot: return found && is_slot(found, fact.name.get());
  }
  return false;
}

bool ClassFacts::hold() {
  auto* type = reinterpret_cast<PyTypeObject*>(type_.get());
  if (!type) return false;
  const unsigned version = jm_type_version(type);
  if (version != 0 && version == version_) return true;
  version_ = 0;
  if (!same_bases(type)) return false;
  for (const Fact& fact : facts_) {
    if (!holds(type, fact)) return false;
  }
  version_ = jm_type_version(type);
  return true;
}

bool ClassFacts::alive() const {
  return type_.get() && std::all_of(facts_.begin(), facts_.end(), [](const Fact& fact) {
    return fact.kind != Kind::Is || fact.object.get();
  });
}

int ClassFacts::visit_refs(visitproc visit, void* arg) const {
  Py_VISIT(type_.stored());
  for (const ObjectRef& base : mro_) Py_VISIT(base.stored());
  for (const Fact& fact : facts_) {
    Py_VISIT(fact.name.stored());
    Py_VISIT(fact.object.stored());
  }
  return 0;
}

}  // namespace jitmagic
