#include "vgpu/debug/state.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "vgpu/base/json.h"
#include "vgpu/exec/memory.h"
#include "vgpu/machine/allocations.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {
namespace {

constexpr u64 kMaxBytes = 1 << 20;  // of an answer

std::string hex_bytes(const void* data, u64 count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const u8* const bytes = static_cast<const u8*>(data);
  std::string text;
  for (u64 i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string demangled(const std::string& name) {
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr);
  const std::string result = text ? text : name;
  std::free(text);
  return result;
}

// Identifies a code object, so that its listing is asked for once (FNV-1a).
u64 fingerprint(const CodeObject& object) {
  u64 hash = 0xcbf29ce484222325;
  for (const u8 byte : object.file) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

// What a compiler's frontend knows of a kernel's arguments and code objects do not tell, by kernel.
struct DeclaredArgs {
  std::mutex mutex;
  std::map<std::string, std::string> by_kernel;
};
DeclaredArgs& declared_args() {
  static DeclaredArgs instance;
  return instance;
}

std::string declared_args_of(const std::string& kernel) {
  DeclaredArgs& declared = declared_args();
  const std::lock_guard lock(declared.mutex);
  const auto found = declared.by_kernel.find(kernel);
  return found == declared.by_kernel.end() ? "" : found->second;
}

const char* state_name(const Wave& w) {
  static constexpr const char* kNames[] = {"running", "running", "at barrier", "asleep", "ended"};
  return kNames[static_cast<u32>(w.state)];
}

template <class Body>
std::string object(Body&& body) {
  Json json;
  json.open('{');
  body(json);
  json.close('}');
  return json.take();
}

}  // namespace

i64 next_number(std::istringstream& words) {
  std::string word;
  if (!(words >> word)) throw std::invalid_argument("a number is missing");
  std::size_t end = 0;
  const bool is_negative = word[0] == '-';
  const u64 value = std::stoull(word.substr(is_negative), &end, 0);
  if (end + is_negative != word.size()) throw std::invalid_argument(word + " is no number");
  return is_negative ? -static_cast<i64>(value) : static_cast<i64>(value);
}

std::string describe_launch(const Launch& launch, u64 number) {
  const Kernel& kernel = *launch.kernel;
  const Program& program = *kernel.object->program;
  return object([&](Json& json) {
    json.field("event", "launch");
    json.field("number", number);
    json.field("kernel", kernel.name);
    json.field("demangled", demangled(kernel.name));
    json.field("arch", arch_name(program.arch));
    json.field("grid", launch.grid);
    json.field("block", launch.block);
    json.field("lds_bytes", u64{kernel.group_segment_bytes} + launch.dynamic_lds);
    json.field("vgprs", kernel.accum_offset);
    json.field("agprs", kernel.vgpr_rows - std::min(kernel.vgpr_rows, kernel.accum_offset));
    json.field("sgprs", kernel.sgpr_count);
    json.field("code", fingerprint(*kernel.object));
    json.field("address", program.address);
    json.field("entry", u64{kernel.first_instruction()} * 4);
    json.field("text_bytes", u64{program.count} * 4);
    json.field("kernarg", hex_bytes(launch.kernarg, launch.kernarg_bytes));
    json.key("args");
    json.open('[');
    for (const KernelArg& arg : kernel.args) {
      if (arg.value_kind.starts_with("hidden_")) continue;
      json.open('{');
      json.field("name", arg.name);
      json.field("kind", arg.value_kind);
      json.field("offset", arg.offset);
      json.field("size", arg.size);
      json.close('}');
    }
    json.close(']');
    json.field("declared", declared_args_of(kernel.name));
  });
}

// -------------------------------------------------------------------------------- requests

std::string Stopped::answer(const std::string& name, std::istringstream& words) const {
  if (name == "listing") return listing();
  if (name == "read") return memory(words);
  if (name == "allocation") return allocation(words);
  if (name != "waves" && name != "scalars" && name != "vectors") return "";
  if (!wave) throw std::invalid_argument("no wave has started");
  if (name == "waves") return waves();
  const Wave& w = wave_at(words);
  return name == "scalars" ? scalars(w) : vectors(w, words);
}

const Wave& Stopped::wave_at(std::istringstream& words) const {
  const i64 index = next_number(words);
  const u32 count = wave->group->wave_count;
  if (index < 0 || index >= count) {
    throw std::invalid_argument("the workgroup has waves 0 to " + std::to_string(count - 1));
  }
  return wave[index - wave->index];
}

std::string Stopped::listing() const {
  const Program& program = *launch.kernel->object->program;
  Json json;
  json.open('[');
  for (u32 index = 0; index < program.count;) {
    Inst inst;
    decode(program.arch, program.words, program.count, index, inst);
    json.open('[');
    json.number(u64{index} * 4);
    json.string(inst.op ? disassemble(inst) : "?");
    for (const SourceLine& line : lines.find(index)) {
      json.string(line.file);
      json.number(line.line);
    }
    json.close(']');
    index += inst.op ? inst.dwords : 1;
  }
  json.close(']');
  return json.take();
}

std::string Stopped::waves() const {
  Json json;
  json.open('[');
  const Wave* const first = wave - wave->index;
  for (const Wave* w = first; w < first + wave->group->wave_count; ++w) {
    json.open('{');
    json.field("wave", w->index);
    json.field("state", state_name(*w));
    json.field("offset", u64{w == wave ? w->current : w->pc} * 4);
    json.field("exec", w->exec());
    json.field("launched", w->launched_lanes);
    json.field("loads_in_flight", (w->slow & kLoadsInFlight) != 0);
    json.close('}');
  }
  json.close(']');
  return json.take();
}

std::string Stopped::scalars(const Wave& w) const {
  return object([&](Json& json) {
    json.field("words", hex_bytes(w.sgpr, sizeof(w.sgpr)));
    json.field("scc", w.scc);
    json.field("mode", w.mode);
  });
}

// Registers 0 to 255 are VGPRs, 256 to 511 AGPRs.
std::string Stopped::vectors(const Wave& w, std::istringstream& words) const {
  const i64 first = next_number(words), count = next_number(words);
  if (first < 0 || count < 1 || first + count > 512) {
    throw std::invalid_argument("registers are v0 to v255, a0 to a255");
  }
  std::string text;
  for (i64 reg = first; reg < first + count; ++reg) {
    const u32* const row = reg < 256 ? w.vgpr + reg * kLanes : w.acc + (reg - 256) * kLanes;
    text += hex_bytes(row, kLanes * sizeof(u32));
  }
  return object([&](Json& json) { json.field("words", text); });
}

std::string Stopped::memory(std::istringstream& words) const {
  const u64 address = static_cast<u64>(next_number(words));
  const u64 bytes = static_cast<u64>(next_number(words));
  if (bytes > kMaxBytes) throw std::invalid_argument("at most 1 MiB at once");
  if ((address & kApertureMask) == kSharedBaseAddr) {
    if (!wave) throw std::invalid_argument("no wave has started, so there is no LDS");
    const u64 offset = address & ~kApertureMask, size = wave->group->lds_bytes;
    if (offset + bytes > size) {
      throw std::invalid_argument("the workgroup has " + std::to_string(size) +
                                  " bytes of LDS; asked for " + std::to_string(offset) + " to " +
                                  std::to_string(offset + bytes));
    }
    return object(
        [&](Json& json) { json.field("bytes", hex_bytes(wave->group->lds + offset, bytes)); });
  }
  const void* const pointer = reinterpret_cast<const void*>(address);
  if (address + bytes < address || !is_mapped(pointer, bytes)) {
    throw std::invalid_argument("cannot access memory at " + hex(address));
  }
  return object([&](Json& json) { json.field("bytes", hex_bytes(pointer, bytes)); });
}

std::string Stopped::allocation(std::istringstream& words) const {
  const auto found = Allocations::instance().find(static_cast<u64>(next_number(words)));
  return object([&](Json& json) {
    if (!found) return;
    json.field("base", found->base);
    json.field("size", found->size);
  });
}

}  // namespace vgpu

// Names the arguments of a kernel for the debugger, as "x:*fp32 n:i32": Triton's code objects have
// no names.
extern "C" __attribute__((visibility("default"))) void rfops_vgpu_debug_args(const char* kernel,
                                                                             const char* args) {
  vgpu::DeclaredArgs& declared = vgpu::declared_args();
  const std::lock_guard lock(declared.mutex);
  declared.by_kernel[kernel] = args;
}
