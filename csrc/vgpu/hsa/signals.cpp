// Signals: memory, changes, waits, and handlers that run when a condition is met.
#include <list>
#include <thread>
#include <vector>

#include "vgpu/exec/hostcall.h"
#include "vgpu/hsa/hsa_internal.h"
#include "vgpu/machine/allocations.h"

namespace vgpu {
namespace {

constexpr u32 kSignalsPerSlab = 1024;

// Signals lie in memory of the registry, because kernels access them. The first one of a slab is
// the mailbox of the others: a kernel that changes a value writes there and sends a message.
struct SignalPool {
  std::mutex mutex;
  std::vector<Signal*> free;

  void grow() {
    void* const memory = Allocations::instance().allocate(kSignalsPerSlab * sizeof(Signal),
                                                          MemoryKind::kHost, 0, ~u64{0});
    if (!memory) throw std::bad_alloc();
    auto* const slab = static_cast<Signal*>(memory);
    for (u32 i = kSignalsPerSlab - 1; i; --i) {
      slab[i].mailbox = reinterpret_cast<u64>(slab);
      slab[i].event = 1;
      free.push_back(&slab[i]);
    }
  }
};

SignalPool& signal_pool() {
  static auto* const pool = new SignalPool;  // exit handlers destroy signals
  return *pool;
}

void ring_bell() { SignalBell::instance().ring(); }

void store_value(Signal& signal, i64 value) {
  if (signal.kind == kSignalDoorbell) {
    observe_packets(signal, static_cast<u64>(value));
    *signal.doorbell = static_cast<u64>(value);
  } else {
    signal.value = value;
  }
  ring_bell();
}

// -------------------------------------------------------------------------------- handlers

using SignalHandler = bool (*)(i64 value, void* argument);

struct Watch {
  Signal* signal;
  Condition condition;
  i64 operand;
  SignalHandler handler;
  void* argument;
};

// Runs handlers on a thread of its own, one after another; started by the first.
class Watcher {
 public:
  static Watcher& instance() {
    static auto* const watcher = new Watcher;
    return *watcher;
  }
  void add(const Watch& watch) {
    const std::lock_guard lock(mutex_);
    watches_.push_back(watch);
    if (!is_started_) std::thread([this] { work(); }).detach();
    is_started_ = true;
  }
  void forget(const Signal* signal) {
    const std::lock_guard lock(mutex_);
    watches_.remove_if([&](const Watch& watch) { return watch.signal == signal; });
  }

 private:
  // Takes the next watch whose condition is met.
  bool take(Watch& watch, i64& value) {
    const std::lock_guard lock(mutex_);
    for (auto it = watches_.begin(); it != watches_.end(); ++it) {
      value = it->signal->value;
      if (!meets(value, it->condition, it->operand)) continue;
      watch = *it;
      watches_.erase(it);
      return true;
    }
    return false;
  }
  void work() {
    while (true) {
      Watch watch;
      i64 value = 0;
      SignalBell::instance().wait([&] { return take(watch, value); });
      if (watch.handler(value, watch.argument)) add(watch);
    }
  }

  std::mutex mutex_;
  std::list<Watch> watches_;
  bool is_started_ = false;
};

}  // namespace

SignalBell& SignalBell::instance() {
  static SignalBell* const bell = [] {
    set_interrupt_handler(ring_bell);  // kernels announce changes of signals
    return new SignalBell;
  }();
  return *bell;
}

Signal* new_signal(i64 kind, i64 value) {
  SignalBell::instance();
  SignalPool& pool = signal_pool();
  const std::lock_guard lock(pool.mutex);
  if (pool.free.empty()) pool.grow();
  Signal* const signal = pool.free.back();
  pool.free.pop_back();
  signal->kind = kind;
  signal->value = value;
  signal->start = signal->end = signal->queue = 0;
  return signal;
}

void delete_signal(Signal* signal) {
  Watcher::instance().forget(signal);
  SignalPool& pool = signal_pool();
  const std::lock_guard lock(pool.mutex);
  signal->kind = 0;
  pool.free.push_back(signal);
}

bool meets(i64 value, Condition condition, i64 operand) {
  switch (condition) {
    case Condition::kEqual:
      return value == operand;
    case Condition::kNotEqual:
      return value != operand;
    case Condition::kLess:
      return value < operand;
    case Condition::kGreaterOrEqual:
      return value >= operand;
  }
  return false;
}

void complete(HsaSignal handle, u64 start, u64 end) {
  if (!handle.handle) return;
  Signal& signal = *signal_of(handle);
  signal.start = start;
  signal.end = end;
  --signal.value;
  ring_bell();
}

}  // namespace vgpu

