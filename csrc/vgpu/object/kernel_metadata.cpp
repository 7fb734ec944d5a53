#include "vgpu/object/kernel_metadata.h"

#include "vgpu/object/msgpack.h"

namespace vgpu {
namespace {

struct NumberField {
  std::string_view key;
  u32 Kernel::* field;
};

constexpr NumberField kNumbers[] = {
    {".kernarg_segment_size", &Kernel::kernarg_bytes},
    {".group_segment_fixed_size", &Kernel::group_segment_bytes},
    {".private_segment_fixed_size", &Kernel::private_segment_bytes},
    {".vgpr_count", &Kernel::vgpr_count},
    {".agpr_count", &Kernel::agpr_count},
    {".sgpr_count", &Kernel::sgpr_count},
    {".vgpr_spill_count", &Kernel::vgpr_spills},
    {".sgpr_spill_count", &Kernel::sgpr_spills},
    {".max_flat_workgroup_size", &Kernel::max_workgroup_size},
};

void read_string(MsgPackReader& reader, std::string& dst) {
  if (const auto text = reader.string()) dst = std::string(*text);
}

void read_number(MsgPackReader& reader, u32& dst) {
  const auto value = reader.unsigned_int();
  if (value) dst = *value > 0xffffffff ? 0xffffffff : static_cast<u32>(*value);
}

KernelArg read_arg(MsgPackReader& reader) {
  KernelArg arg;
  const u32 pairs = reader.map().value_or(0);
  for (u32 i = 0; i < pairs && !reader.failed(); ++i) {
    const std::string_view key = reader.string().value_or("");
    if (key == ".name") {
      read_string(reader, arg.name);
    } else if (key == ".value_kind") {
      read_string(reader, arg.value_kind);
    } else if (key == ".offset") {
      read_number(reader, arg.offset);
    } else if (key == ".size") {
      read_number(reader, arg.size);
    } else {
      reader.skip();
    }
  }
  return arg;
}

void read_kernel_value(MsgPackReader& reader, std::string_view key, Kernel& kernel,
                       std::string& symbol) {
  if (key == ".symbol") return read_string(reader, symbol);
  if (key == ".name") return read_string(reader, kernel.name);
  if (key == ".args") {
    const u32 count = reader.array().value_or(0);
    for (u32 i = 0; i < count && !reader.failed(); ++i) kernel.args.push_back(read_arg(reader));
    return;
  }
  for (const NumberField& number : kNumbers) {
    if (key == number.key) return read_number(reader, kernel.*number.field);
  }
  reader.skip();
}

void read_kernel(MsgPackReader& reader, std::map<std::string, Kernel>& kernels) {
  Kernel kernel;
  std::string symbol;
  const u32 pairs = reader.map().value_or(0);
  for (u32 i = 0; i < pairs && !reader.failed(); ++i) {
    const std::string_view key = reader.string().value_or("");
    read_kernel_value(reader, key, kernel, symbol);
  }
  kernel.has_metadata = true;
  if (!symbol.empty()) kernels[symbol] = std::move(kernel);
}

}  // namespace

bool read_kernel_metadata(Bytes note, std::map<std::string, Kernel>& kernels, std::string& error) {
  MsgPackReader reader(note);
  const u32 pairs = reader.map().value_or(0);
  for (u32 i = 0; i < pairs && !reader.failed(); ++i) {
    if (reader.string().value_or("") != "amdhsa.kernels") {
      reader.skip();
      continue;
    }
    const u32 count = reader.array().value_or(0);
    for (u32 k = 0; k < count && !reader.failed(); ++k) read_kernel(reader, kernels);
  }
  if (reader.failed()) error = "corrupt: metadata note (MessagePack) is malformed";
  return !reader.failed();
}

}  // namespace vgpu
