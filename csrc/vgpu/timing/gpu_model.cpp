#include "vgpu/timing/gpu_model.h"

#include <cstdlib>
#include <iterator>
#include <sstream>

namespace vgpu {
namespace {

using C = Constants;

// MI300X, and every GPU model without an own row below.
constexpr ConstantRow kRows[] = {
    {&C::clock, "clock", "GHz", 'A', "c01", 2.1},
    {&C::xccs, "xccs", "", 'C', "", 0},  // of the device
    {&C::cus, "cus", "", 'C', "", 0},    // of the device
    {&C::l1_latency, "l1_latency", "clk", 'A', "c01", 118},
    {&C::l2_latency, "l2_latency", "clk", 'A', "c02", 213},
    {&C::mall_ns, "mall_ns", "ns beyond L2", 'A', "c03 less c02 at 2.1 GHz", 115},
    {&C::hbm_ns, "hbm_ns", "ns beyond L2", 'A', "c04 less c02 at 2.1 GHz", 318},
    {&C::k_latency, "k_latency", "clk", 'B', "c09 less its wait", 64},
    {&C::k_l2_latency, "k_l2_latency", "clk", 'B', "c10", 180},
    {&C::k_mall_ns, "k_mall_ns", "ns beyond L2", 'B', "c11 less c10", 113},
    {&C::k_hbm_ns, "k_hbm_ns", "ns beyond L2", 'B', "c12 less c10", 243},
    {&C::l1_bytes, "l1_bytes", "B", 'C', "CDNA3 ISA", 32768},
    {&C::l1_ways, "l1_ways", "", 'C', "CDNA3 ISA", 64},
    {&C::k_bytes, "k_bytes", "B", 'C', "CDNA3 ISA: shared by two CUs", 16384},
    {&C::k_ways, "k_ways", "", 'D', "", 4},
    {&C::l2_bytes, "l2_bytes", "B of an XCD", 'C', "CDNA3 white paper", 4 << 20},
    {&C::l2_ways, "l2_ways", "", 'C', "CDNA3 white paper", 16},
    {&C::l2_channels, "l2_channels", "of an XCD", 'C', "CDNA3 white paper", 16},
    {&C::mall_mib, "mall_mib", "MiB", 'C', "CDNA3 white paper", 256},
    {&C::fabric_channels, "fabric_channels", "of an XCD", 'D', "", 1},
    {&C::hbm_channels, "hbm_channels", "of an XCD", 'D', "c48: how it saturates", 16},
    {&C::hbm_interleave, "hbm_interleave", "B on one channel", 'D', "c48: how it saturates", 2048},
    {&C::hbm_banks, "hbm_banks", "open rows a channel", 'C', "HBM3: 16 banks", 16},
    {&C::hbm_row_ns, "hbm_row_ns", "ns to open a row", 'D', "by rows of bf16 GEMM", 1.1},
    {&C::hbm_turn_ns, "hbm_turn_ns", "ns a line written between reads", 'B',
     "c45: copy beside read and write", 1.1},
    {&C::hbm_write_interleave, "hbm_write_interleave", "B on one channel", 'D', "as the next", 512},
    {&C::hbm_write_queue, "hbm_write_queue", "lines a channel", 'D', "c45: write by waves", 4},
    {&C::l2_line_clk, "l2_line_clk", "clk a line and channel", 'A', "c42: 80 % of the peak", 1.25},
    {&C::port_line_clk, "port_line_clk", "clk a line from L2 and CU", 'A', "c41: 64 B/clk", 2},
    {&C::mall_tb_s, "mall_tb_s", "TB/s", 'A', "c43", 6.2},
    {&C::mall_write_tb_s, "mall_write_tb_s", "TB/s", 'A', "c43: write", 4.9},
    {&C::hbm_tb_s, "hbm_tb_s", "TB/s", 'A', "c45, c48 through channels", 4.7},
    {&C::atomic_lane_clk, "atomic_lane_clk", "clk a lane, one address", 'B', "c60", 18},
    {&C::atomic_line_clk, "atomic_line_clk", "clk a line and channel", 'B', "c62", 8.5},
    {&C::taken_trips, "taken_trips", "trips of a line between XCDs", 'D', "by rows of fmoe", 0.5},
    {&C::in_flight_bytes, "in_flight_bytes", "B asked for, a CU", 'D', "design, by rows", 28672},
    {&C::vmem_queue, "vmem_queue", "instructions a CU", 'D', "design", 12},
    {&C::dword_clk, "dword_clk", "clk", 'B', "c41, design", 4},
    {&C::wide_dword_clk, "wide_dword_clk", "clk a dword of x2, x3, x4", 'A', "c41: 64 B/clk", 4},
    {&C::segment_clk, "segment_clk", "clk a 64 B segment", 'B', "c06 less c05, design", 1},
    {&C::dma_dword_clk, "dma_dword_clk", "clk", 'D', "design", 4},
    {&C::dma_wide_dword_clk, "dma_wide_dword_clk", "clk a dword of x3, x4", 'D', "design", 4},
    {&C::lds_latency, "lds_latency", "clk behind the banks", 'A', "c17", 64},
    {&C::lds_simd_dword_clk, "lds_simd_dword_clk", "clk a dword and SIMD", 'D', "design", 4},
    {&C::lds_fifo_clk, "lds_fifo_clk", "clk", 'D', "design", 64},
    {&C::lds_write_clk, "lds_write_clk", "clk, at least", 'B', "c20", 4},
    {&C::lds_dma_bytes_clk, "lds_dma_bytes_clk", "B/clk", 'C', "c21", 128},
    {&C::valu_latency, "valu_latency", "clk", 'A', "c23", 8},
    {&C::wide_valu_clk, "wide_valu_clk", "clk, one wave", 'B', "c27, c28, c30", 10},
    {&C::packed_f32_clk, "packed_f32_clk", "clk, one wave", 'B', "c26; by rows of GEMM less", 9},
    {&C::quarter_clk, "quarter_clk", "clk", 'B', "c29", 16},
    {&C::trans_clk, "trans_clk", "clk", 'C', "c79", 16},
    {&C::matrix_latency, "matrix_latency", "clk behind the passes", 'A', "c34", 2},
    {&C::branch_clk, "branch_clk", "clk, taken", 'B', "c24, c26 to c30", 8},
    {&C::barrier_clk, "barrier_clk", "clk behind the last", 'D', "c20, design", 16},
    {&C::sleep_clk, "sleep_clk", "clk a unit", 'C', "CDNA3 ISA", 64},
    {&C::fetch_clk, "fetch_clk", "clk, of a line in L2", 'D', "c10", 180},
    {&C::icache_bytes, "icache_bytes", "B, two CUs", 'C', "CDNA3 ISA", 65536},
    {&C::dispatch_group_clk, "dispatch_group_clk", "clk a workgroup of the launch", 'B', "c49, c55",
     1.0},
    {&C::dispatch_wave_clk, "dispatch_wave_clk", "clk a wave and XCD", 'B', "c50", 1.09},
    {&C::wave_start_clk, "wave_start_clk", "clk to its first issue", 'D', "c51, design", 100},
    {&C::turnaround_clk, "turnaround_clk", "clk between workgroups", 'B',
     "c48, c51 less start and body", 150},
    {&C::floor_profiler, "floor_profiler", "us", 'B', "c57, c58 less a body", 2.0},
    {&C::floor_event, "floor_event", "us", 'A', "c53", 5.65},
    {&C::floor_graph, "floor_graph", "us", 'B', "c56 less a body", 1.65},
    {&C::power_wide16, "power_wide16", "GHz^3", 'D', "design: three rows of i8 GEMM", 1.8},
    {&C::power_wide8, "power_wide8", "GHz^3", 'D', "as power_wide16", 1.8},
    {&C::power_wide4, "power_wide4", "GHz^3", 'D', "as power_wide16", 1.8},
    {&C::power_narrow, "power_narrow", "GHz^3", 'D', "as power_wide16", 1.8},
    {&C::power_settle_us, "power_settle_us", "us", 'D', "design: short and long rows", 15},
};

struct ModelRow {
  const char* model;
  ConstantRow row;
};
constexpr double kNoLimit = 1e9;
constexpr ModelRow kModelRows[] = {
    {"MI308X", {&C::clock, "clock", "GHz", 'B', "c13: called uncertain there", 1.42}},
    {"MI308X", {&C::mall_tb_s, "mall_tb_s", "TB/s", 'D', "design", 5.0}},
    {"MI308X", {&C::mall_write_tb_s, "mall_write_tb_s", "TB/s", 'D', "design", 3.5}},
    {"MI308X", {&C::hbm_tb_s, "hbm_tb_s", "TB/s", 'B', "c47, c69 through channels", 4.6}},
    {"MI308X", {&C::power_wide16, "power_wide16", "GHz^3", 'D', "design: none", kNoLimit}},
    {"MI308X", {&C::power_wide8, "power_wide8", "GHz^3", 'D', "design: none", kNoLimit}},
    {"MI308X", {&C::power_narrow, "power_narrow", "GHz^3", 'D', "design: none", kNoLimit}},
    {"MI300A", {&C::mall_tb_s, "mall_tb_s", "TB/s", 'A', "c44", 4.25}},
    {"MI300A", {&C::hbm_tb_s, "hbm_tb_s", "TB/s", 'A', "c46 through channels", 3.4}},
    {"MI300A", {&C::floor_event, "floor_event", "us", 'A', "c52", 4.3}},
    {"MI300A",
     {&C::hbm_turn_ns, "hbm_turn_ns", "ns a line written between reads", 'B',
      "c46's copy is as quick as its read", 0}},
    {"MI325X", {&C::hbm_tb_s, "hbm_tb_s", "TB/s", 'D', "MI300X by the peaks, 6.0 to 5.3", 5.3}},
    {"MI350X", {&C::clock, "clock", "GHz", 'C', "data sheet", 2.2}},
    {"MI355X", {&C::clock, "clock", "GHz", 'C', "data sheet", 2.4}},
};
// All GPU models of gfx950 without an own row above.
constexpr ConstantRow kGfx950[] = {
    {&C::mall_tb_s, "mall_tb_s", "TB/s", 'D', "by rows: c43's 6.2 to Origami's 8.5", 7.0},
    {&C::mall_write_tb_s, "mall_write_tb_s", "TB/s", 'D', "design", 5.0},
    {&C::hbm_tb_s, "hbm_tb_s", "TB/s", 'B', "c67 through channels", 7.0},
    {&C::in_flight_bytes, "in_flight_bytes", "B asked for, a CU", 'D', "by rows", 26624},
    {&C::dma_dword_clk, "dma_dword_clk", "clk", 'D', "design: 4 or 8, by rows", 8},
    {&C::dma_wide_dword_clk, "dma_wide_dword_clk", "clk a dword of x3, x4", 'D', "as one", 8},
    {&C::power_wide16, "power_wide16", "GHz^3", 'B', "1489 TF of bf16 at 98.8 % busy", 2.95},
    {&C::power_wide8, "power_wide8", "GHz^3", 'B', "1.553 GHz of fp8 at 99.7 % busy", 3.7},
    {&C::power_wide4, "power_wide4", "GHz^3", 'B', "1.41 GHz of fp4 at 93 % busy", 2.6},
    {&C::power_narrow, "power_narrow", "GHz^3", 'D', "design: shapes of CDNA3", 4.2},
    {&C::power_settle_us, "power_settle_us", "us", 'D', "design: not seen", 0},
};

constexpr const char* kValidated[] = {"MI300X", "MI308X", "MI355X"};

bool apply_change(Constants& constants, const std::string& text, std::string& error) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  for (const ConstantRow& row : kRows) {
    if (name != row.name || equals == std::string::npos) continue;
    char* end = nullptr;
    constants.*row.field = std::strtod(text.c_str() + equals + 1, &end);
    if (!*end && end != text.c_str() + equals + 1) return true;
  }
  error = "timing: '" + text.substr(0, 100) + "' sets no constant: expected NAME=NUMBER of a row " +
          "of csrc/vgpu/timing/gpu_model.cpp";
  return false;
}

}  // namespace

const ConstantRow* constant_rows(u32& count) {
  count = static_cast<u32>(std::size(kRows));
  return kRows;
}

const ConstantRow& constant_row(const DeviceInfo& device, u32 index) {
  const ConstantRow& common = kRows[index];
  for (const ModelRow& c : kModelRows) {
    if (std::string(c.model) == device.model && c.row.field == common.field) return c.row;
  }
  if (device.arch == Arch::kGfx950) {
    for (const ConstantRow& row : kGfx950) {
      if (row.field == common.field) return row;
    }
  }
  return common;
}

bool make_model(const DeviceInfo& device, const std::string& changes, GpuModel& model,
                std::string& error) {
  model.device = &device;
  model.is_validated = false;
  for (const char* name : kValidated) model.is_validated |= std::string(name) == device.model;
  for (u32 i = 0; i < std::size(kRows); ++i) {
    const ConstantRow& row = constant_row(device, i);
    model.constants.*row.field = row.value;
  }
  model.constants.xccs = device.xccs;
  model.constants.cus = device.compute_units;
  std::istringstream words(changes);
  for (std::string word; words >> word;) {
    if (!apply_change(model.constants, word, error)) return false;
  }
  return true;
}

}  // namespace vgpu