using namespace vgpu;

HSA_API Status hsa_signal_create(i64 value, u32, const HsaAgent*, HsaSignal* handle) {
  return with_error_handling(__func__, [&] {
    if (!handle) return fail(kInvalidArgument, "hsa_signal_create: null pointer");
    handle->handle = reinterpret_cast<u64>(new_signal(kSignalUser, value));
    return kSuccess;
  });
}

HSA_API Status hsa_amd_signal_create(i64 value, u32 count, const HsaAgent* consumers, u64,
                                     HsaSignal* handle) {
  return hsa_signal_create(value, count, consumers, handle);
}

HSA_API Status hsa_signal_destroy(HsaSignal handle) {
  return with_error_handling(__func__, [&] {
    if (!handle.handle || signal_of(handle)->kind != kSignalUser) {
      return fail(kInvalidSignal, "hsa_signal_destroy: not a live signal", kLogAlways);
    }
    delete_signal(signal_of(handle));
    return kSuccess;
  });
}

HSA_API Status hsa_amd_signal_value_pointer(HsaSignal handle, std::atomic<i64>** value) {
  if (!handle.handle || !value) return kInvalidArgument;
  *value = &signal_of(handle)->value;
  return kSuccess;
}

HSA_API i64 hsa_signal_load_relaxed(HsaSignal handle) { return signal_of(handle)->value; }
HSA_API i64 hsa_signal_load_scacquire(HsaSignal handle) { return signal_of(handle)->value; }

HSA_API void hsa_signal_store_relaxed(HsaSignal handle, i64 value) {
  store_value(*signal_of(handle), value);
}
HSA_API void hsa_signal_store_screlease(HsaSignal handle, i64 value) {
  store_value(*signal_of(handle), value);
}
// Need not wake waiters; those look at intervals.
HSA_API void hsa_signal_silent_store_relaxed(HsaSignal handle, i64 value) {
  signal_of(handle)->value = value;
}
HSA_API void hsa_signal_add_relaxed(HsaSignal handle, i64 value) {
  signal_of(handle)->value += value;
  ring_bell();
}
HSA_API void hsa_signal_subtract_relaxed(HsaSignal handle, i64 value) {
  signal_of(handle)->value -= value;
  ring_bell();
}

// The timeout is in units of the timestamp, of which a second has 10^9 (hsa_system_get_info).
HSA_API i64 hsa_signal_wait_scacquire(HsaSignal handle, Condition condition, i64 operand,
                                      u64 timeout, u32) {
  constexpr u64 kForever = u64{1} << 60;
  const Signal& signal = *signal_of(handle);
  const auto deadline = timeout < kForever
                            ? SignalBell::Clock::now() + std::chrono::nanoseconds(timeout)
                            : SignalBell::Clock::time_point::max();
  i64 value = 0;
  SignalBell::instance().wait([&] { return meets(value = signal.value, condition, operand); },
                              deadline);
  return value;
}

HSA_API Status hsa_amd_signal_async_handler(HsaSignal handle, Condition condition, i64 operand,
                                            SignalHandler handler, void* argument) {
  return with_error_handling(__func__, [&] {
    if (!handle.handle || !handler) return kInvalidArgument;
    Watcher::instance().add({signal_of(handle), condition, operand, handler, argument});
    ring_bell();
    return kSuccess;
  });
}

HSA_API Status hsa_amd_profiling_get_dispatch_time(HsaAgent, HsaSignal handle, u64* time) {
  if (!handle.handle || !time) return kInvalidArgument;
  time[0] = signal_of(handle)->start;
  time[1] = signal_of(handle)->end;
  return kSuccess;
}

HSA_API Status hsa_amd_profiling_get_async_copy_time(HsaSignal handle, u64* time) {
  return hsa_amd_profiling_get_dispatch_time(kGpuAgent, handle, time);
}
