// Spin flags: dwords that workgroups poll to wait for one another, in model time.
//
// The host executes workgroups in another order than hardware, so the value that a poll read in the
// trace carries no information. The model assumes: if any workgroup stores to the dword, a poll
// waits for the first store; if the dword is only changed by atomics, the n-th poll of a wave waits
// for the n-th atomic of every workgroup that performs that many. A workgroup that has yet to write
// the flag itself does not wait.
#pragma once

#include <unordered_map>

#include "vgpu/timing/cu.h"

namespace vgpu {

class SpinFlags {
 public:
  explicit SpinFlags(const std::vector<const WorkgroupTrace*>& groups);
  bool empty() const { return !flags_.empty(); }

  // Returns whether a polling wave may continue; otherwise the wave is queued until a write
  // releases it.
  bool poll(WaveRun& wave, u64 flag_id);
  // Records a write by a wave of `group`. Returns the waves that it releases.
  std::vector<WaveRun*> write(const WorkgroupRun& group, u64 flag_id, FlagWord::Kind kind);
  // Releases all waiting waves, because the workgroup that they wait for is not in the sample.
  // Later polls do not wait.
  std::vector<WaveRun*> release_all();

 private:
  struct Flag {
    struct Writer {
      bool stores = false;
      u32 atomics = 0, completed_atomics = 0;
    };
    bool is_stored = false,
         was_stored = false;  // some workgroup stores to it; a store has happened
    std::vector<u32> required,
        completed;  // per n: workgroups with an n-th atomic; of those, how many have done it
    std::unordered_map<const WorkgroupTrace*, Writer> writers;
    std::unordered_map<u32, u32> polls;  // per wave age: number of polls
    std::vector<WaveRun*> waiting;

    u32 num_polls(const WaveRun& wave) const;
    bool must_write(const WaveRun& wave) const;
    bool is_released(const WaveRun& wave) const;
  };
  std::unordered_map<u64, Flag> flags_;
  bool all_released_ = false;
};

}  // namespace vgpu
