// Matrix transpose through LDS tiles; the pad column keeps column reads off one bank.
#include "hip_names.h"

template <class T, int Tile, int Rows>
INLINE __device__ void transpose(T* out, const T* in, int width, int height) {
  __shared__ T tile[Tile][Tile + 1];
  const int x = blockIdx.x * Tile + threadIdx.x;
  const int y = blockIdx.y * Tile + threadIdx.y;
  for (int row = 0; row < Tile; row += Rows) {
    if (x < width && y + row < height) {
      tile[threadIdx.y + row][threadIdx.x] = in[static_cast<i64>(y + row) * width + x];
    }
  }
  __syncthreads();
  const int out_x = blockIdx.y * Tile + threadIdx.x;
  const int out_y = blockIdx.x * Tile + threadIdx.y;
  for (int row = 0; row < Tile; row += Rows) {
    if (out_x < height && out_y + row < width) {
      out[static_cast<i64>(out_y + row) * height + out_x] = tile[threadIdx.x][threadIdx.y + row];
    }
  }
}

KERNEL transpose_f32(float* out, const float* in, int width, int height) {
  transpose<float, 32, 8>(out, in, width, height);
}
KERNEL transpose_u8(u8* out, const u8* in, int width, int height) {
  transpose<u8, 64, 4>(out, in, width, height);
}
KERNEL transpose_f64(double* out, const double* in, int width, int height) {
  transpose<double, 16, 16>(out, in, width, height);
}
