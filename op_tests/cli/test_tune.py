"""`rfops tune` on the virtual GPU: what it writes and refuses, and how it resumes."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tune_mxfp8

from rfops import cli, vgpu
from rfops.cli import bench as cli_bench
from rfops.cli import tune as cli_tune
from rfops.cli.tune import File, Trial
from rfops.dispatch import cost, routing, tuned_table
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, on_device
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig
from rfops.gemm.mxfp8 import OP as DENSE
from rfops.jit import ConfigError
from rfops.moe.grouped_gemm_mxfp8 import OP as GROUPED
from support.calls import dense_call, grouped_call, route
from support.tables import lines

pytestmark = [pytest.mark.requires_gfx950, pytest.mark.usefixtures("shipped_tables")]
CPU = torch.device("cpu")
SMALL = dense_call(3, 48, 256)
MOE = grouped_call(6, 48, 256, 8, 2, 2)
PAIRS = [(DENSE, SMALL), (DENSE, dense_call(20, 48, 256)), (GROUPED, MOE)]


def tune(pairs: Sequence[tuple[Op, Any]], folder: Path, force: bool = False) -> int:
    return cli_tune.tune_all(pairs, folder, CPU, 1, force)


@pytest.mark.parametrize(
    ("name", "sizes", "backend"),
    [
        ("gemm_a16w16", {"M": 16, "N": 256, "K": 512}, "stream"),
        ("gemm_mxfp8", {"M": 16, "N": 256, "K": 512}, "mfma"),
    ],
)
def test_tune_leaves_out_variants_only_where_a_model_ranks_them(
    monkeypatch: pytest.MonkeyPatch, name: str, sizes: dict[str, int], backend: str
) -> None:
    op = ops()[name]
    call = op.call_of("gfx950", 256, **sizes)
    monkeypatch.setattr(cost, "measure", lambda *_: cost.Cost(1.0, "us"))
    said: list[str] = []
    timed = [*cli_tune.trials(op, call, CPU, None, lambda text, _: said.append(text), backend)]
    kernel = op.kernels[backend]
    fit = [v for v in kernel.candidates(call) if kernel.unsupported_config_reason(call, v) is None]
    assert len(fit) > 4 and not said
    assert len(timed) == (4 if op.time_model else len({kernel.default(call), *fit}))


def test_tune_writes_rows_that_routing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune(PAIRS, tmp_path) == 0
    rows = lines(tmp_path / "gemm_mxfp8.csv")
    grouped = lines(tmp_path / "grouped_gemm_mxfp8.csv")
    assert (len(rows), len(grouped)) == (2, 1)
    for row in (*rows, *grouped):
        assert row["origin"] == "estimated" and "virtual GPU gfx950" in row["source"]
        assert float(row["us"]) > 0 and "_us=" in row["figures"]
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    for m in (3, 20):
        chosen = route(m, 48, 256)
        row = next(row for row in rows if row["m"] == str(m))
        assert chosen.rule == "exact row" and chosen.row is not None
        assert (chosen.backend, chosen.config) == (row["kernel"], row["config"])
    assert GROUPED.route(MOE).rule == "exact row"


def test_tune_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, seen = cost.measure, []

    def interrupted(sets: list[Problem], *args: Any) -> Any:
        if sets[0].call.M == 20:
            raise KeyboardInterrupt
        return measure(sets, *args)

    monkeypatch.setattr(cost, "measure", interrupted)
    words = ["tune", "gemm_mxfp8", "--out", str(tmp_path), "--top", "1"]
    words += ["--shape", "3", "48", "256", "--shape", "20", "48", "256"]
    assert cli.main(words) == 130
    assert "run it again to go on" in capsys.readouterr().err
    assert [row["m"] for row in lines(tmp_path / "gemm_mxfp8.csv")] == ["3"]
    assert [path.name for path in tmp_path.iterdir()] == ["gemm_mxfp8.csv"]

    def noted(sets: list[Problem], *args: Any) -> Any:
        seen.append(sets[0].call.M)
        return measure(sets, *args)

    monkeypatch.setattr(cost, "measure", noted)
    assert cli.main(words) == 0
    assert [row["m"] for row in lines(tmp_path / "gemm_mxfp8.csv")] == ["3", "20"] and {*seen} == {
        20
    }
    assert "[1/2, 0 s] gemm_mxfp8 m=3 n=48 k=256: done before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hip", "triton", "use_hip"),
    [(10.0, 9.9, 1), (10.0, 9.71, 1), (10.0, 9.7, 0), (10.0, 20.0, 1), (10.0, None, 1)],
)
def test_three_percent_decide(hip: float, triton: float | None, use_hip: int) -> None:
    gemv = GemvConfig(64, 1, 1, 1)
    tried = [Trial("gemv", gemv, hip + 1, "estimated"), Trial("gemv", gemv, hip, "estimated")]
    tile = DENSE.kernels["triton"].default(SMALL)
    tried += [Trial("triton", tile, triton, "estimated")] if triton else []
    row = cli_tune.row_of(cli_tune.query_of(DENSE, SMALL), tried, "a test")
    assert row["kernel"] == ("gemv" if use_hip else "triton")
    assert row["us"] == ("10.000" if use_hip else f"{triton:.3f}")
    assert ("gemv_us=10" in row["figures"]) != use_hip
    assert ("speedup=" in row["figures"]) == bool(use_hip and triton)


def test_a_shape_that_only_triton_takes() -> None:
    c = dense_call(3, 48, 256, arch="gfx942", cu_num=304)
    tile = DENSE.kernels["triton"].default(c)
    query = cli_tune.query_of(DENSE, c)
    row = cli_tune.row_of(query, [Trial("triton", tile, 5.0, "estimated")], "a test")
    assert (row["kernel"], row["arch"]) == ("triton", "gfx942")
    assert (row["us"], row["figures"]) == ("5.000", "")


def test_wrong_and_broken_variants_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Problem.prepare

    def broken(self: Problem, backend: str, config: Any = None) -> Any:
        run = prepare(self, backend, config)
        if backend == "mfma":
            raise RuntimeError("no room left")
        if backend == "gemv":
            return lambda out, *args: (run(out, *args), out[1, 7].mul_(1.1))
        return run

    monkeypatch.setattr(Problem, "prepare", broken)
    failed: list[tuple[str, bool]] = []
    tried = list(cli_tune.trials(DENSE, SMALL, CPU, 1, lambda *args: failed.append(args)))
    assert [trial.backend for trial in tried] == ["triton"]
    (wrong, serious), (broken_one, harmless) = failed
    assert "gemv" in wrong and "WRONG RESULT" in wrong and "(1, 7)" in wrong and serious
    assert "mfma" in broken_one and "does not run: no room left" in broken_one and not harmless


def _row(m: int, kernel: str = "triton", **others: str) -> dict[str, Any]:
    cells = {"arch": "gfx950", "cu_num": 256, "m": m, "n": 64, "k": 128, "kernel": kernel}
    return cells | {"us": "5", "origin": "estimated", "source": "a test"} | others


def _add_rows(folder: Path, sizes: Sequence[int]) -> None:
    """In a process of its own."""
    file = File(folder, tuned_table.TABLES["gemm_mxfp8"])
    for m in sizes:
        file.add(_row(m))


def test_two_that_tune_one_table_lose_no_row(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")  # has the ops already
    halves = [range(1 + i, 81, 2) for i in range(2)]
    processes = [context.Process(target=_add_rows, args=(tmp_path, half)) for half in halves]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    rows = lines(tmp_path / "gemm_mxfp8.csv")
    assert sorted(int(row["m"]) for row in rows) == list(range(1, 81))
    assert [path.name for path in tmp_path.iterdir()] == ["gemm_mxfp8.csv"]


def test_what_another_has_written_is_kept_and_not_tuned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second process adds its row while the first one times."""
    measure = cost.measure

    def meanwhile(sets: list[Problem], *args: Any) -> Any:
        other = File(tmp_path, tuned_table.TABLES["gemm_mxfp8"])
        other.add(_row(20, n="48", k="256", us="77"))
        return measure(sets, *args)

    monkeypatch.setattr(cost, "measure", meanwhile)
    words = ["tune", "gemm_mxfp8", "--out", str(tmp_path), "--top", "1"]
    words += ["--shape", "3", "48", "256", "--shape", "20", "48", "256"]
    assert cli.main(words) == 0
    rows = lines(tmp_path / "gemm_mxfp8.csv")
    assert {row["m"]: row["us"] == "77" for row in rows} == {"20": True, "3": False}
    assert "gemm_mxfp8 m=20 n=48 k=256: done before" in capsys.readouterr().out


