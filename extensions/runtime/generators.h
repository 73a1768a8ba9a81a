// Saves and restores the state of torch's random generators, for computations that run a second time.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>

namespace jitmagic {

// The state of a device's default generator at construction.
class GeneratorState {
 public:
  explicit GeneratorState(c10::Device device) : device_(device) {
    at::Generator now = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> alone(now.mutex());
    if (!device.is_cpu()) {
      then_ = now.clone();
      return;
    }
    // clone() seeds the copy first, which takes longer than the rest of a small graph's call.
    auto* cpu = now.get<at::CPUGeneratorImpl>();
    cpu_ = std::unique_ptr<Cpu>(
        new Cpu{cpu->engine(), cpu->next_float_normal_sample(), cpu->next_double_normal_sample()});
  }

  c10::Device device() const { return device_; }

  void restore() const {
    at::Generator now = at::globalContext().defaultGenerator(device_);
    if (!cpu_) {
      const at::Tensor state = then_.get_state();
      const std::lock_guard<std::mutex> alone(now.mutex());
      now.set_state(state);
      return;
    }
    const std::lock_guard<std::mutex> alone(now.mutex());
    auto* cpu = now.get<at::CPUGeneratorImpl>();
    cpu->set_engine(cpu_->engine);
    cpu->set_next_float_normal_sample(cpu_->next_float);
    cpu->set_next_double_normal_sample(cpu_->next_double);
  }

 private:
  struct Cpu {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };

  c10::Device device_;
  std::unique_ptr<Cpu> cpu_;
  at::Generator then_;
};

// Sets the generators to saved states during its lifetime, and restores their current states afterwards.
class RewoundGenerators {
 public:
  explicit RewoundGenerators(const std::vector<GeneratorState>& then) {
    for (const GeneratorState& state : then) now_.emplace_back(state.device());
    for (const GeneratorState& state : then) state.restore();
  }
  ~RewoundGenerators() {
    for (const GeneratorState& state : now_) state.restore();
  }
  RewoundGenerators(const RewoundGenerators&) = delete;

 private:
  std::vector<GeneratorState> now_;
};

}  // namespace jitmagic
