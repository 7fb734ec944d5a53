"""Host time of a warm call: python op_tests/bench_dispatch.py [--quick] [--json]

Exit status 1 when a bar is missed: bars are on ratios, which are less the machine's than times are.

Kernels go to a HIP library that does nothing, so what is measured is the host's own part. All rows
take the same five tensors; the ratios, and not the times, say how thin the path is: they hold on a
busy machine. Each figure is the least of many short runs, taken in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.op import ops
from rfops.jit import Plans, compile_ops, compiled_ops, i32
from rfops.jit.launch import launcher
from support import null_hip
from support.engine_project import TYPES

KERNEL = """
#include "types.h"
extern "C" __global__ void five(float* out, const float* a, const float* b, const float* c,
                                const float* d, int m, int n, int k) {
  out[0] = a[0] + b[0] + c[0] + d[0] + m + n + k;
}
"""
GRID, BLOCK = (4, 1, 1), (64, 1, 1)
ROWS = {
    "native": "bare call of the native launcher, arguments made before",
    "op": "an op's whole warm path: plan lookup, arguments, native launch",
    "gemm": "gemm_mxfp8 [1, 256] x [64, 256] into an out that is given",
    "grouped": "grouped_gemm_mxfp8 of 8 rows into an out that is given",
    "growing": "op with another shape every call: decide, remember, launch",
    "gemm_new": "gemm_mxfp8 with another N every call, of more than its plans hold",
    "mfma_new": "the same with 8 rows, which take the MFMA kernel",
    "grouped_new": "grouped_gemm_mxfp8 with another layout every call, of as many rows at most",
    "ctypes": "launch through ctypes",
    "tvm_ffi": "bare tvm_ffi function that does nothing",
    "library": "Library.define with a Python kernel that does nothing, .default",
    "custom_op": "torch.library.custom_op that does nothing",
    "alloc": "torch.empty of gemm_mxfp8's result",
}


@dataclass(frozen=True)
class Bar:
    """A row takes at most this many times what another one does."""

    row: str
    unit: str
    most: float


# Measured: 2.9, 0.11, 0.7, 1.9, 2.9, 0.75, 3.8, 11 and 2.8.
BARS = (
    Bar("op", "native", 4.5),
    Bar("native", "ctypes", 0.25),
    Bar("op", "library", 0.9),
    Bar("growing", "library", 3.5),
    Bar("gemm", "native", 5.0),
    Bar("gemm", "library", 1.0),
    Bar("grouped", "native", 6.0),
    Bar("gemm_new", "native", 20.0),
    Bar("gemm_new", "library", 5.0),
    Bar("gemm", "alloc", 12.0),
)


def five(
    out: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    m: i32,
    n: i32,
    k: i32,
) -> None:
    """The kernel's parameters."""


@contextmanager
def null_runtime(folder: Path) -> Iterator[None]:
    """CPU tensors go to the null library. What ops have bound and decided before stays as it is,
    and what they bind here, to a library that computes nothing, does not."""
    library = null_hip.build(folder, record=False)
    with pytest.MonkeyPatch.context() as patch:
        for op in ops().values():
            patch.setattr(op, "plans", op.plans.new_table())
        for kernel in compiled_ops():
            patch.setattr(kernel, "_bound", {})
        patch.setenv("RFOPS_HIP_LIBRARY", str(library))
        yield


