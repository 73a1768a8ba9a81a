// Parses the JSON of an artifact: null, true, false, 64-bit integers, strings, arrays and objects. Floats are objects
// there (docs/pages/artifact.md), so a fraction is an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace jitmagic {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;
  explicit Json(int64_t value) : value_(value) {}
  explicit Json(double value) : value_(value) {}  // never read from a file
  explicit Json(bool value) : value_(value) {}
  explicit Json(std::string value) : value_(std::move(value)) {}
  explicit Json(Array value) : value_(std::move(value)) {}
  explicit Json(Object value) : value_(std::move(value)) {}

  // Throws FileError.
  static Json parse(std::string_view text);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_real() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Each throws FileError for a value of another kind.
  bool truth() const;
  int64_t integer() const;
  double real() const;
  const std::string& string() const;
  const Array& array() const;
  const Object& object() const;
  const Json& at(std::string_view key) const;
  const Json* find(std::string_view key) const;  // null if there is no such key
  // The name in the member "$" of an object, "" for other values.
  std::string_view tag() const;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace jitmagic
