"""Triton kernels of the ops. Importing this package, or a module of it other than `*_kernels`, does
not import triton: rfops works without it, and says so when a call would need it."""
