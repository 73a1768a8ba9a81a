#include "json.h"

#include <charconv>

#include "jitmagic/run.hpp"

namespace jitmagic {
namespace {

constexpr int kDeepest = 64;

[[noreturn]] void bad_json(const char* what) { throw FileError(std::string("malformed JSON: ") + what); }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json whole() {
    Json value = parse(0);
    skip();
    if (at_ != text_.size()) bad_json("text after the end");
    return value;
  }

 private:
  char peek() { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') ++at_;
  }

  bool take(char wanted) {
    skip();
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted, const char* what) {
    if (!take(wanted)) bad_json(what);
  }

  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  Json parse(int depth) {
    if (depth > kDeepest) bad_json("nested too deeply");
    skip();
    if (peek() == '{') return object(depth);
    if (peek() == '[') return array(depth);
    if (peek() == '"') return Json(string());
    if (word("null")) return Json();
    if (word("true")) return Json(true);
    if (word("false")) return Json(false);
    return Json(integer());
  }

  Json array(int depth) {
    ++at_;
    Json::Array items;
    if (take(']')) return Json(std::move(items));
    do items.push_back(parse(depth + 1));
    while (take(','));
    expect(']', "an array has no end");
    return Json(std::move(items));
  }

  Json object(int depth) {
    ++at_;
    Json::Object members;
    if (take('}')) return Json(std::move(members));
    do {
      skip();
      if (peek() != '"') bad_json("a key is not a string");
      std::string key = string();
      expect(':', "a key has no value");
      members.emplace_back(std::move(key), parse(depth + 1));
    } while (take(','));
    expect('}', "an object has no end");
    return Json(std::move(members));
  }

  int64_t integer() {
    int64_t value = 0;
    const char* end = text_.data() + text_.size();
    const auto read = std::from_chars(text_.data() + at_, end, value);
    if (read.ec != std::errc()) bad_json("a value is not an integer of 64 bits");
    at_ = size_t(read.ptr - text_.data());
    if (peek() == '.' || peek() == 'e' || peek() == 'E') bad_json("a value is not an integer of 64 bits");
    return value;
  }

  unsigned hex4() {
    unsigned value = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 4 || read.ptr != digits.data() + 4) bad_json("an escape in a string");
    at_ += 4;
    return value;
  }

  void escaped(std::string& made) {
    const char kind = peek();
    ++at_;
    constexpr std::string_view kinds = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (const size_t known = kinds.find(kind); known != kinds.npos) {
      made += meanings[known];
      return;
    }
    if (kind != 'u') bad_json("an escape in a string");
    unsigned code = hex4();
    if (code >= 0xD800 && code < 0xDC00 && word("\\u")) {
      const unsigned low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) bad_json("an escape in a string");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code < 0x80) {
      made += char(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    made += char((0xF00u >> (more + 1) & 0xFF) | code >> 6 * more);
    for (int n = more - 1; n >= 0; --n) made += char(0x80 | (code >> 6 * n & 0x3F));
  }

  std::string string() {
    ++at_;
    std::string made;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char next = text_[at_++];
      if (next == '\\') escaped(made);
      else made += next;
    }
    expect('"', "a string has no end");
    return made;
  }

  std::string_view text_;
  size_t at_ = 0;
};

template <class T, class Variant>
const T& of_kind(const Variant& value, const char* kind) {
  const T* found = std::get_if<T>(&value);
  if (!found) throw FileError(std::string("malformed description: expected ") + kind);
  return *found;
}

}  // namespace

Json Json::parse(std::string_view text) { return Parser(text).whole(); }

bool Json::truth() const { return of_kind<bool>(value_, "true or false"); }
int64_t Json::integer() const { return of_kind<int64_t>(value_, "an integer"); }
double Json::real() const { return of_kind<double>(value_, "a number"); }
const std::string& Json::string() const { return of_kind<std::string>(value_, "a string"); }
const Json::Array& Json::array() const { return of_kind<Array>(value_, "an array"); }
const Json::Object& Json::object() const { return of_kind<Object>(value_, "an object"); }

const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  if (!found) throw FileError("malformed description: it lacks " + std::string(key));
  return *found;
}

std::string_view Json::tag() const {
  const Json* found = is_object() ? find("$") : nullptr;
  return found ? std::string_view(found->string()) : std::string_view();
}

}  // namespace jitmagic
