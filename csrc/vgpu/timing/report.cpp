#include "vgpu/timing/report.h"

#include "vgpu/base/json.h"
#include "vgpu/exec/memory.h"
#include "vgpu/object/debug_lines.h"

namespace vgpu {
namespace {

void real(Json& json, const char* name, double value) {
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
  real(json, "hit_rate", lines ? static_cast<double>(hits) / static_cast<double>(lines) : 0);
  json.close('}');
}

// By level, of the sampled XCD.
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

const char* unit_name(Unit unit) {
  static constexpr const char* kNames[] = {"salu", "smem", "valu",   "mfma",
                                           "lds",  "vmem", "branch", "other"};
  return kNames[static_cast<u32>(unit)];
}

// `source` is there where the code object has debug lines.
void by_pc(Json& json, const CodeObject& object, const Part& part, const ReplayResult& r) {
  const Program& program = *object.program;
  const DebugLines lines({object.file.data(), object.file.size()});
  const u64 address = program.address - host_address(object.image) + object.base_address;
  StaticTable table(program, part.constants);
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
    json.field("unit", std::string(unit_name(table.at(pc).unit)));
    json.field("unit_clk", u64{table.at(pc).busy});
    if (const auto source = lines.find(address + u64{pc} * 4)) {
      json.field("source", source->file + ":" + std::to_string(source->line));
    }
    json.field("issued", stats.issued);
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
    json.number(static_cast<u64>(event.at));
    json.number(u64{event.pc} * 4);
    json.number(event.simd);
    json.number(event.wave);
    json.number(event.stalled);
    json.string(reason_name(event.why));
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
  json.field("left_out_of_xcd", sample.left_out);
  json.field("looked_at_for_sharing", sample.elsewhere.size());
  json.field("wave_instructions", time.replay.instructions);
  json.field("left_out_instructions", time.left_out);
  json.close('}');
}

const char* kind_name(TimeKind kind) {
  static constexpr const char* kNames[] = {"profiler", "event", "graph"};
  return kNames[static_cast<u32>(kind)];
}

}  // namespace

std::string timing_record(const Launch& launch, const Part& part, const Sample& sample,
                          const TimingOptions& options, const LaunchTime& time,
                          const std::string& error, u64 number) {
  const ReplayResult& r = time.replay;
  Json json;
  json.open('{');
  json.field("launch", number);
  json.field("kernel", launch.kernel->name);
  json.field("arch", std::string(arch_name(launch.kernel->object->arch)));
  json.field("part", std::string(part.device->part));
  json.field("grid", launch.grid);
  json.field("block", launch.block);
  json.field("kind", std::string(kind_name(options.kind)));
  json.field("cold", u64{options.cold});
  real(json, "us", time.us);
  real(json, "low", time.low);
  real(json, "high", time.high);
  real(json, "floor_us", time.floor_us);
  real(json, "clock_ghz", time.ghz);
  real(json, "clocks", time.clocks);
  json.field("bound", time.bound);
  json.key("busy");
  json.open('{');
  for (const auto& [name, share] : time.busy) real(json, name, share);
  json.close('}');
  memory(json, r.memory);
  real(json, "sharing", time.sharing);
  real(json, "taken", time.taken);
  json.field("footprint_bytes", static_cast<u64>(time.footprint_bytes));
  json.field("workgroups_per_cu", sample.groups_per_cu);
  real(json, "waves_in_flight_per_cu",
       r.clocks ? static_cast<double>(r.wave_clocks) / static_cast<double>(r.clocks) /
                      (part.constants.cus / part.constants.xccs)
                : 0);
  real(json, "vmem_latency",
       r.vmem_count ? static_cast<double>(r.vmem_clocks) / static_cast<double>(r.vmem_count) : 0);
  json.field("lds_conflict_cycles", r.busy.lds_conflicts);
  stalls(json, "stalls", r.stalls);
  stalls(json, "barrier_because", r.barrier_because);
  sampled(json, sample, time);
  if (options.detail) by_pc(json, *launch.kernel->object, part, r);
  if (options.events) events(json, r);
  json.field("error", error);
  json.close('}');
  return json.take();
}

}  // namespace vgpu
