// GPU model constants, each a row with unit, grade and source. No constant is chosen for a kernel.
//
// Grades: A measured and published, B derived from such a measurement, C vendor documents, D
// assumed. Sources c01 ... are rows of constants.csv beside this file; a test compares the values.
// "design" means fitted with a prototype to published times of prebuilt GEMM kernels.
#pragma once

#include <string>

#include "vgpu/base/device.h"

namespace vgpu {

// clk: clock cycles of a compute unit. A VALU instruction of a 64-lane wave takes four clk.
struct Constants {
  // GPU.
  double clock, xccs, cus;  // GHz, number of XCDs, number of CUs
  // Load latencies, issue to use: in clk up to L2; in ns beyond L2, because memory has its own
  // clock.
  double l1_latency, l2_latency, mall_ns, hbm_ns;
  double k_latency, k_l2_latency, k_mall_ns, k_hbm_ns;
  // Cache sizes.
  double l1_bytes, l1_ways, k_bytes, k_ways, l2_bytes, l2_ways, l2_channels, mall_mib,
      fabric_channels, hbm_channels, hbm_interleave, hbm_banks, hbm_row_ns, hbm_turn_ns,
      hbm_write_interleave, hbm_write_queue;
  // Bandwidths.
  double l2_line_clk, port_line_clk, mall_tb_s, mall_write_tb_s, hbm_tb_s;
  double atomic_lane_clk, atomic_line_clk, taken_trips;
  // Vector memory pipe of a CU.
  double in_flight_bytes, vmem_queue, dword_clk, wide_dword_clk, segment_clk, dma_dword_clk,
      dma_wide_dword_clk;
  // LDS.
  double lds_latency, lds_simd_dword_clk, lds_fifo_clk, lds_write_clk, lds_dma_bytes_clk;
  // Issue and arithmetic.
  double valu_latency, wide_valu_clk, packed_f32_clk, quarter_clk, trans_clk, matrix_latency,
      branch_clk;
  double barrier_clk, sleep_clk, fetch_clk, icache_bytes;
  // Workgroup dispatch.
  double dispatch_group_clk, dispatch_wave_clk, wave_start_clk, turnaround_clk;
  // Launch overhead, us.
  double floor_profiler, floor_event, floor_graph;
  // Power: the cube of the clock (GHz^3) sustained with all matrix cores busy, by operand width.
  double power_wide16, power_wide8, power_wide4, power_narrow, power_settle_us;
};

struct ConstantRow {
  double Constants::* field;
  const char *name, *unit;
  char grade;
  const char* source;
  double value;
};

// A GPU model. `is_validated`: published times of it exist; otherwise its error is unknown.
struct GpuModel {
  const DeviceInfo* device;
  Constants constants;
  bool is_validated;
};

// Makes the model of `device`. `changes`: "NAME=VALUE ..." overrides, for ablation. Returns false
// and sets `error` if a name is not a constant.
bool make_model(const DeviceInfo& device, const std::string& changes, GpuModel& model,
                std::string& error);

// Return the rows of all constants, and the row that applies to one device.
const ConstantRow* constant_rows(u32& count);
const ConstantRow& constant_row(const DeviceInfo& device, u32 index);

}  // namespace vgpu
