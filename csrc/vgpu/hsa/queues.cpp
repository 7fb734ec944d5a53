// Queues: a thread for each executes its packets in order.
//
// A packet's barrier bit and its fences have nothing to order: each packet is done before the next
// begins, and memory is the host's.
#include <map>
#include <memory>
#include <thread>

#include "vgpu/hsa/hsa_internal.h"
#include "vgpu/isa/wave.h"
#include "vgpu/machine/allocations.h"
#include "vgpu/run/run.h"

namespace vgpu {
namespace {

constexpr u32 kMinPackets = 16, kMaxPackets = 1 << 20;
constexpr u32 kQueueTypes = 3;  // multi, single, cooperative

struct PacketFault {
  Status status;
  std::string text;
};

std::string shape_text(u32 x, u32 y, u32 z) {
  return std::to_string(x) + "x" + std::to_string(y) + "x" + std::to_string(z);
}

// Fills a launch from a packet. Blocks may exceed the size that the kernel was compiled for, which
// hardware does not check.
PacketFault read_dispatch(const DispatchPacket& packet, const AmdQueue& queue, Launch& launch) {
  const Kernel* const kernel = find_kernel(packet.kernel_object);
  if (!kernel) return {kInvalidCodeObject, "kernel_object is not that of a loaded kernel"};
  const u16(&block)[3] = packet.workgroup_size;
  const u32(&grid)[3] = packet.grid_size;
  const u64 lanes = u64{block[0]} * block[1] * block[2];
  if (!lanes || lanes > kMaxBlockThreads) {
    return {kInvalidPacketFormat, "workgroup of " + shape_text(block[0], block[1], block[2]) +
                                      ", expected 1 to 1024 lanes"};
  }
  if (!grid[0] || !grid[1] || !grid[2]) {
    return {kInvalidPacketFormat, "grid of " + shape_text(grid[0], grid[1], grid[2]) + " lanes"};
  }
  const u32 limit = device().traits().lds_bytes;
  if (packet.group_bytes > limit || packet.group_bytes < kernel->group_segment_bytes) {
    return {kInvalidPacketFormat, std::to_string(packet.group_bytes) + " bytes of LDS, expected " +
                                      std::to_string(kernel->group_segment_bytes) + " to " +
                                      std::to_string(limit)};
  }
  if (!packet.kernarg_address && kernel->kernarg_bytes) {
    return {kInvalidPacketFormat, "no kernarg_address, but the kernel takes " +
                                      std::to_string(kernel->kernarg_bytes) + " bytes"};
  }
  launch.kernel = kernel;
  for (u32 d = 0; d < 3; ++d) {
    launch.block[d] = block[d];
    launch.lanes[d] = grid[d];
    launch.grid[d] = (grid[d] + block[d] - 1) / block[d];
  }
  launch.dynamic_lds = packet.group_bytes - kernel->group_segment_bytes;
  launch.kernarg = reinterpret_cast<const u8*>(packet.kernarg_address);
  launch.kernarg_bytes = kernel->kernarg_bytes;
  launch.packet = &packet;
  launch.queue = &queue;
  launch.private_bytes = packet.private_bytes;
  return {kSuccess, ""};
}

// A line for each packet that a queue takes, for RFOPS_VGPU_LOG=3.
std::string packet_text(const Packet& packet) {
  const u16 header = packet.barrier.header;
  char text[160];
  std::snprintf(text, sizeof(text), "type %u, header 0x%04x, completion signal %s", header & 0xff,
                header, packet.barrier.completion.handle ? "yes" : "no");
  if ((header & 0xff) != kPacketDispatch) return text;
  const DispatchPacket& d = packet.dispatch;
  const Kernel* const kernel = find_kernel(d.kernel_object);
  return text + std::string(": ") + (kernel ? kernel->name : "an unknown kernel") + ", grid " +
         shape_text(d.grid_size[0], d.grid_size[1], d.grid_size[2]) + " lanes, block " +
         shape_text(d.workgroup_size[0], d.workgroup_size[1], d.workgroup_size[2]);
}

PacketFault run_dispatch(const DispatchPacket& packet, const AmdQueue& queue) {
  Launch launch;
  PacketFault fault = read_dispatch(packet, queue, launch);
  if (fault.status != kSuccess) return fault;
  fault.text = run(launch);
  if (fault.text.empty()) return fault;
  fault.status = fault_kind(fault.text) == FaultKind::kMemory ? kMemoryFault : kException;
  return fault;
}

class QueueProcessor {
 public:
  // Throws std::bad_alloc.
  QueueProcessor(u32 size, u32 type, QueueCallback callback, void* data)
      : callback_(callback), data_(data) {
    const u64 bytes = sizeof(AmdQueue) + u64{size} * sizeof(Packet) + sizeof(Signal);
    memory_ = Allocations::instance().allocate(bytes, MemoryKind::kHost, 0, ~u64{0});
    if (!memory_) throw std::bad_alloc();
    amd_ = static_cast<AmdQueue*>(memory_);
    packets_ = reinterpret_cast<Packet*>(amd_ + 1);
    doorbell_word_ = reinterpret_cast<std::atomic<u64>*>(packets_ + size);
    *doorbell_word_ = ~u64{0};
    for (u32 i = 0; i < size; ++i) packets_[i].barrier.header = kPacketInvalid;
    Signal* const doorbell = new_signal(kSignalDoorbell, 0);
    doorbell->doorbell = doorbell_word_;
    doorbell->queue = reinterpret_cast<u64>(amd_);
    static std::atomic<u64> ids{0};
    amd_->queue = {type, 1, packets_, {reinterpret_cast<u64>(doorbell)}, size, 0, ids++};
    amd_->group_aperture = static_cast<u32>(kSharedBaseAddr >> 32);
    amd_->private_aperture = static_cast<u32>(kPrivateBaseAddr >> 32);
    amd_->max_cu = device().compute_units - 1;
    amd_->max_wave = device().traits().max_waves * kSimdsPerCu - 1;
    processor_ = std::thread([this] { work(); });
  }
  QueueProcessor(const QueueProcessor&) = delete;
  QueueProcessor& operator=(const QueueProcessor&) = delete;
  // Packets that have not begun are dropped.
  ~QueueProcessor() {
    is_stopping_ = true;
    SignalBell::instance().ring();
    if (std::this_thread::get_id() == processor_.get_id()) {
      processor_.detach();  // destroyed by its own error callback
    } else {
      processor_.join();
    }
    delete_signal(signal_of(amd_->queue.doorbell_signal));
    Allocations::instance().release(memory_);
  }

