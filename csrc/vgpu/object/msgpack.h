// A cursor over untrusted MessagePack, the encoding of the AMDGPU metadata note.
//
// Nothing is allocated and no length is trusted: a container's length only tells the caller how
// many values to read, and each is checked again. After the first malformed value the reader has
// `failed` and returns nothing.
#pragma once

#include <optional>
#include <string_view>

#include "vgpu/object/elf.h"

namespace vgpu {

class MsgPackReader {
 public:
  explicit MsgPackReader(Bytes bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }

  // Read a container; return the number of key-value pairs or elements. A value of another type is
  // skipped and returns nothing.
  std::optional<u32> map();
  std::optional<u32> array();
  std::optional<std::string_view> string();
  std::optional<u64> unsigned_int();  // also a non-negative signed integer
  std::optional<bool> boolean();
  void skip();

 private:
  enum class Kind : u8 { kNil, kBool, kUint, kInt, kFloat, kString, kBinary, kArray, kMap, kExt };
  struct Token {
    Kind kind;
    u64 value;  // integer, boolean, length in bytes, or number of elements
  };

  std::optional<Token> next();
  std::optional<Token> extended(u8 tag);
  std::optional<u64> big_endian(u32 count);
  std::optional<Token> expect(Kind kind);
  bool skip_payload(const Token& token);
  void skip_contents(const Token& token);

  Bytes bytes_;
  u64 offset_ = 0;
  bool failed_ = false;
};

}  // namespace vgpu
