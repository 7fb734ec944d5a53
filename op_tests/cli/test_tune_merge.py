"""`rfops tune merge`: which rows are kept, and files that are no tables of one op. And pandas,
which only commands with tables import."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rfops import cli
from rfops.dispatch.tuned_table import TABLES

ROW = {
    "arch": "gfx950",
    "cu_num": 256,
    "m": 8,
    "n": 64,
    "k": 128,
    "kernel": "mfma",
    "us": 5,
    "origin": "measured",
    "source": "machine A",
}
Write = Callable[..., str]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a table into the current folder: rows as changes of ROW."""
    monkeypatch.chdir(tmp_path)

    def table(name: str, *rows: dict[str, object], op: str = "gemm_mxfp8") -> str:
        Path(name).parent.mkdir(exist_ok=True)
        with Path(name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, TABLES[op].columns, restval="")
            writer.writeheader()
            writer.writerows(ROW | row for row in rows)
        return name

    return table


def merged(capsys: Capture, *files: str) -> list[dict[str, str]]:
    capsys.readouterr()
    assert cli.main(["tune", "merge", *files]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


B = {"source": "machine B"}
ESTIMATED = {"origin": "estimated"}


@pytest.mark.parametrize("name", ["fused_moe.csv", "x.csv"])
def test_a_file_from_before_the_key_had_a_column(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Its rows hold for any size of it, so they are of another key than rows that have one."""
    monkeypatch.chdir(tmp_path)
    columns = ["arch", "cu_num", "m", "d", "i", "e", "k", "kernel", "config", "us", "figures"]
    columns += ["origin", "source"]
    cells = ROW | {"d": 64, "i": 32, "e": 9, "kernel": "hip"}
    files = []
    for folder, header in (("new", [*columns[:7], "r", *columns[7:]]), ("old", columns)):
        Path(folder).mkdir()
        line = ",".join(str((cells | {"r": 8}).get(column, "")) for column in header)
        Path(folder, name).write_text(f"{','.join(header)}\n{line}\n", encoding="utf-8")
        files.append(f"{folder}/{name}")
    assert [row["r"] for row in merged(capsys, *files)] == ["8", ""]


CASES = {  # rows of A, rows of B: which sources and times are kept
    "faster": ([{"us": 5}], [B | {"us": 4}], [("machine B", "4")]),
    "slower": ([{"us": 5}], [B | {"us": 40}], [("machine A", "5")]),
    "by number, not by text": ([{"us": 9}], [B | {"us": "10.5"}], [("machine A", "9")]),
    "the same time": ([{"us": 5}], [B | {"us": "5.0"}], [("machine A", "5")]),
    "measured before estimated": ([ESTIMATED | {"us": 1}], [B], [("machine B", "5")]),
    "measured first": ([{"us": 9}], [B | ESTIMATED | {"us": 1}], [("machine A", "9")]),
    "of two estimates the faster": ([ESTIMATED], [B | ESTIMATED | {"us": 2}], [("machine B", "2")]),
    "estimated before published": (
        [{"origin": "published", "us": 1}],
        [B | ESTIMATED],
        [("machine B", "5")],
    ),
    "a measured one without a time": ([{"us": ""}], [B | {"us": 70}], [("machine B", "70")]),
    "no time, but measured": ([{"us": ""}], [B | ESTIMATED], [("machine A", "")]),
    "0 us is no time": ([{"us": 0}], [B | {"us": 70}], [("machine B", "70")]),
    "another architecture": (
        [{}],
        [B | {"arch": "gfx942"}],
        [("machine A", "5"), ("machine B", "5")],
    ),
    "another number of CUs": (
        [{}],
        [B | {"cu_num": 304}],
        [("machine A", "5"), ("machine B", "5")],
    ),
    "another shape": ([{}], [B | {"k": 256}], [("machine A", "5"), ("machine B", "5")]),
    "one key in other digits": ([{"m": "08"}], [B | {"us": 4}], [("machine B", "4")]),
    "within a file": ([{"us": 6}, {"us": 5}], [B | {"us": 7}], [("machine A", "5")]),
    "no rows": ([], [B], [("machine B", "5")]),
    "none at all": ([], [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_which_row_is_kept(name: str, write: Write, capsys: Capture) -> None:
    a, b, kept = CASES[name]
    rows = merged(capsys, write("a.csv", *a), write("b.csv", *b))
    assert [(row["source"], row["us"]) for row in rows] == kept


def test_a_row_is_kept_whole_and_in_order(write: Write, capsys: Capture) -> None:
    """The place is that of the key's first row; figures that decide nothing all stay, once."""
    figures = {"kernel": "", "us": "", "origin": "published", "source": "a paper, part 2"}
    a = [{"m": 32}, {}, figures | {"figures": "aiter_us=3"}, {"m": 16}]
    b = [
        B | {"m": 64},
        B | {"us": 4, "kernel": "triton", "figures": "mfma_us=6 spread=0.01"},
        figures | {"figures": "aiter_us=3"},
        figures | {"figures": "ck_us=4"},
    ]
    rows = merged(capsys, write("a.csv", *a), write("b.csv", *b))
    assert [(r["m"], r["kernel"]) for r in rows] == [
        ("32", "mfma"),
        ("8", "triton"),
        ("8", ""),
        ("8", ""),
        ("16", "mfma"),
        ("64", "mfma"),
    ]
    assert rows[1]["figures"] == "mfma_us=6 spread=0.01" and rows[1]["source"] == "machine B"
    assert [row["figures"] for row in rows[2:4]] == ["aiter_us=3", "ck_us=4"]
    assert {row["source"] for row in rows[2:4]} == {"a paper, part 2"}


def test_out_is_a_table_that_ops_take(write: Write, capsys: Capture) -> None:
    """It may be one of the files, and a third machine's table may come along."""
    files = [write("gemm_mxfp8.csv", {}), write("b.csv", B | {"us": 3}), write("c.csv", {"m": 9})]
    assert cli.main(["tune", "merge", *files, "-o", "gemm_mxfp8.csv"]) == 0
    message = capsys.readouterr().out
    assert message == (
        "gemm_mxfp8.csv: 2 rows of gemm_mxfp8: 0 of gemm_mxfp8.csv, 1 of b.csv, 1 of c.csv\n"
    )
    with Path("gemm_mxfp8.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["m"], row["us"]) for row in rows] == [("8", "3"), ("9", "5")]
    assert cli.main(["tune", "merge", *files, "-o", "new/gemm_mxfp8.csv"]) == 0
    names = sorted(path.name for path in Path.cwd().iterdir())
    assert names == ["b.csv", "c.csv", "gemm_mxfp8.csv", "new"]


def test_empty_sizes_are_a_key(write: Write, capsys: Capture) -> None:
    """Of a table whose cells may be empty: any size."""
    op, any_m = "gemm_mxfp8_triton", {"kernel": "triton", "m": ""}
    files = [write("a/x.csv", any_m, op=op), write("b/x.csv", any_m | B | {"us": 4}, op=op)]
    (row,) = merged(capsys, *files)
    assert (row["m"], row["us"]) == ("", "4")


def by_hand(name: str, text: str) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name


STREAM = {"kernel": "stream"}
REFUSED: dict[str, tuple[Callable[[Write], list[str]], str]] = {
    "names of two tables": (
        lambda write: [write("gemm_mxfp8.csv", {}), write("fused_moe.csv", op="fused_moe")],
        "files must be of one table, got several: gemm_mxfp8.csv is of gemm_mxfp8; fused_moe.csv "
        "is of fused_moe. Merge the files of each table by themselves.",
    ),
    "the name of OUT": (
        lambda write: [write("x.csv", {}), write("gemm_mxfp8.csv", {}), "-o", "fused_moe.csv"],
        "fused_moe.csv is of fused_moe",
    ),
    "columns by name": (
        lambda write: [write("gemm_mxfp8.csv", {}), write("x.csv", op="fused_moe")],
        "x.csv, line 1, column d: expected the header arch,cu_num,m,n,k,kernel",
    ),
    "columns": (
        lambda write: [write("y.csv", {}), write("x.csv", op="fused_moe")],
        "y.csv is of gemm_mxfp8; x.csv is of fused_moe",
    ),
    "kernels by name": (
        lambda write: [write("gemm_mxfp8.csv", {}), write("x.csv", STREAM)],
        "x.csv, line 2, column kernel: expected one of gemv, mfma",
    ),
    "kernels": (
        lambda write: [write("y.csv", {}), write("x.csv", {"kernel": "deep"})],
        "y.csv is of gemm_mxfp8; x.csv is of gemm_a8w8_blockscale or gemm_a16wfp4 or gemm_afp4wfp4",
    ),
    "no table": (
        lambda write: [write("y.csv", {}), by_hand("x.csv", "time,name\n1,2\n")],
        "x.csv must be a tuned table with the columns arch, cu_num, sizes, kernel, "
        "config, us, figures, origin, source. Got time, name",
    ),
    "an empty file": (lambda write: [write("y.csv", {}), by_hand("x.csv", "")], "Got nothing"),
    "header": (
        lambda write: [write("gemm_mxfp8.csv", {}), by_hand("b/gemm_mxfp8.csv", "arch\n")],
        "b/gemm_mxfp8.csv, line 1, column config: expected the header arch,cu_num,m,n,k",
    ),
    "cell": (
        lambda write: [write("y.csv", {}), write("x.csv", {"us": "fast"})],
        "As gemm_mxfp8: x.csv, line 2, column us: expected numbers of 0 or more",
    ),
    "no file": (
        lambda write: [write("y.csv", {}), "x.csv"],
        "x.csv must be a tuned table's CSV file, got no file",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, write: Write, capsys: Capture) -> None:
    make, reason = REFUSED[name]
    words = make(write)
    previous = Path(words[0]).read_bytes()
    out = [] if "-o" in words else ["-o", words[0]]
    assert cli.main(["tune", "merge", *words, *out]) == 1
    assert reason in capsys.readouterr().err
    assert Path(words[0]).read_bytes() == previous


# ---------------------------------------------------------------- pandas

CHILD = """
import sys, rfops
from rfops import cli

def done(what):
    print(f"{what}: {'pandas' in sys.modules}", file=sys.stderr)

done("import")
for words in ("ls", "--help", "bench timing -h", "why gemm_mxfp8 --m 7 --n 64 --k 128",
              "tune gemm_mxfp8 -h", "tune merge -h", "call", "tune merge a.csv b.csv"):
    if words == "call":
        import torch
        x, s = rfops.quant_mxfp8(torch.ones(4, 256))
        rfops.gemm_mxfp8(x, x, s, s)
    else:
        try:
            cli.main(words.split())
        except SystemExit:
            pass
    done(words)
"""


def test_pandas_is_only_for_tables(write: Write) -> None:
    """Not for `import rfops`, an op's call, or a command that shows no table."""
    write("a.csv", {})
    write("b.csv", {})
    completed = subprocess.run(
        [sys.executable, "-c", CHILD], check=True, text=True, capture_output=True
    )
    match = re.findall(r"^(.*): (True|False)$", completed.stderr, re.M)
    assert [label for label, imported in match if imported == "True"] == ["tune merge a.csv b.csv"]
    assert len(match) == 9, completed.stderr