def test_a_row_replaces_that_of_its_key_alone(tmp_path: Path) -> None:
    """Not the figures that others have published of the same key, of which there may be several."""
    file = File(tmp_path, tuned_table.TABLES["gemm_mxfp8"])
    columns = ",".join(file.tuned.columns)
    published = "gfx950,256,{m},64,128,,,,{who}_us=9,published,a paper"
    texts = [published.format(m=m, who=who) for m in (1, 2) for who in ("aiter", "ck")]
    file.path.write_text("\n".join([columns, *texts, ""]))
    for us in ("5", "4"):
        file.add(_row(1, us=us))
        file.add(_row(2))
    rows = lines(file.path)
    assert [row["kernel"] for row in rows] == [""] * 4 + ["triton"] * 2
    assert [row["us"] for row in rows[4:]] == ["4", "5"]
    assert sum(row["origin"] == "published" for row in rows) == 4


def test_tune_of_defaults_keeps_what_it_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = cost.measure

    def interrupted(sets: list[Problem], *args: Any) -> Any:
        if sets[0].call.M == 20:
            raise KeyboardInterrupt
        return measure(sets, *args)

    monkeypatch.setattr(cost, "measure", interrupted)
    words = ["tune", "gemm_mxfp8", "--out", str(tmp_path), "--top", "1", "--defaults", "triton"]
    words += ["--shape", "3", "48", "256", "--shape", "20", "48", "256"]
    assert cli.main(words) == 130
    (row,) = lines(tmp_path / "gemm_mxfp8_triton.csv")
    assert row["kernel"] == "triton" and row["source"].count("M=") == 1, row


