// The runtime, its two agents (the host's processor, the virtual GPU), and their properties.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string_view>
#include <thread>

#include "vgpu/hsa/hsa_internal.h"
#include "vgpu/machine/allocations.h"
#include "vgpu/timing/timing.h"

namespace vgpu {
namespace {

constexpr HsaIsa kGpuIsa{0x3001};
constexpr u64 kTicksPerSecond = 1'000'000'000;
constexpr u16 kExtensionLoader = 0x201;

std::atomic<u32> references{0};

// The value of an attribute, written as the type that the attribute has.
class Value {
 public:
  explicit Value(void* out) : out_(out) {}
  template <class T>
  Status give(T value) const {
    store<T>(out_, value);
    return kSuccess;
  }
  Status text(std::string_view value, u64 bytes) const {
    std::memset(out_, 0, bytes);
    std::memcpy(out_, value.data(), std::min<u64>(value.size(), bytes - 1));
    return kSuccess;
  }
  template <class T, u64 N>
  Status array(const T (&values)[N]) const {
    std::memcpy(out_, values, sizeof(values));
    return kSuccess;
  }
  Status zeros(u64 bytes) const {
    std::memset(out_, 0, bytes);
    return kSuccess;
  }

 private:
  void* out_;
};

Status unknown(const char* function, u32 attribute) {
  char text[80];
  std::snprintf(text, sizeof(text), "%s: attribute 0x%x is not known", function, attribute);
  return fail(kInvalidArgument, text);
}

std::string isa_name() { return std::string("amdgcn-amd-amdhsa--") + device().target; }

// Attributes of the HSA standard.
Status standard_info(bool is_gpu, u32 attribute, const Value& value) {
  switch (attribute) {
    case 0:  // NAME
      return value.text(is_gpu ? arch_name(device().arch) : "CPU", 64);
    case 1:  // VENDOR_NAME
      return value.text(is_gpu ? "AMD" : "CPU", 64);
    case 2:  // FEATURE: kernel dispatch, agent dispatch
      return value.give<u32>(is_gpu ? 1 : 2);
    case 3:  // MACHINE_MODEL: large
      return value.give<u32>(1);
    case 4:  // PROFILE: base, full
      return value.give<u32>(is_gpu ? 0 : 1);
    case 5:   // DEFAULT_FLOAT_ROUNDING_MODE: near
    case 23:  // BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES
      return value.give<u32>(2);
    case 24:  // FAST_F16_OPERATION
      return value.give<bool>(is_gpu);
    case 6:  // WAVEFRONT_SIZE
      return value.give<u32>(is_gpu ? kLanes : 0);
    case 7:  // WORKGROUP_MAX_DIM
      return value.array<u16>({kMaxBlockThreads, kMaxBlockThreads, kMaxBlockThreads});
    case 8:  // WORKGROUP_MAX_SIZE
      return value.give<u32>(is_gpu ? kMaxBlockThreads : 0);
    case 9:  // GRID_MAX_DIM
      return value.array<u32>({kMaxGrid[0], kMaxGrid[1], kMaxGrid[2]});
    case 10:  // GRID_MAX_SIZE
      return value.give<u32>(0xffffffff);
    case 11:  // FBARRIER_MAX_SIZE
      return value.give<u32>(32);
    case 12:  // QUEUES_MAX
      return value.give<u32>(is_gpu ? 128 : 0);
    case 13:  // QUEUE_MIN_SIZE
      return value.give<u32>(is_gpu ? 64 : 0);
    case 14:  // QUEUE_MAX_SIZE
      return value.give<u32>(is_gpu ? 131072 : 0);
    case 15:  // QUEUE_TYPE: multi
      return value.give<u32>(0);
    case 16:  // NODE
      return value.give<u32>(is_gpu);
    case 17:  // DEVICE
      return value.give<u32>(is_gpu);
    case 18:  // CACHE_SIZE: L1 to L4
      return value.array<u32>(
          {32 << 10, device().l2_bytes, static_cast<u32>(device().mall_bytes), 0});
    case 19:  // ISA
      return value.give<u64>(is_gpu ? kGpuIsa.handle : 0);
    case 20:  // EXTENSIONS
      return value.zeros(128);
    case 21:  // VERSION_MAJOR
    case 22:  // VERSION_MINOR
      return value.give<u16>(1);
    default:
      return unknown("hsa_agent_get_info", attribute);
  }
}

// AMD's attributes that describe a processor; those of the GPU alone follow.
Status amd_info(bool is_gpu, u32 attribute, const Value& value) {
  switch (attribute) {
    case 0xa000:  // CHIP_ID
      return value.give<u32>(is_gpu ? device().pci_chip_id : 0);
    case 0xa001:  // CACHELINE_SIZE
      return value.give<u32>(is_gpu ? 128 : 64);
    case 0xa002:  // COMPUTE_UNIT_COUNT
    case 0xa014:  // COOPERATIVE_COMPUTE_UNIT_COUNT
      return value.give<u32>(is_gpu ? device().compute_units
                                    : std::max(1u, std::thread::hardware_concurrency()));
    case 0xa003:  // MAX_CLOCK_FREQUENCY, MHz
      return value.give<u32>(device().clock_khz / 1000);
    case 0xa004:  // DRIVER_NODE_ID
    case 0xa112:  // DRIVER_UID
      return value.give<u32>(is_gpu);
    case 0xa005:  // MAX_ADDRESS_WATCH_POINTS
      return value.give<u32>(0);
    case 0xa006:  // BDFID: bus 5
      return value.give<u32>(is_gpu ? 0x500 : 0);
    case 0xa007:  // MEMORY_WIDTH
      return value.give<u32>(is_gpu ? device().memory_bus_bits : 64);
    case 0xa008:  // MEMORY_MAX_FREQUENCY, MHz
      return value.give<u32>(device().memory_clock_khz / 1000);
    case 0xa009:  // PRODUCT_NAME
      return value.text(is_gpu ? device().name : "CPU", 64);
    case 0xa00f:  // DOMAIN
      return value.give<u32>(0);
    case 0xa011:  // UUID
      return value.text(is_gpu ? "GPU-7266c6f707300001" : "CPU-XX", 21);
    case 0xa012:  // ASIC_REVISION
      return value.give<u32>(1);
    case 0xa113:  // NEAREST_CPU
      return value.give<HsaAgent>(kCpuAgent);
    default:
      return unknown("hsa_agent_get_info", attribute);
  }
}

Status gpu_info(u32 attribute, const Value& value) {
  static u32 flush_registers[2];
  switch (attribute) {
    case 0xa00a:  // MAX_WAVES_PER_CU
      return value.give<u32>(device().traits().max_waves * kSimdsPerCu);
    case 0xa00b:  // NUM_SIMDS_PER_CU
      return value.give<u32>(kSimdsPerCu);
    case 0xa00c:  // NUM_SHADER_ENGINES
      return value.give<u32>(device().xccs * 4);
    case 0xa00d:  // NUM_SHADER_ARRAYS_PER_SE
      return value.give<u32>(1);
    case 0xa00e:  // HDP_FLUSH: two registers that are written to flush
      return value.array<u32*>({&flush_registers[0], &flush_registers[1]});
    case 0xa010:  // COOPERATIVE_QUEUES
      return value.give<bool>(true);
    case 0xa013:  // SVM_DIRECT_HOST_ACCESS
      return value.give<bool>(false);
    case 0xa015:  // MEMORY_AVAIL
      return value.give<u64>(
          device().memory_bytes -
          std::min(device().memory_bytes, Allocations::instance().device_bytes()));
    case 0xa016:  // TIMESTAMP_FREQUENCY
      return value.give<u64>(u64{kWallClockKhz} * 1000);
    case 0xa107:  // ASIC_FAMILY_ID
    case 0xa10b:  // NUM_SDMA_XGMI_ENG
    case 0xa110:  // IOMMU_SUPPORT
      return value.give<u32>(0);
    case 0xa108:  // UCODE_VERSION
    case 0xa109:  // SDMA_UCODE_VERSION
      return value.give<u32>(100);
    case 0xa10a:  // NUM_SDMA_ENG
      return value.give<u32>(2);
    case 0xa111:  // NUM_XCC
      return value.give<u32>(device().xccs);
    case 0xa114:  // MEMORY_PROPERTIES
    case 0xa115:  // AQL_EXTENSIONS
    case 0xa117:  // SCRATCH_LIMIT_CURRENT
      return value.give<u64>(0);
    case 0xa116:  // SCRATCH_LIMIT_MAX
      return value.give<u64>(u64{4} << 30);
    case 0xa118: {  // CLOCK_COUNTERS: of the GPU, the host and the system; frequency
      const u64 now = timestamp();
      return value.array<u64>({now / (1'000'000 / kWallClockKhz), now, now, kTicksPerSecond});
    }
    default:
      return amd_info(true, attribute, value);
  }
}

// -------------------------------------------------------------------------------- extensions

Status host_address(const void* address, const void** host) {
  if (!host) return kInvalidArgument;
  *host = address;
  return kSuccess;
}

thread_local u64 t_failure = 0;

Status not_supported() {
  return fail(kError, "a function of an HSA extension table that the virtual GPU lacks",
              kLogAlways);
}

}  // namespace

u64 next_failure() {
  static std::atomic<u64> count{0};
  return ++count;
}

u64 thread_failure() { return t_failure; }

Status fail(Status status, const std::string& text, int level) {
  log_line(level, text);
  set_error_text(text);
  t_failure = next_failure();
  return status;
}

const DeviceInfo& device() {
  std::string error;
  static const DeviceInfo* const instance = current_device(error);
  return *instance;
}

u64 timestamp() {
  if (timing()) return kTicksPerSecond + modelled_ps() / 1000;
  return static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                              std::chrono::steady_clock::now().time_since_epoch())
                              .count());
}

}  // namespace vgpu

