// Buffer addressing and range checks.
#include "vgpu/exec/buffer.h"

namespace vgpu {

BufferResource buffer_resource(const Wave& wave, const Inst& inst) {
  const u32* word = &wave.sgpr[inst.srsrc & 0x7c];
  BufferResource r;
  r.base = word[0] | u64{word[1] & 0xffff} << 32;
  r.stride = field(word[1], 16, 14);
  r.swizzle = field(word[1], 31, 1);
  r.records = word[2];
  r.selectors = field(word[3], 0, 12);
  r.num_format = static_cast<u8>(field(word[3], 12, 3));
  r.data_format = static_cast<u8>(field(word[3], 15, 4));
  r.index_stride = 8u << field(word[3], 21, 2);
  r.add_tid = field(word[3], 23, 1);
  return r;
}

BufferAccess::BufferAccess(Wave& wave, const Inst& inst, const BufferResource& resource, u32 bytes,
                           Granule granule, bool format_op, bool is_write)
    : wave_(wave),
      inst_(inst),
      resource_(resource),
      bytes_(bytes),
      soffset_(read_scalar32(wave, inst.src[0])),
      granule_(granule),
      format_op_(format_op),
      is_write_(is_write),
      mask_(wave.exec()) {
  if (inst.idxen) index_ = wave.v(inst.addr);
  if (inst.offen) voffset_ = wave.v(inst.addr + inst.idxen);
  if (resource.add_tid) {
    resource.swizzle ? set_staged_addresses() : set_lane_addresses();
  } else {
    set_addresses();
  }
}

// Returns the offset of a lane's dword from the base. The instruction offset and the VGPR offset
// are added without wrapping: a negative VGPR offset is always out of range (LLVM's
// splitBufferOffsets avoids it for that reason). soffset is never swizzled. Only buffers that add
// the lane to the index are swizzled; a linear buffer with an index from a VGPR does not add it.
u64 BufferAccess::lane_offset(u32 lane, u32 dword) const {
  const BufferResource& r = resource_;
  const bool add_lane = r.add_tid && (r.swizzle || !index_);
  const u32 index = (index_ ? index_[lane] : 0) + (add_lane ? lane : 0);
  const u64 offset = u64{voffset_ ? voffset_[lane] : 0} + static_cast<u32>(inst_.imm) + 4 * dword;
  // If the data format field is not used as a format, it extends the stride.
  const u64 stride = add_lane && !format_op_ ? u32{r.data_format} << 14 | r.stride : r.stride;
  if (!r.swizzle || !r.add_tid) return index * stride + offset + soffset_;
  return (index / r.index_stride * stride + (offset & ~u64{3})) * r.index_stride +
         index % r.index_stride * 4 + offset % 4 + soffset_;
}

// Returns how many of a lane's bytes are in range. An index from a VGPR is checked against the
// number of records, a raw offset (with soffset) against the size; addressing by lane alone is not
// checked.
u32 BufferAccess::lane_bytes_inside(u32 lane) const {
  const BufferResource& r = resource_;
  if (r.add_tid && !index_) return bytes_;
  if (index_ && r.stride) return index_[lane] < r.records ? bytes_ : 0;
  const u64 offset = u64{voffset_ ? voffset_[lane] : 0} + static_cast<u32>(inst_.imm) + soffset_;
  if (offset + bytes_ <= r.records) return bytes_;
  if (granule_ == Granule::kElement || offset >= r.records) return 0;
  return static_cast<u32>((r.records - offset) & ~u64{3});
}

void BufferAccess::set_addresses() {
  const BufferResource& r = resource_;
  const u64 fixed = u64{soffset_} + static_cast<u32>(inst_.imm);
  const u64 base = r.base + fixed;
  u64 outside = 0;
  if (index_ && r.stride) {
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 voffset = voffset_ ? voffset_[lane] : 0;
      outside |= index_[lane] >= r.records;
      addresses_.lane[lane] = base + u64{index_[lane]} * r.stride + voffset;
    }
  } else {
    const u64 num_in_bounds = u64{r.records} - bytes_ - fixed;  // negative: nothing is in range
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 voffset = voffset_ ? voffset_[lane] : 0;
      outside |= (num_in_bounds - voffset) >> 63;
      addresses_.lane[lane] = base + voffset;
    }
  }
  outside ? set_lane_addresses() : notify_observer();
}

void BufferAccess::set_lane_addresses() {
  u64 in_bounds = 0;
  bool cut = false;
  for_lanes(mask_, [&](u32 lane) {
    const u32 count = lane_bytes_inside(lane);
    if (count == bytes_) in_bounds |= lane_bit(lane);
    cut |= count != 0 && count != bytes_;
    addresses_.lane[lane] = resource_.base + lane_offset(lane, 0);
  });
  if (cut) return set_staged_addresses();
  mask_ = in_bounds;
  notify_observer();
}

void BufferAccess::notify_observer() {
  touch(wave_, inst_, {Space::kGlobal, is_write_, bytes_, mask_, addresses_.lane});
  if (mask_ == ~u64{0}) {
    check_global(wave_, inst_, addresses_.lane, mask_);
  } else {
    check_global_slow(wave_, inst_, addresses_.lane, mask_);
  }
}

void BufferAccess::set_staged_addresses() {
  staged_ = true;
  for (u32 d = 0; d < dwords_for(bytes_); ++d) {
    LaneAddresses addresses;
    u64 has_data = 0;
    const u32 bytes = bytes_ - 4 * d < 4 ? bytes_ - 4 * d : 4;
    for_lanes(mask_, [&](u32 lane) {
      if (d == 0) inside_[lane] = static_cast<u8>(lane_bytes_inside(lane));
      dwords_[lane][d] = addresses.lane[lane] = resource_.base + lane_offset(lane, d);
      if (4 * d < inside_[lane]) has_data |= lane_bit(lane);
    });
    touch(wave_, inst_, {Space::kGlobal, is_write_, bytes, has_data, addresses.lane});
    check_global_slow(wave_, inst_, addresses.lane, has_data);
  }
  u64 active_mask = 0;  // lanes that access memory, or load zeros
  for_lanes(mask_, [&](u32 lane) {
    u8* dst = stage_.lanes[lane];
    std::memset(dst, 0, kStageBytes);
    if (inside_[lane] || !is_write_) active_mask |= lane_bit(lane);
    for (u32 byte_offset = 0; byte_offset < inside_[lane] && !is_write_; byte_offset += 4) {
      const u32 bytes = bytes_ - byte_offset < 4 ? bytes_ - byte_offset : 4;
      std::memcpy(dst + byte_offset, reinterpret_cast<const void*>(dwords_[lane][byte_offset / 4]),
                  bytes);
    }
    addresses_.lane[lane] = host_address(dst);
  });
  mask_ = active_mask;
}

void BufferAccess::write_back() {
  if (!staged_) return;
  for_lanes(mask_, [&](u32 lane) {
    for (u32 byte_offset = 0; byte_offset < inside_[lane]; byte_offset += 4) {
      const u32 bytes = bytes_ - byte_offset < 4 ? bytes_ - byte_offset : 4;
      std::memcpy(reinterpret_cast<void*>(dwords_[lane][byte_offset / 4]),
                  stage_.lanes[lane] + byte_offset, bytes);
    }
  });
}

}  // namespace vgpu
