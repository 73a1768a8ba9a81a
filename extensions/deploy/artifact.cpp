// Loads artifacts and runs their entries.

#include "jitmagic/run.hpp"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include "execute.h"
#include "json_source.h"
#include "program_reader.h"

namespace jitmagic {
namespace {

constexpr int64_t kFormat = 1;

std::string shown(at::IntArrayRef sizes) {
  std::string text = "[";
  for (int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string shown(const InputSpec& spec) {
  return spec.name + " as " + c10::toString(spec.dtype) + shown(spec.sizes);
}

class Entry {
 public:
  Entry(const Json& described, Files& files) {
    for (const Json& input : described.at("inputs").array()) {
      inputs.push_back(
          {input.at("name").string(), dtype_of(input.at("dtype")), integers_of(input.at("shape")),
           integers_of(input.at("stride"))});
    }
    for (const Json& name : described.at("outputs").array()) outputs.push_back(name.string());
    const JsonSource from(files, described.at("kernels"));
    program_ = ProgramReader<JsonSource>(from).read(&described.at("program"), &described.at("constants"));
    for (const Json& argument : described.at("arguments").array()) read_argument(argument, files);
    written_ = integers_of(described.at("written"));
    distinct_ = described.at("distinct").truth();
    from.check(arguments_.size() == size_t(program_->inputs), "arguments of the program");
    from.check(outputs.size() == program_->outputs.size(), "outputs of the program");
    for (int slot : program_->outputs) from.check(slot >= 0, "outputs of the program");
    for (int64_t place : written_) from.check(is_input(place), "written inputs");
  }

  bool accepts(const std::vector<at::Tensor>& given) const {
    if (given.size() != inputs.size()) return false;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].defined() || !given[i].device().is_cpu() || given[i].layout() != at::kStrided) return false;
      if (given[i].scalar_type() != inputs[i].dtype || given[i].sizes() != inputs[i].sizes) return false;
    }
    return true;
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& given) const {
    check_memory(given);
    std::vector<at::Tensor> own;  // inputs in the strides that the kernels expect
    own.reserve(given.size());
    for (size_t i = 0; i < given.size(); ++i) own.push_back(laid_out(given[i], inputs[i].sizes, inputs[i].strides));
    // The casts of autocast are part of the program.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    Frame frame;
    frame.slots.resize(size_t(program_->slots));
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const Argument& argument = arguments_[i];
      bind(frame, int(i), argument.input < 0 ? argument.weight : own[size_t(argument.input)]);
    }
    bind_constants(*program_, frame);
    run_steps(*program_, frame);
    for (int64_t place : written_) given[size_t(place)].unsafeGetTensorImpl()->bump_version();
    std::vector<at::Tensor> results;
    results.reserve(program_->outputs.size());
    for (int slot : program_->outputs) results.push_back(*frame.slots[size_t(slot)].seen);
    return results;
  }

  std::vector<InputSpec> inputs;
  std::vector<std::string> outputs;

 private:
  struct Argument {
    int64_t input;  // -1: a weight
    at::Tensor weight;
  };

  bool is_input(int64_t place) const { return place >= 0 && place < std::ssize(inputs); }

  void read_argument(const Json& described, Files& files) {
    if (const Json* weight = described.find("weight")) {
      arguments_.push_back({-1, files.tensor(*weight)});
      return;
    }
    const int64_t place = described.at("input").integer();
    if (!is_input(place)) throw FileError("malformed description: an argument of the program");
    arguments_.push_back({place, {}});
  }

  // Inputs that the program writes to must be the caller's own memory, and no two may share memory then.
  void check_memory(const std::vector<at::Tensor>& given) const {
    for (int64_t place : written_) {
      const auto at = size_t(place);
      if (laid_out(given[at], inputs[at].sizes, inputs[at].strides).is_same(given[at])) continue;
      throw InputError(
          "input " + inputs[at].name + " is written to, so it must have the strides " + shown(inputs[at].strides));
    }
    if (written_.empty() && !distinct_) return;
    std::set<const void*> seen;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].numel() || seen.insert(given[i].storage().unsafeGetStorageImpl()).second) continue;
      throw InputError("input " + inputs[i].name + " shares memory with another input");
    }
  }

  std::unique_ptr<Program> program_;
  std::vector<Argument> arguments_;  // of the program
  std::vector<int64_t> written_;
  bool distinct_ = false;
};

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
  explicit Contents(const std::string& path) : files(Archive(path)) {}

  Files files;  // its libraries outlive the entries
  std::vector<std::unique_ptr<Entry>> entries;
};

Artifact::Artifact(const std::string& path) {
  try {
    auto made = std::make_unique<Contents>(path);
    const Json described = made->files.description();
    check_fits(described);
    for (const Json& entry : described.at("entries").array()) {
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
  for (const auto& entry : contents_->entries) {
    if (!entry->accepts(inputs)) continue;
    try {
      return entry->run(inputs);
    } catch (const c10::Error& error) {
      throw Error(error.what_without_backtrace());
    }
  }
  throw InputError(refusal(inputs, contents_->entries));
}

size_t Artifact::entries() const { return contents_->entries.size(); }

const std::vector<InputSpec>& Artifact::inputs(size_t entry) const { return contents_->entries.at(entry)->inputs; }

const std::vector<std::string>& Artifact::outputs(size_t entry) const { return contents_->entries.at(entry)->outputs; }

}  // namespace jitmagic
