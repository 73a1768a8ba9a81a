// One call of an entry that is being compared with eager (jitmagic/frame/comparison.py).
#pragma once

#include "entry.h"

#include <chrono>

namespace jitmagic {

class ComparedCall {
 public:
  // Asks comparison.begin(): the entry to run and time, or None, the entry itself untimed.
  explicit ComparedCall(Entry* entry);
  // comparison.drop(), where a call was to be timed and gave no result.
  ~ComparedCall();
  ComparedCall(const ComparedCall&) = delete;
  ComparedCall& operator=(const ComparedCall&) = delete;

  Entry* chosen() const { return chosen_; }  // NULL: an exception is set
  void start();  // once the guards have passed again
  // comparison.end(result, nanoseconds); the result, or NULL with an exception set.
  PyObject* stop(PyObject* result);

 private:
  PyObject* comparison_;
  Entry* entry_;
  Entry* chosen_ = nullptr;
  bool timed_ = false, running_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace jitmagic
