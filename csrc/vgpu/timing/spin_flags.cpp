#include "vgpu/timing/spin_flags.h"

#include <algorithm>

namespace vgpu {

SpinFlags::SpinFlags(const std::vector<const WorkgroupTrace*>& groups) {
  for (const WorkgroupTrace* group : groups) {
    for (const FlagWrite& write : group->flags) {
      Flag& flag = flags_[flag_id(write.line, write.word)];
      Flag::Writer& writer = flag.writers[group];
      if (FlagWord::kind(write.word) == FlagWord::kStore) {
        flag.is_stored = writer.stores = true;
        continue;
      }
      const u32 atomic_idx = writer.atomics++;
      if (atomic_idx == flag.required.size()) flag.required.push_back(0);
      ++flag.required[atomic_idx];
    }
  }
  for (auto& [flag_id, flag] : flags_) flag.completed.resize(flag.required.size());
}

u32 SpinFlags::Flag::num_polls(const WaveRun& wave) const {
  const auto it = polls.find(wave.age);
  return it == polls.end() ? 0 : it->second;
}

// Returns whether the awaited write is still to be done by the wave's own workgroup. A workgroup
// that polls a counter before it adds to it does not wait for the last workgroup to reset the
// counter.
bool SpinFlags::Flag::must_write(const WaveRun& wave) const {
  const auto it = writers.find(wave.group->trace);
  if (it == writers.end()) return false;
  const Writer& writer = it->second;
  const u32 atomic_idx = num_polls(wave);
  const bool adds = writer.atomics > atomic_idx && writer.completed_atomics <= atomic_idx;
  return adds || (is_stored && writer.stores);
}

bool SpinFlags::Flag::is_released(const WaveRun& wave) const {
  if (is_stored) return was_stored;
  const u32 atomic_idx = num_polls(wave);
  return atomic_idx >= required.size() || completed[atomic_idx] >= required[atomic_idx];
}

bool SpinFlags::poll(WaveRun& wave, u64 flag_id) {
  const auto it = flags_.find(flag_id);
  if (it == flags_.end() || all_released_) return true;
  Flag& flag = it->second;
  if (flag.must_write(wave)) return true;
  if (flag.is_released(wave)) return ++flag.polls[wave.age], true;
  flag.waiting.push_back(&wave);
  return false;
}

std::vector<WaveRun*> SpinFlags::write(const WorkgroupRun& group, u64 flag_id,
                                       FlagWord::Kind kind) {
  const auto it = flags_.find(flag_id);
  if (it == flags_.end()) return {};
  Flag& flag = it->second;
  if (kind == FlagWord::kStore) {
    flag.was_stored = true;
  } else {
    const u32 atomic_idx = flag.writers[group.trace].completed_atomics++;
    if (atomic_idx < flag.completed.size()) ++flag.completed[atomic_idx];
  }
  const auto first =
      std::stable_partition(flag.waiting.begin(), flag.waiting.end(),
                            [&flag](const WaveRun* wave) { return !flag.is_released(*wave); });
  std::vector<WaveRun*> released(first, flag.waiting.end());
  flag.waiting.erase(first, flag.waiting.end());
  return released;
}

std::vector<WaveRun*> SpinFlags::release_all() {
  all_released_ = true;
  std::vector<WaveRun*> released;
  for (auto& [flag_id, flag] : flags_) {
    released.insert(released.end(), flag.waiting.begin(), flag.waiting.end());
    flag.waiting.clear();
  }
  std::sort(released.begin(), released.end(),
            [](const WaveRun* a, const WaveRun* b) { return a->age < b->age; });
  return released;
}

}  // namespace vgpu
