#include "archive.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include <ATen/Parallel.h>

#include "jitmagic/run.hpp"
#include "json.h"
#include "memory.h"
#include "sha256.h"

namespace jitmagic {
namespace {

// See PKWARE's APPNOTE.TXT for the layout of the records.
constexpr std::string_view kEnd = "PK\5\6", kEntry = "PK\1\2", kData = "PK\3\4", kLargeEnd = "PK\6\6",
                           kLargeEndAt = "PK\6\7";
constexpr size_t kEndBytes = 22, kEntryBytes = 46, kDataBytes = 30, kLargeEndAtBytes = 20, kLargeEndBytes = 56;
constexpr uint64_t kInExtra = 0xFFFFFFFF;  // the number has more than 32 bits

uint64_t number(std::string_view bytes, size_t at, int width) {
  uint64_t value = 0;
  for (int n = width - 1; n >= 0; --n) value = value << 8 | static_cast<unsigned char>(bytes[at + size_t(n)]);
  return value;
}

c10::Storage read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw FileError(std::strerror(errno));
  if (std::fseek(file.get(), 0, SEEK_END)) throw FileError("it is not a regular file");
  const long size = std::ftell(file.get());
  std::rewind(file.get());
  if (size <= 0) throw FileError("it is empty, or not a regular file");
  c10::Storage storage = make_storage(size_t(size), c10::Device(c10::DeviceType::CPU));
  if (std::fread(storage.mutable_data(), 1, size_t(size), file.get()) != size_t(size)) {
    throw FileError("it cannot be read");
  }
  return storage;
}

// The 64-bit numbers of an entry, which follow one another in its extra field.
class LargeNumbers {
 public:
  explicit LargeNumbers(std::string_view extra) {
    while (extra.size() >= 4) {
      const size_t length = number(extra, 2, 2);
      if (length > extra.size() - 4) return;
      if (number(extra, 0, 2) == 1) left_ = extra.substr(4, length);
      extra.remove_prefix(4 + length);
    }
  }

  uint64_t of(uint64_t value) {
    if (value != kInExtra) return value;
    if (left_.size() < 8) throw FileError("its directory is damaged");
    const uint64_t large = number(left_, 0, 8);
    left_.remove_prefix(8);
    return large;
  }

 private:
  std::string_view left_;
};

}  // namespace

Archive::Archive(const std::string& path) : storage_(read_file(path)) {
  read_directory();
  check_sums();
}

std::string_view Archive::bytes(uint64_t start, uint64_t length) const {
  const uint64_t size = storage_.nbytes();
  if (start > size || length > size - start) throw FileError("it is truncated");
  return {static_cast<const char*>(storage_.data()) + start, size_t(length)};
}

void Archive::read_directory() {
  const uint64_t size = storage_.nbytes();
  if (size < kEndBytes) throw FileError("it is truncated");
  const std::string_view end = bytes(size - kEndBytes, kEndBytes);
  if (end.substr(0, 4) != kEnd) throw FileError("it is truncated, or no archive");
  uint64_t count = number(end, 10, 2), at = number(end, 16, 4);
  if (size >= kEndBytes + kLargeEndAtBytes) {
    const std::string_view where = bytes(size - kEndBytes - kLargeEndAtBytes, kLargeEndAtBytes);
    if (where.substr(0, 4) == kLargeEndAt) {
      const std::string_view large = bytes(number(where, 8, 8), kLargeEndBytes);
      if (large.substr(0, 4) != kLargeEnd) throw FileError("its directory is damaged");
      count = number(large, 32, 8);
      at = number(large, 48, 8);
    }
  }
  for (; count > 0; --count) {
    const std::string_view header = bytes(at, kEntryBytes);
    if (header.substr(0, 4) != kEntry) throw FileError("its directory is damaged");
    const uint64_t name = number(header, 28, 2), extra = number(header, 30, 2), comment = number(header, 32, 2);
    add(header, bytes(at + kEntryBytes, name), bytes(at + kEntryBytes + name, extra));
    at += kEntryBytes + name + extra + comment;
  }
}

void Archive::add(std::string_view header, std::string_view name, std::string_view extra) {
  for (char letter : name) {  // messages have the name
    const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
    if (!is_plain && letter != '.' && letter != '/') throw FileError("it has a member with another name than those of artifacts");
  }
  LargeNumbers large(extra);
  const uint64_t length = large.of(number(header, 24, 4)), stored = large.of(number(header, 20, 4));
  const uint64_t start = large.of(number(header, 42, 4));
  if (number(header, 10, 2) != 0 || length != stored) throw FileError("an entry is compressed");
  const std::string_view local = bytes(start, kDataBytes);
  if (local.substr(0, 4) != kData) throw FileError("its directory is damaged");
  const uint64_t begin = start + kDataBytes + number(local, 26, 2) + number(local, 28, 2);
  if (!entries_.emplace(name, bytes(begin, length)).second) throw FileError("two entries have one name");
}

std::string_view Archive::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw FileError("it lacks " + name);
  return found->second;
}

// An entry without a checksum, too, is damage.
void Archive::check_sums() const {
  const Json sums = Json::parse(entry("checksums.json"));
  const std::vector<std::pair<std::string, std::string_view>> all(entries_.begin(), entries_.end());
  at::parallel_for(0, std::ssize(all), 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const auto& [name, data] = all[size_t(begin)];
      if (name == "checksums.json") continue;
      const Json* wanted = sums.find(name);
      if (!wanted || wanted->string() != sha256(data.data(), data.size())) {
        throw FileError("it is damaged: the checksum of " + name + " differs");
      }
    }
  });
}

}  // namespace jitmagic
