// Collects the warnings of ATen calls until the graph has run: Python reports them at the user's line, and a graph may
// run without the GIL.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "program.h"

namespace jitmagic {

// The warnings of a graph's calls; allocated for the first one.
using PendingWarnings = std::unique_ptr<std::vector<std::pair<c10::Warning, const Call*>>>;

// Collects warnings during its lifetime.
class WarningCollector : public c10::WarningHandler {
 public:
  WarningCollector(PendingWarnings& warned, const Call& call) : warned_(warned), call_(call), guard_(this) {}

  void process(const c10::Warning& warning) override {
    if (!warned_) warned_ = std::make_unique<PendingWarnings::element_type>();
    warned_->emplace_back(warning, &call_);
  }

 private:
  PendingWarnings& warned_;
  const Call& call_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace jitmagic
