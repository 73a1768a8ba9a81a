// Reads programs from JSON, see executor/program_reader.h. Floats, dtypes and the like are objects with a tag "$":
// docs/pages/artifact.md has the format.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "archive.h"
#include "json.h"
#include "library.h"
#include "program.h"
#include "size_code.h"

namespace jitmagic {

// The tensors and kernels of a file, each loaded once.
class Files {
 public:
  explicit Files(Archive archive) : archive_(std::move(archive)) {}

  Json description() const { return Json::parse(archive_.entry("artifact.json")); }
  at::Tensor tensor(const Json& described);
  void* symbol(const std::string& library, const std::string& name);

 private:
  Archive archive_;
  std::map<std::string, std::unique_ptr<Library>, std::less<>> libraries_;
};

// Returns the description with numbers for its Registers.
Json filled(const Json& described, const Registers& registers);
// Returns the function of this name, see size_functions.cpp; throws FileError if there is none.
std::shared_ptr<const SizeFunction> size_function_of(const std::string& name);
int register_index(const Json& described);  // -1: it is no Register
c10::Scalar scalar_of(const Json& described);
at::ScalarType dtype_of(const Json& described);
std::vector<int64_t> integers_of(const Json& described);

class JsonSource {
 public:
  using Value = const Json*;
  using Kept = Json;

  // `kernels` maps the name of a kernel to its library.
  JsonSource(Files& files, const Json& kernels) : files_(files), kernels_(kernels) {}

  Value item(Value tuple, size_t index) const;
  std::vector<Value> items(Value tuple) const;
  int64_t integer(Value value) const { return value->integer(); }
  bool truth(Value value) const { return value->truth(); }
  const std::string& text(Value value) const { return value->string(); }
  Number number(Value value) const;
  at::ScalarType dtype(Value value) const { return dtype_of(*value); }
  c10::Device device(Value value) const;
  bool is_none(Value value) const { return value->is_null(); }
  bool is_tuple(Value value) const { return value->is_array(); }
  at::Tensor tensor(Value value) const { return files_.tensor(*value); }
  Kernel kernel(Value name) const;
  uint64_t cuda_function(Value) const;
  std::shared_ptr<NativeLaunch> native_launch(Value) const;
  std::shared_ptr<const SizeFunction> size_function(Value name) const { return size_function_of(name->string()); }
  int register_of(Value value) const { return register_index(*value); }
  bool has_registers(Value value) const;
  Json keep(Value value) const { return *value; }
  c10::IValue constant_of(Value value, const c10::Argument& declared) const;
  c10::IValue filled_constant(const Json& kept, const Registers& registers, const c10::Argument& declared) const;
  std::vector<int64_t> filled_integers(const Json& kept, const Registers& registers) const;
  void check(bool holds, const char* message) const;

 private:
  Files& files_;
  const Json& kernels_;
};

}  // namespace jitmagic
