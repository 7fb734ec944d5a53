"""A tuned table of the user's own, over the shipped one."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from rfops.dispatch import tuned_table
from rfops.dispatch.tuned_table import TABLES

ROW = {
    "arch": "gfx950",
    "cu_num": 256,
    "m": 8,
    "n": 480,
    "k": 640,
    "kernel": "mfma",
    "origin": "estimated",
    "source": "a test",
}
Write = Callable[..., Path]


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the user's table of an op: rows as changes of ROW, or the text itself."""

    def write(*rows: dict[str, object] | str, op: str = "gemm_mxfp8") -> Path:
        file, columns = tmp_path / f"{op}.csv", TABLES[op].columns
        with file.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerow(columns)
            for row in rows:
                if isinstance(row, str):
                    stream.write(row)
                else:
                    cells = {**ROW, **row}
                    csv.writer(stream).writerow([cells.get(column, "") for column in columns])
        monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
        tuned_table._load.cache_clear()
        return file

    return write


def lines(file: Path) -> list[dict[str, str]]:
    """The rows of a table that a command has written."""
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))
