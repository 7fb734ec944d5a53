"""Kernels of fused_moe with weights of the dtype of x: HIP and Triton."""
