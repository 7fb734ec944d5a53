// Slow paths of memory accesses: faults, ranges, private memory, LDS-DMA.
#include "vgpu/exec/memory.h"

#include <cfenv>
#include <cstdio>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/load_queue.h"

namespace vgpu {
namespace {

std::string lane_text(const char* format, u32 lane, u64 address) {
  char text[160];
  std::snprintf(text, sizeof(text), format, lane, static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

void check_global_slow(Wave& wave, const Inst& inst, const u64* addresses, u64 mask) {
  for_lanes(mask, [&](u32 lane) {
    if ((addresses[lane] - 4096) >> 47) {
      fault(wave, inst,
            lane_text("lane %u accesses address 0x%llx, which is invalid", lane,
                      addresses[lane]));
    }
  });
}

void misaligned_atomic(Wave& wave, const Inst& inst, const u64* addresses, u32 bytes, u64 mask,
                       u64 base) {
  for_lanes(mask, [&](u32 lane) {
    if (addresses[lane] & (bytes - 1)) {
      fault(wave, inst,
            lane_text("misaligned atomic: lane %u, address 0x%llx", lane, addresses[lane] - base));
    }
  });
}

u64 lds_inside_slow(const Workgroup& group, u64* addresses, u32 bytes, u64 mask) {
  u64 inside = 0;
  for_lanes(mask, [&](u32 lane) {
    const u64 offset = addresses[lane] - host_address(group.lds);
    if (offset + bytes <= group.lds_bytes) inside |= lane_bit(lane);
  });
  return inside;
}

void lds_dma(Wave& wave, const Inst& inst, const u64* addresses, u64 mask, u64 inside,
             Transfer transfer, u32 bytes) {
  LdsDmaQueue::DmaTransfer& transfer_dst = wave.group->lds_dma_queue->next();
  if (inside != ~u64{0}) std::memset(transfer_dst.rows, 0, sizeof(transfer_dst.rows));
  transfer(transfer_dst.rows, addresses, inside);
  const u32 dwords = transfer_dst.dwords = dwords_for(bytes);
  const u32 step = dwords == 1 ? 4 : 16;  // lanes of three dwords are 16 bytes apart
  const u32 base = wave.sgpr[kM0] & arch_traits(wave.group->arch).lds_dma_base;
  u64* dst = transfer_dst.dst.lane;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    dst[lane] = base + static_cast<u32>(inst.imm) + lane * step;
  }
  transfer_dst.mask = lds_resolve(*wave.group, dst, 4 * dwords, mask);
  touch(wave, inst,
        {Space::kLds, true, 4 * dwords, transfer_dst.mask, dst, mask & ~transfer_dst.mask});
  if (transfer_dst.mask) wave.load_queue->hold(wave, wave.group->lds_dma_queue->send());
}

// -------------------------------------------------------------------------------- private memory

namespace {

// Returns the position of byte `offset` of a lane: dwords of the 64 lanes are interleaved.
u32 scratch_offset(u32 lane, u32 offset) {
  return offset / 4 * (4 * kLanes) + lane * 4 + offset % 4;
}

// Calls copy(address, offset in the lane's bytes, bytes) for each contiguous run.
template <class Copy>
void for_each_scratch_dword(u32 lane, u32 offset, u32 bytes, Copy copy) {
  for (u32 done = 0; done < bytes;) {
    const u32 start = offset + done, dword_bytes = 4 - start % 4, remaining = bytes - done;
    const u32 num_bytes = remaining < dword_bytes ? remaining : dword_bytes;
    copy(scratch_offset(lane, start), done, num_bytes);
    done += num_bytes;
  }
}

}  // namespace

void scratch_read(const Wave& wave, u32 lane, u32 offset, u32 bytes, u8* dst) {
  for_each_scratch_dword(lane, offset, bytes, [&](u32 address, u32 done, u32 num_bytes) {
    if (num_bytes == 4) return store<u32>(dst + done, load<u32>(wave.scratch + address));
    for (u32 b = 0; b < num_bytes; ++b) dst[done + b] = wave.scratch[address + b];
  });
}

void scratch_write(Wave& wave, u32 lane, u32 offset, u32 bytes, const u8* src) {
  for_each_scratch_dword(lane, offset, bytes, [&](u32 address, u32 done, u32 num_bytes) {
    if (num_bytes == 4) return store<u32>(wave.scratch + address, load<u32>(src + done));
    for (u32 b = 0; b < num_bytes; ++b) wave.scratch[address + b] = src[done + b];
  });
}

void check_scratch(Wave& wave, const Inst& inst, const u64* addresses, u32 bytes, u64 mask) {
  for_lanes(mask, [&](u32 lane) {
    if (addresses[lane] < wave.scratch_bytes && addresses[lane] + bytes <= wave.scratch_bytes)
      return;
    char text[160];
    std::snprintf(
        text, sizeof(text),
        "stack overflow: lane %u accesses %u bytes at 0x%llx of its %u bytes of private memory",
        lane, bytes, static_cast<unsigned long long>(addresses[lane]), wave.scratch_bytes);
    fault(wave, inst, text);
  });
}

// -------------------------------------------------------------------------------- float mode

#if defined(__SSE__)
CacheFpMode::CacheFpMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
CacheFpMode::~CacheFpMode() { _mm_setcsr(saved_); }
#else
CacheFpMode::CacheFpMode() : saved_(static_cast<u32>(std::fegetround())) {
  std::fesetround(FE_TONEAREST);
}
CacheFpMode::~CacheFpMode() { std::fesetround(static_cast<int>(saved_)); }
#endif

}  // namespace vgpu