def test_a_table_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = File(tmp_path, tuned_table.TABLES["gemm_mxfp8"])
    file.add(_row(1))
    before = file.path.read_bytes()

    def full(_handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(cli_tune.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        file.add(_row(2))
    assert file.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["gemm_mxfp8.csv"]


def test_tune_refuses_a_table_that_is_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "gemm_mxfp8.csv"
    file.write_text("nonsense\n")
    with pytest.raises(ConfigError, match="line 1, column"):
        tune(PAIRS[:1], tmp_path)
    assert file.read_text() == "nonsense\n"


def test_tune_wants_a_folder_and_an_op_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "gemm_mxfp8", "--shape", "2", "16", "64"]) == 1
    assert "pass --out FOLDER, or set RFOPS_CONFIGS" in capsys.readouterr().err
    assert cli.main(["tune", "moe_align_block_size"]) == 1
    assert "moe_align_block_size must have a tuned table, got none" in capsys.readouterr().err


def test_tune_takes_untuned_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "untuned.csv"
    monkeypatch.setenv("RFOPS_RECORD_UNTUNED", str(record))
    DENSE.route(SMALL)
    GROUPED.route(MOE)
    (dense,) = cli_tune.untuned(record, "gemm_mxfp8")
    assert DENSE.table_sizes(dense) == DENSE.table_sizes(SMALL)
    done: list[Any] = []
    monkeypatch.setattr(cli_tune, "tune_all", lambda pairs, *_: done.extend(pairs) or 0)
    for op in ("gemm_mxfp8", "grouped_gemm_mxfp8"):
        assert cli.main(["tune", op, "--out", str(tmp_path), "--untuned", str(record)]) == 0
    assert [cli_tune.query_of(*pair) for pair in done] == routing.read_untuned(record)


def test_tune_script_and_command_fill_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", str(tmp_path), "--top", "1", "--shape", "2", "16", "64"]
    assert tune_mxfp8.main(words) == 0
    capsys.readouterr()
    assert cli.main(["tune", "gemm_mxfp8", *words]) == 0
    said = capsys.readouterr().out
    assert "done before" in said and f"RFOPS_CONFIGS={tmp_path}" in said
    (row,) = tuned_table.read(tmp_path / "gemm_mxfp8.csv", "gemm_mxfp8")
    assert row.origin == "estimated"


