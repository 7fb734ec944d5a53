// Two waves at the same bytes of LDS, or one wave and its LDS-DMA, with nothing in between.

//: case race_read
//: says reads data that wave 0 at
//: at wave 1, address 0
//: run 2 waves
//: fix s_barrier
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  <fix>
  v_and_b32 v8, 0xff, v1
  ds_read_b32 v8, v8  // here
  s_waitcnt lgkmcnt(0)

//: case race_write_read
//: says overwrites data that wave 0 reads
//: at wave 1
//: run 2 waves
//: fix s_barrier
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_or_b32 v8, 0x100, v1
  ds_read_b32 v9, v8
  s_waitcnt lgkmcnt(0)
  <fix>
  v_add_u32 v10, 1, v0
  ds_write_b32 v1, v10  // here
  s_waitcnt lgkmcnt(0)

//: case race_write
//: says overwrites data that wave 0 at
//: at wave 1, address 8
//: run 2 waves
//: fix s_cmp_eq_u32 s16, 0
//: fix s_cbranch_scc0 1f
  <fix>
  v_mov_b32 v8, s16
  ds_write_b32 v3, v8 offset:8  // here
1:
  s_waitcnt lgkmcnt(0)

//: case race_byte
//: says reads data that wave 0 at
//: at wave 1, address 2
//: run 2 waves
//: fix s_barrier
  v_mov_b32 v8, s16
  v_add_u32 v9, 2, v8
  ds_write_b8 v9, v8
  s_waitcnt lgkmcnt(0)
  <fix>
  ds_read_u8 v10, v3 offset:2  // here
  s_waitcnt lgkmcnt(0)

//: case race_in_flight
//: says reads data that wave
//: run 2 waves
//: fix s_waitcnt lgkmcnt(0)
  ds_write_b32 v1, v0
  <fix>
  s_barrier
  v_xor_b32 v8, 0x100, v1
  ds_read_b32 v8, v8  // here
  s_waitcnt lgkmcnt(0)

//: case race_after_atomics
//: says overwrites data that wave 0 at
//: at wave 1
//: run 2 waves
//: fix s_barrier
  ds_write_b32 v1, v3
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_lshlrev_b32 v8, 2, v4
  ds_add_u32 v8, v4  // here
  s_waitcnt lgkmcnt(0)
  <fix>
  ds_read_b32 v9, v8
  s_waitcnt lgkmcnt(0)

//: case race_before_atomics
//: says overwrites data that wave 1 at
//: at wave 0, lane 0, address 260
//: run 2 waves
//: fix s_barrier
  ds_write_b32 v1, v3
  s_waitcnt lgkmcnt(0)
  <fix>
  v_mov_b32 v8, 0x104
  ds_wrxchg_rtn_b32 v9, v8, v4  // here
  s_waitcnt lgkmcnt(0)

//: case race_dma_own
//: says LDS-DMA
//: fix s_waitcnt vmcnt(0)
  global_load_lds_dword v1, s[6:7]
  <fix>
  ds_read_b32 v8, v1  // here
  s_waitcnt lgkmcnt(0)

//: case race_dma_barrier
//: says reads data that wave
//: run 2 waves
//: fix s_waitcnt vmcnt(0)
  s_lshl_b32 s17, s16, 8
  s_mov_b32 m0, s17
  s_nop 0
  global_load_lds_dword v1, s[6:7]
  <fix>
  s_barrier
  v_xor_b32 v8, 0x100, v1
  ds_read_b32 v8, v8  // here
  s_waitcnt lgkmcnt(0)

//: case race_byte
// Bytes of a dword of their own, behind accesses by dwords; one of them is another wave's.
//: says overwrites data that wave 0
//: at wave 1, lane 1, address 1025
//: run 2 waves
//: fix s_barrier
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc0 1f
  v_mov_b32 v8, 1
  v_mov_b32 v9, 7
  ds_write_b8 v8, v9 offset:1024
  ds_write_b8 v3, v9 offset:1027
  s_waitcnt lgkmcnt(0)
1:
  <fix>
  s_cmp_eq_u32 s16, 1
  s_cbranch_scc0 2f
  s_mov_b64 exec, 6
  v_subrev_u32 v8, 64, v0
  ds_write_b8 v8, v4 offset:1024  // here
  s_waitcnt lgkmcnt(0)
2:
