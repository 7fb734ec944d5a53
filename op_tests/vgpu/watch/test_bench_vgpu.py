"""The speed script's plumbing, at sizes that take no time: what it measures, checks and reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import bench_vgpu
import pytest
import torch
from bench_vgpu import INSTRUCTIONS, MATRICES, Row

import rfops.vgpu

SCRIPT = Path(bench_vgpu.__file__)


def test_the_table_of_a_run() -> None:
    """Rows in a process for one core and one for all, in the order of the table."""
    command = [sys.executable, str(SCRIPT), "--scale", "0.01", "--only", "pk_fma"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr  # no row here has a bar
    rows = completed.stdout.splitlines()[2:]
    assert [row.split(":")[0] for row in rows] == ["VALU packed f32", "VALU packed f16"]
    for row in rows:
        one, every = map(float, re.findall(r"(\d+\.\d\d)", row))
        assert one > 0 and every > 0


def test_every_row_is_measured() -> None:
    """All but the build, whose time the tests have no use for."""
    rows = bench_vgpu.all_rows(build=False)
    try:
        values = dict(bench_vgpu.measure(set(rows), one_core=True, scale=0.003))
    finally:
        rfops.vgpu.deactivate_triton()
    assert set(values) == set(rows)
    assert all(value > 0 for value in values.values())
    assert len({row.name for row in bench_vgpu.all_rows(build=True)}) == len(rows) + 2


def test_products_and_sums_of_a_row_follow_from_its_name() -> None:
    for row, matrix in MATRICES.items():
        m, n, k = map(int, re.search(r"_(\d+)x(\d+)x(\d+)", matrix.mnemonic).groups())
        blocks = int((re.search(r"_(\d+)b_", matrix.mnemonic) or [0, 1])[1])
        assert matrix.macs == m * n * k * blocks, row
        size = 2 if "_f64_" in matrix.mnemonic else 1
        assert matrix.result == m * n * blocks // 64 * size, row


def test_a_wrong_gemm_has_no_time() -> None:
    a, b = bench_vgpu.gemm_inputs(128, 128, 64)
    right = a.float() @ b.float().T
    bench_vgpu.check_gemm(right, a, b)
    right[5, 7] += 1
    with pytest.raises(SystemExit, match="wrong"):
        bench_vgpu.check_gemm(right, a, b)
    with pytest.raises(SystemExit, match="wrong"):
        bench_vgpu.check_gemm(torch.full_like(right, float("nan")), a, b)


def test_the_best_of_several_runs_counts() -> None:
    now, steps = [0.0], iter([3.0, 1.0, 2.0])

    def run() -> None:
        now[0] += next(steps)

    assert bench_vgpu.best_seconds(run, lambda: now[0], rounds=3) == 1.0


def test_missed_bars_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A rate's bar is for a core, a time's for all of them."""
    rate, seconds = Row("rate", INSTRUCTIONS, 50.0), Row("seconds", "s", 5.0)
    rows = [rate, seconds, Row("no bar", "s")]
    good = {"rate": 50.0, "seconds": 5.0, "no bar": 1e9}
    assert bench_vgpu.report(rows, {"rate": 51.0, "seconds": 7.0}, good, 2)
    assert "MISSED" not in capsys.readouterr().out
    assert not bench_vgpu.report(rows, {"rate": 49.0}, good, 2)
    assert capsys.readouterr().out.count("MISSED") == 1
    assert not bench_vgpu.report(rows, {"rate": 51.0}, {**good, "seconds": 5.1}, 2)
    assert capsys.readouterr().out.count("MISSED") == 1
