// Access to memory, and blocks of indexes.
#include "instantiate.h"

namespace jitmagic::blocks::JITMAGIC_ISA {
namespace {

// A bool in memory may be any byte; in a block it is 0 or 1.
template <class T> void load(void* out, const void* memory, int64_t step, int64_t n) {
  T* to = (T*)out;
  const T* from = (const T*)memory;
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = jm::element(from, i);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = jm::element(from, i * step);
  }
}

template <class T>
void load_if(void* out, const void* memory, int64_t step, const void* mask, const void* fill, int64_t n) {
  T* to = (T*)out;
  const T* from = (const T*)memory;
  const uint8_t* chosen = (const uint8_t*)mask;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += chosen[i];
  // Most blocks are wholly inside or outside.
  if (count == n) return load<T>(out, memory, step, n);
  const T other = *(const T*)fill;
  if (count == 0) {
    for (int64_t i = 0; i < n; ++i) to[i] = other;
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = jm::load_if(chosen[i] != 0, from, i * step, other);
}

template <class T> void gather(void* out, const void* memory, const int64_t* index, int64_t n) {
  T* to = (T*)out;
  const T* from = (const T*)memory;
  for (int64_t i = 0; i < n; ++i) to[i] = jm::element(from, index[i]);
}

template <class T>
void gather_if(void* out, const void* memory, const int64_t* index, const void* mask, const void* fill, int64_t n) {
  T* to = (T*)out;
  const T other = *(const T*)fill;
  for (int64_t i = 0; i < n; ++i) to[i] = jm::load_if(((const uint8_t*)mask)[i] != 0, (const T*)memory, index[i], other);
}

template <class T> void store(void* memory, int64_t step, const void* value, int64_t n) {
  T* to = (T*)memory;
  const T* from = (const T*)value;
  if (step == 1) __builtin_memmove(to, from, size_t(n) * sizeof(T));
  else for (int64_t i = 0; i < n; ++i) to[i * step] = from[i];
}

template <class T> void scatter(void* memory, const int64_t* index, const void* value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) ((T*)memory)[index[i]] = ((const T*)value)[i];
}

template <class T> JM_INLINE T sum_of(T a, T b) {
  if constexpr (jm::is_half<T>) return jm::convert<T>(jm::widen(a) + jm::widen(b));
  else return jm::add(a, b);
}
template <class T> void add(void* memory, int64_t step, const void* value, int64_t n) {
  T* to = (T*)memory;
  for (int64_t i = 0; i < n; ++i) to[i * step] = sum_of<T>(jm::element(to, i * step), ((const T*)value)[i]);
}
template <class T> void add_at(void* memory, const int64_t* index, const void* value, int64_t n) {
  T* to = (T*)memory;
  for (int64_t i = 0; i < n; ++i) to[index[i]] = sum_of<T>(jm::element(to, index[i]), ((const T*)value)[i]);
}

template <class T> void fill(void* out, const void* value, int64_t n) {
  const T one = *(const T*)value;
  for (int64_t i = 0; i < n; ++i) ((T*)out)[i] = one;
}

// Types of one size share all but their additions.
template <class T, class B> constexpr Access access() {
  return {type_of<T>, load<B>, load_if<B>, gather<B>, gather_if<B>, store<B>, scatter<B>, add<T>, add_at<T>, fill<B>};
}

constexpr Access table[] = {
    access<float, uint32_t>(),    access<double, uint64_t>(),   access<jm::f16, uint16_t>(),
    access<jm::bf16, uint16_t>(), access<bool, bool>(),         access<int8_t, uint8_t>(),
    access<int16_t, uint16_t>(),  access<int32_t, uint32_t>(),  access<int64_t, uint64_t>(),
    access<uint8_t, uint8_t>(),   access<uint16_t, uint16_t>(), access<uint32_t, uint32_t>(),
    access<uint64_t, uint64_t>(),
    {Type::f8, load<uint8_t>, load_if<uint8_t>, gather<uint8_t>, gather_if<uint8_t>, store<uint8_t>, scatter<uint8_t>,
     nullptr, nullptr, fill<uint8_t>},
};

}  // namespace

extern const Rows<Access> accesses{table, sizeof table / sizeof *table};

void iota(int64_t* out, int64_t base, int64_t step, int64_t, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = base + i * step;
}

// One division per block where the steps are short: 64-bit divisions take 10 to 20 cycles each.
void quotients(int64_t* out, int64_t base, int64_t step, int64_t divisor, int64_t n) {
  if (divisor <= 0) return iota(out, 0, 0, 0, n);
  int64_t quotient = jm::floordiv(base, divisor), rest = jm::remainder(base, divisor);
  const int64_t more = jm::floordiv(step, divisor), part = jm::remainder(step, divisor);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = quotient;
    rest += part;
    const bool carries = rest >= divisor;
    quotient += more + carries;
    rest -= carries ? divisor : 0;
  }
}

void remainders(int64_t* out, int64_t base, int64_t step, int64_t divisor, int64_t n) {
  if (divisor <= 0) return iota(out, 0, 0, 0, n);
  int64_t rest = jm::remainder(base, divisor);
  const int64_t part = jm::remainder(step, divisor);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = rest;
    rest += part;
    rest -= rest >= divisor ? divisor : 0;
  }
}

void checked(int64_t* out, const int64_t* index, int64_t extent, const void* mask, int* bad, int64_t n) {
  const uint8_t* used = (const uint8_t*)mask;
  bool outside = false;
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = index[i] + (index[i] < 0 ? extent : 0);
    const bool is_bad = uint64_t(at) >= uint64_t(extent);
    outside |= is_bad && (!used || used[i]);
    out[i] = is_bad ? 0 : at;
  }
  if (outside) jm::flag(*bad);
}

}  // namespace jitmagic::blocks::JITMAGIC_ISA
