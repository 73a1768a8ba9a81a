// The flat C interface, see jitmagic/run.h.

#include "jitmagic/run.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "jitmagic/run.hpp"

struct jitmagic_artifact {
  jitmagic::Artifact loaded;
};

struct jitmagic_results {
  std::vector<at::Tensor> tensors;
};

namespace {

thread_local std::string last_error;

// No exception may leave a C function.
template <class Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return -1;
}

at::Tensor tensor_of(const jitmagic_tensor& given) {
  if (given.rank < 0 || given.dtype < 0 || given.dtype >= int32_t(at::ScalarType::Undefined)) {
    throw jitmagic::InputError("an input has no valid rank or dtype");
  }
  const auto options = at::TensorOptions().dtype(at::ScalarType(given.dtype));
  const at::IntArrayRef sizes(given.sizes, size_t(given.rank));
  if (!given.strides) return at::from_blob(given.data, sizes, options);
  return at::from_blob(given.data, sizes, at::IntArrayRef(given.strides, size_t(given.rank)), options);
}

}  // namespace

extern "C" {

int jitmagic_load(const char* path, jitmagic_artifact** loaded) {
  return guarded([&] { *loaded = new jitmagic_artifact{jitmagic::Artifact(path)}; });
}

void jitmagic_free(jitmagic_artifact* artifact) { delete artifact; }

int jitmagic_run(
    const jitmagic_artifact* artifact, const jitmagic_tensor* inputs, size_t count, jitmagic_results** results) {
  return guarded([&] {
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < count; ++i) given.push_back(tensor_of(inputs[i]));
    *results = new jitmagic_results{artifact->loaded.run(given)};
  });
}

size_t jitmagic_count(const jitmagic_results* results) { return results->tensors.size(); }

int jitmagic_result(const jitmagic_results* results, size_t index, jitmagic_tensor* tensor) {
  return guarded([&] {
    const at::Tensor& made = results->tensors.at(index);
    *tensor = {
        made.data_ptr(), int32_t(made.scalar_type()), int32_t(made.dim()), made.sizes().data(), made.strides().data()};
  });
}

void jitmagic_free_results(jitmagic_results* results) { delete results; }

const char* jitmagic_error(void) { return last_error.c_str(); }

}  // extern "C"