  HsaQueue* handle() { return &amd_->queue; }

  QueueError error() const {
    const std::lock_guard lock(error_mutex_);
    return error_;
  }

  // Shows the dispatches up to packet `last` to the launch observer, each once, in the thread that
  // rings the doorbell: an observer in Python may need a lock that this thread holds.
  void observe_until(u64 last) {
    raise_observed(amd_->read_index);
    u64 index = observed_;
    while (index <= last && index < amd_->write_index) {
      Packet& packet = packets_[index & (amd_->queue.size - 1)];
      const u16 header = std::atomic_ref<u16>(packet.barrier.header);
      if ((header & 0xff) == kPacketInvalid) return;  // its producer is still writing it
      if (!observed_.compare_exchange_strong(index, index + 1)) continue;
      Launch launch;
      if ((header & 0xff) == kPacketDispatch &&
          read_dispatch(packet.dispatch, *amd_, launch).status == kSuccess) {
        observe_launch(launch);
      }
      ++index;
    }
  }

 private:
  // Whether the next packet may begin: one that a doorbell not yet rung hands over is first
  // observed. A doorbell may be changed without a call; its packets run unobserved.
  bool may_begin() {
    if (!has_launch_observer()) return true;
    const u64 next = amd_->read_index;
    if (observed_ > next) return true;
    if (static_cast<i64>(doorbell_word_->load() - next) < 0) return false;
    raise_observed(next + 1);
    return true;
  }

  void raise_observed(u64 least) {
    u64 observed = observed_;
    while (observed < least && !observed_.compare_exchange_weak(observed, least)) {
    }
  }

