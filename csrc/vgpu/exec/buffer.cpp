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
    resource.swizzle ? place_staged() : place_each();
  } else {
    place_directly();
  }
}

// Offset of a lane's dword from the base. The instruction's offset and the VGPR's add without a
// wrap: a VGPR offset below zero is out of range whatever is added to it (LLVM's splitBufferOffsets
// avoids it for that reason). soffset is never swizzled. Only buffers that add the lane to the
// index are swizzled, and a linear one with an index from a VGPR does not add it.
u64 BufferAccess::lane_offset(u32 lane, u32 dword) const {
  const BufferResource& r = resource_;
  const bool add_lane = r.add_tid && (r.swizzle || !index_);
  const u32 index = (index_ ? index_[lane] : 0) + (add_lane ? lane : 0);
  const u64 offset = u64{voffset_ ? voffset_[lane] : 0} + static_cast<u32>(inst_.imm) + 4 * dword;
  // The data format's field extends the stride where it is not a format.
  const u64 stride = add_lane && !format_op_ ? u32{r.data_format} << 14 | r.stride : r.stride;
  if (!r.swizzle || !r.add_tid) return index * stride + offset + soffset_;
  return (index / r.index_stride * stride + (offset & ~u64{3})) * r.index_stride +
         index % r.index_stride * 4 + offset % 4 + soffset_;
}

// How many of a lane's bytes are in range. An index from a VGPR is checked against the number of
// records, a raw offset (with soffset) against the size; addressing by lane alone is not checked.
u32 BufferAccess::lane_bytes_inside(u32 lane) const {
  const BufferResource& r = resource_;
  if (r.add_tid && !index_) return bytes_;
  if (index_ && r.stride) return index_[lane] < r.records ? bytes_ : 0;
  const u64 offset = u64{voffset_ ? voffset_[lane] : 0} + static_cast<u32>(inst_.imm) + soffset_;
  if (offset + bytes_ <= r.records) return bytes_;
  if (granule_ == Granule::kWhole || offset >= r.records) return 0;
  return static_cast<u32>((r.records - offset) & ~u64{3});
}

void BufferAccess::place_directly() {
  const BufferResource& r = resource_;
  const u64 fixed = u64{soffset_} + static_cast<u32>(inst_.imm);
  const u64 base = r.base + fixed;
  u64 outside = 0;
  if (index_ && r.stride) {
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 voffset = voffset_ ? voffset_[lane] : 0;
      outside |= index_[lane] >= r.records;
      at_.at[lane] = base + u64{index_[lane]} * r.stride + voffset;
    }
  } else {
    const u64 room = u64{r.records} - bytes_ - fixed;  // negative: nothing fits
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 voffset = voffset_ ? voffset_[lane] : 0;
      outside |= (room - voffset) >> 63;
      at_.at[lane] = base + voffset;
    }
  }
  outside ? place_each() : announce();
}

void BufferAccess::place_each() {
  u64 inside = 0;
  bool cut = false;
  for_lanes(mask_, [&](u32 lane) {
    const u32 count = lane_bytes_inside(lane);
    if (count == bytes_) inside |= lane_bit(lane);
    cut |= count != 0 && count != bytes_;
    at_.at[lane] = resource_.base + lane_offset(lane, 0);
  });
  if (cut) return place_staged();
  mask_ = inside;
  announce();
}

void BufferAccess::announce() {
  touch(wave_, inst_, {Space::kGlobal, is_write_, bytes_, mask_, at_.at});
  if (mask_ == ~u64{0}) {
    check_global(wave_, inst_, at_.at, mask_);
  } else {
    check_global_slow(wave_, inst_, at_.at, mask_);
  }
}

void BufferAccess::place_staged() {
  staged_ = true;
  for (u32 d = 0; d < dwords_for(bytes_); ++d) {
    LaneAddresses piece;
    u64 present = 0;
    const u32 bytes = bytes_ - 4 * d < 4 ? bytes_ - 4 * d : 4;
    for_lanes(mask_, [&](u32 lane) {
      if (d == 0) inside_[lane] = static_cast<u8>(lane_bytes_inside(lane));
      dwords_[lane][d] = piece.at[lane] = resource_.base + lane_offset(lane, d);
      if (4 * d < inside_[lane]) present |= lane_bit(lane);
    });
    touch(wave_, inst_, {Space::kGlobal, is_write_, bytes, present, piece.at});
    check_global_slow(wave_, inst_, piece.at, present);
  }
  u64 whole = 0;  // lanes with anything to access, or with zeros to load
  for_lanes(mask_, [&](u32 lane) {
    u8* to = stage_.lanes[lane];
    std::memset(to, 0, kStageBytes);
    if (inside_[lane] || !is_write_) whole |= lane_bit(lane);
    for (u32 at = 0; at < inside_[lane] && !is_write_; at += 4) {
      const u32 bytes = bytes_ - at < 4 ? bytes_ - at : 4;
      std::memcpy(to + at, reinterpret_cast<const void*>(dwords_[lane][at / 4]), bytes);
    }
    at_.at[lane] = host_address(to);
  });
  mask_ = whole;
}

void BufferAccess::write_back() {
  if (!staged_) return;
  for_lanes(mask_, [&](u32 lane) {
    for (u32 at = 0; at < inside_[lane]; at += 4) {
      const u32 bytes = bytes_ - at < 4 ? bytes_ - at : 4;
      std::memcpy(reinterpret_cast<void*>(dwords_[lane][at / 4]), stage_.lanes[lane] + at, bytes);
    }
  });
}

}  // namespace vgpu
