"""Kernels of gemm_a16w16 and batched_gemm_a16w16."""
