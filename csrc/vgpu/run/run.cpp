// Runs a launch: workgroups over the host's cores, their waves in turn (waves.h).
//
// A workgroup's state is data, not a host stack, so a group that makes no end within its slice (it
// may spin on another group's flag), or can but sleep, is set aside and others run; on hardware
// they would be resident together. Signals for wild addresses are caught around execution and
// become Faults.
#include "vgpu/run/run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <thread>

#include "vgpu/base/interrupt.h"
#include "vgpu/base/json.h"
#include "vgpu/base/pool.h"
#include "vgpu/base/report.h"
#include "vgpu/base/settings.h"
#include "vgpu/base/stats.h"
#include "vgpu/exec/landing.h"
#include "vgpu/exec/lanes.h"
#include "vgpu/machine/schedule.h"
#include "vgpu/run/waves.h"
#include "vgpu/timing/timing.h"
#include "vgpu/watch/check_memory.h"
#include "vgpu/watch/checker.h"
#include "vgpu/watch/counters.h"
#include "vgpu/watch/host_memory.h"

namespace vgpu {
namespace {

constexpr u64 kGroupSlice = 1'000'000;  // instructions of one group before other groups run
constexpr u64 kResumedSlice = 50'000;   // of a group that was set aside before: it probably waits
constexpr u64 kLook = 1'000;            // that sleeps after fewer, it only looks for what others do
constexpr u32 kMaxSuspended = 1024;     // then suspended groups go before new ones
constexpr u32 kWaits = 16;              // set aside so often, it waits for a group not yet run
constexpr u32 kDynamicStackBytes = 16384;  // a lane, where the call depth is not known
constexpr u32 kLdsPadding = 1024;          // wide accesses at the end stay inside the buffer

// ------------------------------------------------------------ a workgroup's memory

u8* map_memory(u64 bytes) {
  void* memory = std::aligned_alloc(4096, (bytes + 4095) & ~u64{4095});
  if (!memory) throw Fault("the host has no memory for the workgroup's registers");
  return static_cast<u8*>(memory);
}

// A buffer that only grows.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }
  u8* at_least(u64 bytes) {
    if (bytes > size_) {
      release();
      data_ = map_memory(bytes);
      size_ = bytes;
      own_memory(data_, size_);
    }
    return data_;
  }

 private:
  void release() {
    disown_memory(data_);
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
  }
  u8* data_ = nullptr;
  u64 size_ = 0;
};

struct Group {
  Workgroup shared;
  Buffer waves_memory, vgprs, lds, scratch;
  Wave* waves = nullptr;
  std::deque<Landing> landings;  // one a wave
  Arrivals arrivals;
  Random random;         // whose turn it is, and when loads land
  bool begun = false;    // a thread has run a slice of it
  bool resumed = false;  // has been set aside before
  bool looks = false;    // slept soon after: it looks whether others have come
  u32 times_aside = 0;
  u64 slice = 0;  // that it runs now, by number, where slices have an order
};

// ------------------------------------------------------------ what a launch fixes

// hsa_kernel_dispatch_packet_t, which dispatch_ptr shows to the kernel.
struct alignas(64) DispatchPacket {
  u16 header, setup, workgroup_size[3], reserved0;
  u32 grid_size[3], private_segment_size, group_segment_size;
  u64 kernel_object, kernarg_address, reserved2, completion_signal;
};
static_assert(sizeof(DispatchPacket) == 64);

// Where amd_queue_t has the high halves of the LDS and private apertures.
constexpr u32 kQueueApertures = 64;

struct Dispatch {
  const Launch& launch;
  const Kernel& kernel;
  DispatchPacket packet{};
  alignas(64) u8 queue[256] = {};
  u32 lanes, wave_count, lds_bytes, scratch_bytes, mode;
  u64 group_count;
  Schedule schedule;
  bool followed;
  bool in_order;  // slices have one: SliceOrder

