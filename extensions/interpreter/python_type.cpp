// BlockKernels(text, isa): kernels of the block interpreter for Python.

#include <Python.h>

#include "program.h"

namespace jitmagic {

bool register_blocks(PyObject* module);  // runtime/module.cpp calls it

namespace {

struct Decref {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Reference = std::unique_ptr<PyObject, Decref>;

struct BlockKernels {
  PyObject_HEAD
  std::vector<blocks::Named>* kernels;
  PyObject* libraries;  // a list: what keeps compiled kernels loaded
};

BlockKernels* as_kernels(PyObject* self) { return reinterpret_cast<BlockKernels*>(self); }

PyObject* kernels_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* text;
  const char* isa;
  Py_ssize_t length;
  if (!PyArg_ParseTuple(args, "Us:BlockKernels", &text, &isa)) return nullptr;
  const char* characters = PyUnicode_AsUTF8AndSize(text, &length);
  if (!characters) return nullptr;
  const blocks::Operations* operations = blocks::operations_for(isa);
  if (!operations) return PyErr_Format(PyExc_ValueError, "no block operations for %s here", isa);
  try {
    auto read = blocks::read_programs({characters, size_t(length)}, *operations);
    Reference made(type->tp_alloc(type, 0)), libraries(PyList_New(0));
    if (!made || !libraries) return nullptr;
    as_kernels(made.get())->kernels = new std::vector<blocks::Named>(std::move(read));
    as_kernels(made.get())->libraries = libraries.release();
    return made.release();
  } catch (const blocks::Malformed& error) {
    return PyErr_Format(PyExc_ValueError, "malformed block kernels: %s", error.what());
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

// Returns (entry point, context, number of arguments) by the kernel's name.
PyObject* kernels_entries(PyObject* self, PyObject*) {
  Reference made(PyDict_New());
  if (!made) return nullptr;
  const auto entry = reinterpret_cast<unsigned long long>(&blocks::run_program);
  for (const blocks::Named& named : *as_kernels(self)->kernels) {
    const auto context = reinterpret_cast<unsigned long long>(named.program.get());
    Reference found(Py_BuildValue("KKi", entry, context, named.program->arguments + (named.program->sizes != 0)));
    if (!found || PyDict_SetItemString(made.get(), named.name.c_str(), found.get())) return nullptr;
  }
  return made.release();
}

PyObject* kernels_replace(PyObject* self, PyObject* args) {
  const char* name;
  PyObject *address, *library;
  if (!PyArg_ParseTuple(args, "sOO:replace", &name, &address, &library)) return nullptr;
  const auto function = reinterpret_cast<blocks::Function>(PyLong_AsVoidPtr(address));
  if (PyErr_Occurred()) return nullptr;
  for (blocks::Named& named : *as_kernels(self)->kernels) {
    if (named.name != name) continue;
    // Calls that are in the interpreter meanwhile end there. The library stays loaded as long as this object.
    if (PyList_Append(as_kernels(self)->libraries, library)) return nullptr;
    named.program->compiled.store(function, std::memory_order_release);
    Py_RETURN_NONE;
  }
  PyErr_Format(PyExc_KeyError, "no kernel %s", name);
  return nullptr;
}

void kernels_dealloc(PyObject* self) {
  delete as_kernels(self)->kernels;
  Py_XDECREF(as_kernels(self)->libraries);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {
    {"entries", kernels_entries, METH_NOARGS, "Return (address of the entry point, of its context, arguments) by name."},
    {"replace", kernels_replace, METH_VARARGS,
     "replace(name, address, library): let calls of a kernel run a compiled one from now on."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject kernels_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

bool register_blocks(PyObject* module) {
  kernels_type.tp_name = "jitmagic._runtime.BlockKernels";
  kernels_type.tp_doc =
      "BlockKernels(text, isa): kernels of the block interpreter, for the instructions of \"avx2\", \"avx512\" or "
      "\"neon\". Raises ValueError for malformed text, and for instructions that this processor lacks.";
  kernels_type.tp_basicsize = sizeof(BlockKernels);
  kernels_type.tp_flags = Py_TPFLAGS_DEFAULT;
  kernels_type.tp_methods = methods;
  kernels_type.tp_new = kernels_new;
  kernels_type.tp_dealloc = kernels_dealloc;
  return PyModule_AddType(module, &kernels_type) == 0;
}

}  // namespace jitmagic
