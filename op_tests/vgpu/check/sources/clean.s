// What is right, though a coarser check would report it.

//: case copies
// Undefined values that decide nothing.
  v_mov_b32 v21, v20
  v_add_f32 v22, v21, v20
  s_add_u32 s22, s20, s21
  v_xor_b32 v23, v20, v20
  v_cmp_eq_u32 vcc, v0, v0
  v_cndmask_b32 v24, v20, v0, vcc
  v_mul_u32_u24 v25, v23, v24
  global_store_dword v1, v25, s[4:5]

//: case masks
// How compilers join masks of lanes: the bits of inactive lanes stay undefined.
  s_mov_b64 exec, 0xff
  v_cmp_gt_u32 vcc, 4, v0
  s_andn2_b64 s[20:21], s[20:21], exec
  s_and_b64 s[22:23], vcc, exec
  s_or_b64 s[20:21], s[20:21], s[22:23]
  v_writelane_b32 v20, s20, 3
  v_writelane_b32 v20, s21, 4
  v_readlane_b32 s24, v20, 3
  v_readlane_b32 s25, v20, 4
  s_and_saveexec_b64 s[22:23], s[20:21]
  s_and_b64 vcc, s[20:21], exec
  s_cbranch_vccz 1f
  global_store_dword v1, v0, s[4:5]
1:

//: case condition
// What the constant replaces is undefined; so is what M0 held before its parts were set.
  s_cmp_eq_u32 s16, s16
  s_cmovk_i32 s24, 4
  v_mov_b32 v8, s24
  global_store_dword v1, v8, s[4:5]
  s_mov_b32 m0, s40
  s_set_gpr_idx_on s8, gpr_idx(SRC0)
  v_mov_b32 v9, v4
  s_set_gpr_idx_off
  s_movrels_b32 s25, s8

//: case wide
// The high half of a 64-bit addend that is never used.
  v_mov_b32 v20, 8
  v_mad_u64_u32 v[22:23], s[20:21], v0, 4, v[20:21]
  global_store_dword v22, v0, s[4:5]

//: case turns
// Two waves in turns: one has a barrier more in front of its work, the other behind it.
//: run 2 waves
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc1 1f
  s_barrier
1:
  s_barrier
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc0 2f
  s_barrier
2:

//: case partial_wave
// Lanes that are masked off for good.
//: run 2 waves
  s_mov_b64 exec, 0xff
  s_barrier
  v_mov_b32 v20, v0
  s_barrier

//: case scratch
  scratch_store_dword off, v0, off offset:3
  scratch_load_dword v8, off, off offset:3
  s_waitcnt vmcnt(0)
  global_store_dword v1, v8, s[4:5]

//: case far
  v_mov_b32 v8, 0
  v_mov_b32 v9, 0x1234
  global_load_dword v10, v[8:9], off
  s_waitcnt vmcnt(0)

//: case same_value
// Flags that all waves set.
//: run 2 waves
  ds_write_b32 v3, v4
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v8, v3
  s_waitcnt lgkmcnt(0)

//: case in_order
// Waits by the order of the queue.
  global_load_dword v8, v1, s[6:7]
  global_load_dword v9, v1, s[6:7]
  s_waitcnt vmcnt(1)
  v_add_u32 v8, v8, v0
  global_load_dword v9, v1, s[6:7] offset:4
  s_waitcnt vmcnt(0)
  v_add_u32 v9, v8, v9

//: case atomics_signal
// A wave that waits for another one by an atomic.
//: run 2 waves
  ds_write_b32 v3, v3 offset:1024
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc0 1f
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  ds_add_u32 v3, v4 offset:1024
  s_branch 2f
1:
  ds_add_rtn_u32 v8, v3, v3 offset:1024
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s17, v8
  s_cmp_eq_u32 s17, 0
  s_cbranch_scc1 1b
  v_xor_b32 v8, 0x100, v1
  ds_read_b32 v9, v8
  s_waitcnt lgkmcnt(0)
2:

//: case through_table
// A load of 256 bytes through the pointer that the input holds.
  s_load_dwordx2 s[18:19], s[6:7], 0x0
  s_waitcnt lgkmcnt(0)
  global_load_dword v8, v1, s[18:19]
  s_waitcnt vmcnt(0)

//: case write_input
  global_store_dword v1, v0, s[6:7]

//: case dma_off
// A wave's LDS-DMA is switched off by a base that no LDS reaches.
  s_mov_b32 m0, 0x7fffffff
  s_nop 0
  global_load_lds_dword v1, s[6:7]
  s_mov_b64 s[12:13], s[6:7]
  s_movk_i32 s14, 4000
  s_mov_b32 s15, 0x27000
  buffer_load_dword v1, s[12:15], 0 offen lds
  s_waitcnt vmcnt(0)

//: case bytes_of_a_dword
// Each wave has bytes of its own in dwords of both, behind accesses by dwords.
//: run 2 waves
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_and_b32 v8, 63, v0
  v_lshlrev_b32 v8, 1, v8
  v_add_u32 v8, s16, v8
  ds_write_b8 v8, v4
  s_waitcnt lgkmcnt(0)
  ds_read_u8 v9, v8
  s_waitcnt lgkmcnt(0)
