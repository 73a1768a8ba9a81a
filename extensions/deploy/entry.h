// One entry of an artifact: a program for inputs of given dtypes and sizes, or for all sizes that pass its checks.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "jitmagic/run.hpp"
#include "json_source.h"
#include "sized_program.h"

namespace jitmagic {

std::string shown(at::IntArrayRef sizes);  // a size of -1 as `*`
std::string shown(const InputSpec& spec);

class Entry {
 public:
  // The description and the files must outlive the entry.
  Entry(const Json& described, Files& files);

  // The program for the sizes of a call, and the layouts of its inputs.
  struct Instance {
    std::unique_ptr<Program> program;
    std::vector<std::vector<int64_t>> sizes, strides;
    std::vector<at::Tensor> arguments;  // undefined where an input of the call is passed
  };

  // Returns null if the entry does not accept the inputs.
  std::shared_ptr<const Instance> instance_for(const std::vector<at::Tensor>& given) const;
  std::vector<at::Tensor> run(const Instance& instance, const std::vector<at::Tensor>& given) const;

  std::vector<InputSpec> inputs;
  std::vector<std::string> outputs;

 private:
  using Sizes = std::vector<int64_t>;
  static constexpr int64_t kOwn = -1;  // the argument is not an input of the call

  void read_inputs(const Json& described);
  void read_places(const Json& described);
  bool is_input(int64_t place) const { return place >= 0 && place < std::ssize(inputs); }
  bool have_kinds(const std::vector<at::Tensor>& given) const;
  Sizes sizes_of(const std::vector<at::Tensor>& given) const;
  std::shared_ptr<const Instance> found_or_made(const Sizes& values) const;
  std::shared_ptr<const Instance> made_for(const Sizes& values) const;
  void check_memory(const Instance& instance, const std::vector<at::Tensor>& given) const;

  const Json& described_;
  JsonSource from_;
  std::vector<int64_t> places_;  // for each argument of the program the input, or kOwn
  std::vector<at::Tensor> weights_;  // for each argument; undefined where it is not a weight
  std::vector<std::pair<size_t, int64_t>> symbols_;  // (input, dimension) of the sizes that vary
  SizeCode checks_, numbers_;
  std::unique_ptr<SizedProgram<JsonSource>> program_;
  std::vector<int64_t> written_;
  bool distinct_ = false;

  mutable std::mutex mutex_;
  mutable std::vector<std::pair<Sizes, std::shared_ptr<const Instance>>> known_;  // most recently made last
  std::shared_ptr<const Instance> only_;  // if no size varies
};

}  // namespace jitmagic
