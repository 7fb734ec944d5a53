"""Dense and batched matrix products, an op a stem."""

from rfops import moved as moved
