// Kernels with one defect each, as a compiler sees them: the line that a finding must name ends in
// `// here:` and the kind. 256 work-items; `out` and `in` have 256 floats.
#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 256)))
#define SHARED __attribute__((shared))
#define ID static_cast<int>(__builtin_amdgcn_workitem_id_x())

__attribute__((device, always_inline)) inline void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KERNEL void read_behind(float* out, const float* in) {
  out[ID] = in[ID + 1];  // here: out of bounds
}

KERNEL void write_behind(float* out, const float* in) {
  const float value = in[ID];
  out[2 * ID] = value;  // here: out of bounds
}

KERNEL void race_read(float* out, const float* in) {
  SHARED float part[256];
  part[ID] = in[ID];
  out[ID] = part[255 - ID];  // here: LDS race
}

KERNEL void race_write(float* out, const float* in) {
  SHARED float part[256];
  part[ID] = in[ID];
  barrier();
  const float other = part[255 - ID];
  part[ID] = other + 1;  // here: LDS race
  barrier();
  out[ID] = part[ID];
}

KERNEL void lds_never_written(float* out, const float* in) {
  SHARED float part[256];
  if (ID >= 16) part[ID] = in[ID];
  barrier();
  out[ID] = part[255 - ID];  // here: uninitialised
}

KERNEL void behind_lds(float* out, const float* in) {
  SHARED float part[256];
  part[ID] = in[ID];
  barrier();
  out[ID] = part[2 * ID];  // here: out of bounds
}

KERNEL void half_of_the_block(float* out, const float* in) {
  SHARED float part[256];
  part[ID] = in[ID];
  if (ID < 128) {
    __builtin_amdgcn_s_barrier();  // here: barrier divergence
  }
  out[ID] = part[ID];
}

KERNEL void half_of_the_wave(float* out, const float* in) {
  if (ID % 64 < 32) {
    __builtin_amdgcn_s_barrier();  // here: barrier divergence
  }
  out[ID] = in[ID];
}

KERNEL void unequal_loops(float* out, const float* in) {
  float sum = 0;
  for (int i = ID / 64; i < 8; ++i) {
    sum += in[i];
    __builtin_amdgcn_s_barrier();  // here: barrier divergence
  }
  out[ID] = sum;
}
