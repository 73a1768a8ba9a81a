// Runs what save.py has saved: `run model.jmc [threads]`.
//
// Each input is filled with ones, with 8 for a size that varies. Prints the sum of each result, and how long a call takes with so many threads that
// call the model at once.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include <ATen/ops/ones.h>
#include <jitmagic/run.hpp>

namespace {

constexpr int kCalls = 2000;

std::vector<at::Tensor> ones_for(const std::vector<jitmagic::InputSpec>& specs) {
  std::vector<at::Tensor> inputs;
  for (const jitmagic::InputSpec& spec : specs) {
    std::vector<int64_t> sizes = spec.sizes;
    std::replace(sizes.begin(), sizes.end(), int64_t(-1), int64_t(8));
    inputs.push_back(at::ones(sizes, spec.dtype));
  }
  return inputs;
}

double microseconds_per_call(const jitmagic::Artifact& model, const std::vector<at::Tensor>& inputs, int threads) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> running;
  for (int n = 0; n < threads; ++n) {
    running.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) model.run(inputs);
    });
  }
  for (std::thread& one : running) one.join();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / kCalls;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: run model.jmc [threads]\n";
    return 2;
  }
  try {
    const jitmagic::Artifact model(arguments[1]);
    const int threads = count > 2 ? std::atoi(arguments[2]) : 1;
    for (size_t entry = 0; entry < model.entries(); ++entry) {
      const std::vector<at::Tensor> inputs = ones_for(model.inputs(entry));
      const std::vector<at::Tensor> results = model.run(inputs);
      for (size_t n = 0; n < results.size(); ++n) {
        std::cout << "entry " << entry << ", result " << n << model.outputs(entry)[n] << ": sum "
                  << results[n].sum().item<double>() << "\n";
      }
      std::cout << "entry " << entry << ": " << microseconds_per_call(model, inputs, threads) << " us per call, "
                << threads << " at once\n";
    }
  } catch (const jitmagic::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
