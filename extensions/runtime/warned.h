// Warnings of ATen calls, reported at the user's line: the frame around a compiled graph is at its function's first
// line. They are collected until the graph has run, since it may run without the GIL.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "plan.h"

namespace jitmagic {

// The warnings of a graph's calls; allocated for the first one.
using PendingWarnings = std::unique_ptr<std::vector<std::pair<c10::Warning, const Call*>>>;

// Collects warnings during its lifetime.
class WarningCollector : public c10::WarningHandler {
 public:
  WarningCollector(PendingWarnings& warned, const Call& call) : warned_(warned), call_(call), guard_(this) {}
  void process(const c10::Warning& warning) override;

 private:
  PendingWarnings& warned_;
  const Call& call_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// Passes them to Python's `warnings`; false: a filter turned one into an exception, which is set.
bool issue_warnings(const PendingWarnings& warned);

}  // namespace jitmagic
