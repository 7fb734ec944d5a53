// Lists the opcode tables as text, for tests and readers.
#include <string>

#include "vgpu/isa/program.h"

namespace vgpu {
namespace {

const char* const kFormatNames[] = {"SOP1", "SOP2", "SOPC",   "SOPK",    "SOPP",  "SMEM",
                                    "VOP1", "VOP2", "VOPC",   "VOP3",    "VOP3P", "VOP3PX2",
                                    "DS",   "FLAT", "GLOBAL", "SCRATCH", "MUBUF", "MTBUF"};

const char* const kFlagNames[] = {
    "reads_dst",  "dst_is_source", "merges",     "keep_high", "scalar_dst", "carry_in",
    "carry_out",  "inline_k",      "i64",        "no_vop3",   "matrix",     "acc_dst",
    "acc_src",    "dot",           "f64_fma",    "atomic",    "exchanges",  "typed",
    "saves_exec", "tests_result",  "at_run_time"};
const char* const kCategoryNames[] = {
    "-",       "salu", "smem",      "valu",       "trans",       "packed",   "quarter",    "mfma",
    "lds",     "gws",  "vmem_load", "vmem_store", "vmem_atomic", "lds_dma",  "vmem_cache", "branch",
    "message", "wait", "nop",       "sleep",      "barrier",     "priority", "internal"};
const char* const kFlowNames[] = {"next",     "jump",    "branch", "call",
                                  "indirect", "barrier", "end",    "trap"};
const char* const kEffectNames[] = {"reads_scc",  "writes_scc", "reads_vcc",
                                    "writes_vcc", "reads_exec", "writes_exec",
                                    "reads_m0",   "writes_m0",  "writes_mode"};

const char* type_name(Type type) {
  static constexpr const char* kNames[] = {
      "-",       "b16",    "f16",    "bf16", "b32",  "f32",  "b64",  "f64",  "pk_b16", "pk_f16",
      "pk_bf16", "pk_f32", "pk_b32", "b96",  "b128", "b192", "b256", "b512", "b1024"};
  return kNames[static_cast<u32>(type)];
}

// Joins the names of a mask's bits with commas; "-" for none.
template <u32 kCount>
std::string names_of(u32 set, const char* const (&names)[kCount]) {
  std::string text;
  for (u32 i = 0; i < kCount; ++i) {
    if (set >> i & 1) text += (text.empty() ? "" : ",") + std::string(names[i]);
  }
  return text.empty() ? "-" : text;
}

std::string arch_names(const OpInfo& op) {
  std::string text;
  for (u32 arch = 0; arch < kArchCount; ++arch) {
    if (op.exists_on(static_cast<Arch>(arch)))
      text += (text.empty() ? "" : ",") + std::string(kArchs[arch].name);
  }
  return text;
}

// Returns one line per opcode row: format, number, mnemonic, architectures, flags, category, flow,
// effects, result type, source types.
std::string opcode_listing() {
  std::string text;
  const OpTables tables = all_tables();
  for (u32 t = 0; t < tables.count; ++t) {
    const OpTable& table = *tables.tables[t];
    for (u32 r = 0; r < table.count; ++r) {
      const OpInfo& op = table.rows[r];
      text += std::string(kFormatNames[static_cast<u32>(table.format)]) + " " +
              std::to_string(op.opcode) + " " + op.name + " " + arch_names(op) + " " +
              names_of(op.flags, kFlagNames) + " " + kCategoryNames[static_cast<u32>(op.category)] +
              " " + kFlowNames[static_cast<u32>(op.flow)] + " " +
              names_of(op.effects, kEffectNames) + " " + type_name(op.dst);
      for (const Type type : op.src) text += std::string(" ") + type_name(type);
      text += "\n";
    }
  }
  return text;
}

}  // namespace
}  // namespace vgpu

extern "C" __attribute__((visibility("default"))) const char* rfops_vgpu_opcodes() {
  static const std::string listing = vgpu::opcode_listing();
  return listing.c_str();
}
