// What the model knows of a part: constants, each a row with unit, grade and source. Nothing here
// is chosen for a kernel.
//
// Grades: A measured and published, B derived from such a measurement, C the vendor's documents,
// D assumed. Sources c01 ... are rows of constants.csv beside this file, and a test compares the
// values. "design" stands for what was tried on a prototype against published times of prebuilt
// GEMM kernels.
#pragma once

#include <string>

#include "vgpu/base/device.h"

namespace vgpu {

// clk: clocks of the compute unit. A wave of 64 takes four clk of a unit.
struct Constants {
  // The chip.
  double clock, xccs, cus;  // GHz, and how many
  // Vector and scalar loads: issue to use, clk; beyond L2 in ns, as memory has a clock of its own.
  double l1_latency, l2_latency, mall_ns, hbm_ns;
  double k_latency, k_l2_latency, k_mall_ns, k_hbm_ns;
  // Caches.
  double l1_bytes, l1_ways, k_bytes, k_ways, l2_bytes, l2_ways, l2_channels, mall_mib,
      fabric_channels, hbm_channels, hbm_interleave, hbm_banks, hbm_row_ns, hbm_turn_ns,
      hbm_write_interleave, hbm_write_queue;
  // Rates.
  double l2_line_clk, port_line_clk, mall_tb_s, mall_write_tb_s, hbm_tb_s;
  double atomic_lane_clk, atomic_line_clk, taken_trips;
  // The vector memory pipe of a CU.
  double in_flight_bytes, vmem_queue, dword_clk, wide_dword_clk, segment_clk, dma_dword_clk,
      dma_wide_dword_clk;
  // LDS.
  double lds_latency, lds_simd_dword_clk, lds_fifo_clk, lds_write_clk, lds_dma_bytes_clk;
  // Issue and arithmetic.
  double valu_latency, wide_valu_clk, packed_f32_clk, quarter_clk, trans_clk, matrix_latency,
      branch_clk;
  double barrier_clk, sleep_clk, fetch_clk, icache_bytes;
  // Workgroups.
  double dispatch_group_clk, dispatch_wave_clk, wave_start_clk, turnaround_clk;
  // Launches, us.
  double floor_profiler, floor_event, floor_graph;
  // Power: (GHz^3 at which matrix cores that are all busy can be kept), by what they multiply.
  double power_wide16, power_wide8, power_wide4, power_narrow, power_settle_us;
};

struct ConstantRow {
  double Constants::* field;
  const char *name, *unit;
  char grade;
  const char* source;
  double value;
};

// A part's constants; `rows` published times of it exist, or its error is not known.
struct Part {
  const DeviceInfo* device;
  Constants constants;
  bool has_rows;
};

// `changes`: "name=value ..." for ablation. False and `error` for what no constant is called.
bool make_part(const DeviceInfo& device, const std::string& changes, Part& part,
               std::string& error);

// The row that a constant of a part comes from.
const ConstantRow* constant_rows(u32& count);
const ConstantRow& constant_row(const DeviceInfo& device, u32 index);

}  // namespace vgpu
