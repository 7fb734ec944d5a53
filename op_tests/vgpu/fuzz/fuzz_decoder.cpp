// Fuzzes decoder and disassembler: the input is the text of a program, and every dword of it may be
// the start of an instruction, as a jump may go anywhere.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "vgpu/isa/mfma.h"
#include "vgpu/isa/program.h"

extern "C" unsigned rfops_vgpu_disassemble(int, const std::uint32_t*, unsigned, char*, unsigned);

namespace {

using namespace vgpu;

void require(bool holds) {
  if (!holds) std::abort();
}

void decode_at(Arch arch, const std::vector<u32>& words, u32 index) {
  const u32 count = static_cast<u32>(words.size());
  Inst inst;
  decode(arch, words.data(), count, index, inst);
  require(inst.exec && inst.index == index && inst.dwords >= 1);
  const std::string text = disassemble(inst);
  require(!text.empty());
  if (!inst.op) return;
  require(index + inst.dwords <= count);
  matrix_shape(inst);
  char short_text[8];
  const int gfx = arch == Arch::kGfx942 ? 942 : 950;
  require(rfops_vgpu_disassemble(gfx, &words[index], count - index, short_text,
                                 sizeof(short_text)) == inst.dwords);
  require(!std::strncmp(short_text, text.c_str(), sizeof(short_text) - 1));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* data, size_t size) {
  std::vector<u32> words(size / 4);
  if (words.empty()) return 0;
  std::memcpy(words.data(), data, words.size() * 4);
  for (u32 index = 0; index < words.size(); ++index) {
    decode_at(Arch::kGfx942, words, index);
    decode_at(Arch::kGfx950, words, index);
  }
  return 0;
}
