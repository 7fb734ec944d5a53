"""The parts of a mixture of experts, an op a stem."""