class Op:
    """An op as this package writes them, on five tensors."""

    def __init__(self, folder: Path) -> None:
        (folder / "types.h").write_text(TYPES)
        (folder / "five.hip").write_text(KERNEL)
        config = folder / "config.json"
        config.write_text(json.dumps({"five": {"srcs": ["five.hip"]}}))
        self.kernel = compile_ops("five", config=config)(five)
        self.bound = self.kernel.bind("cpu")
        self.plans = Plans(out=4)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """out = whatever: only the way there counts."""
        plan = self.plans.find(a, b, c, d, out) or self._decide(a, b, c, d, out)
        launch, grid, m, n, k = plan
        launch(grid, BLOCK, (out, a, b, c, d, m, n, k))
        return out

    def _decide(self, *args: torch.Tensor) -> tuple[Any, ...]:
        m, n = args[0].shape
        if args[1].dtype != torch.float32 or not args[1].is_contiguous():
            raise ValueError("five: b must be contiguous float32")
        plan = (self.bound.launch, (n // 64 + 1, 1, 1), m, n, 1)
        self.plans.add(plan, *args)
        return plan


def _torch_ops() -> tuple[Callable[..., Any], Callable[..., Any]]:
    library = torch.library.Library("rfops_bench", "FRAGMENT")
    library.define("five(Tensor a, Tensor b, Tensor c, Tensor d, Tensor(z!) out) -> ()")
    library.impl("five", lambda a, b, c, d, out: None, "CPU")

    @torch.library.custom_op("rfops_bench::custom", mutates_args=("out",))
    def custom(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, out: torch.Tensor
    ) -> None:
        return None

    _torch_ops.keep = library  # type: ignore[attr-defined] # its end would unregister the op
    return torch.ops.rfops_bench.five.default, custom


def _tvm_ffi() -> Callable[..., Any] | None:
    try:
        import tvm_ffi
    except ImportError:
        return None
    return tvm_ffi.get_global_func("testing.nop", allow_missing=True)


def candidates(folder: Path) -> dict[str, Callable[[], Any]]:
    """Row -> a warm call."""
    op = Op(folder)
    a, b, c, d = (torch.ones(4, 64) for _ in range(4))
    out = torch.empty(4, 64)
    args = (out, a, b, c, d, 4, 64, 1)
    bound, through_ctypes = op.bound.launch, type(op.bound).launch
    defined, custom = _torch_ops()
    nop = _tvm_ffi()
    (x, x_scale), (w, w_scale) = (rfops.quant_mxfp8(torch.ones(rows, 256)) for rows in (1, 64))
    gemm_out = torch.empty(1, 64, dtype=torch.bfloat16)
    shapes = [torch.ones(1, n) for n in range(1, 3000)]
    grouped, grouped_out = _grouped()
    new, new_mfma, new_grouped = _growing(3000), _growing(3000, 8), _growing_layouts(grouped)
    turn = itertools.count()
    results: dict[str, Callable[[], Any]] = {
        "native": lambda: bound(GRID, BLOCK, args),
        "op": lambda: op(a, b, c, d, out),
        "gemm": lambda: rfops.gemm_mxfp8(x, w, x_scale, w_scale, out=gemm_out),
        "grouped": lambda: rfops.grouped_gemm_mxfp8(*grouped, out=grouped_out),
        "growing": lambda: op(shapes[next(turn) % len(shapes)], b, c, d, out),
        "gemm_new": lambda: rfops.gemm_mxfp8(*new[next(turn) % len(new)]),
        "mfma_new": lambda: rfops.gemm_mxfp8(*new_mfma[next(turn) % len(new_mfma)]),
        "grouped_new": lambda: rfops.grouped_gemm_mxfp8(
            *new_grouped[next(turn) % len(new_grouped)], out=grouped_out
        ),
        "ctypes": lambda: through_ctypes(op.bound, GRID, BLOCK, args),
        "library": lambda: defined(a, b, c, d, out),
        "custom_op": lambda: custom(a, b, c, d, out),
        "alloc": lambda: torch.empty((1, 64), dtype=torch.bfloat16, device=x.device),
    }
    if nop is not None:
        results["tvm_ffi"] = lambda: nop(a, b, c, d, out)
    return results


def _grouped() -> tuple[tuple[Any, ...], torch.Tensor]:
    """Arguments of grouped_gemm_mxfp8 for 2 tokens with 4 of 8 experts, and its out."""
    (a, a_scale), (w, w_scale) = (rfops.quant_mxfp8(torch.ones(r, 256)) for r in (2, 8 * 64))
    layout = rfops.moe_align_block_size(torch.arange(8, dtype=torch.int32).view(2, 4), 16, 8)
    weights = w.view(8, 64, 256), w_scale.view(8, 64, 8)
    args = a, a_scale, *weights, *layout, 8, 4, 16, torch.bfloat16, 4
    return args, torch.empty(8, 64, dtype=torch.bfloat16)


def _growing(count: int, rows: int = 1) -> list[tuple[Any, ...]]:
    """Arguments of gemm_mxfp8 for N of 65, 66, and so on; in the memory of one."""
    (x, x_scale), (w, w_scale) = (rfops.quant_mxfp8(torch.ones(r, 256)) for r in (rows, 64 + count))
    out = torch.empty(rows * (64 + count), dtype=torch.bfloat16)
    return [
        (x, w[:n], x_scale, w_scale[:n], torch.bfloat16, out[: rows * n].view(rows, n))
        for n in range(65, 64 + count)
    ]


def _growing_layouts(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments with sorted_token_ids of any length, as a batch makes them."""
    a, a_scale, w, w_scale, _, _, padded, *remaining = args
    ids, experts = torch.zeros(8192, dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
    return [
        (a, a_scale, w, w_scale, ids[:length], experts, padded, *remaining)
        for length in range(128, 3128)
    ]


def measure(calls: dict[str, Callable[[], Any]], rounds: int, number: int) -> dict[str, float]:
    """Least seconds of a call, the empty call taken off; rounds go through all rows in turn."""
    calls = {"empty": lambda: None, **calls}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], timeit.timeit(call, number=number) / number)
    return {name: best[name] - best["empty"] for name in calls if name != "empty"}


def run(rounds: int = 200, number: int = 500) -> dict[str, float]:
    """Row -> seconds. The launcher is built first if no cache has it."""
    if launcher.native() is None and not launcher.build():
        raise SystemExit("the native launcher cannot be built here: RFOPS_LOG=debug says why")
    with tempfile.TemporaryDirectory(prefix="rfops-bench-") as folder, null_runtime(Path(folder)):
        return measure(candidates(Path(folder)), rounds, number)


def report(bars: Sequence[Bar], seconds: dict[str, float]) -> bool:
    """Prints the ratios; whether all bars were met."""
    met = True
    for bar in bars:
        ratio = seconds[bar.row] / seconds[bar.unit]
        met &= ratio <= bar.most
        verdict = "met" if ratio <= bar.most else "MISSED"
        print(f"{ratio:7.2f}  {bar.row} / {bar.unit}, at most {bar.most:g}: {verdict}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--json", action="store_true", help="seconds as JSON")
    options = parser.parse_args()
    seconds = run(40, 200) if options.quick else run()
    if options.json:
        print(json.dumps(seconds, indent=1))
        return 0
    for name, label in ROWS.items():
        if name in seconds:
            ratio = seconds[name] / seconds["native"]
            print(f"{1e6 * seconds[name]:7.2f} us  {ratio:6.2f} x native  {name:10} {label}")
    if "tvm_ffi" not in seconds:
        print("        no row of tvm_ffi: pip install apache-tvm-ffi")
    for name in ("op", "gemm", "grouped"):
        more = seconds[name] - seconds["native"]
        print(f"{1e6 * more:7.2f} us  more than the bare launcher: {name}'s own path")
    return 0 if report(BARS, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