using namespace vgpu;

HSA_API Status hsa_init() {
  return with_error_handling(__func__, [] {
    std::string error;
    if (!current_device(error)) return fail(kOutOfResources, error, kLogAlways);
    ++references;
    return kSuccess;
  });
}

HSA_API Status hsa_shut_down() {
  if (!references) return kNotInitialized;
  --references;
  return kSuccess;
}

HSA_API Status hsa_status_string(Status status, const char** text) {
  if (!text) return kInvalidArgument;
  struct Row {
    Status status;
    const char* text;
  };
  static constexpr Row kRows[] = {
      {kSuccess, "success"},
      {kIllegalInstruction, "an illegal instruction was executed"},
      {kMemoryFault, "a kernel accessed memory that it may not access"},
      {kInvalidArgument, "invalid argument"},
      {kInvalidAllocation, "invalid allocation"},
      {kInvalidQueue, "invalid queue"},
      {kOutOfResources, "out of resources"},
      {kInvalidPacketFormat, "malformed packet"},
      {kIncompatibleArguments, "code for another processor"},
      {kInvalidCodeObject, "invalid code object"},
      {kInvalidSymbolName, "no such symbol"},
      {kException, "a kernel has failed"},
  };
  *text = "error of the HSA runtime";
  for (const Row& row : kRows) {
    if (row.status == status) *text = row.text;
  }
  return kSuccess;
}

