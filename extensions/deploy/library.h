// A shared object loaded from memory, so that the checked bytes are the code that runs
// (jitmagic/runtime/memory_loading.py does the same for Python).
#pragma once

#include <string>
#include <string_view>

namespace jitmagic {

class Library {
 public:
  // Throws FileError.
  explicit Library(std::string_view bytes);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* symbol(const char* name) const;  // throws FileError if there is none

 private:
  void* handle_ = nullptr;
};

}  // namespace jitmagic
