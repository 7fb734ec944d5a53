// The vector memory pipe of a compute unit: a short in-order queue. The pipe serves the next
// instruction when its bytes fit the in-flight limit.
#include "vgpu/timing/replay.h"

namespace vgpu {

void Replay::enqueue(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count,
                     Clk cur_clk) {
  Cu& cu = cus_[wave.cu];
  cu.queue.push_back({&wave, &inst, words, count, wave.vector.issued, cur_clk});
  wave.vector.issue(kUnknownClk);
  if (!cu.pipe_scheduled) push_pipe(wave.cu, std::max(cur_clk, cu.pipe_free));
}

void Replay::run_pipe(u32 index, Clk cur_clk) {
  Cu& cu = cus_[index];
  cu.pipe_scheduled = false;
  while (!cu.in_flight.empty() && cu.in_flight.top().done <= cur_clk) {
    cu.bytes_in_flight -= cu.in_flight.top().bytes;
    cu.in_flight.pop();
  }
  const VmemRequest request = cu.queue.front();
  const u32 word = request.count ? request.words[0] : 0;
  const bool loads = tag_of(word) == GlobalWord::kTag && !GlobalWord::is_write(word);
  const u32 bytes = loads ? GlobalWord::bytes(word) * GlobalWord::lanes(word) : 0;
  if (bytes && cu.bytes_in_flight &&
      cu.bytes_in_flight + bytes > static_cast<u64>(k_.in_flight_bytes)) {
    return push_pipe(index, cu.in_flight.top().done);
  }
  cu.queue.pop_front();
  serve(cu, request, cur_clk);
  if (bytes) {
    cu.in_flight.push(
        {request.wave->vector.completion(request.wave->vector.issued - 1 - request.vmem_index),
         bytes});
    cu.bytes_in_flight += bytes;
  }
  wake_next(cu, cur_clk);
  if (!cu.queue.empty()) push_pipe(index, cu.pipe_free);
}

void Replay::serve(Cu& cu, const VmemRequest& request, Clk cur_clk) {
  const TimedInst& inst = *request.inst;
  const u32 word = request.count ? request.words[0] : 0;
  const bool global = tag_of(word) == GlobalWord::kTag;
  const u32 width = global ? std::max<u32>(inst.width, GlobalWord::bytes(word) / 4) : inst.width;
  double cost = width > 1 ? k_.wide_dword_clk * width : k_.dword_clk;
  if (inst.dma) cost = width > 1 ? k_.dma_wide_dword_clk * width : k_.dma_dword_clk;
  if (global) cost = std::max(cost, GlobalWord::segments(word) * k_.segment_clk);
  cu.pipe_free = cur_clk + static_cast<Clk>(cost);
  cu.busy.memory += static_cast<u64>(cost);
  double done = static_cast<double>(cur_clk) + k_.l1_latency;
  if (global) done = std::max(done, serve_lines(cu, request, cur_clk));
  write_flag(*request.wave, request.words, request.count, static_cast<Clk>(done));
  if (inst.dma && global) {
    // Charged to LDS like a ds_write.
    const double bytes = GlobalWord::bytes(word) * GlobalWord::lanes(word);
    const Clk clk = static_cast<Clk>(std::max(k_.lds_write_clk, bytes / k_.lds_dma_bytes_clk));
    cu.lds_free = std::max(cu.lds_free, cur_clk) + clk;
    cu.busy.lds += static_cast<u64>(clk);
  }
  result_.vmem_clocks += static_cast<u64>(done) - static_cast<u64>(request.issued);
  ++result_.vmem_count;
  // Loads and stores complete in order for vmcnt.
  WaveRun& wave = *request.wave;
  const Clk prev_done =
      request.vmem_index ? wave.vector.completion(wave.vector.issued - request.vmem_index) : 0;
  wave.vector.set(request.vmem_index, std::max(prev_done, static_cast<Clk>(done)));
  if (wave.wait_kind == WaveRun::WaitKind::kLoad) push(wave, cur_clk);
}

// Returns when the last line has been returned or acknowledged.
double Replay::serve_lines(Cu& cu, const VmemRequest& request, Clk cur_clk) {
  const u32 word = request.words[0], lines = GlobalWord::lines(word);
  const double start_clk = static_cast<double>(cur_clk);
  double done = start_clk;
  const auto reserve_port = [&](double& port, double clk) {
    port = std::max(port, start_clk) + clk;
    return port;
  };
  // A read requests only the needed 64-byte halves of a line; a write leaves as 64-byte requests.
  const double halves = std::min(2.0, 1.0 * GlobalWord::segments(word) / std::max(1u, lines));
  const double line_clk = k_.port_line_clk * halves / 2;
  if (GlobalWord::is_write(word)) {
    // More bytes than the segments hold: lanes with equal addresses are serialised.
    const u32 lanes = GlobalWord::lanes(word);
    const bool same_address = lanes * GlobalWord::bytes(word) > 64 * GlobalWord::segments(word);
    const double serial = same_address && lines ? lanes / lines * k_.atomic_lane_clk : 0;
    const double atomic = request.inst->atomic ? std::max(k_.atomic_line_clk, serial) : 0;
    for (u32 i = 1; i <= lines; ++i) {
      const double depart_clk = reserve_port(cu.write_port_free, 2 * line_clk);
      done = std::max(done, memory_.write(depart_clk, request.words[i], atomic));
    }
    return done;
  }
  for (u32 i = 1; i <= lines; ++i) {
    const u32 line = request.words[i];
    const auto [slot, hit] = cu.l1.find(line, hash_line(line) >> 3);
    ++memory_.counts.l1_lines;
    memory_.counts.l1_hits += hit;
    if (!hit) {
      cu.l1.ready(slot) = memory_.read(reserve_port(cu.port_free, line_clk), line);
      result_.port_busy += line_clk;
    }
    done = std::max(done, cu.l1.ready(slot));
  }
  return done;
}

// Wakes the next wave that waits for a queue entry: highest priority first, then oldest.
void Replay::wake_next(Cu& cu, Clk cur_clk) {
  if (cu.wait_queue.empty()) return;
  const auto oldest = std::min_element(
      cu.wait_queue.begin(), cu.wait_queue.end(), [](const WaveRun* a, const WaveRun* b) {
        return a->priority != b->priority ? a->priority > b->priority : a->age < b->age;
      });
  WaveRun* const wave = *oldest;
  cu.wait_queue.erase(oldest);
  push(*wave, cur_clk);
}

}  // namespace vgpu
