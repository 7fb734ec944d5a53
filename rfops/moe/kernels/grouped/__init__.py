"""Kernels of grouped_gemm_mxfp8: HIP and Triton."""
