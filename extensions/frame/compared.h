// Calls of an entry that is being compared with eager (jitmagic/frame/timing/comparison.py, batch_timing.py).
#pragma once

#include "entry.h"

#include <chrono>
#include <vector>

namespace jitmagic {

class ComparedCall {
 public:
  // Calls comparison.begin(), which returns the entry to run and time, or None to run `entry`
  // untimed.
  explicit ComparedCall(Entry* entry);
  // Calls comparison.drop() if a timed call has not returned a result.
  ~ComparedCall();
  ComparedCall(const ComparedCall&) = delete;
  ComparedCall& operator=(const ComparedCall&) = delete;

  Entry* chosen() const { return chosen_; }  // NULL: an exception is set
  void start();  // after the guards have passed again
  // Calls comparison.end(result, nanoseconds, nanoseconds in graphs); returns the result, or NULL with an exception set.
  PyObject* stop(PyObject* result);

 private:
  PyObject* comparison_;
  Entry* entry_;
  Entry* chosen_ = nullptr;
  bool timed_ = false, running_ = false;
  std::chrono::steady_clock::time_point since_;
};

// The `comparison` of an entry while a batch of consecutive calls runs the same entry. They are
// timed with no jitmagic Python between them: it would evict caches that stay warm in a user's
// loop. The last call of the batch calls done([nanoseconds, ...], [nanoseconds in graphs, ...]); a
// call that raises is not counted.
struct CallBatch {
  PyObject_HEAD
  Entry* chosen;
  PyObject* done;
  Py_ssize_t left;
  std::vector<long long>* taken;
  std::vector<long long>* in_graphs;
};

extern PyTypeObject CallBatchType;

class BatchedCall {
 public:
  explicit BatchedCall(Entry* entry);
  ~BatchedCall();
  BatchedCall(const BatchedCall&) = delete;
  BatchedCall& operator=(const BatchedCall&) = delete;

  Entry* chosen() const { return batch_->chosen; }
  PyObject* stop(PyObject* result);  // the result, or NULL with an exception set

 private:
  CallBatch* batch_;
  std::chrono::steady_clock::time_point since_;
};

bool register_compared(PyObject* module);

}  // namespace jitmagic
