// Shared by the files of the HSA interface: agents, errors, signals, kernels by address.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <string>

#include "vgpu/base/device.h"
#include "vgpu/base/log.h"
#include "vgpu/hsa/hsa_types.h"
#include "vgpu/object/code_object.h"

namespace vgpu {

inline constexpr int kLogAlways = 1, kLogVerbose = 2, kLogPackets = 3;  // levels of log_line
inline constexpr HsaAgent kCpuAgent{0x1001}, kGpuAgent{0x1002};
enum : u64 { kPoolFine = 0x2001, kPoolKernarg, kPoolCoarse, kPoolDevice, kPoolLds };

// Logs the reason of an error and returns it.
Status fail(Status status, const std::string& text, int level = kLogVerbose);

// Counts the process's failures, of calls and of queues, which orders them.
u64 next_failure();
// Returns the number of the thread's latest failed call, 0 before the first.
u64 thread_failure();

// Runs an entry point's body; converts exceptions to error codes at the C interface.
template <class Body>
Status with_error_handling(const char* function, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(kOutOfResources, std::string(function) + ": out of host memory", kLogAlways);
  } catch (const std::exception& error) {
    return fail(kError, std::string(function) + ": " + error.what(), kLogAlways);
  }
}

// The device of RFOPS_VGPU_ARCH; hsa_init has checked that it exists.
const DeviceInfo& device();

// Nanoseconds: of the host's clock, or in timing mode the sum of the estimates so far.
u64 timestamp();

// -------------------------------------------------------------------------------- signals

inline Signal* signal_of(HsaSignal handle) { return reinterpret_cast<Signal*>(handle.handle); }

// Throws std::bad_alloc.
Signal* new_signal(i64 kind, i64 value);
void delete_signal(Signal* signal);

bool meets(i64 value, Condition condition, i64 operand);

// All threads that wait for signals or queues wait here. Device code, and host code with a pointer
// to the value, change signals without a call, so that waits also look at intervals.
class SignalBell {
 public:
  static SignalBell& instance();
  void ring() {
    {
      const std::lock_guard lock(mutex_);
    }
    rung_.notify_all();
  }
  using Clock = std::chrono::steady_clock;
  // Returns whether the condition was met before the deadline.
  template <class Met>
  bool wait(Met met, Clock::time_point deadline = Clock::time_point::max()) {
    constexpr std::chrono::milliseconds kPollInterval{2};
    std::unique_lock lock(mutex_);
    while (!met()) {
      const auto time = Clock::now();
      if (time >= deadline) return false;
      rung_.wait_until(lock, std::min(deadline, time + kPollInterval));
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
};

// Completes a packet or copy: records its times and subtracts 1. Null handles are ignored.
void complete(HsaSignal handle, u64 start, u64 end);

// Why a queue ended, and as which failure of the process; 0: it did not.
struct QueueError {
  std::string text;
  u64 failure = 0;
};

// Returns the latest error of the queues that exist.
QueueError last_queue_error();

// Shows the launch observer the packets that a store to a queue's doorbell hands over.
void observe_packets(const Signal& doorbell, u64 last);

// -------------------------------------------------------------------------------- code

// Returns the kernel whose descriptor is at an address, null if no executable has one there.
const Kernel* find_kernel(u64 descriptor);

}  // namespace vgpu
