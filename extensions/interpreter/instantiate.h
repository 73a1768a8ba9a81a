// What the files that define operations share. They are compiled once per instruction set, with JITMAGIC_ISA as its name;
// `jm` is then a namespace of its own (setup.py), because an inline function must not be shared between instruction sets.
#pragma once

#include "operations.h"

#include <jitmagic/loop.h>

#define JITMAGIC_JOIN_(a, b) a##b
#define JITMAGIC_JOIN(a, b) JITMAGIC_JOIN_(a, b)

namespace jitmagic::blocks::JITMAGIC_ISA {

// One number of lanes for all types, so that operations of two types have the same steps.
constexpr int N = jm::lanes<float>;
template <class T> using V = jm::Vec<T, N>;

template <class T> constexpr Type type_of = Type::f32;
template <> inline constexpr Type type_of<double> = Type::f64;
template <> inline constexpr Type type_of<jm::f16> = Type::f16;
template <> inline constexpr Type type_of<jm::bf16> = Type::bf16;
template <> inline constexpr Type type_of<jm::f8> = Type::f8;
template <> inline constexpr Type type_of<bool> = Type::b8;
template <> inline constexpr Type type_of<int8_t> = Type::i8;
template <> inline constexpr Type type_of<int16_t> = Type::i16;
template <> inline constexpr Type type_of<int32_t> = Type::i32;
template <> inline constexpr Type type_of<int64_t> = Type::i64;
template <> inline constexpr Type type_of<uint8_t> = Type::u8;
template <> inline constexpr Type type_of<uint16_t> = Type::u16;
template <> inline constexpr Type type_of<uint32_t> = Type::u32;
template <> inline constexpr Type type_of<uint64_t> = Type::u64;

template <class Vector> struct lane_type;
template <class T, int M> struct lane_type<jm::Vec<T, M>> {
  using type = T;
};

// A scalar is copied without a call of memcpy, which takes half of its operation's time.
template <class T> JM_INLINE void copy(T* to, const T* from, int64_t n) {
  if (n == 1) *to = *from;
  else __builtin_memcpy(to, from, size_t(n) * sizeof(T));
}

// The last elements of a block, with zeros behind them: a loop body is compiled once, without masks.
template <class T> struct Tail {
  alignas(64) T lanes[N];

  JM_INLINE const T* of(const T* from, int64_t n) {
    for (int i = 0; i < N; ++i) lanes[i] = T{};
    copy(lanes, from, n);
    return lanes;
  }
};

// out[i] = F::call(in[i]...) by vectors; n is a multiple of N.
template <class F, class R, class... T> __attribute__((noinline)) void map_whole(R* out, int64_t n, const T*... in) {
  for (int64_t at = 0; at < n; at += N) F::call(V<T>::load(in + at)...).store(out + at);
}
// The same for any n.
template <class F, class R, class... T> JM_INLINE void map(R* out, int64_t n, const T*... in) {
  const int64_t whole = n & ~int64_t(N - 1), rest = n - whole;
  if (whole) map_whole<F>(out, whole, in...);
  if (!rest) return;
  alignas(64) R made[N];
  map_whole<F>(made, N, Tail<T>().of(in + whole, rest)...);
  copy(out + whole, made, rest);
}

}  // namespace jitmagic::blocks::JITMAGIC_ISA
