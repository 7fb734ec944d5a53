"""Kernels of gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4: HIP and Triton."""