@pytest.mark.parametrize(
    ("name", "shape", "own"),
    [
        ("gemm_mxfp8", "3 48 256", "triton"),
        ("grouped_gemm_mxfp8", "6 48 256 8 a_div=2 top_k=2", "triton"),
        ("batched_gemm_a16w8_blockscale", "2 4 130 200", ""),
    ],
)
def test_every_table_is_tuned(
    name: str, shape: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The op's own, and its Triton kernel's defaults, which a call without a row then takes."""
    words = ["tune", name, "--out", str(tmp_path), "--top", "2", "--shape", *shape.split()]
    assert cli.main(words) == 0
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    c = on_device(ops()[name].call_of(**cli_bench.shape_of(ops()[name], shape.split())), CPU)
    (row,) = lines(tmp_path / f"{name}.csv")
    chosen = ops()[name].route(c)
    assert (chosen.rule, chosen.backend, chosen.config) == (
        "exact row",
        row["kernel"],
        row["config"],
    )
    if own:
        kernel = ops()[name].kernels[own]
        before = kernel.own_row(c)
        assert cli.main([*words, "--defaults", own]) == 0
        (row,) = lines(tmp_path / f"{name}_{own}.csv")
        assert row["m" if name == "gemm_mxfp8" else "block_m"] == "16" == str(before.sizes[0])
        tuned_table._load.cache_clear()
        after = kernel.own_row(c)
        assert after.source == row["source"] and "geometric mean of M=" in row["source"]
        assert after.sizes == before.sizes and after.file.parent == tmp_path
        assert kernel.default(c) == kernel.settled(
            c, routing.parse_config(kernel.Config, row["config"])
        )


def test_on_a_gpu_the_best_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of three decides; of each kernel the best stays for the row's figures."""
    tile = DENSE.kernels["triton"].default(SMALL)
    tried = [Trial("gemv", GemvConfig(64, 1, 1, w), 5.0 + w / 10, "measured") for w in range(1, 9)]
    tried.append(Trial("triton", tile, 9.0, "measured"))
    times = iter([9.0, *[1.0] * 5, 9.0, 9.0, *[1.0] * 5, 9.0])
    monkeypatch.setattr(cli_tune, "measure", lambda *_: cost.Cost(next(times), "measured"))
    monkeypatch.setattr(cost, "problems", lambda *_: [])
    found = cli_tune.retimed(DENSE, SMALL, tried, lambda *_: None)
    assert [trial.us for trial in found] == [9.0, *[1.0] * 5, 9.0]
    assert found[0].config.waves == 1 and found[-1].backend == "triton"


def test_variants_are_compiled_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    c = on_device(grouped_call(4, 16, 64, 2, 4, 4, weighted=True), CPU)
    kernel = GROUPED.kernels["triton"]
    jobs: list[Any] = []
    run = cli_tune.launch_once

    class Here:  # as another process would, after it has unpickled a job
        def __init__(self, workers: int, mp_context: Any) -> None:
            assert workers > 0 and mp_context.get_start_method() == "forkserver"

        def map(self, call: Any, given: Any) -> list[bool]:
            assert call is run
            jobs.extend(pickle.loads(pickle.dumps(given)))
            return []

    monkeypatch.setattr(cli_tune, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(cli_tune, "_processes", cli_tune._processes.__wrapped__)
    cli_tune.compile_ahead(GROUPED, c, "triton", [kernel.default(c), kernel.default(c)])
    with vgpu.profile() as profile:
        assert [run(job) for job in jobs] == [True, True]
    assert [launch.kernel for launch in profile.launches] == ["grouped_kernel"] * 2
    assert not run((*jobs[0][:4], "method=none")) and not run(("an_op_of_elsewhere", *jobs[0][1:]))


@pytest.mark.sweep
def test_the_processes_that_compile() -> None:
    """For real: none that forked with a device in use, each launches."""
    c = on_device(grouped_call(4, 16, 64, 2, 4, 4, weighted=True), CPU)
    config = routing.config_text(GROUPED.kernels["triton"].default(c))
    job = ("grouped_gemm_mxfp8", {**c.values, **c.sizes}, c.device, "triton", config)
    assert list(cli_tune._processes().map(cli_tune.launch_once, [job] * 2)) == [True, True]


def test_configs_that_are_one_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    c = dense_call(8, 2304, 6144)
    tile = DENSE.kernels["triton"].default(c)
    fills = 1, 99, 100  # the last two have the most splits
    same = [replace(tile, splits=1, fill=fill) for fill in fills]
    seen: list[Any] = []

    def counted(_sets: Any, _backend: str, config: Any, _failed: Any) -> cost.Cost:
        seen.append(config.splits)
        return cost.Cost(1.0 + config.splits, "estimated")

    monkeypatch.setattr(cli_tune, "measure", counted)
    monkeypatch.setattr(cost, "problems", lambda *_: [])
    monkeypatch.setattr(type(DENSE.kernels["triton"]), "candidates", lambda *_: [*same, *same])
    tried = list(cli_tune.trials(DENSE, c, CPU, None, lambda *_: None, "triton"))
    assert len(tried) == 4 and len(seen) == len(set(seen)) < 4
