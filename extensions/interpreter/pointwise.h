// Makes rows of pointwise operations from functions jm::NAME of vectors.
#pragma once

#include "instantiate.h"

namespace jitmagic::blocks::JITMAGIC_ISA {

template <class F, class T> using result_of = typename lane_type<decltype(F::call(V<T>()))>::type;
template <class F, class T> using result_of_two = typename lane_type<decltype(F::call(V<T>(), V<T>()))>::type;

template <class F, class T> struct Unary {
  using R = result_of<F, T>;
  static void run(void* out, const void* a, const void*, const void*, int64_t n) { map<F>((R*)out, n, (const T*)a); }
  static void one(void* out, const void* a, const void*, const void*) { *(R*)out = F::call(*(const T*)a); }
};
template <class F, class T> struct Binary {
  using R = result_of_two<F, T>;
  static void run(void* out, const void* a, const void* b, const void*, int64_t n) {
    map<F>((R*)out, n, (const T*)a, (const T*)b);
  }
  static void one(void* out, const void* a, const void* b, const void*) {
    *(R*)out = F::call(*(const T*)a, *(const T*)b);
  }
};
template <class F, class T> struct Ternary {
  static void run(void* out, const void* a, const void* b, const void* c, int64_t n) {
    map<F>((T*)out, n, (const T*)a, (const T*)b, (const T*)c);
  }
  static void one(void* out, const void* a, const void* b, const void* c) {
    *(T*)out = F::call(*(const T*)a, *(const T*)b, *(const T*)c);
  }
};
template <class T> struct Where {
  static JM_INLINE V<T> call(V<bool> m, V<T> x, V<T> y) { return jm::where(m, x, y); }
  static void run(void* out, const void* a, const void* b, const void* c, int64_t n) {
    map<Where>((T*)out, n, (const bool*)a, (const T*)b, (const T*)c);
  }
  static void one(void* out, const void* a, const void* b, const void* c) {
    *(T*)out = *(const T*)(*(const bool*)a ? b : c);
  }
};

template <class F, class T> constexpr Pointwise unary_row(const char* name) {
  using Row = Unary<F, T>;
  return {name, type_of<T>, type_of<typename Row::R>, 1, false, Row::run, Row::one};
}
template <class F, class T> constexpr Pointwise binary_row(const char* name) {
  using Row = Binary<F, T>;
  return {name, type_of<T>, type_of<typename Row::R>, 2, false, Row::run, Row::one};
}
template <class F, class T> constexpr Pointwise ternary_row(const char* name) {
  return {name, type_of<T>, type_of<T>, 3, false, Ternary<F, T>::run, Ternary<F, T>::one};
}
template <class T> constexpr Pointwise where_row() {
  return {"where", type_of<T>, type_of<T>, 3, true, Where<T>::run, Where<T>::one};
}

// Names a function for templates.
#define NAMED(NAME) \
  struct NAME##_of { \
    template <class... W> static JM_INLINE auto call(W... values) { return jm::NAME(values...); } \
  };
#define UNARY(NAME, T) unary_row<NAME##_of, T>(#NAME),
#define BINARY(NAME, T) binary_row<NAME##_of, T>(#NAME),
#define TERNARY(NAME, T) ternary_row<NAME##_of, T>(#NAME),

}  // namespace jitmagic::blocks::JITMAGIC_ISA
