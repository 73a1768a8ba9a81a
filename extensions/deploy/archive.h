// Reads the archive that an artifact is: a zip file whose entries are stored without compression. All of it is read
// into memory, and every entry is compared with its checksum before it is used.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <c10/core/Storage.h>

namespace jitmagic {

class Archive {
 public:
  // Throws FileError.
  explicit Archive(const std::string& path);

  // Returns the bytes of an entry; throws FileError if there is none.
  std::string_view entry(const std::string& name) const;
  const c10::Storage& storage() const { return storage_; }

 private:
  void read_directory();
  void add(std::string_view header, std::string_view name, std::string_view extra);
  void check_sums() const;
  std::string_view bytes(uint64_t start, uint64_t length) const;

  c10::Storage storage_;
  std::map<std::string, std::string_view, std::less<>> entries_;
};

}  // namespace jitmagic
