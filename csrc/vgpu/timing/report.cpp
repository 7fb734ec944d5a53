#include "vgpu/timing/report.h"

#include "vgpu/base/json.h"
#include "vgpu/exec/memory.h"
#include "vgpu/object/debug_lines.h"

namespace vgpu {
namespace {

void write_real(Json& json, const char* name, double value) {
  json.key(name);
  json.real(value);
}

void stalls(Json& json, const char* name, const std::array<u64, kReasons>& cycles) {
  json.key(name);
  json.open('{');
  for (u32 i = 0; i < kReasons; ++i) {
    if (cycles[i]) json.field(reason_name(static_cast<Reason>(i)), cycles[i]);
  }
  json.close('}');
}

void level(Json& json, const char* name, u64 lines, u64 hits) {
  json.key(name);
  json.open('{');
  json.field("bytes", lines * kLineBytes);
  write_real(json, "hit_rate", lines ? static_cast<double>(hits) / static_cast<double>(lines) : 0);
  json.close('}');
}

// Writes hit rates and bytes per level of the sampled XCD's memory hierarchy.
void memory(Json& json, const MemoryCounts& m) {
  json.key("memory");
  json.open('{');
  level(json, "l1", m.l1_lines, m.l1_hits);
  level(json, "scalar", m.scalar_lines, m.scalar_hits);
  level(json, "l2", m.l2_lines, m.l2_hits);
  level(json, "mall", m.mall_lines, m.mall_lines - m.hbm_lines);
  json.field("hbm_read_bytes", m.hbm_lines * kLineBytes);
  json.field("hbm_rows_opened", m.hbm_rows);
  json.field("written_bytes", m.written_lines * kLineBytes);
  json.close('}');
}

// Writes what the model lets each level of memory deliver to the whole GPU, in TB/s.
void rates(Json& json, const Constants& k, double ghz) {
  json.key("rates");
  json.open('{');
  write_real(json, "l1", kLineBytes / k.port_line_clk * k.cus * ghz / 1e3);
  write_real(json, "l2", kLineBytes / k.l2_line_clk * k.l2_channels * k.xccs * ghz / 1e3);
  write_real(json, "mall", k.mall_tb_s);
  write_real(json, "hbm", k.hbm_tb_s);
  json.close('}');
}

const char* unit_name(Unit unit) {
  static constexpr const char* kNames[] = {"salu", "smem", "valu",   "mfma",
                                           "lds",  "vmem", "branch", "other"};
  return kNames[static_cast<u32>(unit)];
}

// Writes issues and stalls per PC; `source` and `callers`, the calls
// that were inlined around it, only if the code object has debug lines.
void write_pcs(Json& json, const CodeObject& object, const GpuModel& model, const ReplayResult& r) {
  const Program& program = *object.program;
  const DebugLines lines({object.file.data(), object.file.size()});
  const u64 address = program.address - host_address(object.image) + object.base_address;
  StaticTable table(program, model.constants);
  json.key("pcs");
  json.open('[');
  for (u32 pc = 0; pc < r.pcs.size(); ++pc) {
    const PcStats& stats = r.pcs[pc];
    if (!stats.issued) continue;
    Inst inst;
    decode(program.arch, program.words, program.count, pc, inst);
    json.open('{');
    json.field("offset", u64{pc} * 4);
    json.field("text", inst.op ? disassemble(inst) : std::string("?"));
    json.field("unit", std::string(unit_name(table.lookup(pc).unit)));
    json.field("unit_clk", u64{table.lookup(pc).busy});
    if (const auto source = lines.find(address + u64{pc} * 4)) {
      json.field("source", source->text());
    }
    if (const auto callers = lines.callers(address + u64{pc} * 4); !callers.empty()) {
      json.key("callers");
      json.open('[');
      for (const SourceLine& caller : callers) json.string(caller.text());
      json.close(']');
    }
    json.field("issued", stats.issued);
    if (stats.lds_clk) {
      json.field("lds_clk", stats.lds_clk);
      json.field("conflict_clk", stats.conflict_clk);
    }
    if (stats.lines) {
      json.field("bytes", stats.bytes);
      json.field("lines", stats.lines);
    }
    stalls(json, "stalls", stats.stalls);
    json.close('}');
  }
  json.close(']');
}

void events(Json& json, const ReplayResult& r) {
  json.field("events_cu", r.events_cu);
  json.key("events");
  json.open('[');
  for (const IssueEvent& event : r.events) {
    json.open('[');
    json.number(static_cast<u64>(event.clk));
    json.number(u64{event.pc} * 4);
    json.number(event.simd);
    json.number(event.wave);
    json.number(event.stalled);
    json.string(reason_name(event.reason));
    json.close(']');
  }
  json.close(']');
}

void sampled(Json& json, const Sample& sample, const LaunchTime& time) {
  json.key("sampled");
  json.open('{');
  json.field("workgroups", sample.replayed.size());
  json.field("of", sample.groups);
  json.field("xcds", sample.xccs);
  json.field("left_out_of_xcd", sample.num_skipped);
  json.field("looked_at_for_sharing", sample.remote.size());
  json.field("wave_instructions", time.replay.instructions);
  json.field("left_out_instructions", time.untraced);
  json.close('}');
}

const char* kind_name(Measurement kind) {
  static constexpr const char* kNames[] = {"profiler", "event", "graph"};
  return kNames[static_cast<u32>(kind)];
}

}  // namespace

std::string timing_record(const Launch& launch, const GpuModel& model, const Sample& sample,
                          const TimingOptions& options, const LaunchTime& time,
                          const std::string& error, u64 number) {
  const ReplayResult& r = time.replay;
  Json json;
  json.open('{');
  json.field("launch", number);
  json.field("kernel", launch.kernel->name);
  json.field("arch", std::string(arch_name(launch.kernel->object->arch)));
  json.field("part", std::string(model.device->model));
  json.field("grid", launch.grid);
  json.field("block", launch.block);
  json.field("kind", std::string(kind_name(options.kind)));
  json.field("cold", u64{options.cold});
  write_real(json, "us", time.us);
  write_real(json, "low", time.low);
  write_real(json, "high", time.high);
  write_real(json, "floor_us", time.overhead_us);
  write_real(json, "clock_ghz", time.ghz);
  write_real(json, "clocks", time.clocks);
  json.field("bound", time.bound);
  json.key("busy");
  json.open('{');
  for (const auto& [name, share] : time.busy) write_real(json, name, share);
  json.close('}');
  memory(json, r.memory);
  rates(json, model.constants, time.ghz);
  write_real(json, "sharing", time.sharing);
  write_real(json, "taken", time.contended);
  json.field("footprint_bytes", static_cast<u64>(time.footprint_bytes));
  json.field("workgroups_per_cu", sample.groups_per_cu);
  write_real(json, "waves_in_flight_per_cu",
             r.clocks ? static_cast<double>(r.wave_clocks) / static_cast<double>(r.clocks) /
                            (model.constants.cus / model.constants.xccs)
                      : 0);
  write_real(
      json, "vmem_latency",
      r.vmem_count ? static_cast<double>(r.vmem_clocks) / static_cast<double>(r.vmem_count) : 0);
  json.field("lds_conflict_cycles", r.busy.lds_conflicts);
  stalls(json, "stalls", r.stalls);
  stalls(json, "barrier_because", r.barrier_causes);
  sampled(json, sample, time);
  if (options.detail) write_pcs(json, *launch.kernel->object, model, r);
  if (options.events) events(json, r);
  json.field("error", error);
  json.close('}');
  return json.take();
}

}  // namespace vgpu