  Dispatch(const Launch& l, const Schedule& s) : launch(l), kernel(*l.kernel), schedule(s) {
    lanes = l.block[0] * l.block[1] * l.block[2];
    wave_count = (lanes + kLanes - 1) / kLanes;
    lds_bytes = kernel.group_segment_bytes + l.dynamic_lds;
    // Whole dwords: the lanes' dwords are interleaved.
    scratch_bytes =
        (kernel.private_segment_bytes + (kernel.dynamic_stack ? kDynamicStackBytes : 0) + 3) & ~3u;
    in_order = timing() && kernel.object->program->observes_others(kernel.entry);
    followed = kernel.object->program->lands_late(kernel.entry);
    group_count = u64{l.grid[0]} * l.grid[1] * l.grid[2];
    // MODE: rounding and denormals, dx10_clamp, ieee, fp16_ovfl as the descriptor asks.
    mode = field(kernel.rsrc1, 12, 8) | field(kernel.rsrc1, 21, 1) << 8 |
           field(kernel.rsrc1, 23, 1) << 9 | field(kernel.rsrc1, 26, 1) << 23;
    for (u32 d = 0; d < 3; ++d) {
      packet.workgroup_size[d] = static_cast<u16>(l.block[d]);
      packet.grid_size[d] = l.grid[d] * l.block[d];
    }
    packet.setup = 3;
    packet.private_segment_size = kernel.private_segment_bytes;
    packet.group_segment_size = lds_bytes;
    packet.kernarg_address = reinterpret_cast<u64>(l.kernarg);
    store<u32>(queue + kQueueApertures, static_cast<u32>(kSharedBaseAddr >> 32));
    store<u32>(queue + kQueueApertures + 4, static_cast<u32>(kPrivateBaseAddr >> 32));
  }

  // What the kernel may read beside allocations.
  std::vector<MemoryRange> memory() const {
    return {{reinterpret_cast<u64>(&packet), sizeof(packet), sizeof(packet), "dispatch packet"},
            {reinterpret_cast<u64>(queue), sizeof(queue), sizeof(queue), "queue"}};
  }
};

// ------------------------------------------------------------ a wave's first state

enum KernelProperty : u16 {
  kPrivateBuffer = 1,
  kDispatchPtr = 2,
  kQueuePtr = 4,
  kKernargPtr = 8,
  kDispatchId = 16,
  kFlatScratchInit = 32,
  kPrivateSize = 64,
};
// With preloaded kernel arguments the hardware starts behind a prologue of 256 bytes.
constexpr u32 kPreloadEntryDwords = 64;

void init_sgprs(const Dispatch& d, const Group& group, Wave& w) {
  const Kernel& kernel = d.kernel;
  for (u32& word : w.sgpr) word = kPoisonWord;
  u32 next = 0;
  const auto push = [&](u64 value) {
    w.set_sgpr64(next, value);
    next += 2;
  };
  const u16 has = kernel.properties;
  if (has & kPrivateBuffer) next += 4;
  if (has & kDispatchPtr) push(reinterpret_cast<u64>(&d.packet));
  if (has & kQueuePtr) push(reinterpret_cast<u64>(d.queue));
  if (has & kKernargPtr) push(reinterpret_cast<u64>(d.launch.kernarg));
  if (has & kDispatchId) push(0);
  if (has & kFlatScratchInit) push(0);
  if (has & kPrivateSize) w.sgpr[next++] = kernel.private_segment_bytes;
  const u32 preload = kernel.preload & 127, from = kernel.preload >> 7;
  for (u32 i = 0; i < preload && (from + i + 1) * 4 <= d.launch.kernarg_bytes; ++i) {
    w.sgpr[(next + i) & 127] = load<u32>(d.launch.kernarg + 4 * (from + i));
  }
  next = kernel.rsrc2 >> 1 & 31;  // the system registers follow the user registers
  for (u32 dim = 0; dim < 3; ++dim) {
    if (kernel.rsrc2 >> (7 + dim) & 1) w.sgpr[next++] = group.shared.id[dim];
  }
  if (kernel.rsrc2 >> 10 & 1) w.sgpr[next++] = 0;
  store<u64>(&w.sgpr[kFlatScratchLo], 0);
}

void init_vgprs(const Dispatch& d, Wave& w) {
  for (u32 i = 0; i < d.kernel.vgpr_rows * kLanes; ++i) w.vgpr[i] = kPoisonWord;
  const u32 bx = d.launch.block[0], by = d.launch.block[1];
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 flat = w.index * kLanes + lane;
    w.v(0)[lane] = flat % bx | flat / bx % by << 10 | flat / (bx * by) << 20;
  }
}

