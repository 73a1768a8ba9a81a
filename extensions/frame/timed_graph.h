// The time that a timed call spends in compiled graphs: the rest of it is Python and the way into compiled code.
#pragma once

#include "frame.h"

#include <chrono>

namespace jitmagic {

// A call that is timed begins and ends on this thread; end gives the nanoseconds that it spent in compiled graphs.
inline void begin_timed() {
  jm_thread* here = jm_this_thread();
  here->timed++;
  here->graphs = 0;
  jm_any_timed++;
}

inline long long end_timed() {
  jm_thread* here = jm_this_thread();
  here->timed--;
  jm_any_timed--;
  return here->graphs;
}

// A compiled graph runs while the object lives. A graph within it (a user's backend may call tagged functions) is
// a part of it. Where no call is timed, this reads one global.
class GraphClock {
 public:
  GraphClock() : here_(jm_any_timed && jm_this_thread()->timed ? jm_this_thread() : nullptr) {
    if (here_ && here_->in_graph++ == 0) since_ = std::chrono::steady_clock::now();
  }
  ~GraphClock() {
    if (!here_ || --here_->in_graph > 0) return;
    const auto taken = std::chrono::steady_clock::now() - since_;
    here_->graphs += std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
  }
  GraphClock(const GraphClock&) = delete;
  GraphClock& operator=(const GraphClock&) = delete;

 private:
  jm_thread* here_;
  std::chrono::steady_clock::time_point since_;
};

bool register_timed_graph(PyObject* module);

}  // namespace jitmagic
