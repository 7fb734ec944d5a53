// Launches aiter's quantisation of the experts' input, and its sort of MXFP4's scales; compiled
// from a checkout of the user's.
#define AITER_NO_TORCH_TYPES
#define __Float4_e2m1fn_x2  // FP4 too
#include "aiter.h"
#include "kernels/quant_kernels.cu"

using namespace aiter;
using rfops::tensor;

// FP8 with a scale per 1 x 128, the scales transposed: x [m, d] of bf16 to q [m, d], scales.
extern "C" const char* peer_quant_fp8(void* q, void* x, void* scales, int m, int d) {
  return rfops::attempt([&] {
    auto q_ = tensor(q, AITER_DTYPE_fp8, {m, d});
    auto x_ = tensor(x, AITER_DTYPE_bf16, {int64_t{1} * m * d / 128, 128});
    auto scales_ = tensor(scales, AITER_DTYPE_fp32, {m, d / 128});
    dynamic_per_token_scaled_quant(q_, x_, scales_, std::nullopt, true, std::nullopt, 1);
  });
}

// MXFP4: x [m, d] of bf16 to q [m, d / 2], a scale per 1 x 32.
extern "C" const char* peer_quant_mxfp4(void* q, void* x, void* scales, int m, int d) {
  return rfops::attempt([&] {
    auto q_ = tensor(q, AITER_DTYPE_fp4x2, {m, d / 2});
    auto x_ = tensor(x, AITER_DTYPE_bf16, {m, d});
    auto scales_ = tensor(scales, AITER_DTYPE_u8, {m, d / 32});
    dynamic_per_group_scaled_quant(q_, x_, scales_, 32, false, std::nullopt, 1);
  });
}

// The scales of the rows as peer_sort orders them.
extern "C" const char* peer_sort_scales(void* sorted_scales, void* scales, void* rows, void* counts,
                                        int m, int d, int max_rows) {
  return rfops::attempt([&] {
    auto sorted_ =
        tensor(sorted_scales, AITER_DTYPE_u8, {(max_rows + 31) / 32 * 32, (d / 32 + 7) / 8 * 8});
    auto scales_ = tensor(scales, AITER_DTYPE_u8, {m, d / 32});
    auto rows_ = tensor(rows, AITER_DTYPE_i32, {max_rows});
    auto counts_ = tensor(counts, AITER_DTYPE_i32, {2});
    mxfp4_moe_sort_hip(sorted_, scales_, rows_, counts_, m, d);
  });
}
