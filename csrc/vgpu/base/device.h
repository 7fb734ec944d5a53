// Properties of the GPU models, one row each; arch.h has the properties that all models of an
// architecture share.
#pragma once

#include <string>

#include "vgpu/base/arch.h"

namespace vgpu {

struct DeviceInfo {
  Arch arch;
  const char* model;  // "MI355X"
  const char* name;
  const char* target;  // gcnArchName
  u32 compute_units, xccs;
  u32 clock_khz;
  u32 memory_clock_khz, memory_bus_bits;
  u64 memory_bytes;
  u32 l2_bytes;    // per XCD, as ROCm reports it
  u64 mall_bytes;  // Infinity Cache
  u32 pci_chip_id;

  const ArchTraits& traits() const { return arch_traits(arch); }
};

// Common to both architectures.
inline constexpr u32 kMaxBlockThreads = 1024;
inline constexpr u32 kMaxThreadsPerCu = 2048;
inline constexpr u32 kSimdsPerCu = 4;
inline constexpr u32 kRegistersPerCu = 65536;  // as ROCm reports it
inline constexpr u32 kMaxGrid[3] = {0x7fffffff, 65536, 65536};
inline constexpr u32 kWallClockKhz = 100000;  // s_memrealtime

// Returns the GPU model of an architecture: the selected one (RFOPS_VGPU_PART, select_model),
// otherwise MI300X or MI355X.
const DeviceInfo& device_info(Arch arch);

// Returns a GPU model by name, null if there is none.
const DeviceInfo* find_model(const std::string& name);
std::string model_names();

// Selects a GPU model; device_info() of its architecture then returns it. Returns false and sets
// `error` for an unknown name.
bool select_model(const std::string& name, std::string& error);

// Returns the device of this process: selected by RFOPS_VGPU_ARCH at first use (unset: by
// RFOPS_VGPU_PART), or by select_arch. Returns null and sets `error` if a variable names an unknown
// device.
const DeviceInfo* current_device(std::string& error);

// Selects an architecture by name: "gfx950", "gfx942:sramecc+:xnack-", ... Returns false and sets
// `error` for anything else.
bool select_arch(const std::string& name, std::string& error);

// Returns how many workgroups of `block_threads` lanes a CU can hold at once.
u32 workgroups_per_cu(const DeviceInfo& device, u32 vgpr_rows, u32 lds_bytes, u32 block_threads);

}  // namespace vgpu
