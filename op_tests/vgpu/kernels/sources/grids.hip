// Three-dimensional grids and blocks: every index and size, with blocks that no wave divides.
#include "hip_names.h"

struct Seen {
  u16 thread[3], block[3], block_size[3], grid_size[3];
};

KERNEL record_indices(Seen* out, u32 nx, u32 ny, u32 nz) {
  const u32 x = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 y = blockIdx.y * blockDim.y + threadIdx.y;
  const u32 z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x >= nx || y >= ny || z >= nz) return;
  out[(static_cast<u64>(z) * ny + y) * nx + x] = {
      {static_cast<u16>(threadIdx.x), static_cast<u16>(threadIdx.y), static_cast<u16>(threadIdx.z)},
      {static_cast<u16>(blockIdx.x), static_cast<u16>(blockIdx.y), static_cast<u16>(blockIdx.z)},
      {static_cast<u16>(blockDim.x), static_cast<u16>(blockDim.y), static_cast<u16>(blockDim.z)},
      {static_cast<u16>(gridDim.x), static_cast<u16>(gridDim.y), static_cast<u16>(gridDim.z)}};
}

// Sizes in threads come from the dispatch packet where hidden arguments do not hold them.
KERNEL record_grid_threads(u32* out) {
  if (threadIdx.x || threadIdx.y || threadIdx.z || blockIdx.x || blockIdx.y || blockIdx.z) return;
  out[0] = __builtin_amdgcn_grid_size_x();
  out[1] = __builtin_amdgcn_grid_size_y();
  out[2] = __builtin_amdgcn_grid_size_z();
}

// 3-D stencil: the sum of the six neighbours, clamped at the edges.
KERNEL stencil(float* out, const float* in, int nx, int ny, int nz) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x >= nx || y >= ny || z >= nz) return;
  auto at = [=](int i, int j, int k) {
    i = i < 0 ? 0 : (i >= nx ? nx - 1 : i);
    j = j < 0 ? 0 : (j >= ny ? ny - 1 : j);
    k = k < 0 ? 0 : (k >= nz ? nz - 1 : k);
    return in[(static_cast<i64>(k) * ny + j) * nx + i];
  };
  out[(static_cast<i64>(z) * ny + y) * nx + x] = at(x - 1, y, z) + at(x + 1, y, z) +
                                                 at(x, y - 1, z) + at(x, y + 1, z) +
                                                 at(x, y, z - 1) + at(x, y, z + 1);
}
