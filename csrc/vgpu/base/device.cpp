#include "vgpu/base/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>

namespace vgpu {
namespace {

constexpr DeviceInfo kDevices[] = {
    {
        .arch = Arch::kGfx950,
        .model = "MI355X",
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
        .model = "MI300X",
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

// The other GPU models, by their differences from the first model of their architecture.
struct Variant {
  Arch arch;
  const char *model, *name;
  u32 compute_units, xccs, clock_khz, memory_clock_khz;
  u64 memory_gib;
  u32 pci_chip_id;
};
constexpr Variant kVariants[] = {
    {Arch::kGfx942, "MI308X", "AMD Instinct MI308X (virtual, rfops)", 80, 4, 1'420'000, 1'300'000,
     192, 0x74a2},
    {Arch::kGfx942, "MI300A", "AMD Instinct MI300A (virtual, rfops)", 228, 6, 2'100'000, 1'300'000,
     128, 0x74a0},
    {Arch::kGfx942, "MI325X", "AMD Instinct MI325X (virtual, rfops)", 304, 8, 2'100'000, 1'500'000,
     256, 0x74a5},
    {Arch::kGfx950, "MI350X", "AMD Instinct MI350X (virtual, rfops)", 256, 8, 2'200'000, 2'000'000,
     288, 0x75a0},
};

constexpr DeviceInfo make_variant(const Variant& v) {
  DeviceInfo device = kDevices[v.arch == Arch::kGfx942];
  device.model = v.model;
  device.name = v.name;
  device.compute_units = v.compute_units;
  device.xccs = v.xccs;
  device.clock_khz = v.clock_khz;
  device.memory_clock_khz = v.memory_clock_khz;
  device.memory_bytes = v.memory_gib << 30;
  device.pci_chip_id = v.pci_chip_id;
  return device;
}

constexpr u32 kNumArchs = std::size(kDevices), kNumModels = kNumArchs + std::size(kVariants);
constexpr auto kAllDevices = [] {
  std::array<DeviceInfo, kNumModels> devices{};
  for (u32 i = 0; i < kNumModels; ++i) {
    devices[i] = i < kNumArchs ? kDevices[i] : make_variant(kVariants[i - kNumArchs]);
  }
  return devices;
}();

constexpr const char* kArchVariable = "RFOPS_VGPU_ARCH";
constexpr const char* kModelVariable = "RFOPS_VGPU_PART";

// A workgroup of several waves occupies one hardware barrier of its CU; a single wave needs none.
constexpr u32 kBarriersPerCu = 16;

std::atomic<const DeviceInfo*> g_selected{nullptr};
// Per architecture: the selected GPU model.
std::atomic<const DeviceInfo*> g_selected_models[2] = {};

bool set_model(const std::string& name, std::string& error) {
  const DeviceInfo* device = find_model(name);
  if (!device) {
    error = "part '" + name.substr(0, 100) + "' is not modelled: expected one of " + model_names() +
            ", from " + kModelVariable + " or rfops_vgpu_set_part";
    return false;
  }
  g_selected_models[static_cast<u32>(device->arch)] = device;
  // A device selected earlier by its architecture becomes this model.
  const DeviceInfo* selected = g_selected;
  if (selected && selected->arch == device->arch) g_selected = device;
  return true;
}

// Reads RFOPS_VGPU_PART once. Returns an error text if it names no known GPU model.
const std::string& read_model_variable() {
  static const std::string error = [] {
    std::string error;
    const char* variable = std::getenv(kModelVariable);
    if (variable && *variable) set_model(variable, error);
    return error;
  }();
  return error;
}

const DeviceInfo* parse_arch(const std::string& name, std::string& error) {
  const std::string processor = name.substr(0, name.find(':'));
  for (const DeviceInfo& device : kDevices) {
    if (processor != arch_name(device.arch)) continue;
    // Any number of features may be named, but only with the values that the device has.
    if (name.find("xnack+") == std::string::npos && name.find("sramecc-") == std::string::npos) {
      return &device_info(device.arch);
    }
  }
  std::string expected;
  for (const ArchTraits& arch : kArchs)
    expected += (expected.empty() ? "" : " or ") + std::string(arch.name);
  error = "architecture '" + name.substr(0, 100) + "' is not modelled: expected " + expected +
          " (:sramecc+:xnack-), from " + kArchVariable + " or rfops_vgpu_set_arch";
  return nullptr;
}

}  // namespace

const DeviceInfo* find_model(const std::string& name) {
  for (const DeviceInfo& device : kAllDevices) {
    if (name == device.model) return &device;
  }
  return nullptr;
}

std::string model_names() {
  std::string names;
  for (const DeviceInfo& device : kAllDevices) {
    if (!names.empty()) names += ", ";
    names += device.model;
  }
  return names;
}

bool select_model(const std::string& name, std::string& error) {
  read_model_variable();
  return set_model(name, error);
}

const DeviceInfo& device_info(Arch arch) {
  read_model_variable();
  if (const DeviceInfo* chosen = g_selected_models[static_cast<u32>(arch)]) return *chosen;
  return kDevices[arch == Arch::kGfx942];
}

const DeviceInfo* current_device(std::string& error) {
  if (const DeviceInfo* selected = g_selected.load(std::memory_order_acquire)) return selected;
  error = read_model_variable();
  if (!error.empty()) return nullptr;
  const char* variable = std::getenv(kArchVariable);
  const bool is_set = variable && *variable;
  const Arch default_arch =
      g_selected_models[0] && !g_selected_models[1] ? Arch::kGfx942 : Arch::kGfx950;
  const DeviceInfo* device = is_set ? parse_arch(variable, error) : &device_info(default_arch);
  if (!device) return nullptr;
  // Expected by the exchange: no other thread has selected a device.
  const DeviceInfo* expected = nullptr;
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
  u32 max_groups = waves_per_simd * kSimdsPerCu / waves;
  if (waves > 1) max_groups = std::min(max_groups, kBarriersPerCu);
  if (lds_bytes) {
    const u32 granules = (lds_bytes + arch.lds_granule - 1) / arch.lds_granule;
    max_groups = std::min(max_groups, arch.lds_bytes / (granules * arch.lds_granule));
  }
  return max_groups;
}

}  // namespace vgpu
