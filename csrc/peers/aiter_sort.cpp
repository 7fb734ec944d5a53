// Launches aiter's sort of tokens by experts, which clears the output of the experts too; compiled
// from a checkout of the user's.
#include "aiter.h"
#include "py_itfs_cu/moe_sorting_opus_kernels.cu"

// ids, weights: [m, k]; rows, row_weights: as many as could be; experts: a number per block of
// rows; counts: 2; out: [m, d] of bf16; workspace: of peer_sort_workspace(m, k, e) bytes.
extern "C" const char* peer_sort(void* ids, void* weights, void* rows, void* row_weights,
                                 void* experts, void* counts, void* out, void* workspace, int m,
                                 int k, int e, int block, int d) {
  using rfops::tensor;
  return rfops::attempt([&] {
    const int64_t max_rows = int64_t{1} * m * k + int64_t{1} * e * block - k;
    const int bytes = moe_sorting_opus_get_workspace_size(m, e, k, 0);
    auto ids_ = tensor(ids, AITER_DTYPE_i32, {m, k}),
         weights_ = tensor(weights, AITER_DTYPE_fp32, {m, k});
    auto rows_ = tensor(rows, AITER_DTYPE_i32, {max_rows});
    auto row_weights_ = tensor(row_weights, AITER_DTYPE_fp32, {max_rows});
    auto experts_ = tensor(experts, AITER_DTYPE_i32, {(max_rows + block - 1) / block});
    auto counts_ = tensor(counts, AITER_DTYPE_i32, {2}),
         out_ = tensor(out, AITER_DTYPE_bf16, {m, d});
    std::optional<aiter_tensor_t> workspace_;
    if (bytes) workspace_ = tensor(workspace, AITER_DTYPE_u8, {bytes});
    moe_sorting_opus_fwd(ids_, weights_, rows_, row_weights_, experts_, counts_, out_, e, block,
                         std::nullopt, std::nullopt, workspace_);
  });
}

extern "C" int peer_sort_workspace(int m, int k, int e) {
  return moe_sorting_opus_get_workspace_size(m, e, k, 0);
}
