#include "vgpu/object/code_object.h"

#include <sys/mman.h>

#include <algorithm>

#include "vgpu/object/container.h"
#include "vgpu/object/elf_image.h"
#include "vgpu/object/kernel_metadata.h"

namespace vgpu {
namespace {

constexpr std::string_view kDescriptorSuffix = ".kd";
constexpr u32 kMaxKernargBytes = 64 << 10;
constexpr u32 kMaxPrivateBytes = 128 << 10;  // scratch per lane: a wave has at most 8 MiB
constexpr u16 kPropertyWave32 = 1 << 10, kPropertyDynamicStack = 1 << 11;

// The kernel descriptor, in the layout of LLVM's AMDGPUUsage.
struct Descriptor {
  u32 group_segment_bytes;
  u32 private_segment_bytes;
  u32 kernarg_bytes;
  u32 reserved0;
  i64 entry_offset;  // from the descriptor
  u8 reserved1[20];
  u32 rsrc3, rsrc1, rsrc2;
  u16 properties;
  u16 kernarg_preload;
  u32 reserved2;
};
static_assert(sizeof(Descriptor) == 64, "kernel descriptor");

std::string mach_name(u32 flags) {
  const u32 mach = flags & elf::kMachMask;
  if (mach == elf::kMachGfx9_4Generic) return "gfx9-4-generic";
  for (const ArchTraits& arch : kArchs) {
    if (arch.elf_machine == mach) return arch.name;
  }
  struct Row {
    u8 mach;
    const char* name;
  };
  static constexpr Row kOtherProcessors[] = {
      // Processors that are often loaded by mistake.
      {0x2c, "gfx900"},  {0x2f, "gfx906"},  {0x30, "gfx908"},  {0x3f, "gfx90a"},
      {0x33, "gfx1010"}, {0x36, "gfx1030"}, {0x41, "gfx1100"}, {0x46, "gfx1101"},
      {0x47, "gfx1102"}, {0x44, "gfx1103"}, {0x48, "gfx1200"}, {0x4e, "gfx1201"},
  };
  for (const Row& row : kOtherProcessors) {
    if (row.mach == mach) return row.name;
  }
  return "an unknown processor (e_flags " + std::to_string(flags) + ")";
}

bool arch_fits(u32 flags, Arch arch, std::string& error) {
  const u32 mach = flags & elf::kMachMask;
  const std::string device = std::string(arch_name(arch)) + ":sramecc+:xnack-";
  if (mach != arch_traits(arch).elf_machine && mach != elf::kMachGfx9_4Generic) {
    error = "built for " + mach_name(flags) + ", but the virtual GPU is " + device +
            "; build with --offload-arch=" + arch_name(arch) + " or set RFOPS_VGPU_ARCH";
  } else if ((flags >> elf::kXnackShift & 3) == elf::kFeatureOn) {
    error = "built for " + mach_name(flags) + ":xnack+, but the virtual GPU is " + device;
  } else if ((flags >> elf::kSrameccShift & 3) == elf::kFeatureOff) {
    error = "built for " + mach_name(flags) + ":sramecc-, but the virtual GPU is " + device;
  } else {
    return true;
  }
  return false;
}

// The kernarg segment has the descriptor's size, as in ROCm's loader. Hand-written code objects of
// AMD end their arguments in padding beyond it: such an argument has an entry in kernelParams, but
// no byte in memory.
void clip_args(Kernel& kernel) {
  std::erase_if(kernel.args, [&](const KernelArg& arg) {
    return arg.value_kind.starts_with("hidden_") &&
           u64{arg.offset} + arg.size > kernel.kernarg_bytes;
  });
  for (KernelArg& arg : kernel.args) {
    arg.offset = std::min(arg.offset, kernel.kernarg_bytes);
    arg.size = std::min(arg.size, kernel.kernarg_bytes - arg.offset);
  }
}

// Fills the fields that the hardware reads; the others come from the metadata.
bool fill_from_descriptor(const Descriptor& d, u64 entry_address, const elf::Segment& text,
                          Kernel& kernel, std::string& error) {
  const u64 entry = entry_address - text.vaddr;
  kernel.group_segment_bytes = d.group_segment_bytes;
  kernel.private_segment_bytes = d.private_segment_bytes;
  if (d.kernarg_bytes) kernel.kernarg_bytes = d.kernarg_bytes;
  kernel.rsrc1 = d.rsrc1;
  kernel.rsrc2 = d.rsrc2;
  kernel.rsrc3 = d.rsrc3;
  kernel.properties = d.properties;
  kernel.preload = d.kernarg_preload;
  kernel.dynamic_stack = d.properties & kPropertyDynamicStack;
  kernel.entry = static_cast<u32>(entry / 4);
  kernel.vgpr_rows = (field(d.rsrc1, 0, 6) + 1) * 8;
  kernel.accum_offset = (field(d.rsrc3, 0, 6) + 1) * 4;
  const std::string prefix = "corrupt: kernel " + kernel.name + ": ";
  if (entry % 4 || entry >= text.filesz / 4 * 4) {
    error = prefix + "entry point outside the text segment";
  } else if (d.properties & kPropertyWave32) {
    error = prefix + "wave32, but the architecture has wave64 only";
  } else if (kernel.kernarg_bytes > kMaxKernargBytes) {
    error = prefix + std::to_string(kernel.kernarg_bytes) + " bytes of arguments";
  } else if (kernel.private_segment_bytes > kMaxPrivateBytes) {
    error = prefix + std::to_string(kernel.private_segment_bytes) + " bytes of scratch per lane";
  } else {
    clip_args(kernel);
    return true;
  }
  return false;
}

bool add_kernel(const ElfImage& image, const ElfImage::NamedSymbol& named_symbol,
                std::map<std::string, Kernel>& metadata, CodeObject& object, std::string& error) {
  const std::string symbol_name(named_symbol.name);
  const std::string name = symbol_name.substr(0, symbol_name.size() - kDescriptorSuffix.size());
  const Bytes bytes = image.contents(named_symbol.symbol.value, sizeof(Descriptor));
  if (!bytes.size || !image.text()) {
    error = "corrupt: kernel descriptor " + symbol_name + " outside the image";
    return false;
  }
  const auto descriptor = load<Descriptor>(bytes.data);
  Kernel kernel;
  if (const auto row = metadata.find(symbol_name); row != metadata.end()) kernel = row->second;
  kernel.name = name;
  kernel.object = &object;
  kernel.descriptor = reinterpret_cast<u64>(bytes.data);
  const u64 entry = named_symbol.symbol.value + static_cast<u64>(descriptor.entry_offset);
  if (!fill_from_descriptor(descriptor, entry, *image.text(), kernel, error)) return false;
  object.kernels.insert_or_assign(name, std::move(kernel));
  return true;
}

bool read_symbols(const ElfImage& image, std::map<std::string, Kernel>& metadata,
                  CodeObject& object, std::string& error) {
  for (u32 i = 1; i < image.symbol_count(); ++i) {
    const auto named_symbol = image.symbol(i);
    if (!named_symbol) {
      error = "corrupt: dynamic symbol " + std::to_string(i) + " has no name";
      return false;
    }
    const elf::Symbol& symbol = named_symbol->symbol;
    if (symbol.type() != elf::kSymbolObject || symbol.section == elf::kSectionUndefined) continue;
    if (named_symbol->name.ends_with(kDescriptorSuffix) &&
        named_symbol->name != kDescriptorSuffix) {
      if (!add_kernel(image, *named_symbol, metadata, object, error)) return false;
    } else if (const Bytes contents = image.contents(symbol.value, symbol.size); contents.data) {
      object.globals[std::string(named_symbol->name)] = {reinterpret_cast<u64>(contents.data),
                                                         symbol.size};
    }
  }
  return true;
}

bool build(const Bytes& file, CodeObject& object, std::string& error, LoadFailure& failure) {
  ElfImage image;
  std::map<std::string, Kernel> metadata;
  if (!image.open(file, error)) return false;
  if (!arch_fits(image.header().flags, object.arch, error)) {
    failure = LoadFailure::kWrongArch;
    return false;
  }
  for (const Bytes& note : image.metadata_notes()) {
    if (note.size && !read_kernel_metadata(note, metadata, error)) return false;
  }
  if (!read_symbols(image, metadata, object, error)) return false;
  if (const elf::Segment* text = image.text()) {
    const u8* words = image.contents(text->vaddr, text->filesz).data;
    if (reinterpret_cast<u64>(words) % 4) {
      error = "corrupt: text segment is not aligned";
      return false;
    }
    object.program = std::make_unique<Program>(object.arch, reinterpret_cast<const u32*>(words),
                                               static_cast<u32>(text->filesz / 4));
  }
  object.base_address = image.base_address();
  object.image_bytes = image.memory().size;
  object.mapped_bytes = image.mapped_bytes();
  object.image = image.release();
  return true;
}

}  // namespace

CodeObject::~CodeObject() {
  if (image) munmap(image, mapped_bytes);
}

std::unique_ptr<CodeObject> load_code_object(const u8* bytes, u64 size, Arch arch,
                                             std::string& error, LoadFailure* failure) {
  LoadFailure reason = LoadFailure::kNone;
  auto object = std::make_unique<CodeObject>();
  object->arch = arch;
  object->file = extract_code_object(bytes, size, arch, error, reason);
  const bool is_built = !object->file.empty() &&
                        build({object->file.data(), object->file.size()}, *object, error, reason);
  if (!is_built) {
    if (reason == LoadFailure::kNone) reason = LoadFailure::kCorrupt;
    object.reset();
    error = "code object: " + error;
  }
  if (failure) *failure = reason;
  return object;
}

}  // namespace vgpu
