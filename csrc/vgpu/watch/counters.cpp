#include "vgpu/watch/counters.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <unordered_map>

#include "vgpu/base/device.h"
#include "vgpu/base/records.h"
#include "vgpu/base/report.h"
#include "vgpu/isa/mfma.h"
#include "vgpu/machine/lds_banks.h"

namespace vgpu {
namespace {

std::atomic<bool> enabled{false};
Records launch_records;

// A set of 64-byte lines of memory: one bit per line, one word per 4 KiB page.
class LineSet {
 public:
  void add(u64 address, u32 bytes) {
    const u64 first_segment = address / 64, last_segment = (address + bytes - 1) / 64;
    for (u64 line = first_segment; line <= last_segment; ++line)
      pages_[line / 64] |= u64{1} << (line % 64);
  }
  void add(const LineSet& rhs) {
    for (const auto& [page, lines] : rhs.pages_) pages_[page] |= lines;
  }
  u64 lines64() const {
    u64 count = 0;
    for (const auto& [page, lines] : pages_) count += static_cast<u64>(std::popcount(lines));
    return count;
  }
  u64 lines128() const {
    u64 count = 0;
    for (const auto& [page, lines] : pages_) {
      count += static_cast<u64>(std::popcount((lines | lines >> 1) & 0x5555555555555555));
    }
    return count;
  }

 private:
  std::unordered_map<u64, u64> pages_;
};

struct Traffic {
  u64 instructions = 0, bytes = 0;
  // Number of 64-byte lines per instruction, summed over instructions: a line counts each time.
  u64 requests64 = 0;
  LineSet lines;
  void add(const Traffic& rhs) {
    instructions += rhs.instructions;
    bytes += rhs.bytes;
    requests64 += rhs.requests64;
    lines.add(rhs.lines);
  }
};

struct Slot {
  u64 executed = 0;  // per wave
  u64 lanes = 0;     // sum of active lanes
};

class Counters : public Observer {
 public:
  explicit Counters(const Program& program) : slots(program.count) {}

  void before_inst(Wave& wave, const Inst& inst) override {
    Slot& slot = slots[inst.index];
    ++slot.executed;
    exec_before_ = wave.exec();
    slot.lanes += static_cast<u64>(std::popcount(exec_before_));
  }
  // Divergence: EXEC becomes a proper, non-empty subset of its old value.
  void after_inst(Wave& wave, const Inst&) override {
    const u64 exec = wave.exec();
    splits += exec != exec_before_ && exec && !(exec & ~exec_before_);
  }
  void access(Wave& wave, const Inst& inst, const Access& access) override {
    const u64 bytes = static_cast<u64>(std::popcount(access.mask)) * access.bytes;
    if (access.space == Space::kScratch) {
      scratch_bytes[access.is_write] += bytes;
    } else if (access.space == Space::kLds) {
      const LdsCycles cost =
          lds_cycles(wave.group->arch, access, reinterpret_cast<u64>(wave.group->lds));
      lds_bytes[access.is_write] += bytes;
      lds_accesses += 1;
      lds_cycle_count += cost.cycles;
      lds_conflicts += cost.conflicts;
    } else {
      add_global(inst.format == Format::kSmem ? scalar : global[access.is_write], access, bytes);
    }
  }
  void add(const Counters& rhs) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i].executed += rhs.slots[i].executed;
      slots[i].lanes += rhs.slots[i].lanes;
    }
    splits += rhs.splits;
    lds_accesses += rhs.lds_accesses;
    lds_cycle_count += rhs.lds_cycle_count;
    lds_conflicts += rhs.lds_conflicts;
    for (u32 w = 0; w < 2; ++w) {
      lds_bytes[w] += rhs.lds_bytes[w];
      scratch_bytes[w] += rhs.scratch_bytes[w];
      global[w].add(rhs.global[w]);
    }
    scalar.add(rhs.scalar);
  }

  std::vector<Slot> slots;
  u64 splits = 0, lds_bytes[2] = {}, scratch_bytes[2] = {};
  u64 lds_accesses = 0, lds_cycle_count = 0, lds_conflicts = 0;
  Traffic global[2], scalar;  // vector reads, vector writes and atomics; scalar loads

 private:
  u64 exec_before_ = 0;

  static void add_global(Traffic& traffic, const Access& access, u64 bytes) {
    LineSet one;
    for (u64 lanes = access.mask; lanes; lanes &= lanes - 1) {
      const u64 address = access.addresses[std::countr_zero(lanes)];
      traffic.lines.add(address, access.bytes);
      one.add(address, access.bytes);
    }
    ++traffic.instructions;
    traffic.bytes += bytes;
    traffic.requests64 += one.lines64();
  }
};

// -------------------------------------------------------------------------------- the record

// Returns the counter class of an instruction.
const char* class_of(Category category) {
  switch (category) {
    case Category::kSalu:
      return "salu";
    case Category::kSmem:
      return "smem";
    case Category::kValu:
    case Category::kPacked:
    case Category::kQuarter:
      return "valu";
    case Category::kTrans:
      return "trans";
    case Category::kMfma:
      return "mfma";
    case Category::kLds:
    case Category::kGws:
      return "lds";
    case Category::kVmemLoad:
    case Category::kVmemStore:
    case Category::kVmemAtomic:
    case Category::kLdsDma:
    case Category::kVmemCache:
      return "vmem";
    case Category::kBranch:
      return "branch";
    case Category::kWait:
    case Category::kNop:
    case Category::kSleep:
      return "wait";
    case Category::kBarrier:
      return "barrier";
    default:
      return "other";
  }
}

