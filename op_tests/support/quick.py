"""Which cases of a test run by default."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict

import pytest

from . import OP_TESTS

QUICK = OP_TESTS / "quick.jsonl"


def quick_cases() -> dict[str, list[str]]:
    """`{function: its cases that run by default}`, of the functions where not all do."""
    lines = (line for line in QUICK.read_text().splitlines() if not line.startswith("#"))
    return {function: cases for function, *cases in map(json.loads, lines)}


def thin(items: list[pytest.Item], whole: bool) -> None:
    """What `thin(n)` and quick.jsonl leave out become sweeps.

    Of a function in quick.jsonl those cases run by default that are named there; of another with
    `thin(n)` each n-th case that is not a sweep already.

    Args:
        whole: Functions were collected with all of their cases, so that a name in quick.jsonl that
            is none of them is out of date: the function then runs whole, with a warning.
    """
    functions: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        function, _, case = item.nodeid.partition("[")
        if item.get_closest_marker("sweep") is None:
            functions[function][case.removesuffix("]")] = item
    quick = quick_cases()
    for function, cases in functions.items():
        mark = next(iter(cases.values())).get_closest_marker("thin")
        if function in quick:
            kept = set(quick[function])
        else:
            kept = set([*cases][:: mark.args[0] if mark else 1])
        if whole and not kept <= {*cases}:
            warnings.warn(
                f"{function} has no case {min(kept - {*cases})!r}, which {QUICK.name} names: all of"
                " its cases run; take the line out, or run choose_quick.py again",
                pytest.PytestWarning,
                stacklevel=1,
            )
            kept = {*cases}
        for case in {*cases} - kept:
            cases[case].add_marker(pytest.mark.sweep)
