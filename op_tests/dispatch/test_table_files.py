"""Tuned tables as files: rows that conflict, faults and where they are, the nearest row, and the
tables that are shipped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import rfops
from rfops.dispatch import tuned_table
from rfops.dispatch.op import ops
from rfops.dispatch.tuned_table import TABLES, Row, Table
from rfops.jit import log, paths, settings
from support.calls import decision, grouped_route, route
from support.process import python
from support.tables import ROW, Write

COLUMNS = TABLES["gemm_mxfp8"].columns
pytestmark = pytest.mark.usefixtures("own_misses")


# ---------------------------------------------------------------- conflicts


ORIGINS = ["published", "estimated", "measured"]


@pytest.mark.parametrize("first", ORIGINS)
@pytest.mark.parametrize("second", ORIGINS)
def test_conflicts(
    first: str,
    second: str,
    overlay: Write,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The better origin holds, then the later line; reported once, nothing raised or written."""
    file = overlay(
        {"origin": first, "kernel": "gemv"}, {"m": 2}, {"origin": second, "kernel": "triton"}
    )
    previous, when = file.read_bytes(), file.stat().st_mtime_ns
    later = ORIGINS.index(second) >= ORIGINS.index(first)
    monkeypatch.setattr(log.get(), "propagate", True)
    assert decision(8) == ("exact row", "triton" if later else "gemv")
    table = TABLES["gemm_mxfp8"].load()
    (conflict,) = table.conflicts
    rule = "the later line" if first == second else "the better origin"
    held, dropped = (4, 2) if later else (2, 4)
    assert f"line {held} holds, by {rule}" in conflict and f"line {dropped} (" in conflict
    assert sum("decide differently" in message for message in caplog.messages) == 1
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (previous, when)


def test_rows_that_agree_are_no_conflict(overlay: Write) -> None:
    overlay({"us": 3}, {"us": 4, "origin": "measured"})
    assert TABLES["gemm_mxfp8"].load().conflicts == ()
    selected = route(8, 480, 640)
    assert selected.row is not None and selected.row.origin == "measured"


def test_the_users_rows_replace_shipped_ones(overlay: Write) -> None:
    assert decision(1, 2304, 6144) == ("exact row", "gemv")
    overlay({"m": 1, "n": 2304, "k": 6144, "kernel": "mfma"})
    assert decision(1, 2304, 6144) == ("exact row", "mfma")
    assert TABLES["gemm_mxfp8"].load().conflicts == ()
    assert decision(2, 2304, 6144) == ("exact row", "gemv"), "the other shipped rows stay"


# ---------------------------------------------------------------- faults of a file


def line(**changes: object) -> str:
    return ",".join(str({**ROW, **changes}.get(column, "")) for column in COLUMNS) + "\n"


