"""Ops on the rows of a matrix: norms and gated activations, with the quantisation of their results
fused."""
