"""Source lines of an instruction: its own, and those of the calls that were inlined around it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rfops.vgpu.timed_text import source_path

Row = Mapping[str, Any]  # of an instruction: `pcs` of a timed launch
_resolved = functools.lru_cache(maxsize=1 << 16)(source_path)


def locations(row: Row, kernel: str) -> list[str]:
    """`file:line` of an instruction, then of the calls around it, the innermost first; empty
    without debug lines."""
    if "source" not in row:
        return []
    return [_resolved(source, kernel) for source in (row["source"], *row.get("callers", ()))]


def own_location(row: Row, kernel: str) -> str:
    """The line of the kernel's own file that the instruction is for: the innermost call in the
    file that the outermost is in. Empty without debug lines."""
    chain = locations(row, kernel)
    if not chain:
        return ""
    own_file = file_of(chain[-1])
    return next(location for location in chain if file_of(location) == own_file)


def described(row: Row, kernel: str) -> str:
    """`file:line`, and `in helper.h:line` where that is inlined there."""
    location = own_location(row, kernel)
    inner = locations(row, kernel)[0] if location else ""
    return location if location == inner else f"{location} in {Path(inner).name}"


def file_of(location: str) -> str:
    return location.rpartition(":")[0]


def line_of(location: str) -> int:
    number = location.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
