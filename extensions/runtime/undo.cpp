// UndoOnError: a compiled graph that writes to its inputs or draws random numbers, and may raise.
//
// After an exception eager runs the frame from its start and must find the original state. Inputs therefore get their
// old contents back, and torch's default CPU generator its old state. After Ctrl-C and the like nothing runs again,
// nor after hooks on saved tensors that end a run on purpose (checkpointing): then writes stay. They also stay after
// an unexpected error behind a write to an input that was not copied; the exception is marked.

#include "around.h"

#include "generators.h"

#include <algorithm>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace jitmagic {
namespace {

struct UndoOnError : GraphWrapper {  // `others`: inputs whose versions are compared
  bool draws;
};

class InputSnapshot {
 public:
  InputSnapshot(const UndoOnError& wrapper, PyObject* const* args, Py_ssize_t count) {
    const at::NoGradGuard no_grad;
    for (Py_ssize_t position : *wrapper.positions) {
      if (position >= count || !THPVariable_Check(args[position])) continue;
      const at::Tensor& input = THPVariable_Unpack(args[position]);
      written_.emplace_back(input, input.detach().clone());
    }
    for (Py_ssize_t position : *wrapper.others) {
      if (position >= count || !THPVariable_Check(args[position])) continue;
      const at::Tensor& input = THPVariable_Unpack(args[position]);
      watched_.emplace_back(input, version_of(input));
    }
    if (wrapper.draws) generator_.emplace(c10::kCPU);
  }

  void restore() const {
    const at::NoGradGuard no_grad;
    // variable_data: does not increment the version counter
    for (const auto& [input, contents] : written_) input.variable_data().copy_(contents);
    if (generator_) generator_->restore();
  }

  // Returns whether an input that was not copied may have been written to.
  bool has_uncopied_write() const {
    return std::ranges::any_of(watched_, [](const auto& one) {
      return one.second == kUncounted || version_of(one.first) != one.second;
    });
  }

 private:
  static constexpr int64_t kUncounted = -1;

  static int64_t version_of(const at::Tensor& input) { return input.is_inference() ? kUncounted : input._version(); }

  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
  std::vector<std::pair<at::Tensor, int64_t>> watched_;
  std::optional<GeneratorState> generator_;
};

// Takes the current Python error out of the interpreter during its lifetime.
class SavedError {
 public:
  SavedError() {
    PyErr_Fetch(&type_, &value_, &traceback_);
    PyErr_NormalizeException(&type_, &value_, &traceback_);
  }
  ~SavedError() { PyErr_Restore(type_, value_, traceback_); }
  SavedError(const SavedError&) = delete;

  bool is_from_hook() const {
    PyObject* mark = PyObject_GetAttrString(value_, "__jitmagic_from_hook__");
    if (!mark) PyErr_Clear();
    Py_XDECREF(mark);
    return mark != nullptr;
  }

  void mark_written() const {
    if (PyObject_SetAttrString(value_, "__jitmagic_wrote__", Py_True) < 0) PyErr_Clear();
  }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

PyObject* undo_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto& wrapper = *reinterpret_cast<UndoOnError*>(self);
  const InputSnapshot before(wrapper, args, PyVectorcall_NARGS(nargsf));
  PyObject* made = PyObject_Vectorcall(wrapper.run, args, nargsf, names);
  if (!made && PyErr_ExceptionMatches(PyExc_Exception)) {
    const SavedError error;
    if (before.has_uncopied_write()) error.mark_written();
    if (!error.is_from_hook()) before.restore();
  }
  return made;
  END_HANDLE_TH_ERRORS
}

PyObject* undo_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *run, *written, *watched;
  int draws;
  if (!PyArg_ParseTuple(args, "OOOp:UndoOnError", &run, &written, &watched, &draws)) return nullptr;
  auto* self = static_cast<UndoOnError*>(make_wrapper(type, run, written, undo_call, watched));
  self->draws = draws;
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyTypeObject undo_type = wrapper_type(
    "jitmagic._runtime.UndoOnError",
    "UndoOnError(run, written, watched, draws): calls run; an exception restores the inputs at `written` and, if it "
    "draws, torch's default CPU generator. After a write to an input at `watched` the exception is marked.",
    undo_new, sizeof(UndoOnError));

}  // namespace

bool register_undo_on_error(PyObject* module) { return PyModule_AddType(module, &undo_type) == 0; }

}  // namespace jitmagic
