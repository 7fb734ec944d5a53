// Launches vLLM's silu(gate) * up; compiled from sources of the user's.
#include "torch_stable.h"

using torch::stable::ScalarType;
using torch::stable::Tensor;

#include "activation_kernels.cu"

// x: [rows, 2 n] of bf16; out: [rows, n].
extern "C" const char* peer_silu_mul(void* out, void* x, int rows, int n) {
  return rfops::attempt([&] {
    Tensor out_(out, ScalarType::BFloat16, {rows, n}), x_(x, ScalarType::BFloat16, {rows, 2 * n});
    silu_and_mul(out_, x_);
  });
}
