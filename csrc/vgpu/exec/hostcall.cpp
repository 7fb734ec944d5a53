// Host side of the hostcall protocol of ROCm's device library (ockl: hostcall, printf).
//
// A wave pops a packet from the free stack, fills in the service, its active lanes and eight words
// per lane, pushes the packet onto the ready stack, adds to the doorbell signal, which has a
// mailbox and therefore sends an interrupt message, and waits until the packet's ready flag is 0.
// The host returns two words per lane.
#include "vgpu/exec/hostcall.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "vgpu/machine/allocations.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- the buffer

struct Header {
  u64 next, active_lanes;
  u32 service, control;
};
static_assert(sizeof(Header) == 24);

struct Payload {
  u64 slots[64][8];
};

struct alignas(64) Signal {  // amd_signal_t
  i64 kind = 1, value = 0;
  u64* mailbox = nullptr;
  u32 event = 0, reserved = 0;
  u64 unused[4] = {};
};
static_assert(sizeof(Signal) == 64);

struct Buffer {
  Header* headers;
  Payload* payloads;
  Signal* doorbell;
  u64 free_stack, ready_stack, index_mask;
};
static_assert(sizeof(Buffer) == 48);

// More than the number of waves, each of which uses at most one. Pages are allocated on first use.
constexpr u64 kPackets = 32768;
constexpr u32 kReady = 1;
constexpr u32 kServicePrintf = 2;
constexpr u64 kLimit = u64{1} << 40;

struct Memory {
  Buffer buffer;
  Signal doorbell;
  u64 mailbox;
  Header headers[kPackets];
  alignas(4096) Payload payloads[kPackets];
};

// A packet's id is its index with a tag above it; the tag keeps id 0 free as "no packet".
Memory* make_memory() {
  void* pages = Allocations::instance().allocate(sizeof(Memory), MemoryKind::kHost, 0, kLimit);
  if (!pages) throw Fault("the host has no memory for the buffer of printf");
  Memory& memory = *static_cast<Memory*>(pages);
  memory.doorbell = Signal{};
  memory.doorbell.mailbox = &memory.mailbox;
  u64 top = 0;
  for (u64 i = 0; i < kPackets; ++i) {
    memory.headers[i].next = top;
    top = kPackets | i;
  }
  memory.buffer = {memory.headers, memory.payloads, &memory.doorbell, top, 0, kPackets - 1};
  return &memory;
}

Memory& shared_memory() {
  static Memory* const memory = make_memory();
  return *memory;
}

// -------------------------------------------------------------------------------- printf

// Reads a message: words, and strings padded to whole words including the terminator.
class Reader {
 public:
  explicit Reader(const std::vector<u64>& words) : words_(words) {}

