// Runs a launch: workgroups on the host's cores, their waves interleaved (waves.h).
//
// A workgroup's state is data, not a host stack. A workgroup that does not end within its slice (it
// may spin on another workgroup's flag), or whose waves only sleep, is suspended and others run; on
// hardware they would be resident together. Signals for invalid addresses are caught during
// execution and become Faults.
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
#include "vgpu/debug/debugger.h"
#include "vgpu/exec/lanes.h"
#include "vgpu/exec/load_queue.h"
#include "vgpu/machine/schedule.h"
#include "vgpu/run/waves.h"
#include "vgpu/timing/timing.h"
#include "vgpu/watch/check_memory.h"
#include "vgpu/watch/checker.h"
#include "vgpu/watch/counters.h"
#include "vgpu/watch/host_memory.h"

namespace vgpu {
namespace {

constexpr u64 kGroupSlice = 1'000'000;  // instructions of a workgroup before it is suspended
constexpr u64 kResumedSlice = 50'000;   // of a workgroup suspended before: it probably spins
// A workgroup that sleeps after fewer instructions is polling.
constexpr u64 kPollInstructions = 1'000;
constexpr u32 kMaxSuspended = 1024;  // beyond this, suspended workgroups run before new ones
// A workgroup suspended this often waits for one that has not started.
constexpr u32 kMaxSuspensions = 16;
constexpr u32 kDynamicStackBytes = 16384;  // per lane, if the call depth is unknown
constexpr u32 kLdsPadding = 1024;          // wide accesses near the end stay inside the buffer

// ------------------------------------------------------------ a workgroup's memory

u8* map_memory(u64 bytes) {
  void* memory = std::aligned_alloc(4096, (bytes + 4095) & ~u64{4095});
  if (!memory) throw Fault("the host has no memory for the workgroup's registers");
  return static_cast<u8*>(memory);
}

// A buffer that grows and never shrinks.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }
  u8* reserve(u64 bytes) {
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

struct WorkgroupState {
  Workgroup shared;
  Buffer waves_memory, vgprs, lds, scratch;
  u32 block[3] = {};  // in lanes
  Wave* waves = nullptr;
  std::deque<LoadQueue> load_queues;  // one per wave
  LdsDmaQueue lds_dma_queue;
  Random random;               // for the order of waves and the completion of loads
  bool is_begun = false;       // has run at least one slice
  bool was_suspended = false;  // was suspended before
  bool is_polling = false;     // slept after few instructions: it polls for other workgroups
  u32 num_suspensions = 0;
  u64 slice = 0;  // number of its current slice, if slices are ordered
};

// ------------------------------------------------------------ launch constants

// hsa_kernel_dispatch_packet_t, to which dispatch_ptr points.
struct alignas(64) DispatchPacket {
  u16 header, setup, workgroup_size[3], reserved0;
  u32 grid_size[3], private_segment_size, group_segment_size;
  u64 kernel_object, kernarg_address, reserved2, completion_signal;
};
static_assert(sizeof(DispatchPacket) == 64);

// Offset in amd_queue_t of the high halves of the LDS and private apertures.
constexpr u32 kQueueApertures = 64;

struct Dispatch {
  const Launch& launch;
  const Kernel& kernel;
  DispatchPacket packet{};
  alignas(64) u8 queue[256] = {};
  u64 packet_address, queue_address;  // of the above, or of the launch's own
  u32 lanes, wave_count, lds_bytes, scratch_bytes, mode;
  u64 group_count;
  Schedule schedule;
  bool track_loads;
  bool in_order;  // slices are ordered by SliceOrder

  Dispatch(const Launch& l, const Schedule& s) : launch(l), kernel(*l.kernel), schedule(s) {
    lanes = l.block[0] * l.block[1] * l.block[2];
    wave_count = (lanes + kLanes - 1) / kLanes;
    lds_bytes = kernel.group_segment_bytes + l.dynamic_lds;
    // Whole dwords, because the lanes' dwords are interleaved.
    scratch_bytes =
        (kernel.private_segment_bytes + (kernel.dynamic_stack ? kDynamicStackBytes : 0) + 3) & ~3u;
    scratch_bytes = std::max(scratch_bytes, (l.private_bytes + 3) & ~3u);
    in_order = timing() && kernel.object->program->observes_other_workgroups(kernel.entry);
    track_loads = kernel.object->program->observes_pending_loads(kernel.entry);
    group_count = u64{l.grid[0]} * l.grid[1] * l.grid[2];
    // Initial MODE from the descriptor: rounding, denormals, dx10_clamp, ieee, fp16_ovfl.
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
    packet_address = reinterpret_cast<u64>(l.packet ? l.packet : &packet);
    queue_address = reinterpret_cast<u64>(l.queue ? l.queue : queue);
  }

  // Returns memory that the kernel may read besides allocations.
  std::vector<MemoryRange> memory() const {
    return {{reinterpret_cast<u64>(&packet), sizeof(packet), sizeof(packet), "dispatch packet"},
            {reinterpret_cast<u64>(queue), sizeof(queue), sizeof(queue), "queue"}};
  }
};

// ------------------------------------------------------------ initial wave state

enum KernelProperty : u16 {
  kPrivateBuffer = 1,
  kDispatchPtr = 2,
  kQueuePtr = 4,
  kKernargPtr = 8,
  kDispatchId = 16,
  kFlatScratchInit = 32,
  kPrivateSize = 64,
};

void init_sgprs(const Dispatch& d, const WorkgroupState& group, Wave& w) {
  const Kernel& kernel = d.kernel;
  for (u32& word : w.sgpr) word = kPoisonWord;
  u32 next_sgpr = 0;
  const auto push = [&](u64 value) {
    w.set_sgpr64(next_sgpr, value);
    next_sgpr += 2;
  };
  const u16 properties = kernel.properties;
  if (properties & kPrivateBuffer) next_sgpr += 4;
  if (properties & kDispatchPtr) push(d.packet_address);
  if (properties & kQueuePtr) push(d.queue_address);
  if (properties & kKernargPtr) push(reinterpret_cast<u64>(d.launch.kernarg));
  if (properties & kDispatchId) push(0);
  if (properties & kFlatScratchInit) push(0);
  if (properties & kPrivateSize) w.sgpr[next_sgpr++] = kernel.private_segment_bytes;
  const u32 preload = kernel.preload & 127, preload_offset = kernel.preload >> 7;
  for (u32 i = 0; i < preload && (preload_offset + i + 1) * 4 <= d.launch.kernarg_bytes; ++i) {
    w.sgpr[(next_sgpr + i) & 127] = load<u32>(d.launch.kernarg + 4 * (preload_offset + i));
  }
  next_sgpr = kernel.rsrc2 >> 1 & 31;  // system SGPRs follow the user SGPRs
  for (u32 dim = 0; dim < 3; ++dim) {
    if (kernel.rsrc2 >> (7 + dim) & 1) w.sgpr[next_sgpr++] = group.shared.id[dim];
  }
  if (kernel.rsrc2 >> 10 & 1) w.sgpr[next_sgpr++] = 0;
  store<u64>(&w.sgpr[kFlatScratchLo], 0);
}

void init_vgprs(const Dispatch& d, const WorkgroupState& group, Wave& w) {
  for (u32 i = 0; i < d.kernel.vgpr_rows * kLanes; ++i) w.vgpr[i] = kPoisonWord;
  const u32 block_x = group.block[0], block_y = group.block[1];
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 flat = w.index * kLanes + lane;
    w.v(0)[lane] =
        flat % block_x | flat / block_x % block_y << 10 | flat / (block_x * block_y) << 20;
  }
}

void init_wave(const Dispatch& d, WorkgroupState& group, u32 index) {
  Wave& w = *new (&group.waves[index]) Wave;
  const u32 lanes = group.block[0] * group.block[1] * group.block[2];
  const u32 remaining = lanes - index * kLanes;
  w.index = index;
  w.group = &group.shared;
  w.program = d.kernel.object->program.get();
  w.launched_lanes = remaining >= kLanes ? ~u64{0} : lane_bit(remaining) - 1;
  w.mode = d.mode;
  w.pc = d.kernel.first_instruction();
  w.vgpr = reinterpret_cast<u32*>(group.vgprs.reserve(0)) + u64{index} * kVgprRows * kLanes;
  w.acc = w.vgpr + u64{d.kernel.accum_offset} * kLanes;
  w.scratch_bytes = d.scratch_bytes;
  w.scratch = group.scratch.reserve(0) + u64{index} * d.scratch_bytes * kLanes;
  group.load_queues[index].begin(w, d.schedule.random ? group.random.next() : 0);
  if (d.track_loads) w.set_slow(kTrackLoads, true);
  if (d.schedule.random) w.set_slow(kRandomCompletion, true);
  init_sgprs(d, group, w);
  w.set_exec(w.launched_lanes);
  init_vgprs(d, group, w);
}

void init_group(const Dispatch& d, WorkgroupState& group, u64 flat) {
  Workgroup& shared = group.shared;
  shared.id[0] = static_cast<u32>(flat % d.launch.grid[0]);
  shared.id[1] = static_cast<u32>(flat / d.launch.grid[0] % d.launch.grid[1]);
  shared.id[2] = static_cast<u32>(flat / d.launch.grid[0] / d.launch.grid[1]);
  u32 lanes = 1;
  for (u32 dim = 0; dim < 3; ++dim) {
    // A grid that is no multiple of the block ends in smaller workgroups.
    const u32 begin = shared.id[dim] * d.launch.block[dim], end = d.launch.lanes[dim];
    group.block[dim] = end ? std::min(d.launch.block[dim], end - begin) : d.launch.block[dim];
    lanes *= group.block[dim];
  }
  shared.wave_count = (lanes + kLanes - 1) / kLanes;
  shared.lds_bytes = d.lds_bytes;
  shared.check_state = nullptr;
  shared.trace = nullptr;
  shared.lds_dma_queue = &group.lds_dma_queue;
  group.lds_dma_queue.clear();
  group.is_begun = false;
  shared.arch = d.kernel.object->arch;
  shared.lds = group.lds.reserve(u64{d.lds_bytes} + kLdsPadding);
  for (u32 i = 0; i < d.lds_bytes / 4; ++i) store<u32>(shared.lds + 4 * i, kPoisonWord);
  group.vgprs.reserve(u64{d.wave_count} * kVgprRows * kLanes * sizeof(u32));
  group.scratch.reserve(u64{d.wave_count} * d.scratch_bytes * kLanes + 64);
  group.waves = reinterpret_cast<Wave*>(group.waves_memory.reserve(d.wave_count * sizeof(Wave)));
  if (group.load_queues.size() < d.wave_count) group.load_queues.resize(d.wave_count);
  group.random = Random(d.schedule.seed ^ flat << 32);
  for (u32 i = 0; i < shared.wave_count; ++i) init_wave(d, group, i);
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
    // Not caused by a kernel: returning repeats the access, which ends the process.
    std::signal(signal, SIG_DFL);
  }
}

// Other libraries (Python's faulthandler) may have replaced the handlers since the last launch.
void install_handlers() {
  for (u32 i = 0; i < 2; ++i) {
    struct sigaction installed;
    sigaction(kSignals[i], nullptr, &installed);
    if (installed.sa_flags & SA_SIGINFO && installed.sa_sigaction == on_signal) continue;
    previous_handlers[i] = installed;
    struct sigaction handler = {};
    handler.sa_sigaction = on_signal;
    handler.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&handler.sa_mask);
    sigaction(kSignals[i], &handler, nullptr);
  }
}

