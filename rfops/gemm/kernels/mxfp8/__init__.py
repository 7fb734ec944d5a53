"""Kernels of gemm_mxfp8: HIP and Triton."""
