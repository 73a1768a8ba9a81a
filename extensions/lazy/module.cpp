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

PyObject* read_counts(PyObject*, PyObject*) {
  const Counts& all = counts();
  return Py_BuildValue("(LLLLL)", (long long)all.recorded, (long long)all.batches, (long long)all.compiled,
                       (long long)all.cached, (long long)all.replayed);
}

PyObject* set_callbacks(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *infer, *compile, *report, *folders;
  if (!PyArg_ParseTuple(args, "OOOO!:set_callbacks", &infer, &compile, &report, &PyTuple_Type, &folders))
    return nullptr;
  std::vector<std::string> library;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(folders); i++) {
    const char* folder = PyUnicode_AsUTF8(PyTuple_GET_ITEM(folders, i));
    if (!folder) return nullptr;
    library.emplace_back(folder);
  }
  set_library(std::move(library));
  callbacks() = {Py_NewRef(infer), Py_NewRef(compile), Py_NewRef(report)};  // they live as long as the process
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* count_compile(PyObject*, PyObject*) {
  counts().compiled++;
  Py_RETURN_NONE;
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
    {"counts", read_counts, METH_NOARGS,
     "Return how many operations were recorded and batches run, and how many of these were compiled, found compiled, "
     "or run one by one."},
    {"set_callbacks", set_callbacks, METH_VARARGS,
     "set_callbacks(infer, compile, report_fault, folders). infer(operator, overload, args, kwargs, device): results of "
     "a call of meta tensors, None if it has to run. compile(batch): a callable of the inputs and the varying numbers. "
     "report_fault(error): that callable raised, and the operations do not. Code below `folders` is no user code."},
    {"count_compile", count_compile, METH_NOARGS, "Count a compiled graph."},
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
