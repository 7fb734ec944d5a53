"""The CSVs, mangled: rows that hold what they promise, or a ConfigError naming file and place."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest

from rfops.dispatch import routing, tuned_table
from rfops.dispatch.op import ops
from rfops.dispatch.tuned_table import TABLES, Table
from rfops.jit import ConfigError, paths
from support import mangle

ROUNDS = [200, pytest.param(20_000, marks=pytest.mark.sweep)]
CALLS = ((8, 2304, 6144), (1, 1, 32), (16, 1, 128, 512), (8, 2304, 6144, 8, 2, 0))
KINDS = {
    f"{op.name}{tail}": {k.name: k.Config for k in op.kernels.values()}
    for op in ops().values()
    for tail in ("", "_triton")
}


def rows_of(name: str, file: Path) -> int:
    """How many it has, after they are looked at and used."""
    rows, tuned = list(tuned_table.read(file, name)), TABLES[name]
    table = Table(tuned, {file: rows})
    for row in rows:
        assert str(row).encode() and 0 < row.cu_num < 1e18
        assert all(size is None or 0 <= size < 1e18 for size in row.sizes)
        assert all(math.isfinite(value) and value >= 0 for _, value in row.figures)
        if row.config:
            config = routing.parse_config(KINDS[name][row.kernel], row.config, row)
            assert routing.config_text(config)
    for call in CALLS:
        if len(call) == len(tuned.sizes):
            results = [table.find(arch, 256, call) for arch in ("gfx950", "gfx942", "sm_100")]
            assert all(match is None or match.row in table.rows for match in results)
    return len(rows)


def filled(table: bytes) -> bytes:
    """Of 8 lines at least: a short table's last row again, of other sizes."""
    lines = table.splitlines(keepends=True)
    arch, cu_num, size, remaining = lines[-1].split(b",", 3)
    for index in range(len(lines), 8):
        assert size.isdigit()
        lines.append(b",".join([arch, cu_num, b"%d" % (9000 + index), remaining]))
    return b"".join(lines)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path, rounds: int) -> None:
    """Mostly the first lines of the shipped one are mangled."""
    shipped = filled((paths.CONFIGS / f"{name}.csv").read_bytes())
    head = b"".join(shipped.splitlines(keepends=True)[:12])
    file = tmp_path / f"{name}.csv"
    file.write_bytes(shipped)
    assert rows_of(name, file) > 5
    rng, refused, rows = random.Random(f"{name} {rounds}"), 0, 0
    for index in range(rounds):
        file.write_bytes(mangle.csv_file(rng, shipped if index % 20 == 0 else head))
        try:
            rows += rows_of(name, file)
        except ConfigError as error:
            assert re.match(rf"{file}, (after )?line \d+", str(error)), error
            refused += 1
    assert refused > rounds / 3 and rows > rounds / 2
