// Launches vLLM's lists of rows by experts, and its sum over a token's experts; compiled from
// sources of the user's. cub's block scan is rocPRIM's, as hipCUB has it.
#include <rocprim/block/block_scan.hpp>

#include "torch_stable.h"

namespace cub {
template <typename T, int kThreads>
struct BlockScan {
  using Scan = rocprim::block_scan<T, kThreads>;
  using TempStorage = typename Scan::storage_type;
  TempStorage& storage;
  __device__ explicit BlockScan(TempStorage& storage_) : storage(storage_) {}
  __device__ void ExclusiveSum(T value, T& result) {
    Scan().exclusive_scan(value, result, T(0), storage);
  }
};
}  // namespace cub

#include "moe/moe_align_sum_kernels.cu"

using torch::stable::ScalarType;
using torch::stable::Tensor;

// ids: [m, k]; rows: max_rows; experts: a number per block of rows; count: 1.
extern "C" const char* peer_align(void* ids, void* rows, void* experts, void* count, int m, int k,
                                  int e, int block, int max_rows) {
  return rfops::attempt([&] {
    moe_align_block_size(Tensor(ids, ScalarType::Int, {m, k}), e, block,
                         Tensor(rows, ScalarType::Int, {max_rows}),
                         Tensor(experts, ScalarType::Int, {(max_rows + block - 1) / block}),
                         Tensor(count, ScalarType::Int, {1}), std::nullopt, std::nullopt);
  });
}

// x: [m, k, d] of bf16; out: [m, d].
extern "C" const char* peer_sum(void* x, void* out, int m, int k, int d) {
  return rfops::attempt([&] {
    Tensor x_(x, ScalarType::BFloat16, {m, k, d}), out_(out, ScalarType::BFloat16, {m, d});
    moe_sum(x_, out_, std::nullopt, std::nullopt);
  });
}
