"""The six problems of AMD's developer challenges of 2025 and 2026, and an evaluator of entries.

A problem is its inputs, its reference, its cases and the official check's tolerances, as facts of
gpu-mode's task files, written here anew; beside them a strict check and inputs of our own, so that
an entry which passes by luck is told. `rfops eval` is the command.
"""

from __future__ import annotations

import importlib

from rfops.challenge.problem import Problem

MODULES = {
    "amd-fp8-mm": "fp8_mm",
    "amd-mixture-of-experts": "mixture_of_experts",
    "amd-mla-decode": "mla_decode",
    "amd-mxfp4-mm": "mxfp4_mm",
    "amd-moe-mxfp4": "moe_mxfp4",
    "amd-mixed-mla": "mixed_mla",
}


def problem(name: str) -> Problem:
    """By its name on the leaderboard, `amd-` may be left out. Raises ValueError."""
    full = name if name.startswith("amd-") else f"amd-{name}"
    if full not in MODULES:
        raise ValueError(f"problem {name!r}: expected one of {', '.join(MODULES)}")
    loaded: Problem = importlib.import_module(f"rfops.challenge.{MODULES[full]}").PROBLEM
    return loaded
