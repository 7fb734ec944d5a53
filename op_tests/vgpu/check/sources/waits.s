// Results of loads that are used, or overwritten, before a wait on their counter.

//: case wait_load
//: says reads v8
//: fix s_waitcnt vmcnt(0)
  global_load_dword v8, v1, s[6:7]
  <fix>
  v_add_u32 v9, v8, v0  // here

//: case wait_counted
//: says vmcnt(0)
//: fix s_waitcnt vmcnt(0)
  global_load_dword v8, v1, s[6:7]
  global_load_dword v9, v1, s[6:7]
  s_waitcnt vmcnt(1)
  v_add_u32 v10, v8, v0
  <fix>
  v_add_u32 v10, v9, v0  // here

//: case wait_behind_store
//: says vmcnt(1)
//: fix s_waitcnt vmcnt(1)
  global_load_dword v8, v1, s[6:7]
  global_store_dword v1, v0, s[4:5]
  s_waitcnt vmcnt(2)
  <fix>
  v_add_u32 v10, v8, v0  // here

//: case wait_overwrite
//: says overwrites v8
//: fix s_waitcnt vmcnt(0)
  global_load_dword v8, v1, s[6:7]
  <fix>
  v_mov_b32 v8, 0  // here

//: case wait_tuple
//: says reads v9
//: fix s_waitcnt vmcnt(0)
  v_lshlrev_b32 v1, 1, v1
  global_load_dwordx2 v[8:9], v1, s[6:7]
  <fix>
  global_store_dword v1, v9, s[4:5]  // here

//: case wait_scalar
//: says reads s19
//: fix s_waitcnt lgkmcnt(0)
  s_load_dwordx2 s[18:19], s[6:7], 0x0
  s_load_dword s20, s[6:7], 0x8
  s_waitcnt lgkmcnt(1)
  <fix>
  s_add_u32 s21, s19, 1  // here
  s_waitcnt lgkmcnt(0)

//: case wait_scalar_in_vector
//: says reads s20
//: fix s_waitcnt lgkmcnt(0)
  s_load_dword s20, s[6:7], 0x8
  <fix>
  v_add_u32 v8, s20, v0  // here

//: case wait_lds
//: says lgkmcnt(0)
//: fix s_waitcnt lgkmcnt(0)
  ds_write_b32 v1, v0
  ds_read_b32 v8, v1
  ds_read_b32 v9, v1
  s_waitcnt lgkmcnt(1)
  v_add_u32 v10, v8, v0
  <fix>
  v_add_u32 v10, v9, v0  // here

//: case wait_permute
//: says reads v8
//: fix s_waitcnt lgkmcnt(0)
  ds_bpermute_b32 v8, v1, v0
  <fix>
  v_add_u32 v10, v8, v0  // here

//: case wait_atomic
//: says reads v8
//: fix s_waitcnt vmcnt(0)
  global_atomic_add v8, v1, v4, s[6:7] sc0
  <fix>
  v_add_u32 v10, v8, v0  // here

//: case wait_flat_lds
//: says lgkmcnt(0)
//: fix s_waitcnt lgkmcnt(0)
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_mov_b64 s[18:19], src_shared_base
  v_mov_b32 v8, v1
  v_mov_b32 v9, s19
  flat_load_dword v10, v[8:9]
  s_waitcnt vmcnt(0)
  <fix>
  v_add_u32 v10, v10, v0  // here

//: case wait_agpr
//: says reads a3
//: fix s_waitcnt vmcnt(0)
  global_load_dword a3, v1, s[6:7]
  <fix>
  v_accvgpr_read_b32 v8, a3  // here

//: case wait_buffer
//: says reads v8
//: fix s_waitcnt vmcnt(0)
  s_mov_b64 s[12:13], s[6:7]
  s_mov_b32 s14, 0x1000
  s_mov_b32 s15, 0x27000
  buffer_load_dword v8, v1, s[12:15], 0 offen
  <fix>
  v_add_u32 v9, v8, v0  // here

//: case wait_address
//: says reads v8
//: fix s_waitcnt vmcnt(0)
  global_load_dword v8, v1, s[6:7] offset:512
  <fix>
  v_readfirstlane_b32 s17, v8  // here

//: case wait_matrix
//: says reads v8
//: fix s_waitcnt vmcnt(0)
  v_mov_b32 v9, 0
  global_load_dword v8, v1, s[6:7]
  s_nop 1
  <fix>
  v_mfma_f32_16x16x16_f16 v[24:27], v[8:9], v[8:9], 0  // here

//: case wait_scratch
//: says reads v8
//: fix s_waitcnt vmcnt(0)
  scratch_store_dword off, v0, off offset:16
  scratch_load_dword v8, off, off offset:16
  <fix>
  v_add_u32 v9, v8, v0  // here

//: case wait_scalar_overwrite
//: says overwrites s20
//: fix s_waitcnt lgkmcnt(0)
  s_load_dword s20, s[6:7], 0x8
  <fix>
  s_mov_b32 s20, 0  // here
  s_waitcnt lgkmcnt(0)

//: case wait_scalar_address
//: says reads s18
//: fix s_waitcnt lgkmcnt(0)
  s_mov_b64 s[18:19], s[4:5]
  s_load_dwordx2 s[18:19], s[0:1], 0x8
  <fix>
  global_load_dword v8, v1, s[18:19]  // here
  s_waitcnt vmcnt(0)

//: case wait_lds_overwrite
//: says overwrites v8
//: fix s_waitcnt lgkmcnt(0)
  ds_write_b32 v1, v0
  ds_read_b32 v8, v1
  <fix>
  v_mov_b32 v8, 0  // here

//: case wait_both_queues
//: says lgkmcnt(0)
//: fix s_waitcnt lgkmcnt(0)
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v8, v1
  s_waitcnt vmcnt(0)
  <fix>
  v_add_u32 v9, v8, v0  // here
