"""Kernels of fused_moe with FP8 weights: HIP and Triton."""
