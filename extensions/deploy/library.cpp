#include "library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "jitmagic/run.hpp"

namespace jitmagic {
namespace {

// A file in anonymous memory, which no `noexec` mount restricts.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : MemoryFile(memfd_create("jitmagic", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail();
      bytes.remove_prefix(size_t(written));
    }
    fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;

  // Returns a path that no loaded library has: the loader identifies libraries by path, and descriptor numbers are
  // reused. `./` and `/` do not change a path, so they encode the binary digits of the file's inode.
  std::string path() const {
    struct stat facts {};
    if (fstat(fd_, &facts)) fail();
    std::string made = "/proc/self/fd/";
    for (ino_t bits = facts.st_ino; bits; bits >>= 1) made += bits & 1 ? "./" : "/";
    return made + std::to_string(fd_);
  }

 private:
  explicit MemoryFile(int fd) : fd_(fd) {
    if (fd_ < 0) fail();
  }

  [[noreturn]] static void fail() { throw FileError(std::string("memory for its code: ") + std::strerror(errno)); }

  int fd_;
};

// Threads of an OpenMP runtime wait in its code for the next parallel region, so it must never be unloaded.
void pin_openmp() {
  static void* const pinned = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NODELETE);  // null: kernels do not need it
  (void)pinned;
}

}  // namespace

Library::Library(std::string_view bytes) {
  pin_openmp();
  const MemoryFile file(bytes);
  handle_ = dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) throw FileError(std::string("its code cannot be loaded: ") + dlerror());
}

Library::~Library() { dlclose(handle_); }

void* Library::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (!found) throw FileError(std::string("its code has no function ") + name);
  return found;
}

}  // namespace jitmagic
