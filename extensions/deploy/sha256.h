#pragma once

#include <cstddef>
#include <string>

namespace jitmagic {

// Returns the SHA-256 of the bytes, in hexadecimal digits.
std::string sha256(const void* data, size_t size);

}  // namespace jitmagic