void write_map(Json& json, const char* name, const std::map<std::string, u64>& values) {
  json.key(name);
  json.open('{');
  for (const auto& [key, value] : values) json.field(key, value);
  json.close('}');
}

void write_traffic(Json& json, const char* name, const Traffic& traffic) {
  json.key(name);
  json.open('{');
  json.field("instructions", traffic.instructions);
  json.field("bytes", traffic.bytes);
  json.field("requests_64B", traffic.requests64);
  json.field("lines_64B", traffic.lines.lines64());
  json.field("lines_128B", traffic.lines.lines128());
  json.close('}');
}

struct Mix {
  std::map<std::string, u64> mnemonics, classes, shapes;
  u64 total = 0, flops = 0, matrix_flops = 0, matrix_cycles = 0;

  Mix(const Program& program, const Counters& counted) {
    for (u32 i = 0; i < program.count; ++i) {
      const Slot& slot = counted.slots[i];
      if (slot.executed) add(program, i, slot);
    }
  }

 private:
  void add(const Program& program, u32 index, const Slot& slot) {
    Inst inst;
    decode(program.arch, program.words, program.count, index, inst);
    if (!inst.op) return;
    total += slot.executed;
    mnemonics[inst.op->name] += slot.executed;
    classes[class_of(inst.op->category)] += slot.executed;
    flops += inst.op->flops * slot.lanes;
    if (const MatrixShape* shape = matrix_shape(inst)) {
      shapes[shape->name] += slot.executed;
      matrix_flops += u64{shape->macs()} * 2 * slot.executed;
      matrix_cycles += u64{matrix_passes(*shape, inst, program.arch)} * 4 * slot.executed;
    }
  }
};

void write_resources(Json& json, const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  const DeviceInfo& device = device_info(kernel.object->arch);
  const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
  const u32 lds = kernel.group_segment_bytes + launch.dynamic_lds;
  const u32 groups = workgroups_per_cu(device, kernel.vgpr_rows, lds, threads);
  const u32 waves = (threads + kLanes - 1) / kLanes;
  json.field("vgpr", kernel.vgpr_count);
  json.field("agpr", kernel.agpr_count);
  json.field("sgpr", kernel.sgpr_count);
  json.field("vgpr_spills", kernel.vgpr_spills);
  json.field("sgpr_spills", kernel.sgpr_spills);
  json.field("scratch_bytes_per_lane", kernel.private_segment_bytes);
  json.field("lds_bytes_per_workgroup", lds);
  json.field("compute_units", device.compute_units);
  json.field("workgroups_per_cu", groups);
  json.key("waves_per_simd");
  json.real(static_cast<double>(groups) * waves / kSimdsPerCu);
}

}  // namespace

bool profiling() { return enabled || reporting(); }

LaunchCounters::LaunchCounters(const Launch& launch) : launch_(launch), totals_(observer()) {}

std::unique_ptr<Observer> LaunchCounters::observer() {
  return std::make_unique<Counters>(*launch_.kernel->object->program);
}

void LaunchCounters::add(const Observer& counted) {
  static_cast<Counters&>(*totals_).add(static_cast<const Counters&>(counted));
}

void LaunchCounters::finish(u64 number, double seconds, const std::string& error) {
  const Kernel& kernel = *launch_.kernel;
  const auto& c = static_cast<const Counters&>(*totals_);
  const Mix mix(*kernel.object->program, c);
  const u64 groups = u64{launch_.grid[0]} * launch_.grid[1] * launch_.grid[2];
  const u64 threads = u64{launch_.block[0]} * launch_.block[1] * launch_.block[2];
  Json json;
  json.open('{');
  json.field("launch", number);
  json.key("kernel");
  json.string(kernel.name);
  json.key("arch");
  json.string(arch_name(kernel.object->arch));
  json.field("grid", launch_.grid);
  json.field("block", launch_.block);
  json.field("workgroups", groups);
  json.field("waves", groups * ((threads + kLanes - 1) / kLanes));
  json.field("wave_instructions", mix.total);
  write_map(json, "instructions", mix.mnemonics);
  write_map(json, "classes", mix.classes);
  write_map(json, "mfma", mix.shapes);
  json.field("mfma_cycles", mix.matrix_cycles);
  json.field("mfma_flops", mix.matrix_flops);
  json.field("valu_flops", mix.flops);
  write_traffic(json, "global_read", c.global[0]);
  write_traffic(json, "global_write", c.global[1]);
  write_traffic(json, "scalar_read", c.scalar);
  json.field("lds_read_bytes", c.lds_bytes[0]);
  json.field("lds_write_bytes", c.lds_bytes[1]);
  json.field("lds_accesses", c.lds_accesses);
  json.field("lds_cycles", c.lds_cycle_count);
  json.field("lds_conflict_cycles", c.lds_conflicts);
  json.field("scratch_read_bytes", c.scratch_bytes[0]);
  json.field("scratch_write_bytes", c.scratch_bytes[1]);
  json.field("exec_splits", c.splits);
  write_resources(json, launch_);
  json.key("host_seconds");
  json.real(seconds);
  json.key("error");
  json.string(error);
  json.close('}');
  std::string record = json.take();
  report("counted", record);
  if (!enabled) return;
  launch_records.add(std::move(record));
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Turns counting of later launches on or off. Returns the previous state.
VGPU_EXPORT int rfops_vgpu_profile(int enable) { return vgpu::enabled.exchange(enable != 0); }

// Returns the pending records as a JSON array and clears them. The text is valid until this
// thread's next call.
VGPU_EXPORT const char* rfops_vgpu_profile_take() {
  thread_local std::string text;
  return vgpu::launch_records.take(text);
}
