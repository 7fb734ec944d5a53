"""Kernels of topk_softmax and grouped_topk: HIP and torch."""
