// Typed buffer accesses: component formats in memory.
#include <algorithm>
#include <cmath>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/buffer.h"

namespace vgpu {
namespace {

enum Number : u8 { kUnorm, kSnorm, kUscaled, kSscaled, kUint, kSint, kReservedNumber, kFloat };

constexpr u32 kIdentitySelectors = 4 | 5 << 3 | 6 << 6 | 7 << 9;

// Widths of the components in bits, from the low end, by data format.
// clang-format off
constexpr u8 kWidths[16][4] = {
    {0, 0, 0, 0},     {8, 0, 0, 0},    // invalid, 8
    {16, 0, 0, 0},    {8, 8, 0, 0},    // 16, 8_8
    {32, 0, 0, 0},    {16, 16, 0, 0},  // 32, 16_16
    {11, 11, 10, 0},  {10, 11, 11, 0}, // 10_11_11, 11_11_10
    {2, 10, 10, 10},  {10, 10, 10, 2}, // 10_10_10_2, 2_10_10_10
    {8, 8, 8, 8},     {32, 32, 0, 0},  // 8_8_8_8, 32_32
    {16, 16, 16, 16}, {32, 32, 32, 0}, // 16_16_16_16, 32_32_32
    {32, 32, 32, 32}, {0, 0, 0, 0},    // 32_32_32_32, reserved
};
// clang-format on

// Returns the format named by a MTBUF instruction, or for MUBUF that of the resource.
BufferFormat format_of(Wave& wave, const Inst& inst, const BufferResource& resource) {
  const bool typed = inst.format == Format::kMtbuf;
  const u32 data = typed ? inst.dfmt : resource.data_format;
  const u32 number = typed ? inst.nfmt : resource.num_format;
  if (data == 15 || number == kReservedNumber) {
    fault(wave, inst,
          "reserved buffer format: data format " + std::to_string(data) + ", number format " +
              std::to_string(number));
  }
  BufferFormat format = {
      {}, static_cast<u8>(number), 0, typed ? kIdentitySelectors : resource.selectors};
  u32 total = 0;
  for (u32 c = 0; c < 4; ++c) total += format.widths[c] = kWidths[data][c];
  format.bytes = total / 8;
  return format;
}

bool is_integer(u32 number) { return number == kUint || number == kSint; }
constexpr u32 low_bits(u32 count) { return count == 32 ? ~0u : (1u << count) - 1; }

// Decodes an unsigned float of 10 or 11 bits: 5 exponent bits as in a half, the rest fraction.
f32 small_float(u32 value, u32 width) {
  return half_to_float(static_cast<u16>(value << (15 - width)));
}

u32 to_small_float(f32 value, u32 width) {
  const u32 drop = 15 - width;
  if (is_nan(value)) return low_bits(width);
  if (!(value > 0)) return 0;
  const f64 unit = std::ldexp(1.0, std::max(std::ilogb(value), -14) - 10 + static_cast<i32>(drop));
  const f64 rounded = std::nearbyint(value / unit) * unit;
  const u32 largest = (31u << (width - 5)) - 1;
  if (is_inf(value)) return largest + 1;
  if (rounded >= 65536) return largest;
  return float_to_half(static_cast<f32>(rounded)) >> drop;
}

u32 unpack(u32 value, u32 width, u32 number) {
  const i32 wide = sign_extend(value, width);
  switch (number) {
    case kUnorm:
      return bits<u32>(static_cast<f32>(value / static_cast<f64>(low_bits(width))));
    case kSnorm:
      return bits<u32>(
          std::max(-1.0f, static_cast<f32>(wide / static_cast<f64>(low_bits(width - 1)))));
    case kUscaled:
      return bits<u32>(static_cast<f32>(value));
    case kSscaled:
      return bits<u32>(static_cast<f32>(wide));
    case kSint:
      return static_cast<u32>(wide);
    case kFloat:
      if (width == 16) return bits<u32>(half_to_float(static_cast<u16>(value)));
      return width == 32 || width < 10 ? value : bits<u32>(small_float(value, width));
    default:
      return value;
  }
}

u32 pack(u32 value, u32 width, u32 number) {
  const f32 input = bits<f32>(value);
  const f64 x = is_nan(input) ? 0 : input;
  const f64 range = low_bits(width), half = low_bits(width - 1);
  const auto to_integer = [width](f64 v) {
    return static_cast<u32>(static_cast<i64>(v)) & low_bits(width);
  };
  switch (number) {
    case kUnorm:
      return to_integer(std::nearbyint(std::clamp(x, 0.0, 1.0) * range));
    case kSnorm:
      return to_integer(std::nearbyint(std::clamp(x, -1.0, 1.0) * half));
    case kUscaled:
      return to_integer(std::trunc(std::clamp(x, 0.0, range)));
    case kSscaled:
      return to_integer(std::trunc(std::clamp(x, -half - 1, half)));
    case kFloat:
      if (width == 16) return float_to_half(input);
      return width == 32 || width < 10 ? value & low_bits(width) : to_small_float(input, width);
    default:
      return value & low_bits(width);
  }
}

u32 bits_at(const u8* src, u32 bit, u32 width) {
  u64 word = 0;
  for (u32 b = bit / 8; b < (bit + width + 7) / 8; ++b) word |= u64{src[b]} << (8 * (b - bit / 8));
  return static_cast<u32>(word >> bit % 8) & low_bits(width);
}

void set_bits_at(u8* dst, u32 bit, u32 width, u32 value) {
  const u64 word = u64{value} << bit % 8;
  for (u32 b = bit / 8; b < (bit + width + 7) / 8; ++b) {
    dst[b] = static_cast<u8>(dst[b] | word >> (8 * (b - bit / 8)));
  }
}

// Converts to half, rounding toward zero.
u16 truncate_to_half(f32 value) {
  const u16 nearest = float_to_half(value);
  const bool is_larger = std::fabs(half_to_float(nearest)) > std::fabs(value);
  return static_cast<u16>(nearest - is_larger);
}

// Returns a loaded component as 16 bits: a 32-bit float is truncated, all other values are rounded.
u16 narrow(u32 value, const BufferFormat& format) {
  if (is_integer(format.number)) return static_cast<u16>(value);
  const bool truncates = format.number == kFloat && format.widths[0] == 32;
  return truncates ? truncate_to_half(bits<f32>(value)) : float_to_half(bits<f32>(value));
}

u32 widen(u16 value, const BufferFormat& format) {
  if (format.number == kSint) return static_cast<u32>(static_cast<i16>(value));
  return format.number == kUint ? value : bits<u32>(half_to_float(value));
}

// Returns the value of a shader component (dst_sel): a component in memory, 0 or 1.
u32 select(const BufferFormat& format, const u32* memory, u32 shader) {
  const u32 selector = format.selectors >> (3 * shader) & 7;
  if (selector >= 4) return memory[selector - 4];
  if (selector == 1) return is_integer(format.number) ? 1 : bits<u32>(1.0f);
  return 0;
}

// Returns the shader component stored to component `memory`; X if no selector names it.
u32 inverse_select(const BufferFormat& format, u32 memory, u32 components) {
  for (u32 shader = 0; shader < components; ++shader) {
    if ((format.selectors >> (3 * shader) & 7) == memory + 4) return shader;
  }
  return 0;
}

void load_element(const BufferFormat& format, const u8* src, const FormatOp& op, u32* out,
                  u32 stride) {
  u32 memory[4] = {};
  u32 bit = 0;
  for (u32 c = 0; c < 4 && format.widths[c]; bit += format.widths[c++]) {
    if (src)
      memory[c] = unpack(bits_at(src, bit, format.widths[c]), format.widths[c], format.number);
  }
  u32 value[4] = {};
  for (u32 c = 0; c < op.components; ++c) value[c] = select(format, memory, c);
  if (!op.d16) {
    for (u32 c = 0; c < op.components; ++c) out[c * stride] = value[c];
    return;
  }
  for (u32 c = 0; c < op.components; c += 2) {
    const u32 low = narrow(value[c], format);
    const u32 high = c + 1 < op.components ? narrow(value[c + 1], format) : 0;
    out[c / 2 * stride] = op.high ? low << 16 : low | high << 16;
  }
}

void store_element(const BufferFormat& format, u8* dst, const FormatOp& op, const u32* src,
                   u32 stride) {
  u32 value[4];
  for (u32 c = 0; c < op.components; ++c) {
    const u32 shift = op.high || c % 2 ? 16 : 0;
    value[c] =
        op.d16 ? widen(static_cast<u16>(src[c / 2 * stride] >> shift), format) : src[c * stride];
  }
  std::memset(dst, 0, format.bytes);
  u32 bit = 0;
  for (u32 c = 0; c < 4 && format.widths[c]; bit += format.widths[c++]) {
    const u32 component = value[inverse_select(format, c, op.components)];
    set_bits_at(dst, bit, format.widths[c], pack(component, format.widths[c], format.number));
  }
}

}  // namespace

void buffer_load_format(Wave& wave, const Inst& inst, const FormatOp& op) {
  const CacheFpMode fp_mode;
  const BufferResource resource = buffer_resource(wave, inst);
  const BufferFormat format = format_of(wave, inst, resource);
  const u64 exec = wave.exec();
  const u32 dwords = op.d16 ? (op.components + 1) / 2 : op.components;
  u32* rows = wave.va(inst.dst);
  if (!format.bytes) return zero_lanes(rows, dwords, exec);
  BufferAccess access(wave, inst, resource, format.bytes, Granule::kElement, true, false);
  Stage result;
  LaneAddresses addresses;
  for_lanes(exec, [&](u32 lane) {
    const bool inside = access.mask() >> lane & 1;
    const u8* src = inside ? reinterpret_cast<const u8*>(access.addresses()[lane]) : nullptr;
    u32 out[4] = {};
    load_element(format, src, op, out, 1);
    std::memcpy(result.lanes[lane], out, sizeof(out));
    addresses.lane[lane] = host_address(result.lanes[lane]);
    for (u32 d = 0; d < dwords && !inst.lds; ++d) rows[d * kLanes + lane] = out[d];
  });
  if (inst.lds) lds_dma(wave, inst, addresses.lane, exec, exec, load_dwords<1>, 4);
}

void buffer_store_format(Wave& wave, const Inst& inst, const FormatOp& op) {
  const CacheFpMode fp_mode;
  const BufferResource resource = buffer_resource(wave, inst);
  const BufferFormat format = format_of(wave, inst, resource);
  if (!format.bytes) return;
  BufferAccess access(wave, inst, resource, format.bytes, Granule::kElement, true, true);
  const u32* rows = wave.va(inst.data0);
  for_lanes(access.mask(), [&](u32 lane) {
    store_element(format, reinterpret_cast<u8*>(access.addresses()[lane]), op, rows + lane, kLanes);
  });
  access.write_back();
}

}  // namespace vgpu
