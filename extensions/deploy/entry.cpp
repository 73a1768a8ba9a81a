#include "entry.h"

#include <algorithm>
#include <set>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "execute.h"

namespace jitmagic {
namespace {

constexpr size_t kKept = 64;  // programs of sizes; making one again takes microseconds

// Returns the sizes for people: -1 where they vary.
std::vector<int64_t> template_of(const Json& described) {
  std::vector<int64_t> made;
  for (const Json& item : described.array()) made.push_back(item.is_integer() ? item.integer() : -1);
  return made;
}

int64_t number_at(const at::Tensor& tensor, int64_t dim) { return dim < 0 ? tensor.stride(-2 - dim) : tensor.size(dim); }

}  // namespace

std::string shown(at::IntArrayRef sizes) {
  std::string text = "[";
  for (int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + (size < 0 ? "*" : std::to_string(size));
  return text + "]";
}

std::string shown(const InputSpec& spec) { return spec.name + " as " + c10::toString(spec.dtype) + shown(spec.sizes); }

Entry::Entry(const Json& described, Files& files) : described_(described), from_(files, described.at("kernels")) {
  read_inputs(described);
  for (const Json& name : described.at("outputs").array()) outputs.push_back(name.string());
  read_places(described);
  const size_t count = symbols_.size();
  checks_ = SizeCodeReader<JsonSource>(from_).read(count, &described.at("checks"));
  numbers_ = SizeCodeReader<JsonSource>(from_).read(count, &described.at("numbers"));
  program_ = std::make_unique<SizedProgram<JsonSource>>(
      from_, &described.at("program"), &described.at("constants"), numbers_.registers);
  const Program& program = program_->program();
  for (const Json& argument : described.at("arguments").array()) {
    const Json* input = argument.find("input");
    const Json* weight = argument.find("weight");
    places_.push_back(input ? input->integer() : kOwn);
    weights_.push_back(weight ? files.tensor(*weight) : at::Tensor());
    from_.check(!input || is_input(places_.back()), "an argument of the program");
  }
  from_.check(places_.size() == size_t(program.inputs), "arguments of the program");
  from_.check(outputs.size() == program.outputs.size(), "outputs of the program");
  for (int slot : program.outputs) from_.check(slot >= 0, "outputs of the program");
  if (symbols_.empty()) only_ = made_for({});
}

void Entry::read_inputs(const Json& described) {
  for (const Json& input : described.at("inputs").array()) {
    inputs.push_back({input.at("name").string(), dtype_of(input.at("dtype")), template_of(input.at("shape"))});
    from_.check(inputs.back().sizes.size() == input.at("stride").array().size(), "an input");
  }
}

void Entry::read_places(const Json& described) {
  for (const Json& pair : described.at("sizes").array()) {
    const std::vector<int64_t> place = integers_of(pair);
    from_.check(place.size() == 2 && is_input(place[0]), "the place of a size");
    const int64_t rank = std::ssize(inputs[size_t(place[0])].sizes);
    const int64_t dim = place[1] < 0 ? -2 - place[1] : place[1];
    from_.check(dim >= 0 && dim < rank, "the place of a size");
    symbols_.emplace_back(size_t(place[0]), place[1]);
  }
  written_ = integers_of(described.at("written"));
  for (int64_t place : written_) from_.check(is_input(place), "an input that is written to");
  distinct_ = described.at("distinct").truth();
}

bool Entry::have_kinds(const std::vector<at::Tensor>& given) const {
  if (given.size() != inputs.size()) return false;
  for (size_t i = 0; i < given.size(); ++i) {
    const at::Tensor& tensor = given[i];
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) return false;
    if (tensor.scalar_type() != inputs[i].dtype || tensor.dim() != std::ssize(inputs[i].sizes)) return false;
  }
  return true;
}

Entry::Sizes Entry::sizes_of(const std::vector<at::Tensor>& given) const {
  Sizes values;
  values.reserve(symbols_.size());
  for (const auto& [input, dim] : symbols_) values.push_back(number_at(given[input], dim));
  return values;
}

std::shared_ptr<const Entry::Instance> Entry::instance_for(const std::vector<at::Tensor>& given) const {
  if (!have_kinds(given)) return nullptr;
  auto instance = only_ ? only_ : found_or_made(sizes_of(given));
  for (size_t i = 0; instance && i < given.size(); ++i) {
    if (given[i].sizes() != at::IntArrayRef(instance->sizes[i])) return nullptr;
  }
  return instance;
}

std::shared_ptr<const Entry::Instance> Entry::found_or_made(const Sizes& values) const {
  const std::lock_guard<std::mutex> alone(mutex_);
  for (const auto& [sizes, instance] : known_) {
    if (sizes == values) return instance;
  }
  auto made = made_for(values);
  if (!made) return nullptr;
  if (known_.size() == kKept) known_.erase(known_.begin());
  known_.emplace_back(values, made);
  return made;
}

std::shared_ptr<const Entry::Instance> Entry::made_for(const Sizes& values) const {
  Registers registers;
  if (!checks_.evaluate(values, registers) || !numbers_.evaluate(values, registers)) return nullptr;
  auto made = std::make_shared<Instance>();
  made->program = program_->at(from_, registers);
  for (const Json& input : described_.at("inputs").array()) {
    made->sizes.push_back(from_.filled_integers(input.at("shape"), registers));
    made->strides.push_back(from_.filled_integers(input.at("stride"), registers));
  }
  made->arguments = weights_;
  const Json::Array& arguments = described_.at("arguments").array();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Json* number = arguments[i].find("number");
    if (!number) continue;
    const auto value = scalar_of(filled(*number, registers));
    made->arguments[i] = at::scalar_tensor(value, at::dtype(dtype_of(arguments[i].at("dtype"))));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    from_.check(made->arguments[i].defined() == (places_[i] == kOwn), "an argument of the program");
  }
  return made;
}

