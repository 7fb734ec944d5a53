#include "vgpu/watch/check_findings.h"

#include <cstdio>

#include "vgpu/isa/program.h"

namespace vgpu {
namespace {

constexpr std::size_t kMaxFindings = 1000;  // distinct findings per launch and thread

// Returns whether `a` is reported instead of `b`: the occurrence of the first workgroup and wave.
bool earlier(const Finding& a, const Finding& b) {
  for (u32 d = 3; d-- > 0;) {
    if (a.group[d] != b.group[d]) return a.group[d] < b.group[d];
  }
  return a.wave < b.wave;
}

}  // namespace

const char* finding_name(FindingKind kind) {
  static constexpr const char* kNames[] = {
      "out of bounds",      "use after free", "missing wait", "LDS race",
      "barrier divergence", "uninitialised",  "MFMA hazard",  "hazard",
  };
  return kNames[static_cast<u32>(kind)];
}

Finding::Finding(const Wave& of_wave, u32 of_lane) : wave(of_wave.index), lane(of_lane) {
  for (u32 d = 0; d < 3; ++d) group[d] = of_wave.group->id[d];
}

FindingListener& finding_listener() {
  thread_local FindingListener listener;
  return listener;
}

bool Findings::contains(u32 index, FindingKind kind) {
  const auto it = entries_.find({index, kind});
  if (it != entries_.end()) {
    ++it->second.count;
    return true;
  }
  return entries_.size() >= kMaxFindings;
}

void Findings::add(u32 index, FindingKind kind, Finding finding) {
  const auto [it, inserted] = entries_.emplace(Key{index, kind}, std::move(finding));
  if (inserted && finding_listener()) finding_listener()(index, kind, it->second);
}

void Findings::report(u32 index, FindingKind kind, Finding finding, const std::string& detail) {
  if (contains(index, kind)) return;
  finding.detail = detail;
  add(index, kind, std::move(finding));
}

void Findings::merge(Findings&& source) {
  for (auto& [key, source_finding] : source.entries_) {
    const auto [it, inserted] = entries_.try_emplace(key, source_finding);
    if (inserted) continue;
    const u64 count = it->second.count + source_finding.count;
    if (earlier(source_finding, it->second)) it->second = std::move(source_finding);
    it->second.count = count;
  }
  source.entries_.clear();
}

std::string hex(u64 value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string vector_register(u32 reg) {
  std::string name(1, reg < 256 ? 'v' : 'a');
  return name.append(std::to_string(reg & 255));
}

std::string scalar_register(u32 reg) {
  switch (reg) {
    case kVccLo:
    case kVccHi:
      return "vcc";
    case kExecLo:
    case kExecHi:
      return "exec";
    case kM0:
      return "m0";
    default:
      return std::string(1, 's').append(std::to_string(reg));
  }
}

std::string instruction_text(const Program& program, u32 index) {
  if (index >= program.count) return "?";
  Inst inst;
  decode(program.arch, program.words, program.count, index, inst);
  return inst.op ? disassemble(inst) : "unknown instruction";
}

}  // namespace vgpu
