"""Kernels of moe_align_block_size: Triton."""