// -------------------------------------------------------------------------------- a slice

std::string error_prefix(const Dispatch& d, const WorkgroupState& group, const Wave* wave) {
  char text[160];
  const u32* id = group.shared.id;
  std::snprintf(text, sizeof(text), " [workgroup %u,%u,%u wave %u]", id[0], id[1], id[2],
                wave ? wave->index : 0);
  return "kernel " + d.kernel.name + text + ": ";
}

// Formats the mnemonic and offset of a wave's current instruction.
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

std::string budget_text(const Dispatch& d, const WorkgroupState& group) {
  const Wave* wave = group.waves;  // finds the first wave that has not ended
  const Wave* last_wave = wave + group.shared.wave_count - 1;
  while (wave < last_wave && wave->state == WaveState::kDone) ++wave;
  return error_prefix(d, group, wave) + position(*wave) + ": the step budget of " +
         std::to_string(settings().max_steps) + " instructions (RFOPS_VGPU_MAX_STEPS) is used up";
}

// Runs one slice of a workgroup. Returns whether the workgroup has ended; sets `error` on a fault.
bool guarded_slice(const Dispatch& d, WorkgroupState& group, u64 slice, u64& instructions,
                   std::string& error) {
  const u32 host_mode = save_host_fp_mode();
  bool ended = true;
  if (sigsetjmp(trap.escape, 0)) {
    error = error_prefix(d, group, trap.wave) + signal_text(*trap.wave);
  } else {
    trap.active = true;
    try {
      const WaveSet wave_set = {group.waves, group.shared.wave_count,
                                d.schedule.random ? &group.random : nullptr};
      ended = run_waves(wave_set, slice, instructions, trap.wave);
    } catch (const Fault& fault) {
      error = error_prefix(d, group, trap.wave) + fault.what();
    } catch (const std::exception& exception) {
      error = error_prefix(d, group, trap.wave) + "internal error: " + exception.what();
    }
    trap.active = false;
  }
  restore_host_fp_mode(host_mode);
  return ended;
}

