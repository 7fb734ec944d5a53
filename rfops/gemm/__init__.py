"""Dense and batched matrix products, an op a stem."""
