// What nobody has written, where it decides something: addresses, branches, EXEC, stored data.

//: case undefined_address
//: says v20 was never written
//: at lane 0
//: fix v_mov_b32 v20, 0
  <fix>
  v_and_b32 v20, 60, v20
  global_load_dword v8, v20, s[6:7]  // here
  s_waitcnt vmcnt(0)

//: case undefined_base
//: says s20 was never written
//: run faults
//: fix s_mov_b64 s[20:21], s[6:7]
  <fix>
  global_load_dword v8, v3, s[20:21]  // here
  s_waitcnt vmcnt(0)

//: case undefined_store
//: says v20 was never written
//: at lane 0
//: fix v_mov_b32 v20, 0
  <fix>
  v_add_f32 v21, v20, v4
  global_store_dword v1, v21, s[4:5]  // here

//: case undefined_lanes
//: says v20 was never written
//: at lane 8
//: fix s_mov_b64 exec, 0xff
  s_mov_b64 exec, 0xff
  v_mov_b32 v20, 0
  s_mov_b64 exec, -1
  <fix>
  global_store_dword v1, v20, s[4:5]  // here

//: case undefined_agpr
//: says a9 was never written
//: at lane 0
//: fix v_accvgpr_write_b32 a9, 0
  <fix>
  v_accvgpr_read_b32 v21, a9
  global_store_dword v1, v21, s[4:5]  // here

//: case undefined_agpr_stored
//: says a9 was never written
//: at lane 0
//: fix v_accvgpr_write_b32 a9, 0
  <fix>
  global_store_dword v1, a9, s[4:5]  // here

//: case undefined_sgpr
//: says s40 was never written
//: at lane 0
//: fix s_mov_b32 s40, 0
  <fix>
  v_mov_b32 v21, s40
  global_store_dword v1, v21, s[4:5]  // here

//: case undefined_descriptor
//: says s14 was never written
//: fix s_movk_i32 s14, 0x1000
  s_mov_b64 s[12:13], s[6:7]
  s_mov_b32 s15, 0x27000
  <fix>
  buffer_load_dword v8, v1, s[12:15], 0 offen  // here
  s_waitcnt vmcnt(0)

//: case undefined_scalar_load
//: says read from global memory
//: run fresh input
//: fix v_mov_b32 v8, 0
//: fix global_store_dwordx4 v8, v[4:7], s[6:7] offset:64
  <fix>
  s_load_dword s20, s[6:7], 0x40
  s_waitcnt lgkmcnt(0)
  s_cmp_eq_u32 s20, 0
  s_cbranch_scc1 1f  // here
1:

//: case undefined_accumulator
//: says v27 was never written
//: at lane 0
//: fix v_mov_b32 v27, 0
  v_mov_b32 v20, 0
  v_mov_b32 v21, 0
  <fix>
  s_nop 1
  v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[20:21], v[24:27]
  s_nop 15
  global_store_dword v1, v27, s[4:5]  // here

//: case undefined_scc
//: says s20 was never written
//: fix s_mov_b32 s20, 0
  <fix>
  s_cmp_eq_u32 s20, 0
  s_cbranch_scc1 1f  // here
1:

//: case undefined_scc_as_source
//: says s20 was never written
//: fix s_mov_b32 s20, 0
  <fix>
  s_cmp_eq_u32 s20, 0
  s_and_b32 s24, src_scc, 1
  s_cbranch_scc1 1f  // here
1:

//: case undefined_condition
//: says s20 was never written
//: at lane 0
//: fix s_mov_b32 s20, 0
  s_mov_b32 s24, 0
  <fix>
  s_cmp_eq_u32 s20, 0
  s_cmovk_i32 s24, 4
  v_mov_b32 v21, s24
  global_store_dword v1, v21, s[4:5]  // here

//: case undefined_relative_source
//: says s20 was never written
//: fix s_mov_b32 s20, 0
  <fix>
  s_mov_b32 m0, s20
  s_movrels_b32 s24, s8  // here

//: case undefined_vcc
//: says v20 was never written
//: fix v_mov_b32 v20, 0
  <fix>
  v_cmp_eq_u32 vcc, 0x7fb0dea0, v20
  s_cbranch_vccnz 1f  // here
1:

//: case undefined_exec
//: says v20 was never written
//: at lane 0
//: fix v_mov_b32 v20, 0
  <fix>
  v_cmp_eq_u32 vcc, v20, v0
  s_and_saveexec_b64 s[20:21], vcc  // here

//: case undefined_lds
//: says read from LDS that was never written
//: at lane 16
//: fix ds_write_b32 v1, v0
  s_mov_b64 exec, 0xffff
  ds_write_b32 v1, v0
  s_mov_b64 exec, -1
  <fix>
  ds_read_b32 v8, v1
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v8, s[4:5]  // here

//: case undefined_in_lds
//: says read from LDS
//: at lane 0
//: fix v_mov_b32 v20, 0
  <fix>
  ds_write_b32 v1, v20
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v8, v1
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v8, s[4:5]  // here

//: case undefined_scratch
//: says read from private memory
//: at lane 0
//: fix scratch_store_dword off, v0, off offset:16
  <fix>
  scratch_load_dword v8, off, off offset:16
  s_waitcnt vmcnt(0)
  global_store_dword v1, v8, s[4:5]  // here

//: case undefined_global
//: says read from global memory
//: at lane 0
//: run fresh input
//: fix global_store_dword v1, v0, s[6:7] offset:512
  <fix>
  global_load_dword v8, v1, s[6:7] offset:512
  s_waitcnt vmcnt(0)
  global_store_dword v1, v8, s[4:5]  // here

//: case undefined_lds_atomic
//: says atomic on memory that was never written
//: at lane 0, address 0
//: fix ds_write_b32 v1, v0
  <fix>
  ds_add_u32 v1, v0  // here

//: case undefined_dpp
//: says v20 was never written
//: at lane 62
//: fix v_mov_b32 v20, 0
  s_mov_b32 exec_hi, 0x7fffffff
  v_mov_b32 v20, 0
  s_mov_b64 exec, -1
  <fix>
  v_mov_b32 v21, 0
  s_nop 1
  v_mov_b32_dpp v21, v20 row_shl:1 row_mask:0xf bank_mask:0xf
  global_store_dword v1, v21, s[4:5]  // here

//: case undefined_permute
//: says v20 was never written
//: at lane 5
//: fix v_mov_b32 v20, 0
  s_mov_b64 exec, 1
  v_mov_b32 v20, 0
  s_mov_b64 exec, -1
  <fix>
  v_mov_b32 v21, 0
  v_cmp_eq_u32 vcc, 5, v0
  v_cndmask_b32 v21, 0, v1, vcc
  ds_bpermute_b32 v22, v21, v20
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v22, s[4:5]  // here

//: case undefined_matrix
//: says v20 was never written
//: at lane 16
//: fix v_mov_b32 v20, 0
//: fix v_mov_b32 v21, 0
  v_mov_b32 v24, 0
  v_mov_b32 v25, 0
  v_mov_b32 v26, 0
  v_mov_b32 v27, 0
  s_mov_b32 exec_lo, 0xffffffdf
  v_mov_b32 v20, 0
  v_mov_b32 v21, 0
  s_mov_b64 exec, -1
  <fix>
  s_nop 1
  v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[24:25], 0
  s_nop 15
  v_lshlrev_b32 v1, 2, v1
  global_store_dword v1, v25, s[4:5]  // here
