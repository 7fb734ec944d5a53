"""The constants of timing mode and of its microkernels equal the table of published constants."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from rfops.cli.timing.micro_cases import CASES
from support import ROOT

TIMING = ROOT / "csrc/vgpu/timing"
with (TIMING / "constants.csv").open(newline="", encoding="utf-8") as stream:
    TABLE = {row["id"]: row for row in csv.DictReader(stream)}


class Row(NamedTuple):
    part: str  # empty: all parts of gfx942 or of gfx950
    name: str
    grade: str
    source: str
    value: float

    @property
    def ids(self) -> list[str]:
        return re.findall(r"\bc\d\d\b", self.source)


def rows() -> list[Row]:
    text = (TIMING / "gpu_model.cpp").read_text(encoding="utf-8")
    text = re.sub(r"4 << 20", str(4 << 20), text)
    pattern = (r'(?:\{"(\w+)",\s*)?\{&C::(\w+), "\w+", "[^"]*", \'([A-D])\',\s*"([^"]*)",\s*'
               r"([-\w.]+)\}")  # fmt: skip
    found = [Row(part, name, grade, source, float(value.replace("kNoLimit", "1e9")))
             for part, name, grade, source, value in re.findall(pattern, text)]  # fmt: skip
    assert len(found) == text.count("&C::"), "a row was not read"
    return found


ROWS = rows()


def value(id: str) -> float:
    return float(TABLE[id]["value"])


def clock(id: str) -> float:
    """The clock in GHz that the unit of a constant names."""
    return float(re.search(r"@([\d.]+) GHz", TABLE[id]["unit"])[1])  # type: ignore[index]


def note(id: str, pattern: str) -> list[float]:
    """The numbers of a note."""
    return [float(text) for text in re.search(pattern, TABLE[id]["note"]).groups()]  # type: ignore[union-attr]


CLOCK = 2.1  # GHz, of MI300X
LOOP = 16  # clk of c26 to c30 that three scalar instructions and the taken branch take: c32
# How a constant follows from the table, and how many decimals of that the model keeps.
DERIVED: dict[tuple[str, str], tuple[Callable[[], float], int]] = {
    ("", "clock"): (lambda: clock("c01"), 1),
    ("", "mall_ns"): (lambda: (value("c03") - value("c02")) / CLOCK, 0),
    ("", "hbm_ns"): (lambda: (value("c04") - value("c02")) / CLOCK, 0),
    ("", "k_latency"): (lambda: value("c09") - 4, 0),  # the s_waitcnt issues in 4 clk
    ("", "k_mall_ns"): (lambda: (value("c11") - value("c10")) / CLOCK, 0),
    ("", "k_hbm_ns"): (lambda: (value("c12") - value("c10")) / CLOCK, 0),
    ("", "l2_line_clk"): (lambda: 128 * 128 * CLOCK / 1e3 / value("c42"), 2),  # 128 channels
    ("", "port_line_clk"): (lambda: 128 / note("c41", r"; (\d+) peak")[0], 0),
    ("", "dword_clk"): (lambda: 256 / note("c41", r"; (\d+) peak")[0], 0),
    ("", "wide_dword_clk"): (lambda: 256 / note("c41", r"; (\d+) peak")[0], 0),
    ("", "mall_write_tb_s"): (lambda: sum(note("c43", r"write ([\d.]+)-([\d.]+)")) / 2, 1),
    ("", "atomic_line_clk"): (lambda: 128 / note("c62", r"~(\d+) updates/clk")[0], 1),
    ("", "wide_valu_clk"): (lambda: (value("c27") - LOOP) / 4, 0),
    ("", "trans_clk"): (lambda: 4 * 4 if "sqrt/rcp quarter" in TABLE["c79"]["value"] else 0, 0),
    ("", "matrix_latency"): (lambda: value("c34") - 16, 0),  # 4 passes
    ("", "dispatch_group_clk"): (lambda: value("c49") / 8, 1),  # 8 XCDs
    ("MI308X", "clock"): (lambda: clock("c13"), 2),
    ("MI308X", "hbm_tb_s"): (lambda: float(TABLE["c47"]["value"].split("/")[0]), 1),
}
# Chosen so that a microkernel, a case of test_vgpu_timing_micro.py, comes to the published value.
FITTED = {
    ("", "hbm_turn_ns"), ("", "hbm_tb_s"), ("", "segment_clk"), ("", "lds_latency"),
    ("", "lds_write_clk"), ("", "packed_f32_clk"), ("", "branch_clk"), ("", "turnaround_clk"),
    ("", "floor_graph"), ("MI300A", "hbm_tb_s"), ("MI300A", "hbm_turn_ns"),
}  # fmt: skip
LESS = {("", "floor_profiler")}  # the published value less the time of a kernel's body


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.part}-{row.name}-{row.value:g}")
def test_a_constant_equals_the_table(row: Row) -> None:
    assert {*row.ids} <= {*TABLE}
    if row.grade == "D" or not row.ids:  # assumed, or not by the table
        return
    assert row.grade >= min(TABLE[id]["grade"] for id in row.ids), "better than its source"
    which = row.part, row.name
    if which in DERIVED:
        found, decimals = DERIVED[which]
        assert row.value == pytest.approx(found(), abs=0.5001 * 10**-decimals)
    elif which in LESS:
        assert 0 < row.value < min(map(value, row.ids))
    elif which in FITTED:
        assert {*row.ids} & {case.id for case in CASES}, "no microkernel holds it"
    else:
        assert row.value == value(row.ids[0])


def test_the_lists_name_constants() -> None:
    assert {*DERIVED} | FITTED | LESS <= {(row.part, row.name) for row in ROWS}


@pytest.mark.parametrize("id", sorted({case.id for case in CASES} - {"curve"}))
def test_a_microkernel_has_the_published_value(id: str) -> None:
    """The value, or one within its bounds; other cases of the id are points of the same curve."""
    row = TABLE[id]
    scale = {"c60": 64, "c50": 16}.get(id, 1)  # of a wave's lanes, of 16 waves
    known = [float(t) for t in re.findall(r"\d+\.?\d*", f"{row['value']} {row['note']}")]
    known += [figure / 1e3 for figure in known]  # GB/s
    published = [case.published / scale for case in CASES if case.id == id]
    low, high = (float(row[name] or "nan") for name in ("low", "high"))
    assert any(
        low <= one <= high or any(one == pytest.approx(k, rel=1e-3) for k in known)
        for one in published
    ), published
