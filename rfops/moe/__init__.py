"""The parts of a mixture of experts, an op a stem."""

from rfops import moved as moved
