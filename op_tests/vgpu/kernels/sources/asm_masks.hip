// Lane masks: every comparison of every type, comparisons that write EXEC, and the *_saveexec
// family.
#include "hip_names.h"

#define ONE(type, condition)                                                          \
  {                                                                                   \
    u64 mask;                                                                         \
    asm("v_cmp_" condition "_" type "_e64 %0, %1, %2" : "=s"(mask) : "v"(a), "v"(b)); \
    seen |= static_cast<u32>(mask >> lane_id() & 1) << slot++;                        \
  }
// clang-format off
#define INTEGER_CONDITIONS(type)                                                        \
  ONE(type, "f") ONE(type, "lt") ONE(type, "eq") ONE(type, "le") ONE(type, "gt")        \
  ONE(type, "ne") ONE(type, "ge") ONE(type, "t")
#define FLOAT_CONDITIONS(type)                                                          \
  ONE(type, "f") ONE(type, "lt") ONE(type, "eq") ONE(type, "le") ONE(type, "gt")        \
  ONE(type, "lg") ONE(type, "ge") ONE(type, "o") ONE(type, "u") ONE(type, "nge")        \
  ONE(type, "nlg") ONE(type, "ngt") ONE(type, "nle") ONE(type, "neq") ONE(type, "nlt")  \
  ONE(type, "tru")
// clang-format on
#define COMPARE(name, T, conditions)                                  \
  KERNEL compare_all_##name(u32* out, const T* in_a, const T* in_b) { \
    const T a = in_a[global_id()];                                    \
    const T b = in_b[global_id()];                                    \
    u32 seen = 0, slot = 0;                                           \
    conditions(#name) out[global_id()] = seen;                        \
  }
COMPARE(i16, i16, INTEGER_CONDITIONS)
COMPARE(u16, u16, INTEGER_CONDITIONS)
COMPARE(i32, i32, INTEGER_CONDITIONS)
COMPARE(u32, u32, INTEGER_CONDITIONS)
COMPARE(i64, i64, INTEGER_CONDITIONS)
COMPARE(u64, u64, INTEGER_CONDITIONS)
COMPARE(f16, f16, FLOAT_CONDITIONS)
COMPARE(f32, float, FLOAT_CONDITIONS)
COMPARE(f64, double, FLOAT_CONDITIONS)

// The comparison leaves only the lanes that pass: they alone take the new value.
#define EXEC_ONE(type, condition)                                   \
  {                                                                 \
    u32 value = 0;                                                  \
    u64 saved;                                                      \
    asm volatile("s_mov_b64 %1, exec\n\tv_cmpx_" condition "_" type \
                 "_e32 vcc, %2, %3\n\t"                             \
                 "v_mov_b32 %0, 1\n\ts_mov_b64 exec, %1"            \
                 : "+v"(value), "=&s"(saved)                        \
                 : "v"(a), "v"(b)                                   \
                 : "vcc");                                          \
    seen |= value << slot++;                                        \
  }
KERNEL compare_exec(u32* out, const float* in_a, const float* in_b) {
  u32 seen = 0, slot = 0;
  {
    const float a = in_a[global_id()];
    const float b = in_b[global_id()];
    // clang-format off
    EXEC_ONE("f32", "lt") EXEC_ONE("f32", "eq") EXEC_ONE("f32", "le") EXEC_ONE("f32", "gt")
    EXEC_ONE("f32", "lg") EXEC_ONE("f32", "ge") EXEC_ONE("f32", "o") EXEC_ONE("f32", "u")
    EXEC_ONE("f32", "nge") EXEC_ONE("f32", "ngt") EXEC_ONE("f32", "nlt") EXEC_ONE("f32", "tru")
    // clang-format on
  }
  {
    const i32 a = bits<i32>(in_a[global_id()]);
    const i32 b = bits<i32>(in_b[global_id()]);
    // clang-format off
    EXEC_ONE("i32", "lt") EXEC_ONE("i32", "eq") EXEC_ONE("u32", "le") EXEC_ONE("u32", "gt")
    EXEC_ONE("i32", "ne") EXEC_ONE("u32", "ge")
    // clang-format on
  }
  out[global_id()] = seen;
}

// out: {destination, EXEC, SCC} of each form, from a given EXEC and operand.
#define SAVE(text)                                                                    \
  {                                                                                   \
    u64 saved, destination, changed;                                                  \
    u32 scc;                                                                          \
    asm volatile("s_mov_b64 %0, exec\n\ts_mov_b64 exec, %4\n\t" text                  \
                 " %1, %5\n\t"                                                        \
                 "s_cselect_b32 %3, 1, 0\n\ts_mov_b64 %2, exec\n\ts_mov_b64 exec, %0" \
                 : "=&s"(saved), "=&s"(destination), "=&s"(changed), "=&s"(scc)       \
                 : "s"(exec), "s"(operand)                                            \
                 : "scc");                                                            \
    if (threadIdx.x == 0) {                                                           \
      out[slot] = destination;                                                        \
      out[slot + 1] = changed;                                                        \
      out[slot + 2] = scc;                                                            \
    }                                                                                 \
    slot += 3;                                                                        \
  }
KERNEL save_exec(u64* out, u64 exec, u64 operand) {
  u32 slot = 0;
  // clang-format off
  SAVE("s_and_saveexec_b64") SAVE("s_or_saveexec_b64") SAVE("s_xor_saveexec_b64")
  SAVE("s_andn2_saveexec_b64") SAVE("s_orn2_saveexec_b64") SAVE("s_nand_saveexec_b64")
  SAVE("s_nor_saveexec_b64") SAVE("s_xnor_saveexec_b64") SAVE("s_andn1_saveexec_b64")
  SAVE("s_orn1_saveexec_b64") SAVE("s_andn1_wrexec_b64") SAVE("s_andn2_wrexec_b64")
  // clang-format on
}

// Scalar registers by a computed number, a call by a relative jump, the program counter.
KERNEL scalar_moves(u32* out, u32 a, u32 b, u32 index) {
  u32 picked, called;
  asm volatile(
      "s_mov_b32 s40, 11\n\ts_mov_b32 s41, 22\n\ts_mov_b32 s42, %1\n\ts_mov_b32 s43, 44\n\t"
      "s_mov_b32 m0, %2\n\ts_nop 4\n\ts_movreld_b32 s40, 99\n\ts_mov_b32 m0, 1\n\ts_nop 4\n\t"
      "s_movrels_b32 %0, s40"
      : "=s"(picked)
      : "s"(a), "s"(index)
      : "s40", "s41", "s42", "s43");
  asm volatile(
      "s_mov_b32 %0, %1\n\ts_call_b64 s[44:45], 1f\n\ts_add_u32 %0, %0, 5\n\ts_branch 2f\n"
      "1:\n\ts_mul_i32 %0, %0, 3\n\ts_setpc_b64 s[44:45]\n2:"
      : "=&s"(called)
      : "s"(b)
      : "s44", "s45", "scc");
  u64 here, there;
  asm volatile("s_getpc_b64 %0\n\ts_getpc_b64 %1" : "=&s"(here), "=&s"(there));
  if (threadIdx.x == 0) {
    out[0] = picked;
    out[1] = called;
    out[2] = static_cast<u32>(there - here);
  }
}
