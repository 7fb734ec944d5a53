#include "vgpu/base/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace vgpu {
namespace {

constexpr DeviceInfo kDevices[] = {
    {
        .arch = Arch::kGfx950,
        .name = "AMD Instinct MI355X (virtual, rfops)",
        .target = "gfx950:sramecc+:xnack-",
        .compute_units = 256,
        .xccs = 8,
        .clock_khz = 2'400'000,
        .memory_clock_khz = 2'000'000,
        .memory_bus_bits = 8192,
        .memory_bytes = u64{288} << 30,
        .l2_bytes = 4 << 20,
        .mall_bytes = u64{256} << 20,
        .pci_chip_id = 0x75a3,
    },
    {
        .arch = Arch::kGfx942,
        .name = "AMD Instinct MI300X (virtual, rfops)",
        .target = "gfx942:sramecc+:xnack-",
        .compute_units = 304,
        .xccs = 8,
        .clock_khz = 2'100'000,
        .memory_clock_khz = 1'300'000,
        .memory_bus_bits = 8192,
        .memory_bytes = u64{192} << 30,
        .l2_bytes = 4 << 20,
        .mall_bytes = u64{256} << 20,
        .pci_chip_id = 0x74a1,
    },
};

constexpr const char* kArchVariable = "RFOPS_VGPU_ARCH";

// A workgroup of several waves needs one of the CU's barriers; one of a single wave does not.
constexpr u32 kBarriersPerCu = 16;

std::atomic<const DeviceInfo*> g_selected{nullptr};

const DeviceInfo* parse_arch(const std::string& name, std::string& error) {
  const std::string processor = name.substr(0, name.find(':'));
  for (const DeviceInfo& device : kDevices) {
    if (processor != arch_name(device.arch)) continue;
    // Features may be named in any number, but only as the device has them.
    if (name.find("xnack+") == std::string::npos && name.find("sramecc-") == std::string::npos) {
      return &device;
    }
  }
  std::string known;
  for (const ArchTraits& arch : kArchs)
    known += (known.empty() ? "" : " or ") + std::string(arch.name);
  error = "architecture '" + name.substr(0, 100) + "' is not modelled: expected " + known +
          " (:sramecc+:xnack-), from " + kArchVariable + " or rfops_vgpu_set_arch";
  return nullptr;
}

}  // namespace

const DeviceInfo& device_info(Arch arch) {
  for (const DeviceInfo& device : kDevices) {
    if (device.arch == arch) return device;
  }
  return kDevices[0];
}

const DeviceInfo* current_device(std::string& error) {
  if (const DeviceInfo* selected = g_selected.load(std::memory_order_acquire)) return selected;
  const char* variable = std::getenv(kArchVariable);
  const DeviceInfo* device =
      variable && *variable ? parse_arch(variable, error) : &device_info(Arch::kGfx950);
  if (!device) return nullptr;
  const DeviceInfo* expected = nullptr;  // another thread may have been first
  return g_selected.compare_exchange_strong(expected, device) ? device : expected;
}

bool select_arch(const std::string& name, std::string& error) {
  const DeviceInfo* device = parse_arch(name, error);
  if (device) g_selected.store(device, std::memory_order_release);
  return device != nullptr;
}

u32 workgroups_per_cu(const DeviceInfo& device, u32 vgpr_rows, u32 lds_bytes, u32 block_threads) {
  const ArchTraits& arch = device.traits();
  const u32 waves = (block_threads + kLanes - 1) / kLanes;
  if (!waves || lds_bytes > arch.lds_bytes) return 0;
  const u32 rows = std::max(vgpr_rows, 8u);
  const u32 waves_per_simd = std::min(arch.max_waves, arch.vgprs / rows);
  u32 fit = waves_per_simd * kSimdsPerCu / waves;
  if (waves > 1) fit = std::min(fit, kBarriersPerCu);
  if (lds_bytes) {
    const u32 granules = (lds_bytes + arch.lds_granule - 1) / arch.lds_granule;
    fit = std::min(fit, arch.lds_bytes / (granules * arch.lds_granule));
  }
  return fit;
}

}  // namespace vgpu
