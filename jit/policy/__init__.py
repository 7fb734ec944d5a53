"""What may be built and what was wanted: RFOPS_JIT, freeze, manifests, Triton's compiles."""