// ------------------------------------------------------------ a launch's workgroups

// Orders the slices of workgroups as a single host thread would run them. What a workgroup learns
// of others (who arrives last, the value of a flag) decides its work and so the launch's time, and
// in timing mode this must not depend on the speed of host threads. A slice runs concurrently with
// earlier slices until an instruction by which workgroups communicate; there it waits until all
// earlier slices have ended. The earliest slice never waits, so there is no deadlock.
//
// Guarded by the owner's mutex.
class SliceOrder {
 public:
  u64 begin() { return begun_++; }
  void end() { ++ended_; }  // ends the slice whose turn it is
  bool is_turn(u64 slice) const { return slice == ended_; }
  u64 running() const { return begun_ - ended_; }

 private:
  u64 begun_ = 0, ended_ = 0;
};

// Waits before instructions by which workgroups communicate, until it is the slice's turn.
class OrderKeeper : public Observer {
 public:
  explicit OrderKeeper(std::function<void(u64)> wait) : wait_(std::move(wait)) {}
  void start(u64 slice) {
    slice_ = slice;
    has_turn_ = false;
    host_mode_ = save_host_fp_mode();
  }
  void before_inst(Wave&, const Inst& inst) override {
    if (has_turn_ || !synchronises(inst)) return;
    const u32 mode = save_host_fp_mode();
    restore_host_fp_mode(host_mode_);
    wait_(slice_);
    restore_host_fp_mode(mode);
    has_turn_ = true;  // until the slice ends
  }
  void after_inst(Wave&, const Inst&) override {}
  void access(Wave&, const Inst&, const Access&) override {}

