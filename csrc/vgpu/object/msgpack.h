// Reader of MessagePack, the encoding of the AMDGPU metadata note: a cursor over untrusted bytes.
//
// Nothing is allocated and no count is believed: a container's length only says how many values the
// caller may go on to read, and each of these is checked again. After the first malformed value the
// reader is `failed` and returns nothing further.
#pragma once

#include <optional>
#include <string_view>

#include "vgpu/object/elf.h"

namespace vgpu {

class MsgPackReader {
 public:
  explicit MsgPackReader(Bytes bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }

  // Number of key-value pairs or of elements. A value of another type is skipped: nothing returned.
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
  std::optional<Token> take(Kind kind);
  bool skip_payload(const Token& token);
  void skip_contents(const Token& token);

  Bytes bytes_;
  u64 at_ = 0;
  bool failed_ = false;
};

}  // namespace vgpu
