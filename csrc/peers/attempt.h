// Calls of another project's host functions from Python: an exception is returned as its text.
#pragma once
#include <exception>
#include <string>

namespace rfops {

template <typename Action>
const char* attempt(Action action) {
  static std::string text;
  try {
    action();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
}

}  // namespace rfops