 private:
  std::function<void(u64)> wait_;
  u64 slice_ = 0;
  u32 host_mode_ = 0;
  bool has_turn_ = false;
};

// The observers of one host thread.
class Observers {
 public:
  Observer* observer = nullptr;  // for workgroups that are not timed; null: none
  Observer* sampled = nullptr;   // for timed workgroups
  std::unique_ptr<Observer> counted, checked, timed;
  std::unique_ptr<OrderKeeper> order_keeper;

  Observers(LaunchCounters* counters, LaunchChecks* checks, LaunchTiming* timing,
            LaunchDebug* debug, std::unique_ptr<OrderKeeper> order) {
    order_keeper = std::move(order);
    if (counters) counted = counters->observer();
    if (checks) checked = checks->observer();
    if (timing) timed = timing->observer();
    // The debugger before the checks: it stops at their findings, and knows the wave by then.
    Observer* const debugger = debug ? debug->observer() : nullptr;
    observer = combine(debugger, combine(counted.get(), checked.get()));
    observer = combine(order_keeper.get(), observer);
    sampled = combine(observer, timed.get());
  }
  Observer* observer_for(const Workgroup& group) const { return group.trace ? sampled : observer; }

 private:
  std::deque<ObserverPair> pairs_;

  Observer* combine(Observer* first, Observer* second) {
    if (!first || !second) return first ? first : second;
    return &pairs_.emplace_back(*first, *second);
  }
};

