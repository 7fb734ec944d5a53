// Barriers that not all waves or lanes of a workgroup pass.

//: case barriers
//: says wave 1 waits at another barrier
//: at wave 0
//: run 2 waves
//: fix s_branch 1f
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc1 1f
  <fix>
  s_barrier
1:
  s_barrier  // here

//: case barriers_ended
//: says wave 1 has ended without reaching it
//: at wave 0
//: run 3 waves
//: fix s_barrier
  s_cmp_eq_u32 s16, 1
  s_cbranch_scc0 1f
  <fix>
  s_endpgm
1:
  s_barrier  // here

//: case barriers_loop
//: says wave 0 has ended without reaching it
//: at wave 1
//: run 3 waves
//: fix s_mov_b32 s17, 3
  s_add_u32 s17, s16, 2
  <fix>
1:
  s_barrier  // here
  s_sub_u32 s17, s17, 1
  s_cmp_eq_u32 s17, 0
  s_cbranch_scc0 1b

//: case barriers_lanes
//: says accesses memory after it
//: at wave 1, lane 32
//: run 2 waves
//: fix s_mov_b64 exec, s[20:21]
  v_cmp_gt_u32 vcc, 96, v0
  s_and_saveexec_b64 s[20:21], vcc
  s_cbranch_execz 1f
  <fix>
  s_barrier  // here
1:
  s_mov_b64 exec, s[20:21]
  global_store_dword v1, v0, s[4:5]
