#include "vgpu/timing/flags.h"

#include <algorithm>

namespace vgpu {

Flags::Flags(const std::vector<const GroupTrace*>& groups) {
  for (const GroupTrace* group : groups) {
    for (const FlagWrite& write : group->flags) {
      Flag& flag = flags_[flag_name(write.line, write.word)];
      Flag::Writer& writer = flag.writers[group];
      if (FlagWord::kind(write.word) == FlagWord::kStore) {
        flag.is_stored = writer.stores = true;
        continue;
      }
      const u32 turn = writer.atomics++;
      if (turn == flag.wanted.size()) flag.wanted.push_back(0);
      ++flag.wanted[turn];
    }
  }
  for (auto& [name, flag] : flags_) flag.seen.resize(flag.wanted.size());
}

u32 Flags::Flag::turn_of(const WaveRun& wave) const {
  const auto found = looks.find(wave.age);
  return found == looks.end() ? 0 : found->second;
}

// Whether what the wave would wait for is still its own workgroup's to do. Who looks at a count
// before it adds to it does not wait until the last one to add has stored zero there.
bool Flags::Flag::is_own(const WaveRun& wave) const {
  const auto found = writers.find(wave.group->trace);
  if (found == writers.end()) return false;
  const Writer& own = found->second;
  const u32 turn = turn_of(wave);
  const bool adds = own.atomics > turn && own.done <= turn;
  return adds || (is_stored && own.stores);
}

bool Flags::Flag::lets_go(const WaveRun& wave) const {
  if (is_stored) return set;
  const u32 turn = turn_of(wave);
  return turn >= wanted.size() || seen[turn] >= wanted[turn];
}

bool Flags::look(WaveRun& wave, u64 name) {
  const auto found = flags_.find(name);
  if (found == flags_.end() || given_up_) return true;
  Flag& flag = found->second;
  if (flag.is_own(wave)) return true;
  if (flag.lets_go(wave)) return ++flag.looks[wave.age], true;
  flag.waiting.push_back(&wave);
  return false;
}

std::vector<WaveRun*> Flags::write(const GroupRun& group, u64 name, FlagWord::Kind kind) {
  const auto found = flags_.find(name);
  if (found == flags_.end()) return {};
  Flag& flag = found->second;
  if (kind == FlagWord::kStore) {
    flag.set = true;
  } else {
    const u32 turn = flag.writers[group.trace].done++;
    if (turn < flag.seen.size()) ++flag.seen[turn];
  }
  const auto first =
      std::stable_partition(flag.waiting.begin(), flag.waiting.end(),
                            [&flag](const WaveRun* wave) { return !flag.lets_go(*wave); });
  std::vector<WaveRun*> gone(first, flag.waiting.end());
  flag.waiting.erase(first, flag.waiting.end());
  return gone;
}

std::vector<WaveRun*> Flags::give_up() {
  given_up_ = true;
  std::vector<WaveRun*> all;
  for (auto& [name, flag] : flags_) {
    all.insert(all.end(), flag.waiting.begin(), flag.waiting.end());
    flag.waiting.clear();
  }
  std::sort(all.begin(), all.end(),
            [](const WaveRun* a, const WaveRun* b) { return a->age < b->age; });
  return all;
}

}  // namespace vgpu