class Job {
 public:
  explicit Job(const Dispatch& dispatch) : dispatch_(dispatch), step_limit_(settings().max_steps) {
    // First, because the prompt may turn the checks on.
    if (debugging()) debug_ = std::make_unique<LaunchDebug>(dispatch.launch, number_);
    if (profiling()) counters_ = std::make_unique<LaunchCounters>(dispatch.launch);
    if (check_level() != CheckLevel::kOff) {
      checks_ = std::make_unique<LaunchChecks>(dispatch.launch, dispatch.memory());
    }
    if (timing()) timing_ = std::make_unique<LaunchTiming>(dispatch.launch);
    if (reporting()) report("started", started());
  }

  u64 parallelism() const { return debug_ ? 1 : dispatch_.group_count; }

  // Runs workgroups until none is left for this thread.
  void work() {
    WorkgroupState* group = nullptr;
    u64 instructions = 0;
    const Observers observers(counters_.get(), checks_.get(), timing_.get(), debug_.get(),
                              order_keeper());
    while (!stop_ && (group = next_group(group))) {
      if (observers.order_keeper) observers.order_keeper->start(group->slice);
      Observer* const observer = observers.observer_for(group->shared);
      for (u32 i = 0; i < group->shared.wave_count; ++i) group->waves[i].observer = observer;
      if (observer && !group->is_begun) observer->begin(group->shared);
      group->is_begun = true;
      std::string error;
      const u64 instructions_before = instructions;
      const bool ended = guarded_slice(dispatch_, *group, slice(*group), instructions, error);
      const u64 total = steps_ += instructions - instructions_before;
      poll_signals();
      if (error.empty() && step_limit_ && total > step_limit_) {
        error = budget_text(dispatch_, *group);
      }
      if (!error.empty() && debug_) debug_->fault(trap.wave, error);
      if (!error.empty()) fail(error);
      if (observer && ended) observer->end(group->shared);
      end_slice(group, ended, instructions - instructions_before);
      if (!ended) group = nullptr;
    }
    if (group) release_group(group);
    count_instructions(instructions);
    if (counters_ || checks_) {
      const std::lock_guard lock(mutex_);
      if (counters_) counters_->add(*observers.counted);
      if (checks_) checks_->add(*observers.checked);
    }
  }

  void finish(double seconds) {
    const std::string findings = checks_ ? checks_->finish() : "";
    if (error.empty() && !findings.empty())
      error = "kernel " + dispatch_.kernel.name + ": " + findings;
    // Order matters: a reader that takes the counters' records must also find those of timing.
    if (timing_) timing_->finish(number_, error);
    if (counters_) counters_->finish(number_, seconds, error);
    if (debug_) debug_->finish(error);
  }

  std::string error;

  ~Job() {
    for (WorkgroupState* group : suspended_) release_group(group);
  }

 private:
  const Dispatch& dispatch_;
  u64 step_limit_;
  std::unique_ptr<LaunchCounters> counters_;
  std::unique_ptr<LaunchChecks> checks_;
  std::unique_ptr<LaunchTiming> timing_;
  std::unique_ptr<LaunchDebug> debug_;
  inline static std::atomic<u64> launches_{0};
  const u64 number_ = ++launches_;
  const std::thread::id launcher_ = std::this_thread::get_id();
  u64 next_ = 0;  // index in the order in which workgroups run
  // Also run workgroups that only provide results, because others wait for them.
  bool run_all_ = false;
  std::atomic<u64> steps_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::deque<WorkgroupState*> suspended_;
  u32 num_working_ = 0;  // running workgroups that are not polling
  u64 slices_ = 0;       // number of slices that such workgroups have finished
  SliceOrder order_;
  std::condition_variable progress_;
  std::chrono::steady_clock::time_point last_signal_check_ = std::chrono::steady_clock::now();

  std::string started() const {
    Json json;
    json.open('{');
    json.field("launch", number_);
    json.field("kernel", dispatch_.kernel.name);
    json.close('}');
    return json.take();
  }

