// Functions of sizes that are not steps of SizeCode, with Python's meaning (symbols/symbolic_numbers.py, OPERATIONS).
// packaging/cxx_entry.py saves no program that needs others.

#include <cmath>
#include <map>

#include "jitmagic/run.hpp"
#include "json_source.h"

namespace jitmagic {
namespace {

constexpr double kExact = 9007199254740992.0;  // 2**53: doubles have all ints up to it

double real_of(const Number& number) { return number.is_real ? number.real : double(number.whole); }

// Returns whether the number is exact as a double.
bool is_exact(const Number& number) { return number.is_real || std::abs(double(number.whole)) < kExact; }

bool whole(double value, Number& made) {
  if (!(std::abs(value) < kExact)) return false;
  made = {int64_t(value), 0, false};
  return true;
}

bool real(double value, Number& made) {
  made = {0, value, true};
  return true;
}

using Arguments = std::span<const Number>;
using Function = bool (*)(Arguments, Number&);

template <class Whole, class Real>
bool combined(Arguments of, Number& made, Whole whole_of, Real real_of_both) {
  if (!of[0].is_real && !of[1].is_real) return whole_of(of[0].whole, of[1].whole, &made.whole);
  if (!is_exact(of[0]) || !is_exact(of[1])) return false;
  return real(real_of_both(real_of(of[0]), real_of(of[1])), made);
}

bool add(Arguments of, Number& made) {
  return combined(
      of, made, [](int64_t a, int64_t b, int64_t* c) { return !__builtin_add_overflow(a, b, c); },
      [](double a, double b) { return a + b; });
}

bool subtract(Arguments of, Number& made) {
  return combined(
      of, made, [](int64_t a, int64_t b, int64_t* c) { return !__builtin_sub_overflow(a, b, c); },
      [](double a, double b) { return a - b; });
}

bool multiply(Arguments of, Number& made) {
  return combined(
      of, made, [](int64_t a, int64_t b, int64_t* c) { return !__builtin_mul_overflow(a, b, c); },
      [](double a, double b) { return a * b; });
}

bool divide(Arguments of, Number& made) {
  if (real_of(of[1]) == 0 || !is_exact(of[0]) || !is_exact(of[1])) return false;
  return real(real_of(of[0]) / real_of(of[1]), made);
}

bool power(Arguments of, Number& made) {
  if (of[0].is_real || of[1].is_real) {
    const double result = std::pow(real_of(of[0]), real_of(of[1]));
    return is_exact(of[0]) && is_exact(of[1]) && std::isfinite(result) && real(result, made);
  }
  if (of[1].whole < 0 || of[1].whole > 64) return false;
  made.whole = 1;
  for (int64_t n = 0; n < of[1].whole; ++n) {
    if (__builtin_mul_overflow(made.whole, of[0].whole, &made.whole)) return false;
  }
  return true;
}

bool root(Arguments of, Number& made) {
  return real_of(of[0]) >= 0 && is_exact(of[0]) && real(std::sqrt(real_of(of[0])), made);
}

bool are_whole(Arguments of) { return !of[0].is_real && !of[1].is_real && of[1].whole != 0 && of[1].whole != -1; }

bool quotient(Arguments of, Number& made) {
  if (!are_whole(of)) return false;
  const int64_t a = of[0].whole, b = of[1].whole;
  made.whole = a / b - (a % b != 0 && (a < 0) != (b < 0));
  return true;
}

bool remainder(Arguments of, Number& made) {
  if (!are_whole(of)) return false;
  const int64_t b = of[1].whole, rest = of[0].whole % b;
  made.whole = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  return true;
}

bool negate(Arguments of, Number& made) {
  if (of[0].is_real) return real(-of[0].real, made);
  return !__builtin_sub_overflow(int64_t(0), of[0].whole, &made.whole);
}

bool absolute(Arguments of, Number& made) {
  if (real_of(of[0]) < 0) return negate(of, made);
  made = of[0];
  return true;
}

// Returns -1, 0 or 1, or 2 where a NaN or an inexact double is compared.
int order(const Number& a, const Number& b) {
  if (!a.is_real && !b.is_real) return (a.whole > b.whole) - (a.whole < b.whole);
  const double x = real_of(a), y = real_of(b);
  if (!is_exact(a) || !is_exact(b) || std::isnan(x) || std::isnan(y)) return 2;
  return (x > y) - (x < y);
}

template <auto Holds>
bool compare(Arguments of, Number& made) {
  const int found = order(of[0], of[1]);
  made = {found != 2 && Holds(found), 0, false};
  return found != 2;
}

// The first of equal ones, as Python's min and max.
template <int Sign>
bool extreme(Arguments of, Number& made) {
  made = of[0];
  for (const Number& other : of.subspan(1)) {
    const int found = order(other, made);
    if (found == 2) return false;
    if (found == Sign) made = other;
  }
  return true;
}

struct Row {
  size_t arguments;  // 0: one or more
  Function compute;
};

const std::map<std::string, Row, std::less<>>& rows() {
  static const std::map<std::string, Row, std::less<>> known = {
      {"+", {2, add}},
      {"-", {2, subtract}},
      {"*", {2, multiply}},
      {"/", {2, divide}},
      {"//", {2, quotient}},
      {"%", {2, remainder}},
      {"**", {2, power}},
      {"sqrt", {1, root}},
      {"neg", {1, negate}},
      {"abs", {1, absolute}},
      {"min", {0, extreme<-1>}},
      {"max", {0, extreme<1>}},
      {"float", {1, [](Arguments of, Number& made) { return is_exact(of[0]) && real(real_of(of[0]), made); }}},
      {"trunc", {1, [](Arguments of, Number& made) { return whole(std::trunc(real_of(of[0])), made); }}},
      {"floor", {1, [](Arguments of, Number& made) { return whole(std::floor(real_of(of[0])), made); }}},
      {"ceil", {1, [](Arguments of, Number& made) { return whole(std::ceil(real_of(of[0])), made); }}},
      {"<", {2, compare<[](int found) { return found < 0; }>}},
      {"<=", {2, compare<[](int found) { return found <= 0; }>}},
      {">", {2, compare<[](int found) { return 0 < found; }>}},
      {">=", {2, compare<[](int found) { return 0 <= found; }>}},
      {"==", {2, compare<[](int found) { return found == 0; }>}},
      {"!=", {2, compare<[](int found) { return found != 0; }>}},
  };
  return known;
}

struct Named final : SizeFunction {
  explicit Named(const Row& row) : row(row) {}
  bool call(Arguments of, Number& made) const override {
    if (row.arguments ? of.size() != row.arguments : of.empty()) return false;
    return row.compute(of, made);
  }
  const Row& row;
};

}  // namespace

std::shared_ptr<const SizeFunction> size_function_of(const std::string& name) {
  const auto found = rows().find(name);
  if (found == rows().end()) throw FileError("malformed description: unknown function of sizes " + name);
  return std::make_shared<Named>(found->second);
}

}  // namespace jitmagic
