// Dwords by which workgroups wait for one another, in model time.
//
// The host runs workgroups in another order than hardware does, so that what a look at a flag found
// says nothing. Taken for what it waits for is, of a dword that somebody stores to, the first
// store; of one that is only counted by atomics, at a wave's n-th look, the n-th atomic of every
// workgroup that has so many. Who has yet to write it itself looks whether it must, and goes on.
#pragma once

#include <unordered_map>

#include "vgpu/timing/cu.h"

namespace vgpu {

class Flags {
 public:
  explicit Flags(const std::vector<const GroupTrace*>& groups);
  bool any() const { return !flags_.empty(); }

  // Whether a wave that looks at the flag may go on; else it is kept until it may.
  bool look(WaveRun& wave, u64 name);
  // A write by one of the group's waves. Those that need wait no longer.
  std::vector<WaveRun*> write(const GroupRun& group, u64 name, FlagWord::Kind kind);
  // All that wait, for what the sample does not have: nobody waits from now on.
  std::vector<WaveRun*> give_up();

 private:
  struct Flag {
    struct Writer {
      bool stores = false;
      u32 atomics = 0, done = 0;
    };
    bool is_stored = false, set = false;  // somebody stores to it; has done so
    std::vector<u32> wanted, seen;        // workgroups that have an n-th atomic; did it
    std::unordered_map<const GroupTrace*, Writer> writers;
    std::unordered_map<u32, u32> looks;  // of a wave, by its age
    std::vector<WaveRun*> waiting;

    u32 turn_of(const WaveRun& wave) const;
    bool is_own(const WaveRun& wave) const;
    bool lets_go(const WaveRun& wave) const;
  };
  std::unordered_map<u64, Flag> flags_;
  bool given_up_ = false;
};

}  // namespace vgpu
