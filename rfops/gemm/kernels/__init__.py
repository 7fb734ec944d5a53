"""The kernels of rfops.gemm in Python, a folder a family: parameters, variants, launches."""
