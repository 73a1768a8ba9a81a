// Lookups in dictionaries that hardly ever change: the tables of modules, the globals of functions.
//
// While a dictionary has the version it had at the last look, what was found then is there still (a
// borrowed reference: the dictionary holds it). Where Python keeps no versions every look is made.
#pragma once

#include "frame.h"

#include <vector>

namespace jitmagic {

// dict[key], or nullptr. One key for the life of the object.
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

  // The same in an instance's dictionary; nothing is made.
  PyObject* in_instance(PyObject* object, PyObject* key) {
    PyObject* dict = jm_instance_dict(object);
    return dict ? in(dict, key) : jm_instance_get(object, key);
  }

 private:
  uint64_t version_ = 0;
  PyObject* found_ = nullptr;
};

// Hooks of a module: what is under some keys of a dictionary are empty dictionaries, and other keys
// are not there.
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
