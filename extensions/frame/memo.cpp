// EmptyTables: looks the keys up after the dictionary has changed, and the tables' sizes at every
// call.

#include "memo.h"

namespace jitmagic {

bool EmptyTables::find(PyObject* dict, PyObject* keys, PyObject* absent, bool required) {
  tables_.clear();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
    PyObject* table = jm_dict_get(dict, PyTuple_GET_ITEM(keys, i));
    if (table ? !PyDict_Check(table) : required) return false;
    if (table) tables_.push_back(table);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(absent); i++) {
    if (jm_dict_get(dict, PyTuple_GET_ITEM(absent, i))) return false;
  }
  return true;
}

bool EmptyTables::hold(PyObject* dict, PyObject* keys, PyObject* absent, bool required) {
  if (!PyDict_Check(dict)) return false;
  const uint64_t version = jm_dict_version(dict);
  if (version == 0 || version != version_) {
    version_ = 0;
    if (!find(dict, keys, absent, required)) return false;
    version_ = version;
  }
  for (PyObject* table : tables_) {
    if (PyDict_GET_SIZE(table)) return false;
  }
  return true;
}

}  // namespace jitmagic
