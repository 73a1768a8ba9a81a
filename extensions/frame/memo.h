// Cached lookups in dictionaries that rarely change: the tables of modules, the globals of
// functions.
//
// While a dictionary has the version of the last lookup, the result is unchanged (a borrowed
// reference, owned by the dictionary). Without dictionary versions (3.13) nothing is cached.
#pragma once

#include "frame.h"

#include <vector>

namespace jitmagic {

// Caches dict[key], or nullptr, for one fixed key.
class Lookup {
 public:
  PyObject* in(PyObject* dict, PyObject* key) {
    const uint64_t version = jm_dict_version(dict);
    if (version == 0 || version != version_) {
      found_ = jm_dict_get(dict, key);
      version_ = version;
    }
    return found_;
  }

  // The same for an instance's dictionary, which is not materialised.
  PyObject* in_instance(PyObject* object, PyObject* key) {
    PyObject* dict = jm_instance_dict(object);
    return dict ? in(dict, key) : jm_instance_get(object, key);
  }

 private:
  uint64_t version_ = 0;
  PyObject* found_ = nullptr;
};

// Checks that a dictionary has empty dictionaries under some keys (a module's hooks) and lacks
// other keys.
class EmptyTables {
 public:
  // `required`: every key must be there.
  bool hold(PyObject* dict, PyObject* keys, PyObject* absent, bool required);

 private:
  bool find(PyObject* dict, PyObject* keys, PyObject* absent, bool required);

  uint64_t version_ = 0;
  std::vector<PyObject*> tables_;
};

}  // namespace jitmagic
