// Reductions. Sums of floats are made of blocks: within one, at most n / (4 * N) values are added to one accumulator; sums
// of blocks are added in double, and those of doubles with compensation (jm::Total). So the error does not grow with the
// number of elements.
#include "instantiate.h"

namespace jitmagic::blocks::JITMAGIC_ISA {
namespace {

// Joins all lanes of a block, through four accumulators; V<A> is what F::call(accumulator, vector) returns.
template <class A, class F, class T> __attribute__((noinline)) V<A> lanes_of(const T* value, int64_t n, A neutral, T rest) {
  V<A> sums[4] = {neutral, neutral, neutral, neutral};
  int64_t at = 0;
  for (; at + 4 * N <= n; at += 4 * N) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[k] = F::call(sums[k], V<T>::load(value + at + k * N));
  }
  for (; at < n; at += N) sums[0] = F::call(sums[0], V<T>::load(value + at, n - at, rest));
  return F::join(F::join(sums[0], sums[1]), F::join(sums[2], sums[3]));
}

struct Sum {
  template <class A, class T> static JM_INLINE V<A> call(V<A> sum, V<T> value) { return jm::add(sum, jm::convert<A>(value)); }
  template <class A> static JM_INLINE V<A> join(V<A> a, V<A> b) { return jm::add(a, b); }
};
struct Prod {
  template <class A, class T> static JM_INLINE V<A> call(V<A> sum, V<T> value) { return jm::mul(sum, jm::convert<A>(value)); }
  template <class A> static JM_INLINE V<A> join(V<A> a, V<A> b) { return jm::mul(a, b); }
};
struct Max {
  template <class A> static JM_INLINE V<A> call(V<A> most, V<A> value) { return jm::maximum(most, value); }
  template <class A> static JM_INLINE V<A> join(V<A> a, V<A> b) { return jm::maximum(a, b); }
};
struct Min {
  template <class A> static JM_INLINE V<A> call(V<A> least, V<A> value) { return jm::minimum(least, value); }
  template <class A> static JM_INLINE V<A> join(V<A> a, V<A> b) { return jm::minimum(a, b); }
};
template <class F, class A> JM_INLINE A across(V<A> lanes) {
  if constexpr (jm::same<F, Sum>) return jm::hsum(lanes);
  else if constexpr (jm::same<F, Prod>) return jm::hprod(lanes);
  else if constexpr (jm::same<F, Max>) return jm::hmax(lanes);
  else return jm::hmin(lanes);
}

template <class F, class A> constexpr A neutral = A(0);
template <class A> inline constexpr A neutral<Prod, A> = A(1);
template <class A> inline constexpr A neutral<Max, A> = jm::Limits<A>::least;
template <class A> inline constexpr A neutral<Min, A> = jm::Limits<A>::most;

// --- one accumulator of another or the same type, without a second number --------------------------------------------

template <class F, class A, class T> void reduce(void* total, void*, const void* value, int64_t, int64_t, int64_t n) {
  V<A> one(*(A*)total);
  *(A*)total = F::call(one, V<A>(across<F>(lanes_of<A, F>((const T*)value, n, neutral<F, A>, T(neutral<F, A>)))))[0];
}
template <class F, class A, class T> void join(void* total, void*, const void* value, int64_t, int64_t n) {
  map<F>((A*)total, n, (const A*)total, (const T*)value);
}
template <class F, class A> void merge(void* total, void*, const void* other, const void*, int64_t n) {
  map<F>((A*)total, n, (const A*)total, (const A*)other);
}
template <class F, class A, class T> constexpr Reduction plain(const char* name) {
  return {name, type_of<T>, type_of<A>, type_of<A>, false, reduce<F, A, T>, join<F, A, T>, merge<F, A>};
}

// A block of floats is added in float, and then to a double.
void sum_floats(void* total, void*, const void* value, int64_t, int64_t, int64_t n) {
  auto lanes = lanes_of<float, Sum>((const float*)value, n, 0.0f, 0.0f);
  *(double*)total += jm::hsum(jm::convert<double>(lanes));
}

// --- sums of doubles: the rounding errors are summed too -------------------------------------------------------------

JM_INLINE void add_to(double& sum, double& lost, double value) {
  const double next = sum + value, taken = next - sum;
  lost += (sum - (next - taken)) + (value - taken);
  sum = next;
}
void sum_doubles(void* total, void* extra, const void* value, int64_t, int64_t, int64_t n) {
  add_to(*(double*)total, *(double*)extra, jm::hsum(lanes_of<double, Sum>((const double*)value, n, 0.0, 0.0)));
}
void join_doubles(void* total, void* extra, const void* value, int64_t, int64_t n) {
  double *sum = (double*)total, *lost = (double*)extra;
  const double* one = (const double*)value;
  for (int64_t i = 0; i < n; ++i) add_to(sum[i], lost[i], one[i]);
}
void merge_doubles(void* total, void* extra, const void* other, const void* other_extra, int64_t n) {
  join_doubles(total, extra, other, 0, n);
  for (int64_t i = 0; i < n; ++i) ((double*)extra)[i] += ((const double*)other_extra)[i];
}

// --- bools -----------------------------------------------------------------------------------------------------------

template <bool All> void reduce_bools(void* total, void*, const void* value, int64_t, int64_t, int64_t n) {
  const void* found = __builtin_memchr(value, All ? 0 : 1, size_t(n));
  if (found) *(uint8_t*)total = !All;
}
template <bool All> void join_bools(void* total, void*, const void* value, int64_t, int64_t n) {
  uint8_t* sum = (uint8_t*)total;
  const uint8_t* one = (const uint8_t*)value;
  for (int64_t i = 0; i < n; ++i) sum[i] = All ? sum[i] & one[i] : sum[i] | one[i];
}
template <bool All> void merge_bools(void* total, void*, const void* other, const void*, int64_t n) {
  join_bools<All>(total, nullptr, other, 0, n);
}
template <bool All> constexpr Reduction of_bools(const char* name) {
  return {name, Type::b8, Type::b8, Type::b8, false, reduce_bools<All>, join_bools<All>, merge_bools<All>};
}

// --- the position of the greatest or least: the first one, NaN before all --------------------------------------------

template <class T, bool Greatest> void find(void* total, void* extra, const void* value, int64_t position, int64_t step, int64_t n) {
  using F = typename jm::pick_type<Greatest, Max, Min>::type;
  const T* values = (const T*)value;
  jm::Best<T, Greatest> best{*(T*)total, *(int64_t*)extra};
  const T most = across<F>(lanes_of<T, F>(values, n, neutral<F, T>, neutral<F, T>));
  // One of these is at the first position of this block; the order of blocks need not be that of positions.
  if (most == most && !(Greatest ? most >= best.value : most <= best.value)) return;
  for (int64_t i = 0; i < n; ++i) {
    if (values[i] == most || (most != most && values[i] != values[i])) {
      best.take(values[i], position + i * step);
      break;
    }
  }
  *(T*)total = best.value, *(int64_t*)extra = best.at;
}
template <class T, bool Greatest> void find_each(void* total, void* extra, const void* value, int64_t position, int64_t n) {
  T* most = (T*)total;
  int64_t* at = (int64_t*)extra;
  for (int64_t i = 0; i < n; ++i) {
    jm::Best<T, Greatest> best{most[i], at[i]};
    best.take(((const T*)value)[i], position);
    most[i] = best.value, at[i] = best.at;
  }
}
template <class T, bool Greatest> void merge_found(void* total, void* extra, const void* other, const void* other_extra, int64_t n) {
  T* most = (T*)total;
  int64_t* at = (int64_t*)extra;
  for (int64_t i = 0; i < n; ++i) {
    jm::Best<T, Greatest> best{most[i], at[i]};
    best.take(((const T*)other)[i], ((const int64_t*)other_extra)[i]);
    most[i] = best.value, at[i] = best.at;
  }
}
template <class T, bool Greatest> constexpr Reduction position_of(const char* name) {
  return {name, type_of<T>, type_of<T>, Type::i64, true, find<T, Greatest>, find_each<T, Greatest>, merge_found<T, Greatest>};
}

#define OF_ORDER(T) \
  plain<Max, T, T>("max"), plain<Min, T, T>("min"), position_of<T, true>("argmax"), position_of<T, false>("argmin"),
#define OF_INTEGERS(T) OF_ORDER(T) plain<Sum, T, T>("sum"), plain<Prod, T, T>("prod"),

constexpr Reduction table[] = {
    {"sum", Type::f32, Type::f64, Type::f64, false, sum_floats, join<Sum, double, float>, merge<Sum, double>},
    {"sum", Type::f64, Type::f64, Type::f64, true, sum_doubles, join_doubles, merge_doubles},
    plain<Prod, double, float>("prod"),
    plain<Prod, double, double>("prod"),
    OF_ORDER(float) OF_ORDER(double)
    OF_INTEGERS(int8_t) OF_INTEGERS(int16_t) OF_INTEGERS(int32_t) OF_INTEGERS(int64_t)
    OF_INTEGERS(uint8_t) OF_INTEGERS(uint16_t) OF_INTEGERS(uint32_t) OF_INTEGERS(uint64_t)
    of_bools<false>("any"), of_bools<true>("all"),
};

}  // namespace

extern const Rows<Reduction> reductions{table, sizeof table / sizeof *table};

}  // namespace jitmagic::blocks::JITMAGIC_ISA
