"""gemm_mxfp8 in Triton: the route of every shape and device that no HIP kernel takes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch import tuned_table
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.quantization.mxfp8 import BLOCK
from rfops.triton import launch, tiles
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import unsupported_arch_reason
from rfops.triton.splits import in_splits
from rfops.triton.tiles import TritonConfig

from ...terms import Traits

OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDE_FROM = 2**31  # elements that the rows of a tile span: from there offsets are 64-bit
MAX_SIZE = 2**31 - 256  # of M, N and K: beyond, the last tile's own index overflows
_KERNELS = "rfops.triton.mxfp8_kernels"
_EXPAND_BLOCKS = 64  # blocks of 32 of a program that expands


_MAX_EXPANDED = 2**30  # elements that method expand may take as a bf16 workspace without being told


class TritonGemm(TimedKernel):
    name = "triton"
    Config = TritonConfig
    tuned = tuned_table.declare("gemm_mxfp8_triton", "M<= N<= K<=", ("triton",))

    def unsupported_reason(self, c: Call) -> str | None:
        return unsupported_reason(c, max(c.M, c.N, c.K))

    def unsupported_config_reason(self, c: Call, config: TritonConfig) -> str | None:
        return config.unsupported_reason(True, c.arch)

    def default(self, c: Call) -> TritonConfig:
        """The table's tile."""
        return self.settled(c, tiles.of(self.own_row(c)))

    def space(self, c: Call) -> Columns[Any] | None:
        """Its default, where HIP's kernels are the alternative: beside them its other tiles are not
        worth the seconds that each takes to compile."""
        if c.arch != "gfx950" or self.unsupported_reason(c):
            return None
        return _only(self.default(c))

    def family(self, config: TritonConfig, c: Call) -> str:
        return f"{config.block_m}x{config.block_n}"

    def traits(self, config: TritonConfig, c: Call) -> tuple[float, ...]:
        return Traits(config.block_m, config.block_n, config.splits, config.block_k, _RESIDENT)

    def unsuited(self, c: Call, config: TritonConfig) -> str | None:
        elements = (c.M + c.N) * c.K
        if config.method == "expand" and elements > _MAX_EXPANDED:
            return f"method expand needs a workspace of {elements} elements, above {_MAX_EXPANDED}"
        return None

    def settled(self, c: Call, config: TritonConfig) -> TritonConfig:
        return config.filled(c.arch, c.M, c.N, c.K)

    def candidates(self, c: Call) -> Iterable[TritonConfig]:
        return tiles.candidates(self.default(c), c, c.M, True)

    def variant(self, c: Call, config: TritonConfig) -> RunOf:
        """Launches of rows any distance apart (any stride(0)). With method expand each takes bf16
        [M + N, K] from torch's allocator."""
        bind = _bind_expanded if config.method == "expand" else _bind
        options = config.options(c.arch)
        return lambda m, n, k: bind(c.device, m, n, k, config.filled(c.arch, m, n, k), options)


_RESIDENT = 2  # programs of a CU at once, by its registers


@functools.lru_cache(maxsize=256)
def _only(config: TritonConfig) -> Columns[TritonConfig]:
    return Columns([config])


def unsupported_reason(c: Call, largest: int) -> str | None:
    """Why Triton does not take a call of either op."""
    reason = launch.missing() or unsupported_arch_reason(c.arch)
    if reason is None and (c.K <= 0 or c.K % BLOCK):
        reason = f"K={c.K} is not a positive multiple of {BLOCK}"
    if reason is None and largest > MAX_SIZE:
        reason = f"a size of {largest}: at most {MAX_SIZE}"
    return reason


def _tiles(m: int, n: int, config: TritonConfig) -> int:
    return ceil(m, config.block_m) * ceil(n, config.block_n)