FAULTS = {
    "arch": (line(arch="mi300"), "line 2, column arch: expected gfx950"),
    "cu_num": (line(cu_num="many"), "line 2, column cu_num: expected a whole number.*'many'"),
    "m is 0": (line(m=0), "line 2, column m: expected a whole number, 1 or more, got '0'"),
    "m is missing": (line(m=""), "line 2, column m: expected a whole number"),
    "m of many digits": (line(m="9" * 5000), "line 2, column m: expected a whole number"),
    "n is negative": (line(n=-4), "line 2, column n: expected"),
    "k is a fraction": (line() + line(k=6.5), "line 3, column k: expected .* got '6.5'"),
    "kernel": (line(kernel="moe"), "line 2, column kernel: expected one of gemv, mfma, triton"),
    "no kernel": (line(kernel=""), "line 2, column kernel: expected one of gemv, mfma, triton"),
    "a config of no kernel": (
        line(kernel="", config="rows=4", origin="published"),
        "line 2, column kernel: expected one of gemv, mfma, triton, got ''",
    ),
    "us": (line(us="fast"), "line 2, column us: expected numbers of 0 or more, .*'fast'"),
    "us is nan": (line(us="nan"), "line 2, column us: expected numbers of 0 or more"),
    "a figure": (line(figures="triton_us"), "line 2, column figures: .* each as name=value"),
    "origin": (line(origin="guessed"), "line 2, column origin: expected one of measured, est"),
    "source": (line(source=""), "line 2, column source: expected where the row comes from"),
    "few cells": ("gfx950,256\n", "line 2, column m: expected 11 cells .* it has 2"),
    "many cells": (line().rstrip("\n") + ",1\n", "line 2, column source: expected 11 cells .* 12"),
    "a torn line": (line() + 'gfx950,"25', "line 2: cannot be read: unexpected end"),
    "not text": (line() + "\0\xff", "line 2.*|line 3.*"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_name_file_line_and_column(case: str, overlay: Write) -> None:
    text, message = FAULTS[case]
    file = overlay(text)
    with pytest.raises(rfops.ConfigError, match=rf"^{file}, (after )?{message}"):
        route(8, 480, 640)


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("arch,cu_num", "config"),
        (",".join(COLUMNS) + ",color", "color"),
        (",".join(COLUMNS) + ",kernel", "kernel"),
    ],
)
def test_wrong_header(header: str, column: str, overlay: Write) -> None:
    file = overlay()
    file.write_text(header + "\n")
    with pytest.raises(rfops.ConfigError, match=f"line 1, column {column}: expected the header"):
        route(8, 480, 640)


GROUPED_ROW = {"m": 64, "n": 64, "k": 128, "mul_weight_by": 0, "kernel": "triton"}


def test_a_file_may_lack_columns_whose_cells_may_be_empty(overlay: Write) -> None:
    """As those that were written before the key had them: its rows hold for any size of them."""
    file = overlay(op="grouped_gemm_mxfp8")
    columns = [c for c in TABLES["grouped_gemm_mxfp8"].columns if c not in ("e", "a_div")]
    row = {**ROW, **GROUPED_ROW}
    file.write_text(f"{','.join(columns)}\n{','.join(str(row.get(c, '')) for c in columns)}\n")
    for experts, a_div in ((8, 1), (300, 4)):
        selected = grouped_route(64, 64, 128, experts, 4, a_div)
        assert selected.row is not None and selected.row.sizes == (64, 64, 128, None, None, 0)
    file.write_text(file.read_text().replace("n,k", "k"))
    tuned_table._load.cache_clear()
    with pytest.raises(rfops.ConfigError, match=r"line 1, column n: expected the header arch,cu"):
        grouped_route(64, 64, 128, 8, 4, 1)


