"""Where the tests run, and which of a test's cases do."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache

import pytest
import torch

from support import OP_TESTS

ARCHS = ("gfx942", "gfx950")
QUICK = OP_TESTS / "quick.jsonl"


@cache
def real_gpu(arch: str) -> torch.device | None:
    """The first GPU of that architecture."""
    if torch.version.hip and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_properties(index).gcnArchName
            if name.split(":")[0] == arch:
                return torch.device("cuda", index)
    return None


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
            is none of them is out of date.

    Raises:
        pytest.UsageError: It is.
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
            raise pytest.UsageError(
                f"{function} has no case {min(kept - {*cases})!r}, which {QUICK.name} names; run"
                " choose_quick.py again, or take the line out"
            )
        for case in {*cases} - kept:
            cases[case].add_marker(pytest.mark.sweep)


def device_of(arch: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    gpu = real_gpu(arch)
    if gpu is None:
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    return gpu or torch.device("cpu")
