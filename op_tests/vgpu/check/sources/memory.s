// Accesses outside the input buffer of 4000 bytes, or outside 4096 bytes of LDS.

//: case load
//: says reads 4 bytes 0 bytes after the end
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  v_add_u32 v1, 0xf00, v1
  <fix>
  global_load_dword v8, v1, s[6:7]  // here
  s_waitcnt vmcnt(0)

//: case wide_load
//: says 8 bytes beyond the end
//: at lane 18, address input+3992
//: fix s_mov_b64 exec, 0xff
  v_lshlrev_b32 v1, 2, v1
  v_add_u32 v1, 0xf00 - 144, v1
  <fix>
  global_load_dwordx4 v[8:11], v1, s[6:7] offset:8  // here
  s_waitcnt vmcnt(0)

//: case store
//: says writes 4 bytes 0 bytes after
//: at lane 9, address input+4000
//: fix s_mov_b64 exec, 0xff
  v_mov_b32 v8, s6
  v_mov_b32 v9, s7
  v_cmp_eq_u32 vcc, 9, v0
  v_mov_b32 v10, 0xfa0
  v_cndmask_b32 v10, 0, v10, vcc
  v_mov_b32 v11, 0
  v_lshl_add_u64 v[8:9], v[10:11], 0, v[8:9]
  <fix>
  global_store_dword v[8:9], v4, off  // here

//: case atomic
//: says writes 4 bytes
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  v_add_u32 v1, 0xf00, v1
  <fix>
  global_atomic_add v1, v4, s[6:7]  // here

//: case buffer
//: says reads 4 bytes
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  s_mov_b64 s[12:13], s[6:7]
  s_mov_b32 s14, 0x1000
  s_mov_b32 s15, 0x27000
  v_add_u32 v1, 0xf00, v1
  <fix>
  buffer_load_dword v8, v1, s[12:15], 0 offen  // here
  s_waitcnt vmcnt(0)

//: case lds_dma_source
//: says reads 4 bytes
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  v_add_u32 v1, 0xf00, v1
  <fix>
  global_load_lds_dword v1, s[6:7]  // here

//: case flat
//: says reads 4 bytes
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  v_mov_b32 v8, s6
  v_mov_b32 v9, s7
  v_lshl_add_u64 v[8:9], v[8:9], 0, 0
  v_add_co_u32 v8, vcc, 0xf00, v8
  v_addc_co_u32 v9, vcc, 0, v9, vcc
  v_add_co_u32 v8, vcc, v8, v1
  v_addc_co_u32 v9, vcc, 0, v9, vcc
  <fix>
  flat_load_dword v10, v[8:9]  // here
  s_waitcnt vmcnt(0) lgkmcnt(0)

//: case scalar
//: says reads
//: at address input+4000
//: fix s_movk_i32 s17, 3996
  s_movk_i32 s17, 4000
  <fix>
  s_load_dword s18, s[6:7], s17  // here
  s_waitcnt lgkmcnt(0)

//: case atomic_returning
//: says writes 4 bytes
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  v_add_u32 v1, 0xf00, v1
  <fix>
  global_atomic_add v8, v1, v4, s[6:7] sc0  // here
  s_waitcnt vmcnt(0)

//: case buffer_store
//: says writes 1 bytes
//: at lane 40, address input+4000
//: fix s_mov_b64 exec, 0xff
  s_mov_b64 s[12:13], s[6:7]
  s_mov_b32 s14, 0x1000
  s_mov_b32 s15, 0x27000
  v_add_u32 v1, 0xf00, v1
  <fix>
  buffer_store_byte v4, v1, s[12:15], 0 offen  // here

//: case lds_read
//: says reads 4 bytes of LDS outside the workgroup's 4096
//: at lane 63, address 4096
//: fix v_subrev_u32 v8, 64, v8
//: fix s_mov_b64 exec, 0xfe
  v_lshlrev_b32 v8, 6, v0
  ds_write_b32 v8, v0
  s_waitcnt lgkmcnt(0)
  <fix>
  v_add_u32 v8, 64, v8
  ds_read_b32 v9, v8  // here
  s_waitcnt lgkmcnt(0)

//: case lds_write
//: says writes 16 bytes of LDS outside the workgroup's 4096
//: at lane 63, address 4084
//: fix s_mov_b64 exec, 0xff
  v_lshlrev_b32 v8, 6, v0
  <fix>
  ds_write_b128 v8, v[4:7] offset:52  // here
  s_waitcnt lgkmcnt(0)

//: case lds_dma_target
//: says outside the workgroup's 4096
//: at lane 63, address 4096
//: fix s_movk_i32 s17, 0xf00
  s_movk_i32 s17, 0xf04
  <fix>
  s_mov_b32 m0, s17
  s_nop 0
  global_load_lds_dword v1, s[6:7]  // here
  s_waitcnt vmcnt(0)

//: case lds_dma_beyond
// The whole copy is dropped, but hardware has LDS there: no way to switch a copy off.
//: says writes 4 bytes of LDS outside the workgroup's 4096
//: at lane 0, address 4096
//: fix s_movk_i32 s17, 0xf00
  s_movk_i32 s17, 0x1000
  <fix>
  s_mov_b32 m0, s17
  s_nop 0
  global_load_lds_dword v1, s[6:7]  // here
  s_waitcnt vmcnt(0)