  void work() {
    u64 last_doorbell = ~u64{0};
    while (wait([&] { return *doorbell_word_ != last_doorbell; })) {
      last_doorbell = *doorbell_word_;
      while (amd_->read_index < amd_->write_index) {
        Packet& packet = packets_[amd_->read_index & (amd_->queue.size - 1)];
        std::atomic_ref<u16> header(packet.barrier.header);
        // Its producer may still be writing it, while a later packet's has rung the doorbell.
        if (!wait([&] { return (header & 0xff) != kPacketInvalid && may_begin(); })) return;
        if (!process(packet)) return;
        header = kPacketInvalid;
        ++amd_->read_index;
        complete(completion_, start_, timestamp());
      }
    }
  }

  // Waits until the condition is met. Returns false if the queue is being destroyed.
  template <class Met>
  bool wait(Met met) {
    SignalBell::instance().wait([&] { return is_stopping_ || met(); });
    return !is_stopping_;
  }

  // Executes a packet. Returns false if the queue is being destroyed, or has failed.
  bool process(const Packet& packet) {
    start_ = timestamp();
    completion_ = packet.barrier.completion;
    if (log_level() >= kLogPackets) log_packet(packet);
    switch (packet.barrier.header & 0xff) {
      case kPacketDispatch: {
        const PacketFault fault = run_dispatch(packet.dispatch, *amd_);
        return fault.status == kSuccess || report(fault);
      }
      case kPacketBarrierAnd:
        return wait([&] { return count_open(packet.barrier).open == 0; });
      case kPacketBarrierOr:
        return wait([&] {
          const Dependencies found = count_open(packet.barrier);
          return found.open < found.all || !found.all;
        });
      case kPacketVendor:
        if (packet.barrier_value.format == kVendorBarrierValue) {
          return wait_for_value(packet.barrier_value);
        }
        break;
      default:
        break;
    }
    return report({kInvalidPacketFormat,
                   "packet type " + std::to_string(packet.barrier.header & 0xff) + ", format " +
                       std::to_string(packet.barrier_value.format) + ": not supported"});
  }

  void log_packet(const Packet& packet) const {
    log_line(kLogPackets, "queue " + std::to_string(amd_->queue.id) + ", packet " +
                              std::to_string(amd_->read_index.load()) + ", doorbell " +
                              std::to_string(doorbell_word_->load()) + ": " + packet_text(packet));
  }

  struct Dependencies {
    u32 all, open;
  };
  static Dependencies count_open(const BarrierPacket& packet) {
    Dependencies found{};
    for (const HsaSignal& handle : packet.dependencies) {
      if (!handle.handle) continue;
      ++found.all;
      found.open += signal_of(handle)->value != 0;
    }
    return found;
  }

  bool wait_for_value(const BarrierValuePacket& packet) {
    if (!packet.signal.handle) return true;
    const Signal& signal = *signal_of(packet.signal);
    return wait([&] { return meets(signal.value & packet.mask, packet.condition, packet.value); });
  }

  // The queue executes nothing more, and the packet's signal is not changed.
  bool report(const PacketFault& fault) {
    {
      const std::lock_guard lock(error_mutex_);
      error_ = {fault.text, next_failure()};
    }
    log_line(kLogAlways, "queue " + std::to_string(amd_->queue.id) + ", packet " +
                             std::to_string(amd_->read_index.load()) + ": " + fault.text);
    if (callback_) callback_(fault.status, &amd_->queue, data_);
    return false;
  }

