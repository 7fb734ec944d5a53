#include "vgpu/object/msgpack.h"

namespace vgpu {

std::optional<u64> MsgPackReader::big_endian(u32 count) {
  if (!bytes_.holds(offset_, count)) {
    failed_ = true;
    return std::nullopt;
  }
  u64 value = 0;
  for (u32 i = 0; i < count; ++i) value = value << 8 | bytes_.data[offset_ + i];
  offset_ += count;
  return value;
}

// Tags 0xc0 to 0xdf: the type, and the width of the number that follows.
std::optional<MsgPackReader::Token> MsgPackReader::extended(u8 tag) {
  struct Row {
    Kind kind;
    u8 width;     // bytes of the value or length after the tag
    u8 constant;  // the value if width is 0
  };
  static constexpr Row kRows[32] = {
      {Kind::kNil, 0, 0},    {Kind::kNil, 0, 0},    {Kind::kBool, 0, 0},   {Kind::kBool, 0, 1},
      {Kind::kBinary, 1, 0}, {Kind::kBinary, 2, 0}, {Kind::kBinary, 4, 0}, {Kind::kExt, 1, 0},
      {Kind::kExt, 2, 0},    {Kind::kExt, 4, 0},    {Kind::kFloat, 4, 0},  {Kind::kFloat, 8, 0},
      {Kind::kUint, 1, 0},   {Kind::kUint, 2, 0},   {Kind::kUint, 4, 0},   {Kind::kUint, 8, 0},
      {Kind::kInt, 1, 0},    {Kind::kInt, 2, 0},    {Kind::kInt, 4, 0},    {Kind::kInt, 8, 0},
      {Kind::kExt, 0, 1},    {Kind::kExt, 0, 2},    {Kind::kExt, 0, 4},    {Kind::kExt, 0, 8},
      {Kind::kExt, 0, 16},   {Kind::kString, 1, 0}, {Kind::kString, 2, 0}, {Kind::kString, 4, 0},
      {Kind::kArray, 2, 0},  {Kind::kArray, 4, 0},  {Kind::kMap, 2, 0},    {Kind::kMap, 4, 0},
  };
  const Row& row = kRows[tag - 0xc0];
  if (tag == 0xc1) {  // reserved by the format
    failed_ = true;
    return std::nullopt;
  }
  if (!row.width) return Token{row.kind, row.constant};
  auto value = big_endian(row.width);
  if (!value) return std::nullopt;
  if (row.kind == Kind::kInt && row.width < 8) {  // sign-extends
    const u32 shift = 64 - 8 * row.width;
    value = static_cast<u64>(static_cast<i64>(*value << shift) >> shift);
  }
  return Token{row.kind, *value};
}

std::optional<MsgPackReader::Token> MsgPackReader::next() {
  if (failed_) return std::nullopt;
  const auto tag = bytes_.read<u8>(offset_);
  if (!tag) {
    failed_ = true;
    return std::nullopt;
  }
  ++offset_;
  if (*tag < 0x80) return Token{Kind::kUint, *tag};
  if (*tag < 0x90) return Token{Kind::kMap, static_cast<u64>(*tag & 15)};
  if (*tag < 0xa0) return Token{Kind::kArray, static_cast<u64>(*tag & 15)};
  if (*tag < 0xc0) return Token{Kind::kString, static_cast<u64>(*tag & 31)};
  if (*tag >= 0xe0) return Token{Kind::kInt, static_cast<u64>(static_cast<i64>(i8(*tag)))};
  return extended(*tag);
}

bool MsgPackReader::skip_payload(const Token& token) {
  u64 bytes = 0;
  if (token.kind == Kind::kString || token.kind == Kind::kBinary) bytes = token.value;
  if (token.kind == Kind::kExt) bytes = token.value + 1;  // plus the type byte
  if (!bytes_.holds(offset_, bytes)) {
    failed_ = true;
    return false;
  }
  offset_ += bytes;
  return true;
}

// Iterative: a count of values still to skip replaces the recursion. Every value takes at least one
// byte, so a count beyond the remaining bytes is invalid and ends the loop early.
void MsgPackReader::skip_contents(const Token& token) {
  if (!skip_payload(token)) return;
  auto children = [](const Token& t) {
    return t.kind == Kind::kArray ? t.value : t.kind == Kind::kMap ? 2 * t.value : 0;
  };
  u64 pending = children(token);
  while (pending) {
    if (pending > bytes_.size - offset_) {
      failed_ = true;
      return;
    }
    const auto child = next();
    if (!child || !skip_payload(*child)) return;
    pending += children(*child) - 1;
  }
}

void MsgPackReader::skip() {
  if (const auto token = next()) skip_contents(*token);
}

std::optional<MsgPackReader::Token> MsgPackReader::expect(Kind kind) {
  const auto token = next();
  if (!token) return std::nullopt;
  if (token->kind == kind) return token;
  skip_contents(*token);
  return std::nullopt;
}

std::optional<u32> MsgPackReader::map() {
  const auto token = expect(Kind::kMap);
  return token ? std::optional<u32>(static_cast<u32>(token->value)) : std::nullopt;
}

std::optional<u32> MsgPackReader::array() {
  const auto token = expect(Kind::kArray);
  return token ? std::optional<u32>(static_cast<u32>(token->value)) : std::nullopt;
}

std::optional<std::string_view> MsgPackReader::string() {
  const auto token = expect(Kind::kString);
  if (!token) return std::nullopt;
  const u64 begin = offset_;
  if (!skip_payload(*token)) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(bytes_.data + begin), token->value);
}

std::optional<u64> MsgPackReader::unsigned_int() {
  const auto token = next();
  if (!token) return std::nullopt;
  if (token->kind == Kind::kUint) return token->value;
  if (token->kind == Kind::kInt && static_cast<i64>(token->value) >= 0) return token->value;
  skip_contents(*token);
  return std::nullopt;
}

std::optional<bool> MsgPackReader::boolean() {
  const auto token = expect(Kind::kBool);
  if (!token) return std::nullopt;
  return token->value != 0;
}

}  // namespace vgpu