HSA_API Status hsa_system_get_info(u32 attribute, void* out) {
  if (!out) return kInvalidArgument;
  const Value value(out);
  switch (attribute) {
    case 0:      // VERSION_MAJOR
    case 1:      // VERSION_MINOR
    case 0x207:  // EXT_VERSION_MAJOR
      return value.give<u16>(1);
    case 0x208:  // EXT_VERSION_MINOR
      return value.give<u16>(0);
    case 2:  // TIMESTAMP
      return value.give<u64>(timestamp());
    case 3:  // TIMESTAMP_FREQUENCY
      return value.give<u64>(kTicksPerSecond);
    case 4:  // SIGNAL_MAX_WAIT
      return value.give<u64>(~u64{0});
    case 5:  // ENDIANNESS: little
      return value.give<u32>(0);
    case 6:  // MACHINE_MODEL: large
      return value.give<u32>(1);
    case 7:  // EXTENSIONS
      return value.zeros(128);
    case 0x201:  // SVM_SUPPORTED
    case 0x205:  // VIRTUAL_MEM_API_SUPPORTED
      return value.give<bool>(true);
    case 0x202:  // SVM_ACCESSIBLE_BY_DEFAULT
    case 0x203:  // MWAITX_ENABLED
    case 0x204:  // DMABUF_SUPPORTED
    case 0x206:  // XNACK_ENABLED
      return value.give<bool>(false);
    default:
      return unknown("hsa_system_get_info", attribute);
  }
}

