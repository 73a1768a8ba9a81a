// Warnings of ATen calls, which name the user's line: the frame around a compiled graph stands at its function's
// first one. They are kept until the graph has run, as it may run without the GIL.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "plan.h"

namespace jitmagic {

// What a graph's calls warned of; made when one does.
using Warned = std::unique_ptr<std::vector<std::pair<c10::Warning, const Call*>>>;

// Hears what is warned of while it lives.
class Listener : public c10::WarningHandler {
 public:
  Listener(Warned& warned, const Call& call) : warned_(warned), call_(call), guard_(this) {}
  void process(const c10::Warning& warning) override;

 private:
  Warned& warned_;
  const Call& call_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// Hands them to Python's `warnings`; false: a filter made an error of one, which is set.
bool tell_of(const Warned& warned);

}  // namespace jitmagic
