// Buffer addressing: from a resource descriptor (V#), index and offset to host addresses.
#pragma once

#include "vgpu/exec/memory.h"

namespace vgpu {

// The resource descriptor of gfx9 in four SGPRs.
struct BufferResource {
  u64 base;
  u32 stride;     // bytes a record
  u32 records;    // bytes of a raw buffer, records of a structured one
  u32 selectors;  // dst_sel: three bits a component
  u8 num_format, data_format;
  u32 index_stride;  // lanes whose elements lie together in a swizzled buffer
  bool swizzle, add_tid;
};

BufferResource buffer_resource(const Wave& wave, const Inst& inst);

// What range checking acts on: the dwords of an access one by one, or the access as a whole.
enum class Granule : u8 { kDword, kWhole };

// The lanes' accesses of one buffer instruction, range-checked. Lanes whose bytes do not lie
// together (a swizzled buffer, an access that the buffer's end cuts) go through a copy.
class BufferAccess {
 public:
  BufferAccess(Wave& wave, const Inst& inst, const BufferResource& resource, u32 bytes,
               Granule granule, bool format_op, bool is_write);

  u64* at() { return at_.at; }
  u64 mask() const { return mask_; }  // the lanes whose access takes place
  // Carries what was written to the copies to memory.
  void write_back();

 private:
  void place_directly();  // by the plain address formula, all lanes at once
  void place_each();  // lane by lane: the lane's number is part of the index, or lanes are outside
  void place_staged();
  void announce();
  u64 lane_offset(u32 lane, u32 dword) const;
  u32 lane_bytes_inside(u32 lane) const;

  Wave& wave_;
  const Inst& inst_;
  const BufferResource& resource_;
  u32 bytes_, soffset_;
  Granule granule_;
  bool format_op_, is_write_, staged_ = false;
  u64 mask_;
  const u32* index_ = nullptr;  // rows of VGPRs, null where the instruction has none
  const u32* voffset_ = nullptr;
  LaneAddresses at_;
  u8 inside_[kLanes];      // bytes of a lane inside the buffer (staged access)
  u64 dwords_[kLanes][4];  // host address of each dword of a lane (staged access)
  Stage stage_;
};

// Typed access: converts between a format's components in memory and 32-bit registers or halves.
struct BufferFormat {
  u8 widths[4];
  u8 number;  // 0 unorm, 1 snorm, 2 uscaled, 3 sscaled, 4 uint, 5 sint, 7 float
  u32 bytes;
  u32 selectors;
};

// `components` values of `inst`'s format between memory and `rows`.
struct FormatOp {
  u32 components;
  bool d16, high;
};
void buffer_load_format(Wave& wave, const Inst& inst, const FormatOp& op);
void buffer_store_format(Wave& wave, const Inst& inst, const FormatOp& op);

}  // namespace vgpu