def _is_wide(config: TritonConfig, x_or_out: int, w: int) -> bool:
    """Whether the rows of a tile, that far apart, need 64-bit offsets."""
    return max(config.block_m * x_or_out, config.block_n * w) >= WIDE_FROM


_SOURCES = {"xs": "x_scale", "ws": "w_scale"}
_ROWS = {
    "x": "stride_x _",
    "w": "stride_w _",
    "x_scale": "stride_xs _",
    "w_scale": "stride_ws _",
}


def _gemm(
    device: torch.device,
    config: TritonConfig,
    options: dict[str, object],
    splits: int,
    sizes: dict[str, int],
) -> Run:
    """gemm_kernel in one config: run(out or partials, x, w, x_scale, w_scale, needed) on bytes, for
    rows any distance apart."""
    constants = {**config.constants(sizes["K"]), "METHOD": config.method}
    grid = _tiles(sizes["M"], sizes["N"], config), splits, 1
    out = "_ stride_o _" if splits > 1 else "stride_o _"  # partials are [splits, M, N]
    runs = [
        BoundTriton(
            _KERNELS, "gemm_kernel", device, {**constants, "WIDE": wide}, options=options
        ).prepare(
            "out x w x_scale w_scale needed", sources=_SOURCES, strides={"out": out, **_ROWS}
        )(grid, **sizes)
        for wide in (False, True)
    ]

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *rest: Any) -> None:
        wide = _is_wide(config, max(out.stride(-2), x.stride(0)), w.stride(0))
        runs[wide](out, x, w, *rest)

    return run


def _as_bytes(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([tensor.view(torch.uint8) for tensor in tensors])


def _bind(
    device: torch.device, m: int, n: int, k: int, config: TritonConfig, options: dict[str, object]
) -> Run:
    k_split = ceil(k, config.splits * config.block_k) * config.block_k
    splits = ceil(k, k_split)
    gemm = _gemm(device, config, options, splits, {"M": m, "N": n, "K": k, "k_split": k_split})

    def run(out: Tensor, *operands: Tensor) -> None:
        gemm(out, *_as_bytes(*operands), None)

    return in_splits(device, splits, m, n, run)


def _bind_expanded(
    device: torch.device, m: int, n: int, k: int, config: TritonConfig, options: dict[str, object]
) -> Run:
    again = TritonConfig("exact", 32, 32, 64, config.group_m)
    k_again = ceil(k, again.block_k) * again.block_k
    sizes = {"M": m, "N": n, "K": k}
    gemm = _gemm(device, again, again.options(""), 1, {**sizes, "k_split": k_again})
    expand = BoundTriton(_KERNELS, "expand_kernel", device, {"BLOCKS": _EXPAND_BLOCKS}).prepare(
        "out codes scales out_of_range", strides={"codes": "stride_c _", "scales": "stride_s _"}
    )
    matmul = [
        BoundTriton(
            _KERNELS,
            "matmul_kernel",
            device,
            {**config.constants(k), "WIDE": wide},
            options=options,
        ).prepare("out x w", strides={"out": "stride_o _"})((_tiles(m, n, config), 1, 1), **sizes)
        for wide in (False, True)
    ]
    k_parts = ceil(k, _EXPAND_BLOCKS * BLOCK)
    expand_x, expand_w = (expand((rows, k_parts, 1), K=k) for rows in (m, n))

    def run(out: Tensor, *operands: Tensor) -> None:
        sources = _as_bytes(*operands)
        wide_x = torch.empty((m, k), dtype=torch.bfloat16, device=out.device)
        wide_w = torch.empty((n, k), dtype=torch.bfloat16, device=out.device)
        lost = torch.zeros(1, dtype=torch.int32, device=out.device)
        expand_x(wide_x, *sources[::2], lost)
        expand_w(wide_w, *sources[1::2], lost)
        matmul[_is_wide(config, max(out.stride(0), k), k)](out, wide_x, wide_w)
        gemm(out, *sources, lost)

    return run
