// Reads dictionaries and instances without side effects.
//
// The public API would materialise the dictionary of an instance (which slows its attribute access
// permanently) or compare keys through user code.

#include "cpython/layout.h"

#include "frame.h"

bool jm_dict_has_only_strings(PyObject* dict) {
  return ((PyDictObject*)dict)->ma_keys->dk_kind != DICT_KEYS_GENERAL;
}

// Index of a name in a type's shared keys (at most 30 of them), or -1.
static Py_ssize_t shared_key_index(PyDictKeysObject* keys, PyObject* name) {
  PyDictUnicodeEntry* entries = DK_UNICODE_ENTRIES(keys);
  for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {
    if (entries[i].me_key == name) return i;
  }
  for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {  // a name that was not interned
    PyObject* key = entries[i].me_key;
    if (key && PyUnicode_Compare(key, name) == 0) return i;
  }
  return -1;
}

uint64_t jm_dict_version(PyObject* dict) { return jm_version_tag((PyDictObject*)dict); }

const uint64_t* jm_dict_version_address(PyObject* dict) { return jm_version_address((PyDictObject*)dict); }

// All supported versions reset it to 0 when the class changes; Py_TPFLAGS_VALID_VERSION_TAG adds
// nothing.
unsigned jm_type_version(PyTypeObject* type) { return type->tp_version_tag; }

PyObject* jm_type_dict(PyTypeObject* type) { return jm_dict_of_type(type); }

// Without a managed dictionary the pointer is only computed and nothing is created.
static PyObject* plain_dict_of(PyObject* object) {
  PyObject** place = _PyObject_GetDictPtr(object);
  return place ? *place : NULL;
}

PyObject* jm_instance_dict(PyObject* object) {
  PyObject* dict = NULL;
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    if (jm_inline_values(object, &dict)) return NULL;
  } else {
    dict = plain_dict_of(object);
  }
  return dict && PyDict_Check(dict) ? dict : NULL;
}

PyObject* jm_instance_get(PyObject* object, PyObject* name) {
  PyObject* dict = jm_instance_dict(object);
  if (dict) return jm_dict_get(dict, name);
  if (!PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) return NULL;
  PyDictValues* values = jm_inline_values(object, &dict);
  PyDictKeysObject* keys = ((PyHeapTypeObject*)Py_TYPE(object))->ht_cached_keys;
  Py_ssize_t index = values && keys ? shared_key_index(keys, name) : -1;
  return index < 0 ? NULL : values->values[index];
}

static bool hides(PyObject* object, PyObject* name) {
  PyObject* found = PyUnicode_CheckExact(name) ? _PyType_Lookup(Py_TYPE(object), name) : NULL;
  return found && !Py_TYPE(found)->tp_descr_set;
}

static bool has_name(PyObject* names, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
    if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), name) == 0) return true;
  }
  return false;
}

bool jm_instance_hides_only(PyObject* object, PyObject* names) {
  PyObject *dict = jm_instance_dict(object), *name, *value;
  Py_ssize_t hidden = 0, at = 0;
  if (dict) {
    while (PyDict_Next(dict, &at, &name, &value)) {
      if (!hides(object, name)) continue;
      if (!has_name(names, name)) return false;
      hidden++;
    }
  } else if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    PyDictValues* values = jm_inline_values(object, &dict);
    PyDictKeysObject* keys = ((PyHeapTypeObject*)Py_TYPE(object))->ht_cached_keys;
    const Py_ssize_t count = values && keys && jm_values_used(values) ? keys->dk_nentries : 0;
    for (; at < count; at++) {
      name = DK_UNICODE_ENTRIES(keys)[at].me_key;
      if (!values->values[at] || !hides(object, name)) continue;
      if (!has_name(names, name)) return false;
      hidden++;
    }
  }
  return hidden == PyTuple_GET_SIZE(names);
}
