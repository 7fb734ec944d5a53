"""Comparing results: what the package itself compares by."""

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance

__all__ = ["HALF_ULP", "assert_within", "tolerance"]