  u64 word() { return offset_ < words_.size() ? words_[offset_++] : 0; }
  f64 number() {
    const u64 word = this->word();
    f64 value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
  std::string text() {
    const char* start = reinterpret_cast<const char*>(words_.data() + offset_);
    const size_t length = strnlen(start, (words_.size() - offset_) * sizeof(u64));
    offset_ = std::min(offset_ + length / sizeof(u64) + 1, words_.size());
    return std::string(start, length);
  }

 private:
  const std::vector<u64>& words_;
  size_t offset_ = 0;
};

template <class... Values>
void append(std::string& out, const std::string& spec, Values... values) {
  const int length = std::snprintf(nullptr, 0, spec.c_str(), values...);
  if (length <= 0) return;
  std::string text(static_cast<size_t>(length) + 1, '\0');
  std::snprintf(text.data(), text.size(), spec.c_str(), values...);
  text.pop_back();
  out += text;
}

// Truncates an integer to the width of its length modifier; without one to int.
i64 narrow_signed(u64 value, const std::string& length) {
  if (length == "hh") return static_cast<signed char>(value);
  if (length == "h") return static_cast<short>(value);
  return length.empty() ? static_cast<i32>(value) : static_cast<i64>(value);
}
u64 narrow_unsigned(u64 value, const std::string& length) {
  if (length == "hh") return static_cast<u8>(value);
  if (length == "h") return static_cast<u16>(value);
  return length.empty() ? static_cast<u32>(value) : value;
}

// Consumes the characters of `set` at `pos`; with `stars`, each * takes the next argument.
std::string take_chars(const std::string& format, size_t& pos, const char* set,
                       Reader* stars = nullptr) {
  std::string chars;
  for (; pos < format.size() && std::strchr(set, format[pos]); ++pos) {
    chars += format[pos] == '*' && stars ? std::to_string(static_cast<i32>(stars->word()))
                                         : std::string(1, format[pos]);
  }
  return chars;
}

void convert(std::string& out, const std::string& format, size_t& pos, Reader& reader) {
  std::string spec(1, '%');
  spec += take_chars(format, pos, "-+ #0");
  spec += take_chars(format, pos, "0123456789*", &reader);
  if (pos < format.size() && format[pos] == '.') {
    spec += format[pos++];
    spec += take_chars(format, pos, "0123456789*", &reader);
  }
  const std::string length = take_chars(format, pos, "hlLqjzt");
  const char conversion = pos < format.size() ? format[pos++] : '%';
  const std::string kind(1, conversion);
  switch (conversion) {
    case 'd':
    case 'i':
      return append(out, spec + "ll" + kind,
                    static_cast<long long>(narrow_signed(reader.word(), length)));
    case 'o':
    case 'u':
    case 'x':
    case 'X':
      return append(out, spec + "ll" + kind,
                    static_cast<unsigned long long>(narrow_unsigned(reader.word(), length)));
    case 'c':
      return append(out, spec + kind, static_cast<int>(reader.word()));
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
      return append(out, spec + kind, reader.number());
    case 's':
      return append(out, spec + kind, reader.text().c_str());
    case 'p':
      return append(out, spec + kind, reinterpret_cast<void*>(reader.word()));
    case 'n':
      reader.word();
      return;
    default:
      out += conversion;
  }
}

// Prints a message: the first word selects the stream, then format and arguments. Returns the
// length.
u64 print(const std::vector<u64>& words) {
  Reader reader(words);
  FILE* stream = reader.word() == 1 ? stderr : stdout;
  const std::string format = reader.text();
  std::string out;
  for (size_t pos = 0; pos < format.size();) {
    const char c = format[pos++];
    if (c == '%') {
      convert(out, format, pos, reader);
    } else {
      out += c;
    }
  }
  std::fwrite(out.data(), 1, out.size(), stream);
  std::fflush(stream);
  return out.size();
}

// A message arrives in several calls of a lane. Layout of its descriptor: begin, end, words in this
// call, id.
constexpr u64 kBegin = 1, kEnd = 2;
constexpr u32 kCountShift = 5, kIdShift = 8;
constexpr size_t kMaxWords = 1 << 17;  // limits a message that a broken kernel never ends

class Messages {
 public:
  void receive(u64* slots) {
    u64 descriptor = slots[0];
    if (descriptor & kBegin) descriptor = next_id_++ << kIdShift | (descriptor & 0xfe);
    const u64 id = descriptor >> kIdShift;
    std::vector<u64>& words = open_[id];
    const u64 count = descriptor >> kCountShift & 7;
    if (words.size() < kMaxWords) words.insert(words.end(), slots + 1, slots + 1 + count);
    slots[0] = descriptor;
    if (!(descriptor & kEnd)) return;
    slots[0] = print(words);
    open_.erase(id);
  }

 private:
  std::map<u64, std::vector<u64>> open_;
  u64 next_id_ = 1;
};

std::atomic<void (*)()> interrupt_handler{nullptr};

}  // namespace

void set_interrupt_handler(void (*handler)()) { interrupt_handler = handler; }

u64 hostcall_buffer() { return reinterpret_cast<u64>(&shared_memory().buffer); }

void serve_hostcalls(const Wave& wave, const Inst& inst) {
  if (void (*const handler)() = interrupt_handler) return handler();
  static std::mutex serving;
  static Messages messages;
  const std::lock_guard lock(serving);
  Memory& memory = shared_memory();
  u64 packet = __atomic_exchange_n(&memory.buffer.ready_stack, u64{0}, __ATOMIC_ACQUIRE);
  u32 unsupported = kServicePrintf;
  for (u64 remaining = kPackets; packet && remaining; --remaining) {
    Header& header = memory.headers[packet % kPackets];
    Payload& payload = memory.payloads[packet % kPackets];
    packet = header.next;
    if (header.service != kServicePrintf) unsupported = header.service;
    for (u32 lane = 0; lane < kLanes && header.service == kServicePrintf; ++lane) {
      if (header.active_lanes >> lane & 1) messages.receive(payload.slots[lane]);
    }
    __atomic_fetch_and(&header.control, ~kReady, __ATOMIC_RELEASE);
  }
  if (unsupported == kServicePrintf) return;
  fault(wave, inst,
        "the kernel calls host service " + std::to_string(unsupported) +
            "; the virtual GPU has printf (" + std::to_string(kServicePrintf) + ") only");
}

}  // namespace vgpu
