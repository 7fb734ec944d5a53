#include "vgpu/timing/flags.h"

#include <algorithm>

namespace vgpu {

Flags::Flags(const std::vector<const GroupTrace*>& groups) {
  for (const GroupTrace* group : groups) {
    std::unordered_map<u64, u32> atomics;
    for (const FlagWrite& write : group->flags) {
      const u64 name = flag_name(write.line, write.word);
      Flag& flag = flags_[name];
      if (FlagWord::kind(write.word) == FlagWord::kStore) {
        flag.is_stored = true;
        continue;
      }
      const u32 turn = atomics[name]++;
      if (turn == flag.wanted.size()) flag.wanted.push_back(0);
      ++flag.wanted[turn];
    }
  }
  for (auto& [name, flag] : flags_) flag.seen.resize(flag.wanted.size());
}

bool Flags::Flag::lets_go(const WaveRun& wave) const {
  if (is_stored) return set;
  const auto found = looks.find(wave.age);
  const u32 turn = found == looks.end() ? 0 : found->second;
  return turn >= wanted.size() || seen[turn] >= wanted[turn];
}

bool Flags::look(WaveRun& wave, u64 name) {
  const auto found = flags_.find(name);
  if (found == flags_.end() || given_up_) return true;
  Flag& flag = found->second;
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
    const u32 turn = flag.atomics[&group]++;
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
