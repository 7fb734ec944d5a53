"""Attention, an op a stem."""
