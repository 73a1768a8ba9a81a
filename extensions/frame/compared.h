// Calls of an entry that is being compared with eager (jitmagic/frame/timing/comparison.py, batch_timing.py).
#pragma once

#include "entry.h"

#include <chrono>
#include <vector>

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

// The `comparison` of an entry while calls in a row run the same entry: each is timed with no Python of ours
// between them, which would leave the caches to the call as no loop of the user's does. The last of them calls
// done([nanoseconds, ...]); one that raised is not counted.
struct Streak {
  PyObject_HEAD
  Entry* chosen;
  PyObject* done;
  Py_ssize_t left;
  std::vector<long long>* taken;
};

extern PyTypeObject StreakType;

class CallOfStreak {
 public:
  explicit CallOfStreak(Entry* entry);
  ~CallOfStreak();
  CallOfStreak(const CallOfStreak&) = delete;
  CallOfStreak& operator=(const CallOfStreak&) = delete;

  Entry* chosen() const { return streak_->chosen; }
  PyObject* stop(PyObject* result);  // the result, or NULL with an exception set

 private:
  Streak* streak_;
  std::chrono::steady_clock::time_point since_;
};

bool register_compared(PyObject* module);

}  // namespace jitmagic
