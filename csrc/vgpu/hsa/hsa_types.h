// The types and numbers of the HSA runtime's C interface that this library implements (HSA 1.2 and
// AMD's extensions, as in ROCm 7).
#pragma once

#include <atomic>
#include <cstddef>

#include "vgpu/base/types.h"

#define HSA_API extern "C" __attribute__((visibility("default")))

namespace vgpu {

enum Status : u32 {
  kSuccess = 0,
  kInfoBreak = 1,
  kInvalidMemoryPool = 40,
  kIllegalInstruction = 42,
  kMemoryFault = 43,
  kError = 0x1000,
  kInvalidArgument = 0x1001,
  kInvalidQueueCreation = 0x1002,
  kInvalidAllocation = 0x1003,
  kInvalidAgent = 0x1004,
  kInvalidSignal = 0x1006,
  kInvalidQueue = 0x1007,
  kOutOfResources = 0x1008,
  kInvalidPacketFormat = 0x1009,
  kNotInitialized = 0x100b,
  kIncompatibleArguments = 0x100d,
  kInvalidIsa = 0x100f,
  kInvalidCodeObject = 0x1010,
  kInvalidExecutable = 0x1011,
  kFrozenExecutable = 0x1012,
  kInvalidSymbolName = 0x1013,
  kException = 0x1016,
  kInvalidCodeObjectReader = 0x1021,
};

// Handles are structures, so that they cannot be mistaken for each other.
struct HsaAgent {
  u64 handle;
  bool operator==(const HsaAgent&) const = default;
};
struct HsaIsa {
  u64 handle;
};
struct HsaPool {
  u64 handle;
};
struct HsaSignal {
  u64 handle;
};
struct HsaReader {
  u64 handle;
};
struct HsaExecutable {
  u64 handle;
};
struct HsaSymbol {
  u64 handle;
};
struct HsaVmemHandle {
  u64 handle;
};

// -------------------------------------------------------------------------------- signals

enum class Condition : u32 { kEqual, kNotEqual, kLess, kGreaterOrEqual };

constexpr i64 kSignalUser = 1, kSignalDoorbell = -1;

// amd_signal_t: a signal's handle is its address, and device code reads and writes it.
struct alignas(64) Signal {
  i64 kind;
  union {
    std::atomic<i64> value;
    std::atomic<u64>* doorbell;  // of kSignalDoorbell
  };
  u64 mailbox;  // not null: device code that changes the value sends an interrupt message
  u32 event, reserved;
  u64 start, end;  // timestamps of the packet or copy that it completes
  u64 queue, reserved2;
};
static_assert(sizeof(Signal) == 64);

// -------------------------------------------------------------------------------- queues

// hsa_queue_t, followed by the rest of amd_queue_t.
struct HsaQueue {
  u32 type, features;
  void* base_address;
  HsaSignal doorbell_signal;
  u32 size, reserved;
  u64 id;
};

struct alignas(64) AmdQueue {
  HsaQueue queue;
  u32 capabilities, reserved1[3];
  std::atomic<u64> write_index;
  u32 group_aperture, private_aperture;  // high halves
  u32 max_cu, max_wave;
  u64 legacy[6];
  std::atomic<u64> read_index;
  u64 unused[15];
  u64 more[2048 / 8];
};
static_assert(sizeof(HsaQueue) == 40);
static_assert(offsetof(AmdQueue, write_index) == 56);
static_assert(offsetof(AmdQueue, group_aperture) == 64);
static_assert(offsetof(AmdQueue, read_index) == 128);

enum PacketType : u8 {
  kPacketVendor = 0,
  kPacketInvalid = 1,
  kPacketDispatch = 2,
  kPacketBarrierAnd = 3,
  kPacketBarrierOr = 5,
};
constexpr u8 kVendorBarrierValue = 2;

// hsa_kernel_dispatch_packet_t
struct DispatchPacket {
  u16 header, setup, workgroup_size[3], reserved;
  u32 grid_size[3], private_bytes, group_bytes;
  u64 kernel_object, kernarg_address, reserved2;
  HsaSignal completion;
};
// hsa_barrier_and_packet_t and hsa_barrier_or_packet_t
struct BarrierPacket {
  u16 header, reserved0;
  u32 reserved1;
  HsaSignal dependencies[5];
  u64 reserved2;
  HsaSignal completion;
};
// hsa_amd_barrier_value_packet_t: waits until (value & mask) meets the condition.
struct BarrierValuePacket {
  u16 header;
  u8 format, reserved0;
  u32 reserved1;
  HsaSignal signal;
  i64 value, mask;
  Condition condition;
  u32 reserved2;
  u64 reserved3[2];
  HsaSignal completion;
};
union Packet {
  DispatchPacket dispatch;
  BarrierPacket barrier;
  BarrierValuePacket barrier_value;
};
static_assert(sizeof(Packet) == 64);

using QueueCallback = void (*)(Status status, HsaQueue* queue, void* data);

}  // namespace vgpu