def test_an_empty_cell_of_a_users_row_replaces_shipped_rows_of_any_size(
    overlay: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's table from before the key had a column stands above rows that have it; a row of the
    user's own with the size comes before one without."""
    overlay({**GROUPED_ROW, "config": "", "a_div": 2}, op="grouped_gemm_mxfp8")
    monkeypatch.setattr(paths, "CONFIGS", Path(settings.path("RFOPS_CONFIGS") or ""))
    monkeypatch.delenv("RFOPS_CONFIGS")
    shipped = paths.CONFIGS / "grouped_gemm_mxfp8.csv"

    def line_of(a_div: int) -> str:
        tuned_table._load.cache_clear()
        row = grouped_route(64, 64, 128, 8, 4, a_div).row
        return "" if row is None else f"{row.file.parent.name} {row.sizes[4]}"

    assert line_of(2) == f"{shipped.parent.name} 2"
    own = shipped.parent / "own"
    own.mkdir()
    for rows, expected in (
        ([{}], "own None"),
        ([{}, {"a_div": 2}], "own 2"),
        ([{"m": 80}], f"{shipped.parent.name} 2"),
    ):
        lines = [{**ROW, **GROUPED_ROW, **row} for row in rows]
        columns = TABLES["grouped_gemm_mxfp8"].columns
        text = "".join(",".join(str(one.get(c, "")) for c in columns) + "\n" for one in lines)
        (own / shipped.name).write_text(f"{','.join(columns)}\n{text}")
        monkeypatch.setenv("RFOPS_CONFIGS", str(own))
        assert line_of(2) == expected


def test_empty_lines_are_nothing(overlay: Write) -> None:
    overlay("\n" + line() + "\n\n")
    selected = route(8, 480, 640)
    assert selected.row is not None and selected.row.line == 3


def test_columns_may_stand_in_any_order(overlay: Write) -> None:
    file = overlay()
    names = list(reversed(COLUMNS))
    file.write_text(",".join(names) + "\n" + ",".join(str(ROW.get(c, "")) for c in names) + "\n")
    assert decision(8) == ("exact row", "mfma")


def test_bytes_that_are_not_utf8(overlay: Write) -> None:
    file = overlay(line())
    file.write_bytes(file.read_bytes() + b"\xff\xfe")
    with pytest.raises(rfops.ConfigError, match=rf"^{file}, after line \d+: cannot be read"):
        route(8, 480, 640)


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_CONFIGS", "/absent")
    with pytest.raises(rfops.ConfigError, match="RFOPS_CONFIGS=/absent: expected a folder"):
        route(8, 480, 640)


@pytest.mark.parametrize("config", ["lanes=17 rows=1 steps=1 waves=1", "lanes=64", "fast", "a=1"])
def test_a_config_that_the_kernel_does_not_have(config: str, overlay: Write) -> None:
    """Found when the row is used, with its place."""
    file = overlay({"kernel": "gemv", "config": config})
    with pytest.raises(rfops.ConfigError, match=f"^{file}, line 2, column config: expected lanes="):
        route(8, 480, 640)


def test_a_corrupt_table_is_no_error_of_the_import(overlay: Write) -> None:
    file = overlay("nonsense\n")
    code = (
        "import torch, rfops\n"
        "x, s = rfops.quant_mxfp8(torch.ones(2, 64))\n"
        "try: rfops.gemm_mxfp8(x, x, s, s)\n"
        "except rfops.ConfigError as e: print(e)"
    )
    completed = python(code, check=True)
    assert f"{file}, line 2, column cu_num" in completed.stdout


# ---------------------------------------------------------------- the shipped tables


SPEEDUPS = {  # (K, N): M = 1, 2, 4, 8, 16, 32, 64
    (6144, 2304): (3.64, 3.48, 2.88, 2.49, 2.52, 2.20, 1.72),
    (2048, 6144): (2.10, 2.10, 2.09, 2.09, 1.99, 1.63, 1.0),
    (6144, 1536): (3.34, 3.42, 3.43, 2.36, 2.45, 2.74, 2.41),
    (1536, 6144): (2.06, 2.08, 1.91, 2.13, 2.12, 2.12, 1.42),
}
ALL_M = (1, 2, 4, 8, 16, 32, 64)


def shipped(op: str = "gemm_mxfp8") -> Table:
    return TABLES[op].load()


def test_the_shipped_table_says_what_was_published() -> None:
    dense = {row.sizes: row for row in shipped().rows}
    assert len(dense) == 15 * 7
    for (k, n), speedups in SPEEDUPS.items():
        for m, speedup in zip(ALL_M, speedups, strict=True):
            assert dict(dense[m, n, k].figures)["speedup"] == speedup
    lost = {sizes for sizes, row in dense.items() if row.kernel == "triton"}
    assert lost == {(64, 9216, 6144), (64, 6144, 4096), (64, 6144, 3072)}
    won = {sizes[0]: row.kernel for sizes, row in dense.items() if sizes not in lost}
    assert won == {m: "gemv" if m <= 4 else "mfma" for m in ALL_M}


@pytest.mark.parametrize("name", TABLES)
def test_the_shipped_tables_are_sound(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No conflicts, no figure called measured without a device, and each row is what a call of its
    very sizes takes: nothing is passed over or warned of."""
    table, own = TABLES[name].load(), name.endswith("_triton")
    said = list(tuned_table.read(paths.CONFIGS / f"{name}.csv", name))  # what others publish, too
    assert said and table.conflicts == ()
    keys = Counter((row.arch, row.cu_num, row.sizes, row.origin) for row in said)
    assert not [key for key, count in keys.items() if count > 1], "one row a call and origin"
    for row in table.rows:
        assert (row.origin == "measured") == ("NVIDIA H200" in row.source)
        assert row.origin != "measured" or (dict(row.figures)["us"] > 0 and row.arch == "sm_90")
        if not own:
            op = ops()[name]
            sizes = (1 if size is None else size for size in row.sizes)
            given = op.sizes_of_row(dict(zip(op.table, sizes, strict=True)))
            decision = op.route(op.call_of(row.arch, row.cu_num, **given, **LIKE.get(name, {})))
            assert (decision.backend, decision.config) == (row.kernel, row.config), row
            assert decision.row is row and decision.rule == "exact row"
    assert not caplog.records and not any(row.is_own for row in table.rows)


LIKE = {
    "grouped_gemm_mxfp8": {"top_k": 4},
    "fused_moe_mxfp4": {"w_layout": "16x16", "scale_layout": "32x8"},  # raw ones want more LDS
}


def test_every_file_is_a_table() -> None:
    models = {op.time_model.name for op in ops().values() if op.time_model}
    assert {file.stem for file in paths.CONFIGS.glob("*.csv")} == {*TABLES, *models}


def test_nearest_by_every_rule() -> None:
    """What a sign of the key lets hold, and which of several rows is nearest."""
    tuned = tuned_table.Tuned("t", ("A", "M", "K", "E", "F"), ("~", "+", "<=", ">=", "?"), ())

    def row(*sizes: int | None, arch: str = "sm_90", cu_num: int = 132) -> Row:
        return Row(arch, cu_num, tuned.sizes, sizes, "x", "", (), "measured", "", Path("t"), 1)

    def found(call: tuple[int, ...], *rows: Row, arch: str = "sm_90") -> list[object]:
        match = Table(tuned, {Path("t"): list(rows)}).find(arch, 132, call)
        return [rows.index(match.row), match.rule] if match else []

    call = (10, 10, 10, 10, 1)
    for sizes, holds in (
        ((10, 10, None, None, None), "exact row"),
        ((10, 10, 10, 10, 1), "exact row"),
        ((19, 10, 99, 1, 1), "nearest row"),
        ((6, 19, 10, 10, None), "nearest row"),
        ((20, 10, 10, 10, 1), None),
        ((5, 10, 10, 10, 1), None),
        ((10, 9, 10, 10, 1), None),
        ((10, 20, 10, 10, 1), None),
        ((10, 10, 9, 10, 1), None),
        ((10, 10, 10, 11, 1), None),
        ((10, 10, 10, 10, 2), None),
    ):
        assert found(call, row(*sizes)) == ([0, holds] if holds else []), sizes
    full, wide = (14, 12, 40, 5, 1), (10, 10, None, 10, 1)
    assert found(call, row(*wide), row(*full))[0] == 1, "fewer empty cells come first"
    assert found(call, row(*full), row(14, 12, 20, 5, 1))[0] == 1, "then the nearer"
    assert found(call, row(*call, cu_num=100), row(*full))[0] == 1, "before that the chip"
    assert found(call, row(*call, cu_num=130)) == [0, "nearest cu_num"]
    assert found(call, row(*call), arch="sm_100") == [0, "exact row"]
    assert found(call, row(*call), row(*full, arch="sm_100"), arch="sm_100")[0] == 1
    assert found(call, row(*call), arch="gfx950") == found(call, row(*call), arch="sm_80") == []
