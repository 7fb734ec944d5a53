"""Tensors to and from narrow formats, an op a stem."""
