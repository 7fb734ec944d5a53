#include "vgpu/timing/trace.h"

#include <algorithm>

#include "vgpu/isa/check_operands.h"
#include "vgpu/machine/lds_banks.h"

namespace vgpu {
namespace {

constexpr u32 kMostLines = 200;  // an instruction's: 64 lanes, each across a boundary, are 128
constexpr std::size_t kMostFlags = 1 << 16;  // of a workgroup
constexpr u64 kScratchPages = u64{1} << 60;  // private memory has no address of the host's

class Tracer : public Observer {
 public:
  void before(Wave& wave, const Inst& inst) override {
    GroupTrace& trace = *wave.group->trace;
    ++trace.instructions;
    stream_ = &trace.waves[wave.index];
    head_ = stream_->size();
    if (head_ >= trace.most) [[unlikely]] {
      ++trace.left_out;
      stream_ = nullptr;
      return;
    }
    stream_->push_back(inst.index);
    polls_ = false;
    if (is_memory(inst.format) || inst.format == Format::kVop3p) [[unlikely]]
      note_poll(trace.polls[wave.index], inst);
  }
  void after(Wave&, const Inst&) override {}
  void access(Wave& wave, const Inst& inst, const Access& access) override {
    if (!stream_) [[unlikely]]
      return;
    if (access.space == Space::kLds) {
      const LdsCycles cost =
          lds_cycles(wave.group->arch, access, reinterpret_cast<u64>(wave.group->lds));
      stream_->push_back(LdsWord::make(cost.cycles, cost.conflicts, access.is_write));
    } else {
      add_lines(wave, access);
      if (access.space == Space::kGlobal) add_flag(wave, inst, access);
    }
    const u32 words = static_cast<u32>(stream_->size() - head_ - 1);
    (*stream_)[head_] = Head::pc((*stream_)[head_]) | words << Head::kPcBits;
    if (polls_) [[unlikely]]
      fold_poll(wave.group->trace->polls[wave.index]);
  }

 private:
  std::vector<u32>* stream_ = nullptr;
  std::size_t head_ = 0;
  bool polls_ = false;

  // A wave that waits for another one's flag does so for as long as the host likes: of such a loop
  // one turn is kept. In between it may do nothing that anybody sees.
  void note_poll(Poll& poll, const Inst& inst) {
    const bool load = inst.op && inst.op->dst != Type::kNone && inst.op->src[1] == Type::kNone;
    polls_ = load && (inst.sc0 || inst.sc1) && inst.format != Format::kDs;
    if (!polls_) poll.pc = Poll::kNone;
  }
  void fold_poll(Poll& poll) {
    std::vector<u32>& s = *stream_;
    const auto now = s.begin() + static_cast<std::ptrdiff_t>(head_);
    const auto before = s.begin() + static_cast<std::ptrdiff_t>(poll.at);
    const std::ptrdiff_t words = s.end() - now;
    const bool again =
        poll.pc == Head::pc(*now) && now - before >= words && std::equal(now, s.end(), before);
    if (again) {
      s.resize(poll.at + static_cast<std::size_t>(words));
      head_ = poll.at;
    }
    poll = {Head::pc(s[head_]), head_};
  }

  void add_flag(Wave& wave, const Inst& inst, const Access& access) {
    const bool writes = access.is_write && std::has_single_bit(access.mask);
    const bool polls = polls_ && !access.is_write && access.mask;
    if (!(writes || polls) || access.bytes > 8 || GlobalWord::lines((*stream_)[head_ + 1]) != 1)
      return;
    const u64 address = access.at[std::countr_zero(access.mask)];
    const FlagWord::Kind kind = !writes                    ? FlagWord::kPoll
                                : operands_of(inst).atomic ? FlagWord::kAtomic
                                                           : FlagWord::kStore;
    const u32 word = FlagWord::make(static_cast<u32>(address / 4 % (kLineBytes / 4)), kind);
    std::vector<FlagWrite>& flags = wave.group->trace->flags;
    if (writes && flags.size() < kMostFlags) flags.push_back({stream_->back(), word});
    stream_->push_back(word);
  }

  // Where a lane's dword of private memory lies: the lanes' dwords are interleaved.
  static u64 scratch_address(const Wave& wave, u64 offset, u32 lane) {
    const GroupTrace& trace = *wave.group->trace;
    const u64 owner = trace.flat * 16 + wave.index;
    return (kScratchPages + (owner << 20)) * kLineBytes * kPageLines + offset / 4 * 256 + lane * 4;
  }

  void add_lines(Wave& wave, const Access& access) {
    GroupTrace& trace = *wave.group->trace;
    std::vector<u32>& out = *stream_;
    const std::size_t at = out.size();
    const std::size_t room = 254 - std::min<std::size_t>(254, at - head_ - 1);
    out.push_back(0);
    u32 segments = 0;
    u64 last = ~u64{0};
    for (u64 lanes = access.mask; lanes; lanes &= lanes - 1) {
      const u32 lane = static_cast<u32>(std::countr_zero(lanes));
      u64 address = access.at[lane];
      if (access.space == Space::kScratch) address = scratch_address(wave, address, lane);
      const u64 end = (address + access.bytes - 1) / 64;
      for (u64 segment = address / 64; segment <= end; ++segment) {
        if (segment == last) continue;
        const bool same_line = last != ~u64{0} && segment / 2 == last / 2;
        last = segment;
        ++segments;
        if (!same_line) add_line(trace, segment / 2, access.is_write, out, at, room);
      }
    }
    const u32 count = static_cast<u32>(out.size() - at - 1);
    out[at] = GlobalWord::make(access.bytes, static_cast<u32>(std::popcount(access.mask)), segments,
                               count, access.is_write);
  }
  static void add_line(GroupTrace& trace, u64 line, bool write, std::vector<u32>& out,
                       std::size_t at, std::size_t room) {
    const u32 page = trace.page(line / kPageLines), bit = static_cast<u32>(line % kPageLines);
    (write ? trace.pages[page].written : trace.pages[page].read) |= 1u << bit;
    const u32 word = page * kPageLines + bit;
    const auto first = out.begin() + static_cast<std::ptrdiff_t>(at) + 1;
    if (out.size() - at - 1 >= std::min<std::size_t>(kMostLines, room)) return;
    if (std::find(first, out.end(), word) == out.end()) out.push_back(word);
  }
};

}  // namespace

u32 LdsWord::make(u32 cycles, u32 conflicts, bool write) {
  return kTag | u32{write} << 2 | std::min(cycles, 4095u) << 3 | std::min(conflicts, 4095u) << 15;
}
u32 GlobalWord::make(u32 bytes, u32 lanes, u32 segments, u32 lines, bool write) {
  const u32 size = std::clamp(bytes, 1u, 64u) - 1;
  return kTag | u32{write} << 2 | lanes << 3 | size << 10 | std::min(segments, 255u) << 16 |
         lines << 24;
}

u32 GroupTrace::page(u64 number) {
  if (number == last_) return last_index_;
  const auto [found, fresh] = index_.try_emplace(number, static_cast<u32>(pages.size()));
  if (fresh) pages.push_back({number});
  last_ = number;
  return last_index_ = found->second;
}

std::unique_ptr<Observer> make_tracer() { return std::make_unique<Tracer>(); }

}  // namespace vgpu
