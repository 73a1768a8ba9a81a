// SHA-256 as in FIPS 180-4. x86 processors since 2017 have instructions for it, which take 100 MB of weights in a sixth
// of the time.

#include "sha256.h"

#include <bit>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace jitmagic {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

struct State {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

  void add(const unsigned char* blocks, size_t count) {
#ifdef __x86_64__
    static const bool has_instructions = find_instructions();
    if (has_instructions) return add_by_instructions(blocks, count);
#endif
    for (; count > 0; --count, blocks += 64) add_block(blocks);
  }

  void add_block(const unsigned char* block) {
    uint32_t w[64];
    for (int t = 0; t < 16; ++t) {
      const unsigned char* word = block + 4 * t;
      w[t] = uint32_t(word[0]) << 24 | uint32_t(word[1]) << 16 | uint32_t(word[2]) << 8 | word[3];
    }
    for (int t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], i = h[7];
    for (int t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t one = i + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t two = s0 + ((a & b) ^ (a & c) ^ (b & c));
      i = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += g, h[7] += i;
  }

#ifdef __x86_64__
  static bool find_instructions() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
  }

  // The instructions hold the state as (a, b, e, f) and (c, d, g, h), highest word first.
  __attribute__((target("sha,ssse3,sse4.1"))) void add_by_instructions(const unsigned char* blocks, size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    auto* words = reinterpret_cast<__m128i*>(h);
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; count > 0; --count, blocks += 64) {
      const __m128i abef_before = abef, cdgh_before = cdgh;
      __m128i w[4];  // the last 16 words
      for (int n = 0; n < 16; ++n) {
        __m128i& next = w[n % 4];
        if (n < 4) {
          next = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + n), swap);
        } else {
          const __m128i last = w[(n + 3) % 4];
          const __m128i sum = _mm_add_epi32(
              _mm_sha256msg1_epu32(next, w[(n + 1) % 4]), _mm_alignr_epi8(last, w[(n + 2) % 4], 4));
          next = _mm_sha256msg2_epu32(sum, last);
        }
        const __m128i round = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRound) + n);
        const __m128i given = _mm_add_epi32(next, round);
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, given);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(given, 0x0E));
      }
      abef = _mm_add_epi32(abef, abef_before);
      cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
#endif
};

}  // namespace

std::string sha256(const void* data, size_t size) {
  State state;
  const auto* bytes = static_cast<const unsigned char*>(data);
  const size_t whole = size / 64;
  state.add(bytes, whole);
  unsigned char last[128] = {};
  const size_t rest = size % 64, length = rest < 56 ? 64 : 128;
  if (rest) std::memcpy(last, bytes + 64 * whole, rest);
  last[rest] = 0x80;
  const uint64_t bits = uint64_t(size) * 8;
  for (int n = 0; n < 8; ++n) last[length - 1 - size_t(n)] = static_cast<unsigned char>(bits >> 8 * n);
  state.add(last, length / 64);
  std::string digits;
  for (uint32_t word : state.h) {
    for (int n = 7; n >= 0; --n) digits += "0123456789abcdef"[word >> 4 * n & 15];
  }
  return digits;
}

}  // namespace jitmagic
