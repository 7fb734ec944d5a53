"""Kernels of batched_gemm_a16w8_blockscale: Triton and Gluon."""
