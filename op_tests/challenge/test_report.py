"""The report of `rfops eval`: several entries side by side, the winner, the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from rfops.challenge import report
from rfops.challenge.verdict import Verdict
from rfops.cli import main
from support.entries import CASE, TRITON


def test_entries_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with each entry's time, the winner, and who is out; a page of it."""
    right, wrong, page = (tmp_path / name for name in ("right.py", "wrong.py", "page.html"))
    right.write_text(TRITON)
    wrong.write_text("def custom_kernel(data):\n    return data[4]\n")
    words = [word for file in (wrong, right) for word in ("--submission", str(file))]
    words += ["--case", CASE, "--html", str(page), "--trust-entry"]
    assert main(["eval", "fp8-mm", *words]) == 112
    *_, head, row, means, winner = capsys.readouterr().out.splitlines()
    assert head.split() == ["case", "wrong.py", "right.py"]
    assert row.startswith(CASE) and row.split()[-3] == "FAIL" and row.endswith(" us")
    assert means.split()[1] == "-"
    assert winner.startswith("winner: right.py, geomean ")
    assert winner.endswith("; out of competition: wrong.py")
    text = page.read_text()
    assert "<script" not in text and "returns zeros" in text and winner in text


def test_the_winner() -> None:
    def verdicts(*times: float | None) -> list[Verdict]:
        return [Verdict("n: 1", us=[] if us is None else [us]) for us in times]

    entries = {"a": verdicts(2.0, 8.0), "b": verdicts(1.0, 4.0), "c": verdicts(1.0, None)}
    assert report.winner(entries) == (
        "winner: b, geomean 2.00 us, 2.00 times as fast as a; out of competition: c"
    )
    assert report.winner({"c": entries["c"]}).startswith("no winner: ")
    failed = verdicts(1.0, 1.0)
    failed[0].official = "1 of 4 elements"
    assert report.geomean(failed) is None
    assert report.compared({"c": entries["c"]}).splitlines()[2].endswith("not timed")
