// Loads artifacts and runs their entries.

#include "jitmagic/run.hpp"

#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/version.h>

#include "entry.h"

namespace jitmagic {
namespace {

constexpr int64_t kFormat = 1;

constexpr const char* kMachine =
#if defined(__x86_64__)
    "x86_64";
#elif defined(__aarch64__)
    "aarch64";
#else
    "unknown";
#endif

// Returns the names of instructions that this processor lacks. Names are those of Linux.
std::string missing_instructions(const Json& wanted) {
  std::ifstream facts("/proc/cpuinfo");
  std::set<std::string> known;
  for (std::string line; known.empty() && std::getline(facts, line);) {
    if (line.compare(0, 5, "flags") && line.compare(0, 8, "Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) known.insert(word);
  }
  std::string missing;
  for (const Json& name : wanted.array()) {
    if (!known.empty() && !known.contains(name.string())) missing += " " + name.string();
  }
  return missing;
}

void check_fits(const Json& described) {
  if (described.at("kind").string() != "cxx") {
    throw FileError("it is for Python: write it with jitmagic.save(..., cxx=True)");
  }
  const int64_t format = described.at("format").integer();
  if (format != kFormat) {
    throw FileError("its format is " + std::to_string(format) + ", this library reads " + std::to_string(kFormat));
  }
  const std::string& torch = described.at("torch").string();
  if (torch != TORCH_VERSION) {
    throw FileError("it was compiled with torch " + torch + ", this library with torch " TORCH_VERSION);
  }
  if (const std::string& machine = described.at("machine").string(); machine != kMachine) {
    throw FileError("its kernels are for " + machine + ", this library for " + kMachine);
  }
  if (const auto missing = missing_instructions(described.at("instructions")); !missing.empty()) {
    throw FileError("it was compiled for another processor, this one lacks:" + missing);
  }
}

std::string refusal(const std::vector<at::Tensor>& given, const std::vector<std::unique_ptr<Entry>>& entries) {
  std::string text = "no entry accepts the inputs";
  for (size_t i = 0; i < given.size(); ++i) {
    const at::Tensor& tensor = given[i];
    text += i ? ", " : " ";
    if (!tensor.defined()) text += "undefined";
    else text += std::string(c10::toString(tensor.scalar_type())) + shown(tensor.sizes()) + " on " + tensor.device().str();
  }
  for (const auto& entry : entries) {
    text += "\n  accepted:";
    for (size_t i = 0; i < entry->inputs.size(); ++i) text += (i ? ", " : " ") + shown(entry->inputs[i]);
  }
  return text;
}

}  // namespace

struct Artifact::Contents {
  explicit Contents(const std::string& path) : files(Archive(path)), described(files.description()) {}

  Files files;  // its libraries outlive the entries
  const Json described;
  std::vector<std::unique_ptr<Entry>> entries;
};

Artifact::Artifact(const std::string& path) {
  try {
    auto made = std::make_unique<Contents>(path);
    check_fits(made->described);
    for (const Json& entry : made->described.at("entries").array()) {
      made->entries.push_back(std::make_unique<Entry>(entry, made->files));
    }
    contents_ = std::move(made);
  } catch (const FileError& error) {
    throw FileError(path + " is not usable: " + error.what());
  } catch (const c10::Error& error) {  // an operator that this torch lacks, memory
    throw FileError(path + " is not usable: " + error.what_without_backtrace());
  }
}

Artifact::~Artifact() = default;
Artifact::Artifact(Artifact&&) noexcept = default;
Artifact& Artifact::operator=(Artifact&&) noexcept = default;

std::vector<at::Tensor> Artifact::run(const std::vector<at::Tensor>& inputs) const {
  // The call that was saved ran without gradients, for which oneDNN's LSTM computes other bits.
  const c10::NoGradGuard no_grad;
  try {
    for (const auto& entry : contents_->entries) {
      if (const auto instance = entry->instance_for(inputs)) return entry->run(*instance, inputs);
    }
  } catch (const c10::Error& error) {
    throw Error(error.what_without_backtrace());
  }
  throw InputError(refusal(inputs, contents_->entries));
}

size_t Artifact::entries() const { return contents_->entries.size(); }

const std::vector<InputSpec>& Artifact::inputs(size_t entry) const { return contents_->entries.at(entry)->inputs; }

const std::vector<std::string>& Artifact::outputs(size_t entry) const { return contents_->entries.at(entry)->outputs; }

}  // namespace jitmagic
