"""Our equivalents of simple kernels whose times are published: csrc/bench/simple.hip.

Their rows are in three formats of tables: the mgpusim suite's (kernel, problem, cls, us_min,
spread), that of its microbenchmarks (bench, param, value, us), and one of points from anywhere
(kernel, config, us, grade). All were timed by events, warm."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from rfops.cli.timing.launches import Launch, New, ceil_div
from rfops.cli.timing.rows import Row, number, sizes_of, us_of
from rfops.jit import paths

OP = "simple"
CONFIG = paths.CSRC / "bench" / "config.json"
THREADS, TILE = 256, 16
F32 = 4  # bytes
# Of a published kernel: ours, and where the table has no names, the name of its size.
OP_NAMES = {
    "vectoradd": "vectoradd",
    "relu": "relu",
    "matrixtranspose": "transpose",
    "mgpusim/softmax": "softmax",
    "mgpusim/layernorm": "layernorm",
    "mgpusim/rope": "rope",
    "mgpusim/fused_swiglu": "swiglu",
    "mgpusim/shoc_triad": "triad",
    "mgpusim/tiled_gemm_16": "gemm16",
    "mgpusim/sgemm_tiled": "gemm16",
    "mgpusim/parboil_sgemm": "gemm16",
}
STREAMS = {"global_bw_copy": ("copy", F32), "triad": ("triad", 1)}  # and what their value counts
PARTS = {"MI300A": ("gfx942", 228), "MI300X": ("gfx942", 304)}
SUITE_COLUMNS = ("kernel", "problem", "gpu", "cls", "us_min", "spread")
STREAM_COLUMNS = ("bench", "param", "value", "gpu", "us")
POINT_COLUMNS = ("kernel", "config", "gpu", "us", "grade")
STEADY = 1.1  # ratio of the minima of two runs, above which neither is trusted


def suite_row(line: Mapping[str, str]) -> Row | None:
    """A line of the suite; None for a kernel that we have no equivalent of. Raises ValueError."""
    size = line["problem"].split("x")[0]
    if line["kernel"] not in OP_NAMES:
        return None
    doubt = "" if float(line["spread"]) < STEADY else "two runs of it differ by more than 10 %"
    if line["cls"] != "single":
        doubt = f"its time is of more than a launch: {line['cls']}"
    name = line["kernel"]
    shape = f"N={number('problem', size)}"
    return _row(line["gpu"], OP_NAMES[name], name, shape, line["us_min"], doubt)


def stream_row(line: Mapping[str, str]) -> Row | None:
    """A line of the microbenchmarks'; None as above. Raises ValueError."""
    if line["bench"] not in STREAMS:
        return None
    op_name, unit = STREAMS[line["bench"]]
    elements = number("value", line["value"]) // unit
    return _row(line["gpu"], op_name, line["bench"], f"N={elements}", line["us"], "")


def point_row(line: Mapping[str, str]) -> Row | None:
    """A line of the other table; None as above. Raises ValueError."""
    if line["kernel"] not in OP_NAMES:
        return None
    shape = " ".join(token for token in line["config"].split() if token.partition("=")[2].isdigit())
    doubt = "" if line["grade"] in ("A", "B") else f"its grade is {line['grade']}"
    name = line["kernel"]
    return _row(line["gpu"], OP_NAMES[name], name, shape, line["us"], doubt)


def _row(gpu: str, op_name: str, name: str, shape: str, us: str, doubt: str) -> Row:
    if gpu not in PARTS:
        raise ValueError(f"gpu: expected one of {', '.join(PARTS)}, got {gpu!r}")
    return Row(
        OP, *PARTS[gpu], op_name, "", shape, 1, us_of(us), name, sizes_of(shape)[0], {}, doubt
    )


def code(arch: str) -> bytes:
    """Built on first use. Raises as build_device."""
    from rfops.jit.build.device import build_device
    from rfops.jit.build.spec import module_spec

    return build_device(module_spec("bench_simple", CONFIG), arch, {}).file.read_bytes()


def launch(row: Row, new: New) -> Launch:
    """Raises KeyError for a size that the shape has not."""
    return LAUNCHES[row.kernel](row.sizes, new)


Sizes = Mapping[str, int]


def _launch(
    values: Mapping[str, int], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> Launch:
    return Launch(" ".join(values), values, grid, block=block, slot=8, cold=False, kind="event")


def _elements(count: int, values: Mapping[str, int]) -> Launch:
    return _launch(values, (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1))


def _map(
    inputs: int, extra_values: Mapping[str, int] | None = None
) -> Callable[[Sizes, New], Launch]:
    """A kernel of so many inputs, one element a thread."""

    def launch(s: Sizes, new: New) -> Launch:
        n = s["N"] if "N" in s else s["n"]
        values = {f"array{i}": new(n * F32) for i in range(1 + inputs)}
        return _elements(n, {**values, "count": n, **(extra_values or {})})

    return launch


def _softmax(s: Sizes, new: New) -> Launch:
    size = s["rows"] * s["cols"] * F32
    values = {"out": new(size), "in": new(size), "columns": s["cols"]}
    return _launch(values, (s["rows"], 1, 1), (THREADS, 1, 1))


def _layernorm(s: Sizes, new: New) -> Launch:
    row = s["hidden"] * F32
    values = {
        "out": new(s["rows"] * row),
        "in": new(s["rows"] * row),
        "gamma": new(row),
        "beta": new(row),
        "columns": s["hidden"],
    }
    return _launch(values, (s["rows"], 1, 1), (THREADS, 1, 1))


def _rope(s: Sizes, new: New) -> Launch:
    count = s["B"] * s["S"] * s["H"] * s["D"]
    values = {
        "q": new(count * F32),
        "k": new(count * F32),
        "batches": s["B"],
        "positions": s["S"],
        "heads": s["H"],
        "size": s["D"],
        "base": bits(10000.0),
    }
    return _elements(count // 2, values)


def _gemm(s: Sizes, new: New) -> Launch:
    n = s["N"]
    m, k = s.get("M", n), s.get("K", n)
    values = {
        "c": new(m * n * F32),
        "a": new(m * k * F32),
        "b": new(k * n * F32),
        "m": m,
        "n": n,
        "k": k,
        "alpha": bits(1.0),
        "beta": bits(0.0),
    }
    return _launch(values, (ceil_div(n, TILE), ceil_div(m, TILE), 1), (TILE, TILE, 1))


def _transpose(s: Sizes, new: New) -> Launch:
    n, tiles = s["N"], s["N"] // (4 * TILE)
    values = {"out": new(n * n * F32), "in": new(n * n * F32), "quads": n // 4, "tiles": tiles}
    return _launch(values, (tiles, tiles, 1), (TILE, TILE, 1))


def bits(value: float) -> int:
    """Of a float32, as an argument takes it."""
    word: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return word


LAUNCHES: Mapping[str, Callable[[Sizes, New], Launch]] = {
    "copy": _map(1),
    "vectoradd": _map(2),
    "relu": _map(1),
    "swiglu": _map(2),
    "triad": _map(2, {"factor": bits(2)}),
    "softmax": _softmax,
    "layernorm": _layernorm,
    "rope": _rope,
    "gemm16": _gemm,
    "transpose": _transpose,
}
