#include "vgpu/timing/trace.h"

#include <algorithm>

#include "vgpu/isa/check_operands.h"
#include "vgpu/machine/lds_banks.h"

namespace vgpu {
namespace {

// Per instruction: 64 lanes that each cross a line boundary touch 128.
constexpr u32 kMaxLines = 200;
constexpr std::size_t kMaxFlags = 1 << 16;  // per workgroup
constexpr u64 kScratchPages = u64{1}
                              << 60;  // page numbers of private memory, which has no host address

class Tracer : public Observer {
 public:
  void before_inst(Wave& wave, const Inst& inst) override {
    WorkgroupTrace& trace = *wave.group->trace;
    ++trace.instructions;
    stream_ = &trace.waves[wave.index];
    head_ = stream_->size();
    if (head_ >= trace.max_words) [[unlikely]] {
      ++trace.untraced;
      stream_ = nullptr;
      return;
    }
    stream_->push_back(inst.index);
    is_poll_ = false;
    if (is_memory(inst.format) || inst.format == Format::kVop3p) [[unlikely]]
      note_poll(trace.polls[wave.index], inst);
  }
  void after_inst(Wave&, const Inst&) override {}
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
    if (is_poll_) [[unlikely]]
      fold_poll(wave.group->trace->polls[wave.index]);
  }

 private:
  std::vector<u32>* stream_ = nullptr;
  std::size_t head_ = 0;
  bool is_poll_ = false;

  // Marks loads that may poll a spin flag. How often such a loop iterates depends on the host, so
  // only its last iteration stays in the trace, provided that the loop has no other visible effect.
  void note_poll(Poll& poll, const Inst& inst) {
    const bool load = inst.op && inst.op->dst != Type::kNone && inst.op->src[1] == Type::kNone;
    is_poll_ = load && (inst.sc0 || inst.sc1) && inst.format != Format::kDs;
    if (!is_poll_) poll.pc = Poll::kNoPc;
  }
  void fold_poll(Poll& poll) {
    std::vector<u32>& s = *stream_;
    const auto current = s.begin() + static_cast<std::ptrdiff_t>(head_);
    const auto previous = s.begin() + static_cast<std::ptrdiff_t>(poll.stream_pos);
    const std::ptrdiff_t words = s.end() - current;
    const bool repeats = poll.pc == Head::pc(*current) && current - previous >= words &&
                         std::equal(current, s.end(), previous);
    if (repeats) {
      s.resize(poll.stream_pos + static_cast<std::size_t>(words));
      head_ = poll.stream_pos;
    }
    poll = {Head::pc(s[head_]), head_};
  }

  void add_flag(Wave& wave, const Inst& inst, const Access& access) {
    const bool is_flag_write = access.is_write && std::has_single_bit(access.mask);
    const bool is_poll = is_poll_ && !access.is_write && access.mask;
    if (!(is_flag_write || is_poll) || access.bytes > 8 ||
        GlobalWord::lines((*stream_)[head_ + 1]) != 1)
      return;
    const u64 address = access.addresses[std::countr_zero(access.mask)];
    const FlagWord::Kind kind = !is_flag_write             ? FlagWord::kPoll
                                : operands_of(inst).atomic ? FlagWord::kAtomic
                                                           : FlagWord::kStore;
    const u32 word = FlagWord::make(static_cast<u32>(address / 4 % (kLineBytes / 4)), kind);
    std::vector<FlagWrite>& flags = wave.group->trace->flags;
    if (is_flag_write && flags.size() < kMaxFlags) flags.push_back({stream_->back(), word});
    stream_->push_back(word);
  }

  // Returns the address of a lane's dword of private memory; the lanes' dwords are interleaved.
  static u64 scratch_address(const Wave& wave, u64 offset, u32 lane) {
    const WorkgroupTrace& trace = *wave.group->trace;
    const u64 owner = trace.flat * 16 + wave.index;
    return (kScratchPages + (owner << 20)) * kLineBytes * kPageLines + offset / 4 * 256 + lane * 4;
  }

  void add_lines(Wave& wave, const Access& access) {
    WorkgroupTrace& trace = *wave.group->trace;
    std::vector<u32>& stream = *stream_;
    const std::size_t head_pos = stream.size();
    const std::size_t capacity = 254 - std::min<std::size_t>(254, head_pos - head_ - 1);
    stream.push_back(0);
    u32 segments = 0;
    u64 prev_segment = ~u64{0};
    for (u64 lanes = access.mask; lanes; lanes &= lanes - 1) {
      const u32 lane = static_cast<u32>(std::countr_zero(lanes));
      u64 address = access.addresses[lane];
      if (access.space == Space::kScratch) address = scratch_address(wave, address, lane);
      const u64 end = (address + access.bytes - 1) / 64;
      for (u64 segment = address / 64; segment <= end; ++segment) {
        if (segment == prev_segment) continue;
        const bool same_line = prev_segment != ~u64{0} && segment / 2 == prev_segment / 2;
        prev_segment = segment;
        ++segments;
        if (!same_line) add_line(trace, segment / 2, access.is_write, stream, head_pos, capacity);
      }
    }
    const u32 count = static_cast<u32>(stream.size() - head_pos - 1);
    stream[head_pos] = GlobalWord::make(access.bytes, static_cast<u32>(std::popcount(access.mask)),
                                        segments, count, access.is_write);
  }
  static void add_line(WorkgroupTrace& trace, u64 line, bool write, std::vector<u32>& stream,
                       std::size_t head_pos, std::size_t capacity) {
    const u32 page = trace.page(line / kPageLines), bit = static_cast<u32>(line % kPageLines);
    (write ? trace.pages[page].written : trace.pages[page].read) |= 1u << bit;
    const u32 word = page * kPageLines + bit;
    const auto first = stream.begin() + static_cast<std::ptrdiff_t>(head_pos) + 1;
    if (stream.size() - head_pos - 1 >= std::min<std::size_t>(kMaxLines, capacity)) return;
    if (std::find(first, stream.end(), word) == stream.end()) stream.push_back(word);
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

u32 WorkgroupTrace::page(u64 number) {
  if (number == last_page_) return last_index_;
  const auto [it, inserted] = index_.try_emplace(number, static_cast<u32>(pages.size()));
  if (inserted) pages.push_back({number});
  last_page_ = number;
  return last_index_ = it->second;
}

std::unique_ptr<Observer> make_tracer() { return std::make_unique<Tracer>(); }

}  // namespace vgpu
