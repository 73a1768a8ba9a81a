// Finds the compiled graph of a batch, and calls it; see lazy.h.
//
// All batches of one key are one family: the same operations, with any sizes and numbers. Its first form has all numbers
// as constants. A batch that differs in some of them gets a form in which these are inputs, so a learning rate that
// changes is compiled twice and not at each step. A form is a tagged function: its guards choose between variants for
// sizes and strides of its inputs.

#include <algorithm>
#include <cstring>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "lazy.h"
#include "outside.h"

namespace jitmagic::lazy {
namespace {

constexpr size_t MOST_FAMILIES = 512;  // then the cache starts anew
constexpr size_t MOST_FORMS = 8;       // of a family; each has more varying numbers than the one before
constexpr int MOST_UNUSED = 32;        // families compiled and not met again; then only those that recur are compiled

struct Family {
  std::vector<std::shared_ptr<Form>> forms;
  bool was_reused = false;
};

struct Families {
  std::unordered_map<Tokens, Family, TokensHash> all;
  int unused = 0;
};
Families& families() {
  static auto* made = new Families();
  return *made;
}


bool fits(const Form& form, const std::vector<Number>& numbers) {
  size_t next = 0;
  for (size_t i = 0; i < numbers.size(); i++) {
    if (next < form.varying.size() && size_t(form.varying[next]) == i)
      next++;
    else if (!(form.numbers[i] == numbers[i]))
      return false;
  }
  return true;
}

// Returns the positions that vary in the form or differ from it.
std::vector<int> varying_with(const Form& form, const std::vector<Number>& numbers) {
  std::vector<int> varying;
  for (size_t i = 0; i < numbers.size(); i++)
    if (std::binary_search(form.varying.begin(), form.varying.end(), int(i)) || !(form.numbers[i] == numbers[i]))
      varying.push_back(int(i));
  return varying;
}

THPObjectPtr compile(const Batch& batch, const std::vector<int>& outputs, const std::vector<int>& varying) {
  const Outside outside;
  THPObjectPtr description(describe_batch(batch, outputs, varying));
  if (!description) throw python_error();
  THPObjectPtr made(PyObject_CallOneArg(callbacks().compile, description));
  if (!made) {
    python_error error;
    error.persist();
    throw std::move(error);
  }
  return made;
}

PyObject* as_object(const Number& number) {
  if (!number.is_float) return PyLong_FromLongLong(number.bits);
  double value;
  std::memcpy(&value, &number.bits, sizeof value);
  return PyFloat_FromDouble(value);
}

}  // namespace

Callbacks& callbacks() {
  static Callbacks made;
  return made;
}

std::shared_ptr<Form> form_of(const Batch& batch, const std::vector<int>& outputs, const Tokens& key) {
  if (batch.operations.size() < 2 || !callbacks().compile) return nullptr;
  auto& known = families();
  if (known.all.size() >= MOST_FAMILIES) forget_compiled();
  const auto [found, is_new] = known.all.try_emplace(key);
  Family& family = found->second;
  if (!is_new && !family.was_reused) {
    family.was_reused = true;
    known.unused -= !family.forms.empty();
  }
  for (const auto& form : family.forms)
    if (fits(*form, batch.numbers)) return form->function ? form : nullptr;
  if (family.forms.size() == MOST_FORMS || (is_new && known.unused >= MOST_UNUSED)) return nullptr;
  auto form = std::make_shared<Form>();
  form->numbers = batch.numbers;
  if (!family.forms.empty()) form->varying = varying_with(*family.forms.back(), batch.numbers);
  known.unused += is_new;
  family.forms.push_back(form);
  form->function = compile(batch, outputs, form->varying);  // runs Python, which may record and run other batches
  return form;
}

std::optional<std::string> call(
    const Form& form, const Batch& batch, const std::vector<int>& outputs, std::vector<at::Tensor>& values) {
  const Outside outside;
  THPObjectPtr function(Py_NewRef(form.function.get()));
  const int64_t compiled_before = counts().compiled;
  std::vector<PyObject*> arguments;
  for (const Value& value : batch.values)
    if (value.input.defined()) arguments.push_back(THPVariable_Wrap(value.input));
  for (const int position : form.varying) arguments.push_back(as_object(batch.numbers[size_t(position)]));
  THPObjectPtr results(PyObject_Vectorcall(function.get(), arguments.data(), arguments.size(), nullptr));
  for (PyObject* one : arguments) Py_XDECREF(one);
  if (!results) {
    const bool is_interrupt = !PyErr_ExceptionMatches(PyExc_Exception);
    python_error error;
    error.persist();
    if (is_interrupt) throw std::move(error);
    return error.what();  // what the operations raise one by one is raised
  }
  for (size_t i = 0; i < outputs.size(); i++)
    values[size_t(outputs[i])] = THPVariable_Unpack(PyTuple_GET_ITEM(results.get(), Py_ssize_t(i)));
  counts().cached += counts().compiled == compiled_before;
  return std::nullopt;
}

void report_fault(const std::string& error) {
  THPObjectPtr done(PyObject_CallFunction(callbacks().report_fault, "s", error.c_str()));
  if (!done) throw python_error();
}

void forget_compiled() {
  std::unordered_map<Tokens, Family, TokensHash> dropped;  // freeing functions runs Python
  std::swap(dropped, families().all);
  families().unused = 0;
}

}  // namespace jitmagic::lazy
