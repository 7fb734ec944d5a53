// Buffer addressing: converts a resource descriptor (V#), index and offset to host addresses.
#pragma once

#include "vgpu/exec/memory.h"

namespace vgpu {

// The resource descriptor of gfx9 in four SGPRs.
struct BufferResource {
  u64 base;
  u32 stride;     // bytes per record
  u32 records;    // bytes of a raw buffer, records of a structured one
  u32 selectors;  // dst_sel: three bits per component
  u8 num_format, data_format;
  u32 index_stride;  // contiguous elements of a swizzled buffer, one per lane
  bool swizzle, add_tid;
};

BufferResource buffer_resource(const Wave& wave, const Inst& inst);

// Unit of range checking: each dword of an access, or the whole element.
enum class Granule : u8 { kDword, kElement };

// The range-checked accesses of the lanes of one buffer instruction. Lanes with non-contiguous
// bytes (swizzled, or truncated by the end of the buffer) are staged through a copy.
class BufferAccess {
 public:
  BufferAccess(Wave& wave, const Inst& inst, const BufferResource& resource, u32 bytes,
               Granule granule, bool format_op, bool is_write);

  u64* addresses() { return addresses_.lane; }
  u64 mask() const { return mask_; }  // lanes that access memory
  // Writes staged data back to memory.
  void write_back();

 private:
  void set_addresses();       // linear address formula, all lanes at once
  void set_lane_addresses();  // per lane: the index depends on the lane, or some lanes are out
                              // of range
  void set_staged_addresses();
  void notify_observer();
  u64 lane_offset(u32 lane, u32 dword) const;
  u32 lane_bytes_inside(u32 lane) const;

  Wave& wave_;
  const Inst& inst_;
  const BufferResource& resource_;
  u32 bytes_, soffset_;
  Granule granule_;
  bool format_op_, is_write_, staged_ = false;
  u64 mask_;
  const u32* index_ = nullptr;  // VGPR rows; null if the instruction has none
  const u32* voffset_ = nullptr;
  LaneAddresses addresses_;
  u8 inside_[kLanes];      // in-range bytes per lane (staged access)
  u64 dwords_[kLanes][4];  // host address of each dword per lane (staged access)
  Stage stage_;
};

// A typed access: converts between a format's components in memory and 32-bit registers or halves.
struct BufferFormat {
  u8 widths[4];
  u8 number;  // 0 unorm, 1 snorm, 2 uscaled, 3 sscaled, 4 uint, 5 sint, 7 float
  u32 bytes;
  u32 selectors;
};

// `components` values in the format of `inst`, between memory and register rows.
struct FormatOp {
  u32 components;
  bool d16, high;
};
void buffer_load_format(Wave& wave, const Inst& inst, const FormatOp& op);
void buffer_store_format(Wave& wave, const Inst& inst, const FormatOp& op);

}  // namespace vgpu
