// Executable: runs a Plan (jitmagic/codegen/plan.py) natively. `Executable(program, constants, owners)` takes the
// tuple to which runtime/native.py lowers a Plan; calling it with the graph inputs returns a tuple of tensors.
//
// It holds the GIL unless the program is marked as heavy, and touches no Python object except inputs and results.

#include <memory>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "callable.h"
#include "execute.h"
#include "issued.h"
#include "plan.h"
#include "profiled.h"
#include "profiled_block.h"

namespace jitmagic {
namespace {

struct Executable : Callable {
  Program* program;
  PyObject* owners;  // keep kernel code loaded (libraries)
  PyObject* otherwise;  // called instead if an input in `aligned` is not aligned; may be null
};

void run_program(const Program& program, Frame& frame) {
  if (program.heavy) {  // otherwise releasing the GIL costs more than other threads gain
    pybind11::gil_scoped_release released;
    run_steps(program, frame);
  } else {
    run_steps(program, frame);
  }
}

[[gnu::noinline]] void run_profiled(const Program& program, Frame& frame) {
  const ProfiledBlock block((*program.titles)[0], at::RecordScope::USER_SCOPE);
  frame.titles = program.titles.get();
  run_program(program, frame);
}

// Returns false with Python's error state set if a warning was made an error.
bool run_in(const Program& program, Frame& frame) {
  if (!program.titles->empty() && profiler_is_on()) [[unlikely]] {
    run_profiled(program, frame);
  } else {
    run_program(program, frame);
  }
  return !frame.warned || issue_warnings(frame.warned);
}

void bind_inputs(const Program& program, Frame& frame, PyObject* const* args) {
  for (int i = 0; i < program.inputs; ++i) bind(frame, i, THPVariable_Unpack(args[i]));
  bind_constants(program, frame);
}

// Kernels for aligned pointers read 16 bytes at once, and must not get an input that is an offset view. Checked
// before anything runs, because a plan may write to its inputs.
template <class TensorAt>
bool misaligned(const Program& program, TensorAt tensor_at) {
  for (int i : program.aligned) {
    if (reinterpret_cast<uintptr_t>(tensor_at(i).const_data_ptr()) % 16) return true;
  }
  return false;
}

PyObject* wrap_outputs(const Program& program, Frame& frame) {
  THPObjectPtr result(PyTuple_New(Py_ssize_t(program.outputs.size())));
  if (!result) throw python_error();
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const int slot = program.outputs[i];
    PyObject* item;
    if (slot < 0) {
      item = Py_NewRef(Py_None);
    } else {
      item = THPVariable_Wrap(*frame.slots[slot].seen);
      if (!item) throw python_error();
    }
    PyTuple_SET_ITEM(result.get(), Py_ssize_t(i), item);
  }
  return result.release();
}

// Sets Python errors directly: nothing needs unwinding yet.
bool check_arguments(const Program& program, PyObject* const* args, Py_ssize_t given, PyObject* names) {
  if (given != program.inputs || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
    PyErr_Format(
        PyExc_TypeError, "a compiled graph takes %d tensors, got %zd", program.inputs, given);
    return false;
  }
  for (Py_ssize_t i = 0; i < given; ++i) {
    if (!THPVariable_Check(args[i])) {
      PyErr_Format(PyExc_TypeError, "argument %zd of a compiled graph is not a tensor", i);
      return false;
    }
  }
  return true;
}

PyObject* executable_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  HANDLE_TH_ERRORS
  const Program& program = *reinterpret_cast<Executable*>(self)->program;
  const auto given = PyVectorcall_NARGS(nargsf);
  if (!check_arguments(program, args, given, names)) return nullptr;
  if (misaligned(program, [args](int i) -> const at::Tensor& { return THPVariable_Unpack(args[i]); })) {
    return PyObject_Vectorcall(reinterpret_cast<Executable*>(self)->otherwise, args, given, nullptr);
  }
  Frame frame;
  frame.slots.resize(program.slots);
  bind_inputs(program, frame, args);
  if (!run_in(program, frame)) [[unlikely]] return nullptr;
  return wrap_outputs(program, frame);
  END_HANDLE_TH_ERRORS
}

PyObject* executable_new(PyTypeObject*, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *tuple, *constants, *owners, *aligned = nullptr, *otherwise = nullptr;
  if (!PyArg_ParseTuple(
          args, "O!O!O|O!O:Executable", &PyTuple_Type, &tuple, &PyTuple_Type, &constants, &owners,
          &PyTuple_Type, &aligned, &otherwise)) {
    return nullptr;
  }
  auto program = ProgramReader<PythonSource>(PythonSource()).read(tuple, constants);
  program->aligned = aligned_inputs(aligned, *program);
  if (!program->aligned.empty() && !otherwise) raise_as(PyExc_ValueError, "aligned inputs need an alternative");
  return executable_of(std::move(program), owners, otherwise);
  END_HANDLE_TH_ERRORS
}

void executable_dealloc(PyObject* self) {
  delete reinterpret_cast<Executable*>(self)->program;
  Py_XDECREF(reinterpret_cast<Executable*>(self)->owners);
  Py_XDECREF(reinterpret_cast<Executable*>(self)->otherwise);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject executable_type = callable_type({
    .full_name = "jitmagic._runtime.Executable",
    .doc = "Executable(program, constants, owners, aligned=(), otherwise=None): a compiled graph; call it with its "
           "input tensors. When an input listed in `aligned` is not on a 16-byte boundary, `otherwise` is called.",
    .size = sizeof(Executable),
    .make = executable_new,
    .dealloc = executable_dealloc,
});

}  // namespace

PyObject* executable_of(std::unique_ptr<Program> program, PyObject* owners, PyObject* otherwise) {
  auto* self = reinterpret_cast<Executable*>(executable_type.tp_alloc(&executable_type, 0));
  if (!self) raise_python_error();
  self->vectorcall = executable_call;
  self->program = program.release();
  self->owners = Py_NewRef(owners);
  self->otherwise = Py_XNewRef(otherwise);
  return reinterpret_cast<PyObject*>(self);
}

bool run_owned(PyObject* graph, std::vector<at::Tensor>& arguments, std::vector<at::Tensor>& results) {
  if (!Py_IS_TYPE(graph, &executable_type)) return false;
  const Program& program = *reinterpret_cast<Executable*>(graph)->program;
  if (arguments.size() != size_t(program.inputs) || results.size() != program.outputs.size()) return false;
  if (misaligned(program, [&arguments](int i) -> const at::Tensor& { return arguments[size_t(i)]; })) return false;
  Frame frame;
  frame.slots.resize(program.slots);
  for (int i = 0; i < program.inputs; ++i) {
    Slot& slot = frame.slots[i];
    slot.own = std::move(arguments[size_t(i)]);
    bind(frame, i, slot.own);
  }
  bind_constants(program, frame);
  if (!run_in(program, frame)) throw python_error();
  for (size_t i = 0; i < results.size(); ++i) {
    if (const int slot = program.outputs[i]; slot >= 0) results[i] = *frame.slots[slot].seen;
  }
  return true;
}

bool register_plan(PyObject* module) { return PyModule_AddType(module, &executable_type) == 0; }

}  // namespace jitmagic