  const QueueCallback callback_;
  void* const data_;
  void* memory_ = nullptr;
  AmdQueue* amd_ = nullptr;
  Packet* packets_ = nullptr;
  std::atomic<u64>* doorbell_word_ = nullptr;
  std::atomic<u64> observed_{0};  // packets that the launch observer has seen
  std::atomic<bool> is_stopping_{false};
  u64 start_ = 0;           // of the packet that is executed
  HsaSignal completion_{};  // its signal
  mutable std::mutex error_mutex_;
  QueueError error_;
  std::thread processor_;
};

struct QueueTable {
  std::mutex mutex;
  std::map<const HsaQueue*, std::unique_ptr<QueueProcessor>> live;
};

QueueTable& queue_table() {
  static auto* const table = new QueueTable;  // exit handlers destroy queues
  return *table;
}

AmdQueue& amd_queue(const HsaQueue* queue) {
  return *reinterpret_cast<AmdQueue*>(const_cast<HsaQueue*>(queue));
}

}  // namespace

void observe_packets(const Signal& doorbell, u64 last) {
  if (!has_launch_observer()) return;
  QueueProcessor* processor = nullptr;
  {
    QueueTable& table = queue_table();
    const std::lock_guard lock(table.mutex);
    const auto it = table.live.find(reinterpret_cast<const HsaQueue*>(doorbell.queue));
    if (it != table.live.end()) processor = it->second.get();
  }
  if (processor) processor->observe_until(last);
}

QueueError last_queue_error() {
  QueueTable& table = queue_table();
  const std::lock_guard lock(table.mutex);
  QueueError last;
  for (const auto& [handle, processor] : table.live) {
    QueueError error = processor->error();
    if (error.failure > last.failure) last = std::move(error);
  }
  return last;
}

}  // namespace vgpu

using namespace vgpu;

HSA_API Status hsa_queue_create(HsaAgent agent, u32 size, u32 type, QueueCallback callback,
                                void* data, u32, u32, HsaQueue** out) {
  return with_error_handling(__func__, [&] {
    if (!out || !size || size & (size - 1)) {
      return fail(kInvalidArgument, "hsa_queue_create: " + std::to_string(size) +
                                        " packets, expected a power of two");
    }
    if (agent != kGpuAgent || type >= kQueueTypes || size < kMinPackets || size > kMaxPackets) {
      return fail(kInvalidQueueCreation,
                  "hsa_queue_create: type " + std::to_string(type) + " of " + std::to_string(size) +
                      " packets, expected a queue of the GPU with " + std::to_string(kMinPackets) +
                      " to " + std::to_string(kMaxPackets));
    }
    auto queue = std::make_unique<QueueProcessor>(size, type, callback, data);
    *out = queue->handle();
    QueueTable& table = queue_table();
    const std::lock_guard lock(table.mutex);
    table.live[*out] = std::move(queue);
    return kSuccess;
  });
}

HSA_API Status hsa_queue_destroy(HsaQueue* handle) {
  return with_error_handling(__func__, [&] {
    std::unique_ptr<QueueProcessor> queue;
    QueueTable& table = queue_table();
    {
      const std::lock_guard lock(table.mutex);
      const auto it = table.live.find(handle);
      if (it == table.live.end()) return fail(kInvalidQueue, "hsa_queue_destroy: unknown queue");
      queue = std::move(it->second);
      table.live.erase(it);
    }
    return kSuccess;
  });
}

HSA_API u64 hsa_queue_add_write_index_screlease(const HsaQueue* queue, u64 count) {
  return amd_queue(queue).write_index.fetch_add(count);
}
HSA_API u64 hsa_queue_add_write_index_relaxed(const HsaQueue* queue, u64 count) {
  return amd_queue(queue).write_index.fetch_add(count);
}
HSA_API u64 hsa_queue_load_read_index_relaxed(const HsaQueue* queue) {
  return amd_queue(queue).read_index;
}
HSA_API u64 hsa_queue_load_read_index_scacquire(const HsaQueue* queue) {
  return amd_queue(queue).read_index;
}
HSA_API u64 hsa_queue_load_write_index_relaxed(const HsaQueue* queue) {
  return amd_queue(queue).write_index;
}

// Priorities and masks of compute units change no result; times of packets are always recorded.
HSA_API Status hsa_amd_queue_set_priority(HsaQueue*, u32) { return kSuccess; }
HSA_API Status hsa_amd_queue_cu_set_mask(const HsaQueue*, u32, const u32*) { return kSuccess; }
HSA_API Status hsa_amd_profiling_set_profiler_enabled(HsaQueue*, int) { return kSuccess; }
