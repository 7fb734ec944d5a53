"""`pytest --within` starts no test after the time and counts what was left; `--costs` measures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import OP_TESTS
from support.within import drawn

_TESTS = """
import time, pytest

@pytest.mark.parametrize("n", range(20))
def test_sleeps(n):
    time.sleep(0.2)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_no_test_starts_after_the_time(workers: int, tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "support.within", "-q"]
    command += ["-p", "support.costs", "--costs", "costs.jsonl", "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [*command, "-n", str(workers), "--within", "1", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(OP_TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    left = int(run.stdout.split("not started within 1 s: ")[1].split()[0])
    passed = re.search(r"(\d+) passed", run.stdout)
    ran = int(passed[1]) if passed else 0
    assert left > 0 and left + ran == 20
    costs = tmp_path / "costs.jsonl"
    lines = costs.read_text().splitlines() if costs.exists() else []
    assert len(lines) == ran and all(json.loads(line)[1] < 5 for line in lines)


def test_another_commit_draws_another_order() -> None:
    tests = list(range(100))
    first, second = (drawn(tests, seed) for seed in ("a", "b"))  # type: ignore[type-var]
    assert first != second and sorted(first) == sorted(second) == tests
    assert drawn(tests, "a") == first  # type: ignore[type-var]
