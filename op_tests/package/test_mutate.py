"""op_tests/mutate.py: what it changes, which tests it runs, and what it lists as equivalent."""

from __future__ import annotations

import re
from pathlib import Path

import mutate
import pytest

ALL = [f for f in mutate.tracked() if any(re.fullmatch(p, f) for p in mutate.GROUPS.values())]


def test_every_file_has_tests() -> None:
    """Of a package's __init__.py, those of its folder."""
    assert len(ALL) > 200
    assert [file for file in ALL if not mutate.tests_of(file)] == []


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("rfops/gemm/kernels/mxfp4/triton_kernels.py", "gemm/test_mxfp4_triton.py"),
        ("rfops/attention/mla_layer_decode_hip.py", "attention/test_mla_layer_decode.py"),
        ("csrc/moe/moe_topk.hip", "moe/test_topk.py"),
        ("jit/build/ninja.py", "engine/test_engine_build.py"),
    ],
)
def test_tests_that_tell_most_run_first(file: str, first: str) -> None:
    assert f"op_tests/{first}" in mutate.tests_of(file)[:3]


def test_equivalent_lines_are_there() -> None:
    """Whoever changes such a line looks at its reason again."""
    names = {name for name, _, _ in mutate.EQUIVALENT}
    files = [file for file in ALL if Path(file).name in names]
    mutants = {(Path(f).name, *mutant.texts()) for f in files for mutant in mutate.mutants_of(f)}
    assert {*mutate.EQUIVALENT} - mutants == set()


@pytest.mark.parametrize(
    ("file", "line", "changed"),
    [
        ("x.py", "def f(a):\n    return a < 2 and a[0]\n", {"a <= 2 and", "< 2 or a", "a[1]"}),
        ("x.py", "def f(a):\n    raise ValueError(f'{a + 1}')\n", set()),
        ("x.py", "def f(a):\n    assert a < 1\n", set()),
        ("x.h", "  x[1] = a << 2;  // a < b\n", {"x[0] =", "a >> 2;"}),
        ("x.h", '  static_assert(a < 1, "");\n', set()),
    ],
)
def test_what_is_changed(
    file: str, line: str, changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "read", lambda _file: line)
    texts = [
        mutant.change(line.splitlines()[mutant.line - 1]) for mutant in mutate.mutants_of(file)
    ]
    assert len(texts) == len(changed)
    assert all(any(part in text for text in texts) for part in changed)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("FAILED a/test_x.py::test_y - AssertionError: 1 - 2", "a/test_x.py::test_y"),
        ("FAILED a/test_x.py::test_y[1-2^31 - 1] - E[0] - 3", "a/test_x.py::test_y[1-2^31 - 1]"),
        ("FAILED a/test_x.py::test_y[gfx942-[300]-2]", "a/test_x.py::test_y[gfx942-[300]-2]"),
        ("ERROR a/test_x.py - ImportError", ""),
    ],
)
def test_the_test_that_killed(line: str, name: str) -> None:
    assert mutate.test_in(line) == name
