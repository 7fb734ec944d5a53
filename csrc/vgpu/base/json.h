// A streaming JSON writer.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "vgpu/base/types.h"

namespace vgpu {

class Json {
 public:
  void key(const std::string& name) {
    comma();
    text_ += "\"" + name + "\": ";
    fresh_ = true;
  }
  void number(u64 value) {
    comma();
    text_ += std::to_string(value);
  }
  void real(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    comma();
    text_ += text;
  }
  void string(const std::string& value) {
    comma();
    text_ += "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
    text_ += "\"";
  }
  void open(char bracket) {
    comma();
    text_ += bracket;
    fresh_ = true;
  }
  void close(char bracket) {
    text_ += bracket;
    fresh_ = false;
  }
  void field(const std::string& name, u64 value) {
    key(name);
    number(value);
  }
  void field(const std::string& name, const std::string& value) {
    key(name);
    string(value);
  }
  void field(const std::string& name, const u32 (&values)[3]) {
    key(name);
    open('[');
    for (const u32 value : values) number(value);
    close(']');
  }
  std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (!fresh_) text_ += ", ";
    fresh_ = false;
  }
  std::string text_;
  bool fresh_ = true;
};

// Joins texts of JSON values to an array.
inline std::string json_array(const std::vector<std::string>& objects) {
  std::string text(1, '[');
  for (const std::string& object : objects) {
    if (text.size() > 1) text += ",\n";
    text += object;
  }
  text += ']';
  return text;
}

}  // namespace vgpu
