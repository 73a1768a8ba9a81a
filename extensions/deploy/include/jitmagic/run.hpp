// Runs programs that jitmagic has compiled, without Python. Link with `jitmagic::run`, which needs libtorch only.
//
//     const jitmagic::Artifact model("model.jmc");             // written by jitmagic.save(..., cxx=True)
//     std::vector<at::Tensor> results = model.run({x, mask});
//
// Tensors go in and come out in the order of `inputs()` and `outputs()`. An Artifact may be used by many threads at
// once. Every failure is a jitmagic::Error; a call that fails because of its arguments has changed nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#if defined(__GNUC__)
#define JITMAGIC_PUBLIC __attribute__((visibility("default")))
#else
#define JITMAGIC_PUBLIC
#endif

namespace jitmagic {

class JITMAGIC_PUBLIC Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file cannot be used: it is missing, damaged, or made for another torch or processor.
class JITMAGIC_PUBLIC FileError : public Error {
 public:
  using Error::Error;
};

// The arguments of a call do not fit the program.
class JITMAGIC_PUBLIC InputError : public Error {
 public:
  using Error::Error;
};

// What one compiled entry of the file accepts for an argument.
struct InputSpec {
  std::string name;  // the position in Python's call: "[0]['mask']"
  at::ScalarType dtype;
  std::vector<int64_t> sizes;  // -1: it varies
};

class JITMAGIC_PUBLIC Artifact {
 public:
  // Checks the file's checksums and loads its code. Throws FileError.
  explicit Artifact(const std::string& path);
  ~Artifact();
  Artifact(Artifact&&) noexcept;
  Artifact& operator=(Artifact&&) noexcept;

  // Throws InputError if no entry of the file accepts the inputs, Error if an operation fails. Gradients are not
  // recorded. Inputs with other strides than those of the example are copied.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;

  size_t entries() const;
  const std::vector<InputSpec>& inputs(size_t entry = 0) const;
  const std::vector<std::string>& outputs(size_t entry = 0) const;  // positions in Python's result: "['logits']"

 private:
  struct Contents;
  std::unique_ptr<const Contents> contents_;
};

}  // namespace jitmagic
