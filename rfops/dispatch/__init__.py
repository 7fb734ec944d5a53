"""What every op shares: its declaration and all that follows from it (op.py)."""
