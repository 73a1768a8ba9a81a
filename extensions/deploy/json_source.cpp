#include "json_source.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

#include "jitmagic/run.hpp"
#include "memory.h"

namespace jitmagic {
namespace {

[[noreturn]] void malformed(const std::string& what) { throw FileError("malformed description: " + what); }

double float_of(const Json& described) {
  if (described.is_real()) return described.real();  // computed from sizes
  return std::strtod(described.at("hex").string().c_str(), nullptr);
}

at::Layout layout_of(const std::string& name) {
  if (name == "strided") return at::kStrided;
  if (name == "sparse_coo") return at::kSparse;
  malformed("layout " + name);
}

at::MemoryFormat memory_format_of(const std::string& name) {
  if (name == "contiguous_format") return at::MemoryFormat::Contiguous;
  if (name == "preserve_format") return at::MemoryFormat::Preserve;
  if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return at::MemoryFormat::ChannelsLast3d;
  malformed("memory format " + name);
}

// Returns a number passed for a tensor: it promotes like a Python number.
at::Tensor wrapped(const c10::Scalar& number) {
  at::Tensor made = at::scalar_tensor(number, at::dtype(number.type()));
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

c10::IValue number_as(const c10::Scalar& number, c10::TypeKind kind) {
  if (kind == c10::TypeKind::TensorType) return wrapped(number);
  if (kind == c10::TypeKind::FloatType) return number.toDouble();
  return number;
}

const Json::Array* items_of(const Json& value) {
  if (value.is_array()) return &value.array();
  const std::string_view tag = value.tag();
  return tag == "list" || tag == "size" ? &value.at("items").array() : nullptr;
}

// A number may stand for a list of `count` equal ones.
c10::IValue value_of(const Json& value, c10::TypePtr type, std::optional<int32_t> count, Files& files) {
  if (value.is_null()) return {};
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (const auto list = type->cast<c10::ListType>()) {
    const c10::TypePtr element = list->getElementType();
    c10::impl::GenericList made(element);
    if (const Json::Array* items = items_of(value)) {
      for (const Json& item : *items) made.push_back(value_of(item, element, std::nullopt, files));
    } else {
      made.resize(size_t(count.value_or(1)), value_of(value, element, std::nullopt, files));
    }
    return made;
  }
  if (value.is_bool() && type->kind() != c10::TypeKind::TensorType) return value.truth();
  if (value.is_bool()) return wrapped(value.truth());
  if (value.is_integer()) return number_as(value.integer(), type->kind());
  if (value.is_string()) return value.string();
  const std::string_view tag = value.tag();
  if (tag == "float" || value.is_real()) return number_as(float_of(value), type->kind());
  if (tag == "dtype") return int64_t(dtype_of(value));
  if (tag == "layout") return int64_t(layout_of(value.at("name").string()));
  if (tag == "memory_format") return int64_t(memory_format_of(value.at("name").string()));
  if (tag == "device") return c10::Device(value.at("name").string());
  if (tag == "tensor") return files.tensor(value);
  malformed("an argument of an ATen call");
}

}  // namespace

at::Tensor Files::tensor(const Json& described) {
  TensorLayout layout;
  for (int64_t size : integers_of(described.at("shape"))) layout.sizes.push_back(size);
  for (int64_t stride : integers_of(described.at("stride"))) layout.strides.push_back(stride);
  layout.dtype = dtype_of(described.at("dtype"));
  if (layout.sizes.size() != layout.strides.size()) malformed("a tensor");
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    if (layout.sizes[d] < 0 || layout.strides[d] < 0) malformed("a tensor");
  }
  set_nbytes(layout);
  const std::string_view data = archive_.entry(described.at("file").string());
  if (layout.nbytes != data.size()) malformed("a tensor's bytes");
  // The archive's memory is the tensor's, unless it is not aligned.
  const auto start = size_t(data.data() - static_cast<const char*>(archive_.storage().data()));
  const size_t width = c10::elementSize(layout.dtype);
  if (start % 64 == 0) return tensor_over(archive_.storage(), layout, layout.dtype, int64_t(start / width));
  at::Tensor made = make_tensor(layout);
  if (!data.empty()) std::memcpy(made.mutable_data_ptr(), data.data(), data.size());
  return made;
}

void* Files::symbol(const std::string& library, const std::string& name) {
  auto& loaded = libraries_[library];
  if (!loaded) loaded = std::make_unique<Library>(archive_.entry(library));
  return loaded->symbol(name.c_str());
}

int register_index(const Json& described) {
  if (described.tag() != "Register") return -1;
  const int64_t index = described.at("index").integer();
  if (index < 0 || index > std::numeric_limits<int>::max()) malformed("a register");
  return int(index);
}

Json filled(const Json& described, const Registers& registers) {
  if (const int index = register_index(described); index >= 0) {
    if (size_t(index) >= registers.size()) malformed("a register");
    const Number& number = registers[size_t(index)];
    return number.is_real ? Json(number.real) : Json(number.whole);
  }
  const Json::Array* items = items_of(described);
  if (!items) return described;
  Json::Array made;
  for (const Json& item : *items) made.push_back(filled(item, registers));
  return Json(std::move(made));
}

c10::Scalar scalar_of(const Json& described) {
  if (described.is_bool()) return described.truth();
  return described.is_integer() ? c10::Scalar(described.integer()) : c10::Scalar(float_of(described));
}

at::ScalarType dtype_of(const Json& described) {
  if (described.tag() != "dtype") malformed("a dtype");
  const std::string& name = described.at("name").string();
  const auto& known = c10::getStringToDtypeMap();
  const auto found = known.find(name);
  if (found == known.end()) malformed("dtype " + name);
  return found->second;
}

std::vector<int64_t> integers_of(const Json& described) {
  std::vector<int64_t> made;
  for (const Json& item : described.array()) made.push_back(item.integer());
  return made;
}

JsonSource::Value JsonSource::item(Value tuple, size_t index) const {
  const Json::Array& items = tuple->array();
  if (index >= items.size()) malformed("a tuple is too short");
  return &items[index];
}

std::vector<JsonSource::Value> JsonSource::items(Value tuple) const {
  std::vector<Value> made;
  for (const Json& item : tuple->array()) made.push_back(&item);
  return made;
}

Number JsonSource::number(Value value) const {
  if (value->is_integer()) return {value->integer(), 0, false};
  return {0, float_of(*value), true};
}

c10::Device JsonSource::device(Value value) const { return c10::Device(value->at("name").string()); }

Kernel JsonSource::kernel(Value name) const {
  const std::string& library = kernels_.at(name->string()).string();
  return {reinterpret_cast<int (*)(void* const*)>(files_.symbol(library, name->string()))};
}

uint64_t JsonSource::cuda_function(Value) const { malformed("CUDA kernels are not supported"); }

std::shared_ptr<NativeLaunch> JsonSource::native_launch(Value) const {
  malformed("kernels of Triton are not supported");
}

bool JsonSource::has_registers(Value value) const {
  if (register_of(value) >= 0) return true;
  const Json::Array* items = items_of(*value);
  if (!items) return false;
  for (const Json& item : *items) {
    if (has_registers(&item)) return true;
  }
  return false;
}

c10::IValue JsonSource::constant_of(Value value, const c10::Argument& declared) const {
  return value_of(*value, declared.type(), declared.N(), files_);
}

c10::IValue JsonSource::filled_constant(
    const Json& kept, const Registers& registers, const c10::Argument& declared) const {
  const Json value = filled(kept, registers);
  return constant_of(&value, declared);
}

std::vector<int64_t> JsonSource::filled_integers(const Json& kept, const Registers& registers) const {
  return integers_of(filled(kept, registers));
}

void JsonSource::check(bool holds, const char* message) const {
  if (!holds) malformed(message);
}

}  // namespace jitmagic
