"""The tuner and the bench on the virtual GPU: what they write, refuse, and how they resume."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench_mxfp8
import mxfp8_cells
import pytest
import torch
import tune_mxfp8
from mxfp8_cells import Cell
from tune_mxfp8 import Trial

from rfops import cli, routing, tuned_table
from rfops.gemm_mxfp8_route import route
from rfops.jit import ConfigError
from rfops.mxfp8_gemv import GemvConfig

pytestmark = pytest.mark.requires_gfx950
CPU = torch.device("cpu")
SMALL = Cell(3, 48, 256)
OTHER = Cell(20, 48, 256)
GROUPED = Cell(6, 48, 256, 8, 2)


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RFOPS_CONFIGS", raising=False)
    monkeypatch.setattr(mxfp8_cells, "device_of", lambda: CPU)
    for module in (tune_mxfp8, bench_mxfp8):
        monkeypatch.setattr(module, "device_of", lambda: CPU)


def lines(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


# ---------------------------------------------------------------- tune


def test_tune_writes_rows_that_routing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mxfp8.csv"
    assert tune_mxfp8.tune([SMALL, OTHER, GROUPED], file, CPU, 1) == 0
    rows = lines(file)
    assert [row["op"] for row in rows] == ["gemm_mxfp8"] * 2 + ["grouped_gemm_mxfp8"]
    for row in rows:
        assert row["origin"] == "estimated" and "virtual GPU gfx950" in row["source"]
        assert float(row["us"]) > 0 and float(row["triton_us"]) > 0
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    for m, cell in ((3, SMALL), (20, OTHER)):
        chosen = route(m, cell.n, cell.k)
        row = next(row for row in rows if row["m"] == str(m))
        assert chosen.rule == "exact row" and chosen.row is not None
        assert chosen.is_hip == (row["use_hip"] == "1")
        assert (chosen.backend, chosen.config) == (row["backend"], row["config"])
    assert mxfp8_cells.route(GROUPED, "gfx950", 256).rule == "exact row"


def test_tune_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, measure = tmp_path / "mxfp8.csv", tune_mxfp8.measure

    def interrupted(cell: Cell, *args: Any) -> Any:
        if cell == OTHER:
            raise KeyboardInterrupt
        return measure(cell, *args)

    monkeypatch.setattr(tune_mxfp8, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune_mxfp8.tune([SMALL, OTHER], file, CPU, 1)
    assert [row["m"] for row in lines(file)] == ["3"]
    assert [path.name for path in tmp_path.iterdir()] == ["mxfp8.csv"]
    seen: list[Cell] = []
    monkeypatch.setattr(
        tune_mxfp8, "measure", lambda cell, *args: seen.append(cell) or measure(cell, *args)
    )
    tune_mxfp8.tune([SMALL, OTHER], file, CPU, 1)
    assert [row["m"] for row in lines(file)] == ["3", "20"] and set(seen) == {OTHER}
    assert "[1/2, 0 s] gemm_mxfp8 m=3 n=48 k=256: done before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hip", "triton", "use_hip"),
    [(10.0, 9.9, 1), (10.0, 9.71, 1), (10.0, 9.7, 0), (10.0, 20.0, 1), (10.0, None, 1)],
)
def test_three_percent_decide(hip: float, triton: float | None, use_hip: int) -> None:
    gemv = GemvConfig(64, 1, 1, 1)
    tried = [Trial("gemv", gemv, hip + 1, "estimated"), Trial("gemv", gemv, hip, "estimated")]
    tile = mxfp8_cells.default_config(SMALL, "triton", "gfx950")
    tried += [Trial("triton", tile, triton, "estimated")] if triton else []
    row = tune_mxfp8.row_of(SMALL.query("gfx950", 256), tried, "a test")
    assert row["use_hip"] == use_hip and row["backend"] == ("gemv" if use_hip else "triton")
    assert row["us"] == "10.000"


def test_a_cell_that_only_triton_takes() -> None:
    tile = mxfp8_cells.default_config(SMALL, "triton", "gfx942")
    query = SMALL.query("gfx942", 304)
    row = tune_mxfp8.row_of(query, [Trial("triton", tile, 5.0, "estimated")], "a test")
    assert (row["use_hip"], row["backend"], row["arch"]) == (0, "triton", "gfx942")
    assert "us" not in row and "speedup" not in row


def test_wrong_and_broken_variants_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = mxfp8_cells.prepare

    def broken(cell: Cell, backend: str, device: torch.device, config: Any) -> Any:
        run = prepare(cell, backend, device, config)
        if backend == "mfma":
            raise RuntimeError("no room left")
        if backend == "gemv":
            return lambda out, *args: (run(out, *args), out[1, 7].mul_(1.1))
        return run

    monkeypatch.setattr(tune_mxfp8, "prepare", broken)
    failed: list[tuple[str, bool]] = []
    tried = list(tune_mxfp8.trials(SMALL, CPU, 1, lambda *args: failed.append(args)))
    assert [trial.backend for trial in tried] == ["triton"]
    (wrong, serious), (broken_one, harmless) = failed
    assert "gemv" in wrong and "WRONG RESULT" in wrong and "(1, 7)" in wrong and serious
    assert "mfma" in broken_one and "does not run: no room left" in broken_one and not harmless


def test_a_table_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mxfp8.csv"
    row = {"op": "gemm_mxfp8", "m": 1}
    tune_mxfp8.write_rows(file, {("a",): row})
    before = file.read_bytes()

    def full(_handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tune_mxfp8.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        tune_mxfp8.write_rows(file, {("a",): row, ("b",): row})
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mxfp8.csv"]


def test_tune_refuses_a_table_that_is_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "mxfp8.csv"
    file.write_text("nonsense\n")
    with pytest.raises(ConfigError, match="line 1, column"):
        tune_mxfp8.tune([SMALL], file, CPU, 1)
    assert file.read_text() == "nonsense\n"


def test_tune_takes_untuned_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "untuned.csv"
    monkeypatch.setenv("RFOPS_RECORD_UNTUNED", str(record))
    mxfp8_cells.route(SMALL, "gfx950", 256)
    mxfp8_cells.route(GROUPED, "gfx950", 256)
    queries = routing.read_untuned(record)
    assert [tune_mxfp8.cell_of(query) for query in queries] == [SMALL, GROUPED]
    done: list[list[Cell]] = []
    monkeypatch.setattr(tune_mxfp8, "tune", lambda cells, *_: done.append(cells) or 0)
    assert tune_mxfp8.main(["--out", str(tmp_path), "--untuned", str(record)]) == 0
    assert done == [[SMALL, GROUPED]]


def test_command_line(tmp_path: Path) -> None:
    """`rfops tune` in a process of its own, after a run that leaves it nothing to do."""
    arguments = ["--out", str(tmp_path), "--top", "1", "--shape", "2", "16", "64"]
    assert tune_mxfp8.main(arguments) == 0
    done = subprocess.run(
        [sys.executable, "-m", "rfops.cli", "tune", "mxfp8", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done before" in done.stdout and f"RFOPS_CONFIGS={tmp_path}" in done.stdout
    (row,) = tuned_table.read(tmp_path / "mxfp8.csv", "mxfp8")
    assert row.origin == "estimated"
    with pytest.raises(SystemExit):
        cli.main(["tune", "nothing"])


def test_tune_needs_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.paths, "ROOT", tmp_path)
    assert cli.main(["tune", "mxfp8", "--top", "1"]) == 1
    assert "run it in a checkout of rfops" in capsys.readouterr().err


# ---------------------------------------------------------------- bench


def test_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.csv"
    assert bench_mxfp8.main(["--shape", "8", "48", "256", "--csv", str(file)]) == 0
    out = capsys.readouterr().out
    assert "an estimate from counters, not calibrated" in out and "geomean of 1 cells" in out
    (row,) = lines(file)
    assert tuple(row) == bench_mxfp8.COLUMNS
    assert (row["backend"], row["mfma"], row["mfma_over_least"]) == ("mfma", "6.0", "1.0")
    assert row["origin"] == "estimated" and row["tb_s"] == row["tflops"] == ""
    assert float(row["bytes_over_least"]) >= 1


def test_bench_grouped() -> None:
    row = bench_mxfp8.bench(GROUPED, CPU, "a test")
    assert row["backend"] == "moe" and row["speedup"] > 0 and row["mfma_over_least"] >= 1


def test_bench_checks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(cell: Cell, backend: str, device: torch.device, config: Any) -> Any:
        return lambda out, *_args: out.zero_()

    monkeypatch.setattr(bench_mxfp8, "prepare", wrong)
    with pytest.raises(AssertionError, match="elements of"):
        bench_mxfp8.bench(SMALL, CPU, "a test")


def test_published_cells() -> None:
    published = list(mxfp8_cells.cells("published"))
    assert len(set(published)) == 28
    moe = list(mxfp8_cells.cells("moe"))
    assert {cell.e for cell in moe} == {128, 64, 32} and {cell.weighted for cell in moe} == {0, 1}
    assert sum(len(list(mxfp8_cells.cells(f"tp{n}"))) for n in (1, 2, 4, 8)) == 15 * 7
