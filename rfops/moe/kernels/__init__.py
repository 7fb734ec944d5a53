"""The kernels of rfops.moe in Python, a folder a family: parameters, variants, launches."""