  u64 slice(const WorkgroupState& group) const {
    const u64 limit = group.was_suspended ? kResumedSlice : kGroupSlice;
    return step_limit_ ? std::min(limit, step_limit_) : limit;
  }

  // Returns the next workgroup to run. `finished` is the caller's last one, whose memory is reused.
  WorkgroupState* next_group(WorkgroupState* finished) {
    WorkgroupState* resumed = nullptr;
    u64 order_index = 0;
    u64 number = 0;  // of the slice
    bool is_new = false;
    {
      std::unique_lock lock(mutex_);
      if (dispatch_.in_order) wait_until(lock, [this] { return is_next_known(); });
      if (stop_) {
        // The launch is stopping.
      } else if (!suspended_.empty() &&
                 (next_ >= num_to_run() || suspended_.size() >= kMaxSuspended)) {
        resumed = suspended_.front();
        suspended_.pop_front();
        // Other workgroups make progress at the end of a slice.
        const u64 slices_before = slices_;
        const auto has_progressed = [&] {
          return !resumed->is_polling || !num_working_ || slices_ != slices_before;
        };
        if (!dispatch_.in_order) wait_until(lock, has_progressed);
      } else if (next_ < num_to_run()) {
        order_index = next_++;
        is_new = true;
      }
      num_working_ += is_new || (resumed && !resumed->is_polling);
      if (is_new || resumed) number = order_.begin();
    }
    if (resumed) {
      if (finished) release_group(finished);
      resumed->slice = number;
      return resumed;
    }
    if (!is_new) {
      if (finished) release_group(finished);
      return nullptr;
    }
    WorkgroupState* group = finished ? finished : acquire_group();
    group->was_suspended = group->is_polling = false;
    group->num_suspensions = 0;
    group->slice = number;
    const u64 count = dispatch_.group_count;
    const Schedule& schedule = dispatch_.schedule;
    const u64 flat = schedule.random ? shuffled(order_index, count, schedule.seed)
                     : timing_       ? timing_->group(order_index)
                                     : order_index;
    init_group(dispatch_, *group, flat);
    if (timing_) group->shared.trace = timing_->begin(flat, group->shared.wave_count);
    return group;
  }

  // If only the time is needed, the sample comes first and is all that runs.
  u64 num_to_run() const {
    const bool sample_only =
        timing_ && !run_all_ && !timing_->needs_all() && !dispatch_.schedule.random;
    return sample_only ? timing_->sampled_groups() : dispatch_.group_count;
  }

  void fail(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (error.empty()) error = text;
    stop_ = true;
    progress_.notify_all();
  }

  // -------------------------------------------------------------------------------- waiting

