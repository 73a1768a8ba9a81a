// Undoing: a compiled graph that writes to its inputs or draws random numbers, and may raise.
//
// When it raises, eager runs the frame from its start: it has to find what the graph found, so inputs get their
// old contents back and torch's default CPU generator goes back to where it was. Ctrl-C and the like run nothing
// again; nor do hooks on saved tensors that end a run on purpose (checkpointing): what was done then stays.

#include "around.h"

#include "generators.h"

#include <optional>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace jitmagic {
namespace {

struct Undoing : Around {
  bool draws;
};

class Before {
 public:
  Before(const Undoing& undoing, PyObject* const* args, Py_ssize_t count) {
    const at::NoGradGuard no_grad;
    for (Py_ssize_t position : *undoing.positions) {
      if (position >= count || !THPVariable_Check(args[position])) continue;
      const at::Tensor& input = THPVariable_Unpack(args[position]);
      written_.emplace_back(input, input.detach().clone());
    }
    if (undoing.draws) generator_.emplace(c10::kCPU);
  }

  void restore() const {
    const at::NoGradGuard no_grad;
    // variable_data: no write that autograd has to know of
    for (const auto& [input, contents] : written_) input.variable_data().copy_(contents);
    if (generator_) generator_->restore();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
  std::optional<GeneratorState> generator_;
};

// Takes the Python error that is set out of the interpreter while it lives.
class SetAside {
 public:
  SetAside() {
    PyErr_Fetch(&type_, &value_, &traceback_);
    PyErr_NormalizeException(&type_, &value_, &traceback_);
  }
  ~SetAside() { PyErr_Restore(type_, value_, traceback_); }
  SetAside(const SetAside&) = delete;

  bool is_from_hook() const {
    PyObject* mark = PyObject_GetAttrString(value_, "__jitmagic_from_hook__");
    if (!mark) PyErr_Clear();
    Py_XDECREF(mark);
    return mark != nullptr;
  }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

PyObject* undoing_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto& undoing = *reinterpret_cast<Undoing*>(self);
  const Before before(undoing, args, PyVectorcall_NARGS(nargsf));
  PyObject* made = PyObject_Vectorcall(undoing.run, args, nargsf, names);
  if (!made && PyErr_ExceptionMatches(PyExc_Exception)) {
    const SetAside error;
    if (!error.is_from_hook()) before.restore();
  }
  return made;
  END_HANDLE_TH_ERRORS
}

PyObject* undoing_new(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *run, *written;
  int draws;
  if (!PyArg_ParseTuple(args, "OOp:Undoing", &run, &written, &draws)) return nullptr;
  auto* self = static_cast<Undoing*>(make_around(type, run, written, undoing_call));
  self->draws = draws;
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyTypeObject undoing_type = around_type(
    "jitmagic._runtime.Undoing",
    "Undoing(run, written, draws): calls run; when it raises, the inputs at these positions and, if it draws, "
    "torch's default CPU generator are as they were.",
    undoing_new, sizeof(Undoing));

}  // namespace

bool register_undo(PyObject* module) { return PyModule_AddType(module, &undoing_type) == 0; }

}  // namespace jitmagic