// The loader's table: the first function, which maps device addresses, is all that HIP needs.
HSA_API Status hsa_system_get_major_extension_table(u16 extension, u16, size_t bytes, void* table) {
  if (!table || extension != kExtensionLoader) return kInvalidArgument;
  auto* const functions = static_cast<void**>(table);
  for (size_t i = 0; i < bytes / sizeof(void*); ++i) {
    functions[i] =
        i ? reinterpret_cast<void*>(not_supported) : reinterpret_cast<void*>(host_address);
  }
  return kSuccess;
}

HSA_API Status hsa_iterate_agents(Status (*visit)(HsaAgent, void*), void* data) {
  if (!visit) return kInvalidArgument;
  const Status status = visit(kCpuAgent, data);
  return status == kSuccess ? visit(kGpuAgent, data) : status;
}

HSA_API Status hsa_agent_get_info(HsaAgent agent, u32 attribute, void* out) {
  return with_error_handling(__func__, [&] {
    const bool is_gpu = agent == kGpuAgent;
    if (!out || (!is_gpu && agent != kCpuAgent)) return kInvalidArgument;
    const Value value(out);
    if (attribute < 0xa000) return standard_info(is_gpu, attribute, value);
    return is_gpu ? gpu_info(attribute, value) : amd_info(false, attribute, value);
  });
}

HSA_API Status hsa_agent_iterate_isas(HsaAgent agent, Status (*visit)(HsaIsa, void*), void* data) {
  if (!visit) return kInvalidArgument;
  return agent == kGpuAgent ? visit(kGpuIsa, data) : kSuccess;
}

HSA_API Status hsa_isa_get_info_alt(HsaIsa isa, u32 attribute, void* out) {
  return with_error_handling(__func__, [&] {
    if (isa.handle != kGpuIsa.handle || !out) return kInvalidIsa;
    const std::string name = isa_name();
    if (attribute == 0) return Value(out).give<u32>(static_cast<u32>(name.size() + 1));
    if (attribute == 1) return Value(out).text(name, name.size() + 1);
    return unknown("hsa_isa_get_info_alt", attribute);
  });
}

// A kernel's error is reported to its queue's callback; the system has no other events.
HSA_API Status hsa_amd_register_system_event_handler(void*, void*) { return kSuccess; }

HSA_API Status hsa_amd_coherency_set_type(HsaAgent, u32) { return kSuccess; }
HSA_API Status hsa_amd_agent_set_async_scratch_limit(HsaAgent, size_t) { return kSuccess; }
HSA_API Status hsa_amd_enable_logging(u8*, void*) { return kSuccess; }
