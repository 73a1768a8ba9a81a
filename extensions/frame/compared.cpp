// Calls the Python comparison object, unhooked and with its own recursion allowance. The timed
// interval covers the call and, for compiled code, its guards, which eager does not have.

#include "compared.h"

#include "timed_graph.h"

#include <structmember.h>

namespace jitmagic {
namespace {

template <class Call>
PyObject* not_hooked(Call call) {
  jm_this_thread()->paused++;
  const jm_nest saved = jm_begin_nest(true);
  PyObject* answer = call();
  jm_end_nest(saved);
  jm_this_thread()->paused--;
  return answer;
}

template <class... Arguments>
PyObject* ask(PyObject* comparison, const char* method, const char* format, Arguments... arguments) {
  return not_hooked([&] { return PyObject_CallMethod(comparison, method, format, arguments...); });
}

}  // namespace

ComparedCall::ComparedCall(Entry* entry)
    : comparison_(Py_NewRef(entry->comparison)), entry_(reinterpret_cast<Entry*>(Py_NewRef(entry))) {
  PyObject* answer = ask(comparison_, "begin", nullptr);
  timed_ = answer && Py_IS_TYPE(answer, &EntryType);
  if (timed_) {
    chosen_ = reinterpret_cast<Entry*>(answer);
    since_ = std::chrono::steady_clock::now();
    return;
  }
  if (answer) chosen_ = reinterpret_cast<Entry*>(Py_NewRef(entry));
  Py_XDECREF(answer);
}

ComparedCall::~ComparedCall() {
  if (timed_) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject* done = ask(comparison_, "drop", nullptr);
    if (!done) PyErr_WriteUnraisable(comparison_);
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
  }
  Py_XDECREF(chosen_);
  Py_DECREF(entry_);
  Py_DECREF(comparison_);
}

void ComparedCall::start() {
  running_ = timed_;
  if (!running_) return;
  begin_timed();
  if (chosen_ == entry_) return;
  entry_->hits++;  // an eager turn counts as a call of this variant too
  since_ = std::chrono::steady_clock::now();
}

PyObject* ComparedCall::stop(PyObject* result) {
  if (!running_) return result;
  const auto taken = std::chrono::steady_clock::now() - since_;
  const long long in_graphs = end_timed();
  if (!result) return nullptr;
  timed_ = false;
  const long long nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
  PyObject* done = ask(comparison_, "end", "OLL", result, nanoseconds, in_graphs);
  if (!done) Py_CLEAR(result);
  Py_XDECREF(done);
  return result;
}

namespace {

PyObject* batch_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"entry", "calls", "done", nullptr};
  PyObject *entry, *done;
  Py_ssize_t calls;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nO:CallBatch", const_cast<char**>(names), &EntryType, &entry,
                                   &calls, &done)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<CallBatch*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->chosen = reinterpret_cast<Entry*>(Py_NewRef(entry));
  self->done = Py_NewRef(done);
  self->left = calls;
  self->taken = new std::vector<long long>();
  self->in_graphs = new std::vector<long long>();
  return reinterpret_cast<PyObject*>(self);
}

int batch_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<CallBatch*>(object);
  Py_VISIT(self->chosen);
  Py_VISIT(self->done);
  return 0;
}

int batch_clear(PyObject* object) {
  auto* self = reinterpret_cast<CallBatch*>(object);
  Py_CLEAR(self->chosen);
  Py_CLEAR(self->done);
  return 0;
}

void batch_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  batch_clear(object);
  delete reinterpret_cast<CallBatch*>(object)->taken;
  delete reinterpret_cast<CallBatch*>(object)->in_graphs;
  Py_TYPE(object)->tp_free(object);
}

PyObject* list_of(const std::vector<long long>& values) {
  PyObject* list = PyList_New(0);
  for (long long value : values) {
    PyObject* number = list ? PyLong_FromLongLong(value) : nullptr;
    if (!number || PyList_Append(list, number) < 0) Py_CLEAR(list);
    Py_XDECREF(number);
  }
  return list;
}

// Whether `done` returned; if not, its exception is set.
bool end_batch(CallBatch* batch) {
  PyObject* taken = list_of(*batch->taken);
  PyObject* in_graphs = taken ? list_of(*batch->in_graphs) : nullptr;
  PyObject* answer = nullptr;
  if (in_graphs) {
    answer = not_hooked([&] { return PyObject_CallFunctionObjArgs(batch->done, taken, in_graphs, nullptr); });
  }
  Py_XDECREF(taken);
  Py_XDECREF(in_graphs);
  Py_XDECREF(answer);
  return answer;
}

}  // namespace

PyTypeObject CallBatchType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "jitmagic._frame.CallBatch",
    .tp_basicsize = sizeof(CallBatch),
    .tp_dealloc = batch_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A batch of consecutive calls of one entry, each timed.",
    .tp_traverse = batch_traverse,
    .tp_clear = batch_clear,
    .tp_new = batch_new,
};

BatchedCall::BatchedCall(Entry* entry)
    : batch_(reinterpret_cast<CallBatch*>(Py_NewRef(entry->comparison))) {
  if (batch_->chosen != entry) entry->hits++;  // an eager turn counts as a call of this variant too
  begin_timed();
  since_ = std::chrono::steady_clock::now();
}

BatchedCall::~BatchedCall() { Py_DECREF(batch_); }

PyObject* BatchedCall::stop(PyObject* result) {
  const auto taken = std::chrono::steady_clock::now() - since_;
  const long long in_graphs = end_timed();
  if (!result || batch_->left <= 0) return result;
  batch_->taken->push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count());
  batch_->in_graphs->push_back(in_graphs);
  if (--batch_->left == 0 && !end_batch(batch_)) Py_CLEAR(result);
  return result;
}

bool register_compared(PyObject* module) { return PyModule_AddType(module, &CallBatchType) == 0; }

}  // namespace jitmagic
