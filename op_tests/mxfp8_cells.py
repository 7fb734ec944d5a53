"""Cells of the MX-FP8 family for bench_mxfp8.py and tune_mxfp8.py: a shape with its inputs, its
exact result, every kernel that takes it, and what a call costs.

On a GPU that is a time: graph replays through inputs that no cache still holds (gpu_timing.py). On
the virtual GPU it is counters, and the estimate of rfops/vgpu_model.py: called an estimate
everywhere.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from common import assert_within, tolerance
from gpu_timing import sets_past_cache, time_graph

import rfops
from rfops import gemm_mxfp8_route as dense_route
from rfops import grouped_gemm_mxfp8_route as grouped_route
from rfops import mxfp8_gemv, mxfp8_mfma, mxfp8_moe, routing
from rfops.moe_align_block_size import _sizes as layout_sizes
from rfops.moe_align_block_size import moe_align_block_size_ref
from rfops.quant_mxfp8 import dequant_mxfp8
from rfops.tuned_table import Query

BLOCK_M, TOP_K = 16, 4
ALL_M = (1, 2, 4, 8, 16, 32, 64)
# (N, K) of one GPU: qkv, o_proj, gate_up and mlp_down of a layer, split over 1, 2, 4, 8 GPUs.
LAYERS = {
    "tp1": ((9216, 6144), (6144, 8192), (6144, 6144)),
    "tp2": ((4608, 6144), (6144, 4096), (3072, 6144), (6144, 3072)),
    "tp4": ((2304, 6144), (6144, 2048), (1536, 6144), (6144, 1536)),
    "tp8": ((1152, 6144), (6144, 1024), (768, 6144), (6144, 768)),
}
# (N, K, gemm1?) of one GPU of a mixture of experts, with E experts on it.
EXPERT_LAYERS = ((1536, 6144, True), (768, 6144, True), (6144, 768, False))
EXPERTS = (128, 64, 32)


@dataclass(frozen=True)
class Cell:
    """A shape: m counts rows of x, or routed rows of a mixture."""

    m: int
    n: int
    k: int
    e: int = 0  # experts; 0: gemm_mxfp8
    a_div: int = 1
    weighted: bool = False

    @property
    def op(self) -> str:
        return "grouped_gemm_mxfp8" if self.e else "gemm_mxfp8"

    @property
    def top_k(self) -> int:
        return self.a_div if self.a_div > 1 else min(TOP_K, self.m)

    @property
    def backends(self) -> tuple[str, ...]:
        return ("moe", "triton") if self.e else ("gemv", "mfma", "triton")

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def query(self, arch: str, cu_num: int) -> Query:
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        if self.e:
            sizes |= {"e": self.e, "a_div": self.a_div, "has_weight": int(self.weighted)}
        return Query.of(self.op, arch, cu_num, **sizes)

    def __str__(self) -> str:
        more = f" e={self.e} a_div={self.a_div} weight={self.weighted:d}" if self.e else ""
        return f"{self.op} m={self.m} n={self.n} k={self.k}{more}"


def cells(name: str, ms: tuple[int, ...] | None = None) -> Iterator[Cell]:
    """Of a group: published (the 28 with speedups), tp1, tp2, tp4, tp8, moe."""
    if name == "moe":
        for e in EXPERTS:
            for n, k, first in EXPERT_LAYERS:
                for m in ms or (4, 16, 64):
                    yield Cell(m, n, k, e, TOP_K if first else 1, not first)
        return
    for n, k in LAYERS["tp4" if name == "published" else name]:
        for m in ms or ALL_M:
            yield Cell(m, n, k)


GROUPS = ("published", *LAYERS, "moe")


# ---------------------------------------------------------------- inputs and the exact result


@dataclass
class Inputs:
    """A call's tensors after out; `hit` experts are read, in `blocks` blocks."""

    cell: Cell
    tensors: tuple[Any, ...]
    hit: int = 1
    blocks: int = 1

    @property
    def bytes(self) -> int:
        """What must move: payloads, scales and the result, once each."""
        rows = self.hit * self.cell.n + -(-self.cell.m // self.cell.a_div)
        return rows * (self.cell.k + self.cell.k // 32) + 2 * self.cell.m * self.cell.n

    @property
    def least_mfma(self) -> int:
        """Matrix instructions of 16 x 16 x 128 that the work needs."""
        row_tiles = self.blocks if self.cell.e else -(-self.cell.m // 16)
        return row_tiles * -(-self.cell.n // 16) * -(-self.cell.k // 128)

    def out(self) -> torch.Tensor:
        shape, device = (self.cell.m, self.cell.n), self.tensors[0].device
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device=device)


def _payload(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    """Every e4m3 code but the two NaN."""
    generator = torch.Generator(device).manual_seed(seed)
    codes = torch.randint(0, 254, shape, generator=generator, dtype=torch.uint8, device=device)
    return codes + (codes >= 127)


def _scale(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed + 1)
    return torch.randint(121, 134, shape, generator=generator, dtype=torch.uint8, device=device)


def make_inputs(cell: Cell, device: torch.device, seed: int = 0) -> Inputs:
    rows, fp8 = -(-cell.m // cell.a_div), torch.float8_e4m3fn
    a = _payload((rows, cell.k), device, seed).view(fp8)
    a_scale = _scale((rows, cell.k // 32), device, seed)
    if not cell.e:
        w = _payload((cell.n, cell.k), device, seed + 2).view(fp8)
        return Inputs(cell, (a, w, a_scale, _scale((cell.n, cell.k // 32), device, seed + 2)))
    generator = torch.Generator().manual_seed(seed)
    tokens = -(-cell.m // cell.top_k)
    picks = [torch.randperm(cell.e, generator=generator)[: cell.top_k] for _ in range(tokens)]
    topk_ids = torch.stack(picks).int().flatten()[: cell.m].view(-1, 1)
    order = moe_align_block_size_ref(topk_ids, BLOCK_M, cell.e)
    hit = topk_ids.unique().tolist()
    w, w_scale = _experts(cell.e, cell.n, cell.k, device, tuple(hit))
    weights = torch.rand(cell.m, device=device) if cell.weighted else None
    tensors = (a, a_scale, w, w_scale, *(t.to(device) for t in order), weights)
    return Inputs(cell, tensors, len(hit), int(order[2]) // BLOCK_M)


def _experts(
    e: int, n: int, k: int, device: torch.device, hit: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    if device.type != "cpu":
        return _gpu_experts(e, n, k, device)
    # Only what is read is touched: the others cost address space, not memory.
    w, w_scale = (torch.empty(e, n, size, dtype=torch.uint8) for size in (k, k // 32))
    for expert in hit:
        w[expert] = _payload((n, k), device, expert)
        w_scale[expert] = _scale((n, k // 32), device, expert)
    return w.view(torch.float8_e4m3fn), w_scale


@functools.lru_cache(maxsize=1)
def _gpu_experts(e: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    w = _payload((e, n, k), device, 3).view(torch.float8_e4m3fn)
    return w, _scale((e, n, k // 32), device, 3)


def assert_correct(out: torch.Tensor, inputs: Inputs) -> None:
    """Against float64. A matrix instruction adds 128 products in an order it does not tell, then
    one rounding for each 128 of K, 16 parts of K at most and the routed weight."""
    depth = 128 + inputs.cell.k // 128 + 18
    exact, total = _exact_grouped(inputs) if inputs.cell.e else _exact(*inputs.tensors)
    assert_within(out, exact, tolerance(exact, total, depth, out.dtype))


def _exact(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the sum of |products|."""
    a = dequant_mxfp8(x, x_scale, torch.float64)
    parts = []
    for piece, scale in zip(w.split(512), w_scale.split(512), strict=True):
        b = dequant_mxfp8(piece, scale, torch.float64)
        parts.append((a @ b.T, a.abs() @ b.abs().T))
    exact, total = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    return exact, total


def _exact_grouped(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    cell = inputs.cell
    a, a_scale, w, w_scale, ids, experts, padded, weights = inputs.tensors
    exact, total = (torch.zeros(cell.m, cell.n, dtype=torch.float64, device=a.device) for _ in "ab")
    for block in range(int(padded) // BLOCK_M):
        rows = ids[block * BLOCK_M : (block + 1) * BLOCK_M].long()
        rows, expert = rows[rows < cell.m], int(experts[block])
        source = rows // cell.a_div
        both = _exact(a[source], w[expert], a_scale[source], w_scale[expert])
        for target, value in zip((exact, total), both, strict=True):
            target[rows] = value if weights is None else value * weights[rows, None].double()
    return exact, total


# ---------------------------------------------------------------- kernels


def refuses(cell: Cell, backend: str, arch: str) -> str | None:
    if cell.e:
        return grouped_route.refuses(backend, _shape(cell), torch.bfloat16, arch)
    return dense_route.refuses(backend, cell.m, cell.n, cell.k, torch.bfloat16, arch)


def _shape(cell: Cell) -> grouped_route.Shape:
    rows = -(-cell.m // cell.a_div)
    sizes = (cell.m, cell.top_k, BLOCK_M, cell.a_div, cell.n, cell.k, cell.e, rows)
    return grouped_route.Shape(*sizes, cell.weighted)


def route(cell: Cell, arch: str, cu_num: int) -> routing.Route:
    if cell.e:
        return grouped_route.choose_backend(_shape(cell), torch.bfloat16, arch, cu_num)
    return dense_route.route(cell.m, cell.n, cell.k, torch.bfloat16, arch, cu_num)


def prepare(cell: Cell, backend: str, device: torch.device, config: Any) -> Callable[..., None]:
    """A launch on (out, *inputs.tensors)."""
    # Scales are whole tensors, as torch allocates them.
    if cell.e:
        num_ids, _ = layout_sizes(cell.m, BLOCK_M, cell.e, False)
        return grouped_route.prepare(backend, device, _shape(cell), num_ids, config, scale_align=4)
    return dense_route.prepare(backend, device, cell.m, cell.n, cell.k, config, scale_align=4)


def parse_config(cell: Cell, backend: str, text: str) -> Any:
    return (grouped_route if cell.e else dense_route).parse_config(backend, text)


def default_config(cell: Cell, backend: str, arch: str) -> Any:
    if not cell.e:
        return dense_route.default_config(backend, cell.m, cell.n, cell.k, arch)
    return grouped_route.default_config(backend, _shape(cell), arch)


def candidates(cell: Cell, backend: str, arch: str, count: int) -> list[Any]:
    """At most `count` configs: the default, then those that the backend's own model of the time
    ranks next; of Triton's, neighbours of the default."""
    m, n, k = cell.m, cell.n, cell.k
    first = default_config(cell, backend, arch)
    if backend == "gemv":
        rest = mxfp8_gemv.ranked(m, n, k)
    elif backend == "mfma":
        rest = mxfp8_mfma.ranked(m, n, k)
    elif backend == "moe":
        rest = mxfp8_moe.ranked(n, k, cell.e, m, BLOCK_M)
    else:
        rest = list(_neighbours(first))
    return list(dict.fromkeys([first, *rest]))[:count]


def _neighbours(tile: Any) -> Iterator[Any]:
    """Tiles of Triton that differ in one or two of their numbers by a factor of two."""
    changes = [
        {name: value}
        for name, least in (("block_n", 16), ("block_k", 128), ("warps", 1), ("splits", 1))
        for value in (2 * getattr(tile, name), getattr(tile, name) // 2)
        if value >= least
    ]
    changes += [{**changes[0], **other} for other in changes[2:4]]
    for change in changes:
        try:
            yield replace(tile, **change)
        except ValueError:
            continue


# ---------------------------------------------------------------- what a call costs


@dataclass
class Cost:
    """`us` is measured where `origin` says so, else the virtual GPU's estimate."""

    us: float
    spread: float  # decile to decile, as a share
    origin: str
    counters: dict[str, float] = field(default_factory=dict)


def measure(cell: Cell, run: Callable[..., None], inputs: list[Inputs]) -> Cost:
    """Check the first result, then time calls that go through all inputs, or count one."""
    out = inputs[0].out()
    if out.device.type == "cpu":
        with rfops.vgpu.profile() as profile:
            run(out, *inputs[0].tensors)
        assert_correct(out, inputs[0])
        return Cost(sum(r.estimate().us for r in profile.launches), 0.0, "estimated",
                    _counters(profile.launches, inputs[0]))  # fmt: skip
    run(out, *inputs[0].tensors)
    assert_correct(out, inputs[0])
    timing = time_graph([functools.partial(run, i.out(), *i.tensors) for i in inputs])
    return Cost(timing.us, timing.spread, "measured")


def input_sets(cell: Cell, device: torch.device) -> list[Inputs]:
    """One set on the virtual GPU, which has no cache; on a GPU, as many as pass its last level."""
    first = make_inputs(cell, device)
    count = 1 if device.type == "cpu" else sets_past_cache(first.bytes, device)
    return [first, *(make_inputs(cell, device, 10 * i) for i in range(1, count))]


def _counters(launches: list[Any], inputs: Inputs) -> dict[str, float]:
    """Of all launches of a call; ratios are to what the work needs at least."""

    def total(*path: str) -> float:
        values = [functools.reduce(lambda d, key: d.get(key, 0), path, r.figures) for r in launches]
        return float(sum(values))

    lines = 64 * (total("global_read", "lines_64B") + total("global_write", "lines_64B"))
    mfma = total("classes", "mfma")
    return {
        "launches": len(launches),
        "waves": total("waves"),
        "instructions": total("wave_instructions"),
        "valu": total("classes", "valu") + total("classes", "trans"),
        "mfma": mfma,
        "mfma_over_least": mfma / inputs.least_mfma,
        "bytes_over_least": lines / inputs.bytes,
        "requested_over_least": (total("global_read", "bytes") + total("global_write", "bytes"))
        / inputs.bytes,
        "vgpr": max(r.vgpr for r in launches),
        "waves_per_simd": min(r.waves_per_simd for r in launches),
        "spills": total("vgpr_spills") + total("sgpr_spills"),
    }


# ---------------------------------------------------------------- the machine


def device_of() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """Device, versions, commit: what a figure's source says."""
    name = "virtual GPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    arch, cu_num = routing.chip(device)
    return (
        f"{name} {arch} {cu_num} CUs; rfops {rfops.__version__} {commit()}, "
        f"torch {torch.__version__}, triton {rfops.vgpu._triton_version()}"
    )


@functools.cache
def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"
