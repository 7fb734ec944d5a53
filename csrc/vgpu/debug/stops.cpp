#include "vgpu/debug/stops.h"

#include <algorithm>

#include "vgpu/exec/memory.h"
#include "vgpu/isa/program.h"

namespace vgpu {

// -------------------------------------------------------------------------------- breakpoints

bool Breakpoint::matches(const Wave& w) const {
  for (u32 d = 0; d < 3; ++d) {
    if (group[d] != kAny && group[d] != w.group->id[d]) return false;
  }
  return wave == kAny || wave == w.index;
}

void Breakpoints::clear() {
  is_set_.assign(is_set_.size(), false);
  all_.clear();
}

bool Breakpoints::add(const Breakpoint& breakpoint) {
  if (breakpoint.index >= is_set_.size()) return false;
  is_set_[breakpoint.index] = true;
  all_.push_back(breakpoint);
  return true;
}

std::vector<u32> Breakpoints::hit(const Wave& w) const {
  std::vector<u32> ids;
  if (!is_set_[w.current]) return ids;
  for (const Breakpoint& breakpoint : all_) {
    if (breakpoint.index == w.current && breakpoint.matches(w)) ids.push_back(breakpoint.id);
  }
  return ids;
}

// -------------------------------------------------------------------------------- steps

void LineTable::read() {
  const Program& program = *object_.program;
  const DebugLines table({object_.file.data(), object_.file.size()});
  const u64 begin = program.address - host_address(object_.image) + object_.base_address;
  const auto is_same = [](const SourceLine& a, const SourceLine& b) {
    return a.line == b.line && a.file == b.file;
  };
  lines_.resize(1);
  ids_.resize(program.count);
  for (u32 index = 0; index < program.count; ++index) {
    const u64 address = begin + u64{index} * 4;
    const auto line = table.find(address);
    if (!line || !line->line) continue;  // line 0: of no line of the source
    std::vector<SourceLine> lines = table.callers(address);
    lines.insert(lines.begin(), *line);
    const std::vector<SourceLine>& last = lines_.back();
    if (!std::equal(lines.begin(), lines.end(), last.begin(), last.end(), is_same)) {
      lines_.push_back(std::move(lines));
    }
    ids_[index] = static_cast<u32>(lines_.size() - 1);
  }
}

const std::vector<SourceLine>& LineTable::find(u32 index) {
  if (lines_.empty()) read();
  return lines_[index < ids_.size() ? ids_[index] : 0];
}

std::optional<SourceLine> Resume::line_at(u32 index, LineTable& lines) const {
  const std::vector<SourceLine>& found = lines.find(index);
  if (found.empty()) return std::nullopt;
  return goal == Goal::kNext ? found.back() : found.front();
}

bool Resume::is_reached(const Wave& w, const Inst& inst, LineTable& lines) {
  if (goal == Goal::kContinue) return false;
  if (goal == Goal::kAnywhere) return true;
  if (goal == Goal::kGroup) return std::equal(group, group + 3, w.group->id);
  if (!is_about(w)) return false;
  const Flow flow = inst.op ? inst.op->flow : Flow::kNext;
  if (goal == Goal::kInst) return --count == 0;
  if (goal == Goal::kBarrier) return flow == Flow::kBarrier || flow == Flow::kEnd;
  if (goal == Goal::kEnd) return flow == Flow::kEnd;
  const std::optional<SourceLine> now = line_at(w.current, lines);
  if (!now) return flow == Flow::kEnd;
  return !line || now->line != line->line || now->file != line->file;
}

// -------------------------------------------------------------------------------- NaN and Inf

const FloatType* float_type(const std::string& name) {
  static constexpr FloatType kTypes[] = {
      {"f16", 2, 0x7c00},
      {"bf16", 2, 0x7f80},
      {"f32", 4, 0x7f800000},
      {"f64", 8, u64{0x7ff} << 52},
  };
  for (const FloatType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

void NonFiniteWatch::set(const FloatType* type, u64 begin, u64 end) {
  type_ = type;
  begin_ = begin;
  end_ = end;
}

void NonFiniteWatch::access(const Access& access) {
  if (!type_ || !access.is_write || access.space != Space::kGlobal) return;
  for_lanes(access.mask, [&](u32 lane) {
    const u64 address = access.addresses[lane];
    if (address >= begin_ && address < end_) stores_.push_back({lane, access.bytes, address});
  });
}

std::optional<NonFinite> NonFiniteWatch::after_inst() {
  std::optional<NonFinite> first;
  for (const Store& store : stores_) {
    for (u32 offset = 0; offset + type_->bytes <= store.bytes && !first; offset += type_->bytes) {
      u64 value = 0;
      std::memcpy(&value, reinterpret_cast<const u8*>(store.address) + offset, type_->bytes);
      if ((value & type_->exponent) == type_->exponent) {
        first = {store.lane, store.address + offset, value};
      }
    }
  }
  stores_.clear();
  return first;
}

}  // namespace vgpu
