// Fuzzes execution: one workgroup runs the input as a program, under a step budget. Instructions
// that reach the host's memory are left out, as what they do to it is the program's own right; LDS
// and scratch are in. Any program ends, or stops with a fault that names it.
//
// Input: a byte of shape (bit 0 gfx950, bits 2:1 waves - 1, bit 3 counters, bits 5:4 MODE[9:8]), a
// byte of MODE[7:0], then kValues dwords for registers, then the program. replay.py reads the same.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "vgpu/isa/program.h"
#include "vgpu/isa/wave.h"
#include "vgpu/run/run.h"

extern "C" int rfops_vgpu_profile(int);
extern "C" const char* rfops_vgpu_profile_take();

namespace {

using namespace vgpu;

constexpr u32 kValues = 8, kMaxWords = 512;
constexpr u32 kEndProgram = 0xbf810000;     // s_endpgm
constexpr u32 kSetMode = 0xba004801;        // s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 10), literal
constexpr u32 kMoveScalar = 0xbe8000ff;     // s_mov_b32 s<n>, literal: n in bits 22:16
constexpr u32 kMoveVector = 0x7e0002ff;     // v_mov_b32 v<n>, literal: n in bits 24:17
constexpr u32 kXorLane = 0x2a000000 | 256;  // v_xor_b32 v<n>, v0, v<n>: n in 24:17 and 16:9
constexpr u32 kFirstScalar = 16, kFirstVector = 1;

void require(bool holds) {
  if (!holds) std::abort();
}

void left_out(Wave&, const Inst&) {}

// Also VGPR indexing, which decodes again what it runs.
bool is_left_out(const Inst& inst) {
  if (!inst.op) return false;
  switch (inst.format) {
    case Format::kSmem:
    case Format::kFlat:
    case Format::kGlobal:
    case Format::kMubuf:
    case Format::kMtbuf:
      return true;
    default:
      return std::strstr(inst.op->name, "set_gpr_idx");
  }
}

std::vector<u32> program_of(u32 mode, const u8* values, const u8* code, u64 bytes) {
  std::vector<u32> words = {kSetMode, mode};
  for (u32 i = 0; i < kValues; ++i) {
    const u32 value = load<u32>(values + 4 * i);
    words.insert(words.end(), {kMoveScalar | (kFirstScalar + i) << 16, value});
    words.insert(words.end(), {kMoveVector | (kFirstVector + i) << 17, value});
    if (i % 2) words.push_back(kXorLane | (kFirstVector + i) << 17 | (kFirstVector + i) << 9);
  }
  const u64 count = bytes / 4 < kMaxWords ? bytes / 4 : kMaxWords;
  for (u64 i = 0; i < count; ++i) words.push_back(load<u32>(code + 4 * i));
  words.push_back(kEndProgram);
  return words;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("RFOPS_VGPU_LOG", "0", 1);
  setenv("RFOPS_VGPU_THREADS", "1", 1);
  setenv("RFOPS_VGPU_MAX_STEPS", "3000", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const u8* data, size_t size) {
  constexpr u64 kHead = 2 + 4 * kValues;
  if (size < kHead + 4) return 0;
  const u32 shape = data[0];
  const std::vector<u32> words =
      program_of(data[1] | (shape >> 4 & 3) << 8, data + 2, data + kHead, size - kHead);
  CodeObject object;
  object.arch = shape & 1 ? Arch::kGfx950 : Arch::kGfx942;
  const u32 count = static_cast<u32>(words.size());
  object.program = std::make_unique<Program>(object.arch, words.data(), count);
  for (u32 i = 0; i < count; ++i) {
    object.program->decode_slot(i);
    if (is_left_out(object.program->insts[i])) object.program->insts[i].exec = left_out;
  }
  Kernel kernel;
  kernel.name = "fuzzed";
  kernel.object = &object;
  kernel.group_segment_bytes = 512;
  kernel.private_segment_bytes = 64;
  kernel.vgpr_rows = 512;
  kernel.accum_offset = 256;
  Launch launch;
  launch.kernel = &kernel;
  launch.block[0] = 64 * (1 + (shape >> 1 & 3));
  rfops_vgpu_profile(shape >> 3 & 1);
  const std::string error = run(launch);
  rfops_vgpu_profile_take();
  require(error.empty() || error.find("fuzzed") != error.npos);
  require(error.find("not mapped") == error.npos);
  require(error.find("internal error") == error.npos);
  return 0;
}
