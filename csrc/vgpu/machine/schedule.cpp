#include "vgpu/machine/schedule.h"

#include <charconv>
#include <mutex>
#include <numeric>

#include "vgpu/base/settings.h"

namespace vgpu {
namespace {

std::mutex mutex;
std::string& current_text() {
  static std::string text = settings().schedule;
  return text;
}

// Parses "hardware" (or an empty text) or "random:SEED". Returns an error text for anything else.
std::string parse_schedule(const std::string& text, Schedule& schedule) {
  constexpr std::string_view kRandom = "random:";
  schedule = {};
  if (text.empty() || text == "hardware") return "";
  const char* const end = text.data() + text.size();
  if (text.starts_with(kRandom)) {
    const auto [stop, code] = std::from_chars(text.data() + kRandom.size(), end, schedule.seed);
    schedule.random = code == std::errc() && stop == end;
  }
  if (schedule.random) return "";
  return std::string("RFOPS_VGPU_SCHEDULE=") + text +
         ": expected hardware or random:SEED with a whole number as the seed";
}

}  // namespace

std::string current_schedule(Schedule& schedule) {
  const std::lock_guard lock(mutex);
  return parse_schedule(current_text(), schedule);
}

std::string set_schedule(const std::string& text) {
  Schedule schedule;
  std::string error = parse_schedule(text, schedule);
  const std::lock_guard lock(mutex);
  if (error.empty()) current_text() = text;
  return error;
}

u64 shuffled(u64 index, u64 count, u64 seed) {
  if (count < 2) return index;
  Random random(seed);
  const u64 shift = random.next() % count;
  u64 factor = random.next() % count;
  while (std::gcd(factor, count) != 1) factor = (factor + 1) % count;
  __extension__ using u128 = unsigned __int128;
  return static_cast<u64>((u128{index} * factor + shift) % count);
}

}  // namespace vgpu
