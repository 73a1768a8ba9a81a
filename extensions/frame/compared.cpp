// Asking and telling a comparison, which is Python of ours: not hooked, with room of its own to recurse.
// Between the two readings of the clock is the call, and for compiled code its guards, which eager has not.

#include "compared.h"

#include "frame.h"

namespace jitmagic {
namespace {

template <class... Arguments>
PyObject* ask(PyObject* comparison, const char* method, const char* format, Arguments... arguments) {
  jm_this_thread()->paused++;
  const jm_nest saved = jm_begin_nest(true);
  PyObject* answer = PyObject_CallMethod(comparison, method, format, arguments...);
  jm_end_nest(saved);
  jm_this_thread()->paused--;
  return answer;
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
  jm_this_thread()->timed++;
  if (chosen_ == entry_) return;
  entry_->hits++;  // a turn of eager is a call of this variant too
  since_ = std::chrono::steady_clock::now();
}

PyObject* ComparedCall::stop(PyObject* result) {
  if (!running_) return result;
  const auto taken = std::chrono::steady_clock::now() - since_;
  jm_this_thread()->timed--;
  if (!result) return nullptr;
  timed_ = false;
  const long long nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
  PyObject* done = ask(comparison_, "end", "OL", result, nanoseconds);
  if (!done) Py_CLEAR(result);
  Py_XDECREF(done);
  return result;
}

}  // namespace jitmagic