void init_wave(const Dispatch& d, Group& group, u32 index) {
  Wave& w = *new (&group.waves[index]) Wave;
  const u32 left = d.lanes - index * kLanes;
  w.index = index;
  w.group = &group.shared;
  w.program = d.kernel.object->program.get();
  w.launched = left >= kLanes ? ~u64{0} : lane_bit(left) - 1;
  w.mode = d.mode;
  w.pc = d.kernel.entry + (d.kernel.preload & 127 ? kPreloadEntryDwords : 0);
  w.vgpr = reinterpret_cast<u32*>(group.vgprs.at_least(0)) + u64{index} * kVgprRows * kLanes;
  w.acc = w.vgpr + u64{d.kernel.accum_offset} * kLanes;
  w.scratch_bytes = d.scratch_bytes;
  w.scratch = group.scratch.at_least(0) + u64{index} * d.scratch_bytes * kLanes;
  group.landings[index].begin(w, d.schedule.random ? group.random.next() : 0);
  if (d.followed) w.set_slow(kFollowed, true);
  if (d.schedule.random) w.set_slow(kLate, true);
  init_sgprs(d, group, w);
  w.set_exec(w.launched);
  init_vgprs(d, w);
}

void init_group(const Dispatch& d, Group& group, u64 flat) {
  Workgroup& shared = group.shared;
  shared.id[0] = static_cast<u32>(flat % d.launch.grid[0]);
  shared.id[1] = static_cast<u32>(flat / d.launch.grid[0] % d.launch.grid[1]);
  shared.id[2] = static_cast<u32>(flat / d.launch.grid[0] / d.launch.grid[1]);
  shared.wave_count = d.wave_count;
  shared.lds_bytes = d.lds_bytes;
  shared.watch = nullptr;
  shared.trace = nullptr;
  shared.arrivals = &group.arrivals;
  group.arrivals.clear();
  group.begun = false;
  shared.arch = d.kernel.object->arch;
  shared.lds = group.lds.at_least(u64{d.lds_bytes} + kLdsPadding);
  for (u32 i = 0; i < d.lds_bytes / 4; ++i) store<u32>(shared.lds + 4 * i, kPoisonWord);
  group.vgprs.at_least(u64{d.wave_count} * kVgprRows * kLanes * sizeof(u32));
  group.scratch.at_least(u64{d.wave_count} * d.scratch_bytes * kLanes + 64);
  group.waves = reinterpret_cast<Wave*>(group.waves_memory.at_least(d.wave_count * sizeof(Wave)));
  if (group.landings.size() < d.wave_count) group.landings.resize(d.wave_count);
  group.random = Random(d.schedule.seed ^ flat << 32);
  for (u32 i = 0; i < d.wave_count; ++i) init_wave(d, group, i);
}

// -------------------------------------------------------------------------------- signals

struct SignalTrap {
  sigjmp_buf escape;
  volatile bool active = false;
  const Wave* volatile wave = nullptr;
  void* address = nullptr;
};
thread_local SignalTrap trap;
struct sigaction previous_handlers[2];
constexpr int kSignals[] = {SIGSEGV, SIGBUS};

void on_signal(int signal, siginfo_t* info, void* context) {
  if (trap.active) {
    trap.active = false;
    trap.address = info->si_addr;
    siglongjmp(trap.escape, 1);
  }
  const struct sigaction& previous = previous_handlers[signal == SIGBUS];
  if (previous.sa_flags & SA_SIGINFO && previous.sa_sigaction) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    std::signal(signal, SIG_DFL);  // not ours: the instruction runs again and ends the process
  }
}

