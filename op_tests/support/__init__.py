"""What tests share: problems, harnesses, references, stand-ins. Imports rfops, and no test."""

from pathlib import Path

OP_TESTS = Path(__file__).resolve().parents[1]
ROOT = OP_TESTS.parent
