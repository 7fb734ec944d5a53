// The vector memory pipe of a compute unit: a short queue, one instruction after another, as long
// as what it asks for fits what may be on its way.
#include "vgpu/timing/replay.h"

namespace vgpu {

void Replay::enqueue(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk now) {
  Cu& cu = cus_[wave.cu];
  cu.queue.push_back({&wave, &inst, words, count, wave.vector.issued, now});
  wave.vector.issue(kUnknownClk);
  if (!cu.pipe_scheduled) push_pipe(wave.cu, std::max(now, cu.pipe_free));
}

void Replay::run_pipe(u32 index, Clk now) {
  Cu& cu = cus_[index];
  cu.pipe_scheduled = false;
  while (!cu.in_flight.empty() && cu.in_flight.top().done <= now) {
    cu.bytes_in_flight -= cu.in_flight.top().bytes;
    cu.in_flight.pop();
  }
  const Pending pending = cu.queue.front();
  const u32 word = pending.count ? pending.words[0] : 0;
  const bool loads = tag_of(word) == GlobalWord::kTag && !GlobalWord::is_write(word);
  const u32 bytes = loads ? GlobalWord::bytes(word) * GlobalWord::lanes(word) : 0;
  if (bytes && cu.bytes_in_flight &&
      cu.bytes_in_flight + bytes > static_cast<u64>(k_.in_flight_bytes)) {
    return push_pipe(index, cu.in_flight.top().done);
  }
  cu.queue.pop_front();
  serve(cu, pending, now);
  if (bytes) {
    cu.in_flight.push(
        {pending.wave->vector.until(pending.wave->vector.issued - 1 - pending.number), bytes});
    cu.bytes_in_flight += bytes;
  }
  wake_one(cu, now);
  if (!cu.queue.empty()) push_pipe(index, cu.pipe_free);
}

void Replay::serve(Cu& cu, const Pending& pending, Clk now) {
  const TimedInst& inst = *pending.inst;
  const u32 word = pending.count ? pending.words[0] : 0;
  const bool global = tag_of(word) == GlobalWord::kTag;
  const u32 width = global ? std::max<u32>(inst.width, GlobalWord::bytes(word) / 4) : inst.width;
  double cost = width > 1 ? k_.wide_dword_clk * width : k_.dword_clk;
  if (inst.dma) cost = width > 1 ? k_.dma_wide_dword_clk * width : k_.dma_dword_clk;
  if (global) cost = std::max(cost, GlobalWord::segments(word) * k_.segment_clk);
  cu.pipe_free = now + static_cast<Clk>(cost);
  cu.busy.memory += static_cast<u64>(cost);
  double done = static_cast<double>(now) + k_.l1_latency;
  if (global) done = std::max(done, serve_lines(cu, pending, now));
  write_flag(*pending.wave, pending.words, pending.count, static_cast<Clk>(done));
  if (inst.dma && global) {
    const double bytes = GlobalWord::bytes(word) * GlobalWord::lanes(word);  // as a store's
    const Clk clk = static_cast<Clk>(std::max(k_.lds_write_clk, bytes / k_.lds_dma_bytes_clk));
    cu.lds_free = std::max(cu.lds_free, now) + clk;
    cu.busy.lds += static_cast<u64>(clk);
  }
  result_.vmem_clocks += static_cast<u64>(done) - static_cast<u64>(pending.issued);
  ++result_.vmem_count;
  // Counted in order: stores and loads alike.
  WaveRun& wave = *pending.wave;
  const Clk before = pending.number ? wave.vector.until(wave.vector.issued - pending.number) : 0;
  wave.vector.set(pending.number, std::max(before, static_cast<Clk>(done)));
  if (wave.parked == WaveRun::Parked::kOnLoad) push(wave, now);
}

// When the last of its lines is back, or taken.
double Replay::serve_lines(Cu& cu, const Pending& pending, Clk now) {
  const u32 word = pending.words[0], lines = GlobalWord::lines(word);
  const double at = static_cast<double>(now);
  double done = at;
  const auto leave = [&](double& port, double clk) {
    port = std::max(port, at) + clk;
    return port;
  };
  // A read asks for the halves of a line that it needs; writes leave as requests of 64 bytes.
  const double halves = std::min(2.0, 1.0 * GlobalWord::segments(word) / std::max(1u, lines));
  const double line_clk = k_.port_line_clk * halves / 2;
  if (GlobalWord::is_write(word)) {
    // More than the segments hold: lanes that meet at an address, one after another.
    const u32 lanes = GlobalWord::lanes(word);
    const bool meet = lanes * GlobalWord::bytes(word) > 64 * GlobalWord::segments(word);
    const double serial = meet && lines ? lanes / lines * k_.atomic_lane_clk : 0;
    const double atomic = pending.inst->atomic ? std::max(k_.atomic_line_clk, serial) : 0;
    for (u32 i = 1; i <= lines; ++i) {
      const double left = leave(cu.write_port_free, 2 * line_clk);
      done = std::max(done, memory_.write(left, pending.words[i], atomic));
    }
    return done;
  }
  for (u32 i = 1; i <= lines; ++i) {
    const u32 line = pending.words[i];
    const auto [slot, hit] = cu.l1.find(line, hash_line(line) >> 3);
    ++memory_.counts.l1_lines;
    memory_.counts.l1_hits += hit;
    if (!hit) {
      cu.l1.ready(slot) = memory_.read(leave(cu.port_free, line_clk), line);
      result_.port_busy += line_clk;
    }
    done = std::max(done, cu.l1.ready(slot));
  }
  return done;
}

// Room for one more: of those who wait, the first by priority, then by age.
void Replay::wake_one(Cu& cu, Clk now) {
  if (cu.wait_queue.empty()) return;
  const auto first = std::min_element(
      cu.wait_queue.begin(), cu.wait_queue.end(), [](const WaveRun* a, const WaveRun* b) {
        return a->priority != b->priority ? a->priority > b->priority : a->age < b->age;
      });
  WaveRun* const wave = *first;
  cu.wait_queue.erase(first);
  push(*wave, now);
}

}  // namespace vgpu
