"""A prebuilt kernel's launch: what the checkout's own tables say of it, its arguments, its grid.

aiter's assembly kernels read every argument from a slot of 16 bytes, pointer, integer or float, so
that a layout is a list of names. Data hardly matters for time: buffers are zero, which costs no
memory until a kernel writes there, and only what steers a kernel (a MoE's ids) is filled in."""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rfops.cli.timing.rows import Row

SLOT = 16
# An op that adds to its output clears it first, by a launch that its published time includes: so
# much for its start (by rows of split GEMM of 5 to 20 us: a fill is shorter than the profiler floor
# c57 of other kernels), and the rate of its writes (4 TB/s).
CLEAR_US, CLEAR_BYTES_US = 1.0, 4.0e6

Values = Mapping[str, int | float]
New = Callable[["int | np.ndarray"], int]  # address of so many zero bytes, or of an array's copy


class Skip(Exception):
    """Why a row is not run: a reason for the report, not a mistake of the caller."""


@dataclass(frozen=True)
class Tile:
    """What the checkout's table says of a kernel."""

    m: int
    n: int
    split_k: int = 0
    persistent: int = 0  # workgroups a CU, 0: one workgroup a tile
    flat: int = 0


@dataclass(frozen=True)
class Launch:
    """One launch of a published kernel: arguments, grid, and the conditions under which it was
    timed."""

    layout: str
    values: Values
    grid: tuple[int, int, int]
    cleared: int = 0  # bytes of output that a launch before this one sets to zero
    block: tuple[int, int, int] = (256, 1, 1)
    slot: int = SLOT
    cold: bool = True  # caches, as the published test had them
    kind: str = "profiler"  # what took the published time
    waits: bool = False  # workgroups for one another: then all must run, not a sample of them

    @property
    def kernargs(self) -> bytes:
        """The bytes of the kernel-argument segment."""
        return pack(self.layout, self.values, self.slot)

    @property
    def extra_us(self) -> float:
        """The estimated time in us to clear `cleared` bytes of output before the launch."""
        return CLEAR_US + self.cleared / CLEAR_BYTES_US if self.cleared else 0.0


def pack(layout: str, values: Values, size: int = SLOT) -> bytes:
    """One slot a name of the layout; what has no value is 0. Raises ValueError."""
    names = layout.split()
    unexpected = [name for name in values if name not in names]
    if unexpected:
        raise ValueError(f"no argument {', '.join(unexpected)} in the layout {layout}")
    values_ = [values.get(name, 0) for name in names]
    packed = (struct.pack("<f" if isinstance(v, float) else "<Q", v) for v in values_)
    return b"".join(slot.ljust(size, b"\0") for slot in packed)


# A size's name in the tables of the families.
_TILE_M, _TILE_N = (
    ("tile_m", "tile_M", "tileM", "subGU_m"),
    ("tile_n", "tile_N", "tileN", "subGU_n"),
)


def tile_of(checkout: Path, row: Row) -> Tile:
    """From the CSV file beside the code object that names the kernel. Raises Skip."""
    folder, name = (checkout / row.co).parent, Path(row.co).name
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="", encoding="utf-8") as stream:
            for line in csv.DictReader(stream):
                if line.get("knl_name") == row.kernel and line.get("co_name") == name:
                    return _tile(line)
    raise Skip(f"no table in {Path(row.co).parent} of the checkout names the kernel and {name}")


def _tile(line: Mapping[str, str]) -> Tile:
    def number(*names: str) -> int:
        return next((int(line[name]) for name in names if line.get(name)), 0)

    persistent = number("tg_num_perCU") if number("ps") else 0
    return Tile(number(*_TILE_M), number(*_TILE_N), number("splitK"), persistent, number("flat"))


def up(size: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-size // step) * step


def ceil_div(size: int, step: int) -> int:
    """Tiles that cover `size`."""
    return -(-size // step)
