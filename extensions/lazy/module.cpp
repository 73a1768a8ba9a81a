// Initialises the module jitmagic._lazy; see lazy.h. The fallback is registered when the first block is entered:
// before, torch's tables of kernels are untouched.

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/library.h>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

void register_fallback() {
  static auto* library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    return made;
  }();
  (void)library;
}

PyObject* enter(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  register_fallback();
  Recorder*& recorder = recorder_of_thread();
  if (recorder) {
    recorder->depth++;
  } else {
    recorder = new Recorder();
    c10::impl::tls_set_dispatch_key_included(KEY, true);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void run_recorded() {
  std::shared_ptr<Batch> batch;
  {
    const Locked lock(mutex());
    if (Recorder* recorder = recorder_of_thread()) batch = recorder->batch;
  }
  if (batch) run(batch);
}

PyObject* leave(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Recorder*& recorder = recorder_of_thread();
  if (!recorder) Py_RETURN_NONE;
  if (--recorder->depth) {
    run_recorded();
    Py_RETURN_NONE;
  }
  c10::impl::tls_set_dispatch_key_included(KEY, false);
  std::exception_ptr error;
  try {
    run_recorded();
  } catch (...) {
    error = std::current_exception();
  }
  delete recorder;
  recorder = nullptr;
  if (error) std::rethrow_exception(error);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* flush(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  run_recorded();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* pending(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  std::shared_ptr<Batch> batch;
  if (Recorder* recorder = recorder_of_thread()) batch = recorder->batch;
  return batch ? describe_pending(*batch) : PyList_New(0);
  END_HANDLE_TH_ERRORS
}

PyObject* is_recording(PyObject*, PyObject*) { return PyBool_FromLong(recorder_of_thread() != nullptr); }

PyObject* read_counts(PyObject*, PyObject*) {
  const Counts& all = counts();
  return Py_BuildValue("(LLLLL)", (long long)all.recorded, (long long)all.batches, (long long)all.compiled,
                       (long long)all.cached, (long long)all.replayed);
}

PyObject* set_compiler(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *function, *folders;
  if (!PyArg_ParseTuple(args, "OO!:set_compiler", &function, &PyTuple_Type, &folders)) return nullptr;
  std::vector<std::string> library;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(folders); i++) {
    const char* folder = PyUnicode_AsUTF8(PyTuple_GET_ITEM(folders, i));
    if (!folder) return nullptr;
    library.emplace_back(folder);
  }
  set_library(std::move(library));
  lazy::set_compiler(function);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* forget(PyObject*, PyObject*) {
  forget_compiled();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"enter", enter, METH_NOARGS, "Begin to record operations in this thread, or nest."},
    {"leave", leave, METH_NOARGS, "Run what is recorded; the outermost call ends the recording."},
    {"flush", flush, METH_NOARGS, "Run what this thread has recorded."},
    {"pending", pending, METH_NOARGS, "Return (operator, ((sizes, dtype), ...), line) of each recorded operation."},
    {"is_recording", is_recording, METH_NOARGS, "Return whether this thread records."},
    {"counts", read_counts, METH_NOARGS,
     "Return how many operations were recorded and batches run, and how many of these were compiled, found compiled, "
     "or run one by one."},
    {"set_compiler", set_compiler, METH_VARARGS,
     "set_compiler(function, folders): function(description) returns a callable or None; code below `folders` is no "
     "user code."},
    {"forget", forget, METH_NOARGS, "Forget all compiled batches."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "jitmagic._lazy", "Records operations and runs them later.", -1,
                          methods};

}  // namespace
}  // namespace jitmagic::lazy

PyMODINIT_FUNC PyInit__lazy() {
  PyObject* module = PyModule_Create(&jitmagic::lazy::definition);
  if (module && PyModule_AddStringConstant(module, "TORCH_VERSION", JITMAGIC_TORCH_VERSION) != 0) Py_CLEAR(module);
  return module;
}