// Others (Python's faulthandler) may have installed theirs since the last launch.
void install_handlers() {
  for (u32 i = 0; i < 2; ++i) {
    struct sigaction now;
    sigaction(kSignals[i], nullptr, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_signal) continue;
    previous_handlers[i] = now;
    struct sigaction ours = {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(kSignals[i], &ours, nullptr);
  }
}

// -------------------------------------------------------------------------------- a slice

std::string where(const Dispatch& d, const Group& group, const Wave* wave) {
  char text[160];
  const u32* id = group.shared.id;
  std::snprintf(text, sizeof(text), " [workgroup %u,%u,%u wave %u]", id[0], id[1], id[2],
                wave ? wave->index : 0);
  return "kernel " + d.kernel.name + text + ": ";
}

// The instruction that a wave is at, and its place.
std::string position(const Wave& w) {
  Inst inst;
  decode(w.program->arch, w.program->words, w.program->count, w.current, inst);
  char text[32];
  std::snprintf(text, sizeof(text), " at text offset 0x%x", w.current * 4);
  return (inst.op ? inst.op->name : "an instruction") + std::string(text);
}

std::string signal_text(const Wave& w) {
  char text[80];
  std::snprintf(text, sizeof(text), " accessed memory that is not mapped, address %p",
                trap.address);
  return position(w) + text;
}

std::string budget_text(const Dispatch& d, const Group& group) {
  const Wave* wave = group.waves;  // the first that has not ended, if any
  const Wave* last = wave + group.shared.wave_count - 1;
  while (wave < last && wave->state == WaveState::kDone) ++wave;
  return where(d, group, wave) + position(*wave) + ": the step budget of " +
         std::to_string(settings().max_steps) + " instructions (RFOPS_VGPU_MAX_STEPS) is used up";
}

// One slice of a group. Returns whether it has ended; a fault is put into `error`.
bool guarded_slice(const Dispatch& d, Group& group, u64 slice, u64& instructions,
                   std::string& error) {
  const u32 host_mode = save_host_fp_mode();
  bool ended = true;
  if (sigsetjmp(trap.escape, 0)) {
    error = where(d, group, trap.wave) + signal_text(*trap.wave);
  } else {
    trap.active = true;
    try {
      const Turns turns = {group.waves, d.wave_count, d.schedule.random ? &group.random : nullptr};
      ended = take_turns(turns, slice, instructions, trap.wave);
    } catch (const Fault& fault) {
      error = where(d, group, trap.wave) + fault.what();
    } catch (const std::exception& other) {
      error = where(d, group, trap.wave) + "internal error: " + other.what();
    }
    trap.active = false;
  }
  restore_host_fp_mode(host_mode);
  return ended;
}

// ------------------------------------------------------------ a launch's workgroups

// Slices by number, in the order in which a single thread would run them. What a workgroup learns
// of others (who is the last to arrive, what a flag is) decides what it does, and so the launch's
// time: where a time is wanted it must not depend on how fast the host's threads are. A slice runs
// beside earlier ones until it comes to an instruction by which workgroups learn of one another;
// there it waits until they have ended. The first that has not ended never waits.
//
// The owner's mutex guards it.
class SliceOrder {
 public:
  u64 begin() { return begun_++; }
  void end() { ++ended_; }  // of the slice whose turn it is
  bool is_turn(u64 slice) const { return slice == ended_; }
  u64 running() const { return begun_ - ended_; }

 private:
  u64 begun_ = 0, ended_ = 0;
};

// Waits before the instructions that SliceOrder puts in order.
class OrderKeeper : public Observer {
 public:
  explicit OrderKeeper(std::function<void(u64)> wait) : wait_(std::move(wait)) {}
  void start(u64 slice) {
    slice_ = slice;
    has_turn_ = false;
    host_mode_ = save_host_fp_mode();
  }
  void before(Wave&, const Inst& inst) override {
    if (has_turn_ || !synchronises(inst)) return;
    const u32 mode = save_host_fp_mode();
    restore_host_fp_mode(host_mode_);
    wait_(slice_);
    restore_host_fp_mode(mode);
    has_turn_ = true;  // until the slice ends
  }
  void after(Wave&, const Inst&) override {}
  void access(Wave&, const Inst&, const Access&) override {}

 private:
  std::function<void(u64)> wait_;
  u64 slice_ = 0;
  u32 host_mode_ = 0;
  bool has_turn_ = false;
};

// Who watches what one thread runs.
class Watchers {
 public:
  Observer* observer = nullptr;  // of workgroups whose time is not taken; null: nobody
  Observer* sampled = nullptr;   // of the others
  std::unique_ptr<Observer> counted, checked, timed;
  std::unique_ptr<OrderKeeper> keeper;

  Watchers(LaunchCounters* counters, LaunchChecks* checks, LaunchTiming* timing,
           std::unique_ptr<OrderKeeper> order) {
    keeper = std::move(order);
    if (counters) counted = counters->observer();
    if (checks) checked = checks->observer();
    if (timing) timed = timing->observer();
    observer = both(keeper.get(), both(counted.get(), checked.get()));
    sampled = both(observer, timed.get());
  }
  Observer* of(const Workgroup& group) const { return group.trace ? sampled : observer; }

 private:
  std::deque<ObserverPair> pairs_;

  Observer* both(Observer* first, Observer* second) {
    if (!first || !second) return first ? first : second;
    return &pairs_.emplace_back(*first, *second);
  }
};

class Job {
 public:
  explicit Job(const Dispatch& dispatch) : dispatch_(dispatch), step_limit_(settings().max_steps) {
    if (profiling()) counters_ = std::make_unique<LaunchCounters>(dispatch.launch);
    if (check_level() != CheckLevel::kOff) {
      checks_ = std::make_unique<LaunchChecks>(dispatch.launch, dispatch.memory());
    }
    if (timing()) timing_ = std::make_unique<LaunchTiming>(dispatch.launch);
    if (reporting()) report("started", started());
  }

  u64 parallelism() const { return dispatch_.group_count; }

  // Takes groups until there is none left for this thread.
  void work() {
    Group* group = nullptr;
    u64 instructions = 0;
    const Watchers watchers(counters_.get(), checks_.get(), timing_.get(), order_keeper());
    while (!stop_ && (group = take(group))) {
      if (watchers.keeper) watchers.keeper->start(group->slice);
      Observer* const observer = watchers.of(group->shared);
      for (u32 i = 0; i < group->shared.wave_count; ++i) group->waves[i].observer = observer;
      if (observer && !group->begun) observer->begin(group->shared);
      group->begun = true;
      std::string error;
      const u64 before = instructions;
      const bool ended = guarded_slice(dispatch_, *group, slice(*group), instructions, error);
      const u64 total = steps_ += instructions - before;
      look_for_signals();
      if (error.empty() && step_limit_ && total > step_limit_) {
        error = budget_text(dispatch_, *group);
      }
      if (!error.empty()) fail(error);
      if (observer && ended) observer->end(group->shared);
      end_slice(group, ended, instructions - before);
      if (!ended) group = nullptr;
    }
    if (group) give_back(group);
    count_instructions(instructions);
    if (counters_ || checks_) {
      const std::lock_guard lock(mutex_);
      if (counters_) counters_->add(*watchers.counted);
      if (checks_) checks_->add(*watchers.checked);
    }
  }

  void finish(double seconds) {
    const std::string found = checks_ ? checks_->finish() : "";
    if (error.empty() && !found.empty()) error = "kernel " + dispatch_.kernel.name + ": " + found;
    // Who takes records of counters finds those of time there too.
    if (timing_) timing_->finish(number_, error);
    if (counters_) counters_->finish(number_, seconds, error);
  }

  std::string error;

  ~Job() {
    for (Group* group : suspended_) give_back(group);
  }

 private:
  const Dispatch& dispatch_;
  u64 step_limit_;
  std::unique_ptr<LaunchCounters> counters_;
  std::unique_ptr<LaunchChecks> checks_;
  std::unique_ptr<LaunchTiming> timing_;
  inline static std::atomic<u64> launches_{0};
  const u64 number_ = ++launches_;
  const std::thread::id launcher_ = std::this_thread::get_id();
  u64 next_ = 0;          // of the order in which groups run
  bool all_run_ = false;  // also those that only others wait for
  std::atomic<u64> steps_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::deque<Group*> suspended_;
  u32 working_ = 0;  // groups that run, but for those that look whether others have come
  u64 slices_ = 0;   // that such had
  SliceOrder order_;
  std::condition_variable worked_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();

  std::string started() const {
    Json json;
    json.open('{');
    json.field("launch", number_);
    json.field("kernel", dispatch_.kernel.name);
    json.close('}');
    return json.take();
  }

  u64 slice(const Group& group) const {
    const u64 most = group.resumed ? kResumedSlice : kGroupSlice;
    return step_limit_ ? std::min(most, step_limit_) : most;
  }

  // `free` is the caller's last group, done with: its memory serves the next one.
  Group* take(Group* free) {
    Group* resumed = nullptr;
    u64 at = 0;
    u64 number = 0;  // of the slice
    bool fresh = false;
    {
      std::unique_lock lock(mutex_);
      if (dispatch_.in_order) wait_until(lock, [this] { return is_next_known(); });
      if (stop_) {
        // Nothing more.
      } else if (!suspended_.empty() && (next_ >= last() || suspended_.size() >= kMaxSuspended)) {
        resumed = suspended_.front();
        suspended_.pop_front();
        // What it looks for others are at, until the end of a slice.
        const u64 before = slices_;
        const auto got_on = [&] { return !resumed->looks || !working_ || slices_ != before; };
        if (!dispatch_.in_order) wait_until(lock, got_on);
      } else if (next_ < last()) {
        at = next_++;
        fresh = true;
      }
      working_ += fresh || (resumed && !resumed->looks);
      if (fresh || resumed) number = order_.begin();
    }
    if (resumed) {
      if (free) give_back(free);
      resumed->slice = number;
      return resumed;
    }
    if (!fresh) {
      if (free) give_back(free);
      return nullptr;
    }
    Group* group = free ? free : borrow();
    group->resumed = group->looks = false;
    group->times_aside = 0;
    group->slice = number;
    const u64 count = dispatch_.group_count;
    const Schedule& schedule = dispatch_.schedule;
    const u64 flat = schedule.random ? shuffled(at, count, schedule.seed)
                     : timing_       ? timing_->group(at)
                                     : at;
    init_group(dispatch_, *group, flat);
    if (timing_) group->shared.trace = timing_->begin(flat, dispatch_.wave_count);
    return group;
  }

  // Where only the time is wanted, the sample comes first and is all that runs.
  u64 last() const {
    const bool sample_only =
        timing_ && !all_run_ && !timing_->needs_all() && !dispatch_.schedule.random;
    return sample_only ? timing_->sampled_groups() : dispatch_.group_count;
  }

  void fail(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (error.empty()) error = text;
    stop_ = true;
    worked_.notify_all();
  }

  // -------------------------------------------------------------------------------- waiting

  // Until that holds or the launch is to stop; `lock` is of mutex_.
  template <class Holds>
  void wait_until(std::unique_lock<std::mutex>& lock, const Holds& holds) {
    constexpr std::chrono::milliseconds kEvery{50};
    while (!worked_.wait_for(lock, kEvery, [&] { return stop_ || holds(); })) {
      lock.unlock();
      look_for_signals();
      lock.lock();
    }
  }

 public:
  // Stops for a signal. Only of launches that take long: to look costs Python's lock.
  void look_for_signals() {
    constexpr std::chrono::milliseconds kEvery{100};
    if (std::this_thread::get_id() != launcher_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < kEvery) return;
    looked_ = now;
    if (interrupted()) fail("kernel " + dispatch_.kernel.name + ": " + kInterrupted);
  }

 private:
  // -------------------------------------------------------------------------------- in order

  std::unique_ptr<OrderKeeper> order_keeper() {
    if (!dispatch_.in_order) return nullptr;
    return std::make_unique<OrderKeeper>([this](u64 slice) {
      std::unique_lock lock(mutex_);
      wait_until(lock, [&] { return order_.is_turn(slice); });
      if (stop_) throw Fault("stopped, as the launch has failed");
    });
  }

  // Whether what a single thread would take now does not depend on slices that still run.
  bool is_next_known() const {
    if (!order_.running()) return true;
    const bool takes_new = suspended_.size() + order_.running() < kMaxSuspended;
    if (next_ < last()) return takes_new;
    return next_ >= dispatch_.group_count && !suspended_.empty();
  }

  // After so many instructions of a slice. A group that has not ended goes on when others have.
  void end_slice(Group* group, bool ended, u64 instructions) {
    std::unique_lock lock(mutex_);
    if (dispatch_.in_order) wait_until(lock, [&] { return order_.is_turn(group->slice); });
    if (!group->looks) --working_, ++slices_;
    if (!ended) set_aside(group, instructions);
    order_.end();
    worked_.notify_all();
  }

  void set_aside(Group* group, u64 instructions) {
    const bool looked = group->looks;
    group->resumed = true;
    group->looks = instructions < kLook;
    const bool others_work = working_ && !dispatch_.in_order;
    const bool in_vain = looked && group->looks && !others_work;
    if (++group->times_aside >= kWaits || in_vain) all_run_ = true;
    suspended_.push_back(group);
  }

  // Groups outlive a launch: a thread keeps one at hand, so that a launch allocates nothing.
  static Group* borrow() {
    Group* group = spare_;
    spare_ = nullptr;
    return group ? group : new Group;
  }
  static void give_back(Group* group) {
    if (spare_)
      delete group;
    else
      spare_ = group;
  }
  static thread_local Group* spare_;
};
thread_local Group* Job::spare_ = nullptr;

}  // namespace

void fault(const Wave& wave, const Inst& inst, const std::string& what) {
  (void)wave;
  char text[32];
  std::snprintf(text, sizeof(text), " at text offset 0x%x", inst.index * 4);
  throw Fault((inst.op ? std::string(inst.op->name) : std::string("instruction")) + text + ": " +
              what);
}

std::string run(const Launch& launch) {
  Schedule schedule;
  if (const std::string wrong = current_schedule(schedule); !wrong.empty()) return wrong;
  const Dispatch dispatch(launch, schedule);
  if (!dispatch.group_count) return "";
  install_handlers();
  Job job(dispatch);
  const auto start = std::chrono::steady_clock::now();
  share_work(job.parallelism(), [&job] { job.work(); }, [&job] { job.look_for_signals(); });
  job.finish(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return job.error;
}

}  // namespace vgpu
