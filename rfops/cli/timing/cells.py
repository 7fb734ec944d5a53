"""HIP or Triton: the cells of aiter's pull request 3783.

Each published speedup of gemm_mxfp8 is of a HIP kernel over Triton's dot_scaled in one plain tile.
rfops has kernels of its own for both; what counts is which of them the model calls faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rfops.jit import paths

Record = dict[str, Any]
OP, GPU_MODEL = "gemm_mxfp8", "MI355X"
TILE = (64, 128, 128, 8)  # M, N, K and warps of their Triton kernel, as the request says
PARITY = 1.1  # published speedups up to this name no winner


@dataclass(frozen=True)
class Cell:
    """A published speedup of a HIP kernel over Triton's dot_scaled at one shape."""

    m: int
    n: int
    k: int
    kernel: str  # of HIP
    speedup: float

    @property
    def record(self) -> Record:
        """The cell as a record, to which the predicted speedup is added."""
        shape = f"M={self.m} N={self.n} K={self.k}"
        return {
            "key": f"{OP}|{self.kernel}|{shape}",
            "op": OP,
            "part": GPU_MODEL,
            "kernel": self.kernel,
            "shape": shape,
            "published_speedup": self.speedup,
        }


def published() -> list[Cell]:
    """From the op's own table."""
    from rfops.cli.common import with_ops

    with_ops()
    from rfops.dispatch import tuned_table

    cells = []
    for row in tuned_table.read(paths.CONFIGS / f"{OP}.csv", OP):
        sizes, speedup = dict(zip(row.names, row.sizes, strict=True)), dict(row.figures)
        if row.origin == "published" and "speedup" in speedup:
            m, n, k = (int(sizes[name] or 0) for name in "mnk")
            cells.append(Cell(m, n, k, row.kernel, speedup["speedup"]))
    return cells


def predict(cell: Cell) -> Record:
    """In a worker: microseconds of both, and the speedup."""
    from rfops.cli.common import with_ops

    with_ops()
    import torch

    from rfops.cli.timing.predict import modelled
    from rfops.dispatch import cost
    from rfops.dispatch.op import ops
    from rfops.triton.tiles import TritonConfig

    op = ops()[OP]
    call = op.call_of(M=cell.m, N=cell.n, K=cell.k)
    (problem,) = cost.problems(op, call, torch.device("cpu"))
    config_ = TritonConfig("scaled", *TILE[:3], warps=TILE[3])
    us = {}
    for backend, kernel, config in (("hip", cell.kernel, None), ("triton", "triton", config_)):
        launch = problem.launch_by(problem.prepare(kernel, config))
        us[backend] = sum(
            launch_["us"] for launch_ in modelled(launch, GPU_MODEL, False, "event", False)
        )
    return {f"{side}_us": time for side, time in us.items()} | {"speedup": us["triton"] / us["hip"]}


def text(records: Sequence[Record]) -> list[str]:
    """How often the model names the winner."""
    compared = [r for r in records if "speedup" in r]
    clear = [r for r in compared if r["published_speedup"] > PARITY]
    num_right = sum(r["speedup"] > 1 for r in clear)
    lines = [
        "",
        f"{'HIP or Triton':32} {'HIP us':>7} {'Triton':>7} {'speedup':>8} {'published':>9}",
    ]
    lines += [
        f"{r['kernel']:8} {r['shape']:23} {r['hip_us']:7.2f} {r['triton_us']:7.2f} "
        f"{r['speedup']:8.2f} {r['published_speedup']:9.2f}"
        for r in compared
    ]
    skipped = [f"{r['kernel']} {r['shape']}: {r['skipped']}" for r in records if "skipped" in r]
    return [*lines, *skipped, f"the winner is named in {num_right} of {len(clear)} cells"]
