"""Kernels of gemm_a8w8_blockscale: HIP and Triton."""
