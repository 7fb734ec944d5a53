"""Experts with biases and with every activation of act_mul."""
