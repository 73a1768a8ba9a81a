// Finds the user's line that calls an operation: the innermost frame outside of torch and of jitmagic.

#include <string>
#include <string_view>

#include "lazy.h"
#include "user_frame.h"

namespace jitmagic::lazy {
namespace {

std::vector<std::string>& library() {
  static auto* made = new std::vector<std::string>();
  return *made;
}

constexpr std::string_view PRINTING = "_tensor_str.py";

// Returns whether the code is torch's or jitmagic's.
bool is_library(PyCodeObject* code, bool& is_printing) {
  Py_ssize_t length = 0;
  const char* file = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
  if (!file) {
    PyErr_Clear();
    return false;
  }
  const std::string_view name(file, size_t(length));
  for (const std::string& folder : library())
    if (name.substr(0, folder.size()) == folder) {
      is_printing |= name.size() > PRINTING.size() && name.substr(name.size() - PRINTING.size()) == PRINTING;
      return true;
    }
  return false;
}

// Lines in one function, one after another, share the holder.
std::shared_ptr<PyCodeObject> hold(PyCodeObject* code) {
  static thread_local std::weak_ptr<PyCodeObject> last;
  auto held = last.lock();
  if (held.get() == code) return held;
  Py_INCREF(code);
  held = std::shared_ptr<PyCodeObject>(code, [](PyCodeObject* code) {
    if (!Py_IsInitialized()) return;
    const Gil gil;
    Py_DECREF(code);
  });
  last = held;
  return held;
}

}  // namespace

void set_library(std::vector<std::string> folders) { library() = std::move(folders); }

Line users_line() {
  bool is_printing = false;
  for (void* frame = jm_lazy_innermost_frame(); frame; frame = jm_lazy_caller(frame)) {
    PyCodeObject* code = jm_lazy_code(frame);
    if (!is_library(code, is_printing)) return {hold(code), jm_lazy_offset(frame), is_printing};
  }
  return {};
}

std::string text_of(const Line& line) {
  if (!line.code) return "";
  const char* file = PyUnicode_AsUTF8(line.code->co_filename);
  const char* name = PyUnicode_AsUTF8(line.code->co_name);
  const int number = PyCode_Addr2Line(line.code.get(), line.lasti);
  return std::string(file) + ":" + std::to_string(number) + ", in " + name;
}

PyObject* describe(const Line& line) {
  if (!line.code) Py_RETURN_NONE;
  const PyCodeObject* code = line.code.get();
  return Py_BuildValue("(OiO)", code->co_filename, PyCode_Addr2Line(line.code.get(), line.lasti), code->co_name);
}

}  // namespace jitmagic::lazy
