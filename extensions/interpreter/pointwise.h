// Makes rows of pointwise operations from functions jm::NAME of vectors.
#pragma once

#include "instantiate.h"

namespace jitmagic::blocks::JITMAGIC_ISA {

template <class F, class... T>
constexpr Pointwise row(const char* name, Type type, void (*run)(void*, const void*, const void*, const void*, int64_t)) {
  using Made = typename lane_type<decltype(F::call(V<T>()...))>::type;
  return {name, type, type_of<Made>, int(sizeof...(T)), false, run};
}

template <class F, class T> using result_of = typename lane_type<decltype(F::call(V<T>()))>::type;
template <class F, class T> using result_of_two = typename lane_type<decltype(F::call(V<T>(), V<T>()))>::type;

template <class F, class T> void unary(void* out, const void* a, const void*, const void*, int64_t n) {
  map<F>((result_of<F, T>*)out, n, (const T*)a);
}
template <class F, class T> void binary(void* out, const void* a, const void* b, const void*, int64_t n) {
  map<F>((result_of_two<F, T>*)out, n, (const T*)a, (const T*)b);
}
template <class F, class T> void ternary(void* out, const void* a, const void* b, const void* c, int64_t n) {
  map<F>((T*)out, n, (const T*)a, (const T*)b, (const T*)c);
}
template <class T> void where(void* out, const void* a, const void* b, const void* c, int64_t n) {
  struct Where {
    static JM_INLINE V<T> call(V<bool> m, V<T> x, V<T> y) { return jm::where(m, x, y); }
  };
  map<Where>((T*)out, n, (const bool*)a, (const T*)b, (const T*)c);
}

template <class F, class T> constexpr Pointwise unary_row(const char* name) {
  return {name, type_of<T>, type_of<result_of<F, T>>, 1, false, unary<F, T>};
}
template <class F, class T> constexpr Pointwise binary_row(const char* name) {
  return {name, type_of<T>, type_of<result_of_two<F, T>>, 2, false, binary<F, T>};
}
template <class F, class T> constexpr Pointwise ternary_row(const char* name) {
  return {name, type_of<T>, type_of<T>, 3, false, ternary<F, T>};
}
template <class T> constexpr Pointwise where_row() { return {"where", type_of<T>, type_of<T>, 3, true, where<T>}; }

// Names a function for templates.
#define NAMED(NAME) \
  struct NAME##_of { \
    template <class... W> static JM_INLINE auto call(W... values) { return jm::NAME(values...); } \
  };
#define UNARY(NAME, T) unary_row<NAME##_of, T>(#NAME),
#define BINARY(NAME, T) binary_row<NAME##_of, T>(#NAME),
#define TERNARY(NAME, T) ternary_row<NAME##_of, T>(#NAME),

}  // namespace jitmagic::blocks::JITMAGIC_ISA
