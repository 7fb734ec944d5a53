// What the virtual GPU says it is: one row of facts for each chip; arch.h has those that all chips
// of an architecture share.
#pragma once

#include <string>

#include "vgpu/base/arch.h"

namespace vgpu {

struct DeviceInfo {
  Arch arch;
  const char* part;  // "MI355X"
  const char* name;
  const char* target;  // gcnArchName
  u32 compute_units, xccs;
  u32 clock_khz;
  u32 memory_clock_khz, memory_bus_bits;
  u64 memory_bytes;
  u32 l2_bytes;    // of one XCD, as ROCm reports it
  u64 mall_bytes;  // Infinity Cache
  u32 pci_chip_id;

  const ArchTraits& traits() const { return traits_of(arch); }
};

// The same for both architectures.
inline constexpr u32 kMaxBlockThreads = 1024;
inline constexpr u32 kMaxThreadsPerCu = 2048;
inline constexpr u32 kSimdsPerCu = 4;
inline constexpr u32 kRegistersPerCu = 65536;  // as ROCm reports it
inline constexpr u32 kMaxGrid[3] = {0x7fffffff, 65536, 65536};
inline constexpr u32 kWallClockKhz = 100000;  // s_memrealtime

// The part of that architecture: the one chosen (RFOPS_VGPU_PART, select_part), else MI300X,
// MI355X.
const DeviceInfo& device_info(Arch arch);

// A part by its name; null where there is none.
const DeviceInfo* find_part(const std::string& name);
std::string part_names();

// From now on device_info() of its architecture gives that part. False and `error` for another
// name.
bool select_part(const std::string& name, std::string& error);

// The device of this process: RFOPS_VGPU_ARCH at first use (unset: that of RFOPS_VGPU_PART), or
// what select_arch chose. Null where a variable names what does not exist here; `error` then says
// so.
const DeviceInfo* current_device(std::string& error);

// "gfx950", "gfx942:sramecc+:xnack-", ...: false and `error` for anything else.
bool select_arch(const std::string& name, std::string& error);

// Workgroups of `block_threads` lanes that fit a CU at once.
u32 workgroups_per_cu(const DeviceInfo& device, u32 vgpr_rows, u32 lds_bytes, u32 block_threads);

}  // namespace vgpu