// Inputs that the program writes to must be the caller's own memory, and no two may share memory then.
void Entry::check_memory(const Instance& instance, const std::vector<at::Tensor>& given) const {
  for (int64_t place : written_) {
    const auto at = size_t(place);
    if (laid_out(given[at], instance.sizes[at], instance.strides[at]).is_same(given[at])) continue;
    const std::string strides = shown(instance.strides[at]);
    throw InputError("input " + inputs[at].name + " is written to, so it must have the strides " + strides);
  }
  if (written_.empty() && !distinct_) return;
  std::set<const void*> seen;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].numel() || seen.insert(given[i].storage().unsafeGetStorageImpl()).second) continue;
    throw InputError("input " + inputs[i].name + " shares memory with another input");
  }
}

std::vector<at::Tensor> Entry::run(const Instance& instance, const std::vector<at::Tensor>& given) const {
  check_memory(instance, given);
  std::vector<at::Tensor> own;  // the inputs in the strides that the kernels expect
  own.reserve(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    own.push_back(laid_out(given[i], instance.sizes[i], instance.strides[i]));
  }
  // The casts of autocast are part of the program.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Program& program = *instance.program;
  Frame frame;
  frame.slots.resize(size_t(program.slots));
  for (size_t i = 0; i < places_.size(); ++i) {
    bind(frame, int(i), places_[i] == kOwn ? instance.arguments[i] : own[size_t(places_[i])]);
  }
  bind_constants(program, frame);
  run_steps(program, frame);
  for (int64_t place : written_) given[size_t(place)].unsafeGetTensorImpl()->bump_version();
  std::vector<at::Tensor> results;
  results.reserve(program.outputs.size());
  for (int slot : program.outputs) results.push_back(*frame.slots[size_t(slot)].seen);
  return results;
}

}  // namespace jitmagic