  // Waits until the condition holds or the launch stops; `lock` holds mutex_.
  template <class Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    constexpr std::chrono::milliseconds kPollInterval{50};
    while (!progress_.wait_for(lock, kPollInterval, [&] { return stop_ || condition(); })) {
      lock.unlock();
      poll_signals();
      lock.lock();
    }
  }

 public:
  // Fails the launch on a signal. Called at intervals, because a check takes Python's lock.
  void poll_signals() {
    constexpr std::chrono::milliseconds kPollInterval{100};
    if (std::this_thread::get_id() != launcher_) return;
    const auto time = std::chrono::steady_clock::now();
    if (time - last_signal_check_ < kPollInterval) return;
    last_signal_check_ = time;
    if (interrupted()) fail("kernel " + dispatch_.kernel.name + ": " + kInterrupted);
  }

 private:
  // -------------------------------------------------------------------------------- ordered slices

  std::unique_ptr<OrderKeeper> order_keeper() {
    if (!dispatch_.in_order) return nullptr;
    return std::make_unique<OrderKeeper>([this](u64 slice) {
      std::unique_lock lock(mutex_);
      wait_until(lock, [&] { return order_.is_turn(slice); });
      if (stop_) throw Fault("stopped, because the launch has failed");
    });
  }

  // Returns whether the next choice of a single thread is independent of running slices.
  bool is_next_known() const {
    if (!order_.running()) return true;
    const bool may_start = suspended_.size() + order_.running() < kMaxSuspended;
    if (next_ < num_to_run()) return may_start;
    return next_ >= dispatch_.group_count && !suspended_.empty();
  }

  // Ends a slice after `instructions`. A workgroup that has not ended resumes after others have
  // run.
  void end_slice(WorkgroupState* group, bool ended, u64 instructions) {
    std::unique_lock lock(mutex_);
    if (dispatch_.in_order) wait_until(lock, [&] { return order_.is_turn(group->slice); });
    if (!group->is_polling) --num_working_, ++slices_;
    if (!ended) suspend(group, instructions);
    order_.end();
    progress_.notify_all();
  }

  void suspend(WorkgroupState* group, u64 instructions) {
    const bool was_polling = group->is_polling;
    group->was_suspended = true;
    group->is_polling = instructions < kPollInstructions;
    const bool others_progress = num_working_ && !dispatch_.in_order;
    const bool is_stuck = was_polling && group->is_polling && !others_progress;
    if (++group->num_suspensions >= kMaxSuspensions || is_stuck) run_all_ = true;
    suspended_.push_back(group);
  }

  // Workgroup states outlive a launch: each thread caches one, so that a launch allocates nothing.
  static WorkgroupState* acquire_group() {
    WorkgroupState* group = cached_group_;
    cached_group_ = nullptr;
    return group ? group : new WorkgroupState;
  }
  static void release_group(WorkgroupState* group) {
    if (cached_group_)
      delete group;
    else
      cached_group_ = group;
  }
  static thread_local WorkgroupState* cached_group_;
};
thread_local WorkgroupState* Job::cached_group_ = nullptr;

std::atomic<LaunchObserver> launch_observer{nullptr};
std::atomic<WriteObserver> write_observer{nullptr};

}  // namespace

void fault(const Wave& wave, const Inst& inst, const std::string& message) {
  (void)wave;
  char text[32];
  std::snprintf(text, sizeof(text), " at text offset 0x%x", inst.index * 4);
  throw Fault((inst.op ? std::string(inst.op->name) : std::string("instruction")) + text + ": " +
              message);
}

void set_launch_observer(LaunchObserver observer) { launch_observer = observer; }

bool has_launch_observer() { return launch_observer != nullptr; }

void observe_launch(const Launch& launch) {
  const LaunchObserver observer = launch_observer;
  if (!observer) return;
  const CodeObject& object = *launch.kernel->object;
  ObservedLaunch observed{};
  observed.code = object.file.data();
  observed.code_bytes = object.file.size();
  observed.kernel = launch.kernel->name.c_str();
  std::copy_n(launch.grid, 3, observed.grid);
  std::copy_n(launch.block, 3, observed.block);
  observed.dynamic_lds = launch.dynamic_lds;
  observed.args_bytes = launch.kernarg_bytes;
  observed.args = launch.kernarg;
  observer(&observed);
}

void set_write_observer(WriteObserver observer) { write_observer = observer; }

void observe_write(const void* address, u64 size) {
  const WriteObserver observer = write_observer;
  if (observer && size) observer(address, size);
}

FaultKind fault_kind(const std::string& text) {
  struct Row {
    const char* words;
    FaultKind kind;
  };
  static constexpr Row kRows[] = {
      {"step budget", FaultKind::kTimeout},
      {kInterrupted, FaultKind::kTimeout},
      {"memory that is not mapped", FaultKind::kMemory},
      {"which is invalid", FaultKind::kMemory},
      {"outside the kernel's memory", FaultKind::kMemory},
  };
  for (const Row& row : kRows) {
    if (text.find(row.words) != std::string::npos) return row.kind;
  }
  return FaultKind::kOther;
}

std::string run(const Launch& launch) {
  Schedule schedule;
  if (const std::string error = current_schedule(schedule); !error.empty()) return error;
  const Dispatch dispatch(launch, schedule);
  if (!dispatch.group_count) return "";
  install_handlers();
  Job job(dispatch);
  const auto start = std::chrono::steady_clock::now();
  share_work(job.parallelism(), [&job] { job.work(); }, [&job] { job.poll_signals(); });
  job.finish(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return job.error;
}

}  // namespace vgpu
