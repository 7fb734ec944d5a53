"""Kernels of fused_moe with MXFP4 or MX-FP8 weights: HIP and Triton."""
