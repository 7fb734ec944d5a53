"""gemm_mxfp8 in Triton: the route of every shape and device that no HIP kernel takes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch import tuned_table
from rfops.dispatch.heuristic import MFMA_CYCLES, Columns, ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, WAVE, Arch
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


# block_m, block_n, block_k, warps of tiles, by the most rows that they are for; splits of K.
_TILES = {
    16: ((16, 32, 256, 2), (16, 64, 256, 4)),
    32: ((32, 32, 256, 4), (32, 64, 256, 4)),
    64: ((64, 32, 256, 4), (64, 64, 256, 4), (64, 128, 128, 4)),
    MAX_SIZE: (
        (64, 64, 256, 4),
        (64, 128, 128, 4),
        (128, 64, 128, 4),
        (128, 128, 128, 4),
        (128, 128, 128, 8),
        (128, 256, 128, 8),
    ),
}
_SPLITS = 1, 2, 4, 8, 16
_GROUP_M = 4  # of tiles of 128 rows and more
_PRODUCTS = 16 * 16 * 128 / MFMA_CYCLES  # of a wave, a clock


@functools.lru_cache(maxsize=len(_TILES))
def _variants(max_m: int) -> Columns[TritonConfig]:
    """Of an architecture whose matrix instruction scales."""
    configs = []
    for (block_m, block_n, block_k, warps), split in itertools.product(_TILES[max_m], _SPLITS):
        group_m = _GROUP_M if block_m >= 128 else 1
        tile = block_m, block_n, block_k, group_m, warps, 2
        configs.append(TritonConfig("scaled", *tile, matrix_instr_nonkdim=16, splits=split))
    return Columns(configs)


class TritonGemm(TimedKernel):
    """Its default is of its own table where the op's model does not rank it, or a user has a row
    there."""

    name = "triton"
    is_ranked = False
    sources = (_KERNELS,)
    Config = TritonConfig
    tuned = tuned_table.declare("gemm_mxfp8_triton", "M<= N<= K<=", ("triton",))

    def unsupported_reason(self, c: Call) -> str | None:
        return unsupported_reason(c, max(c.M, c.N, c.K))

    def unsupported_config_reason(self, c: Call, config: TritonConfig) -> str | None:
        return config.unsupported_reason(True, c.arch)

    def default(self, c: Call) -> TritonConfig:
        row = self.own_row(c)
        if row.is_own or self.space(c) is None:
            return self.settled(c, tiles.config_of(row))
        ranked: TritonConfig = super().default(c)
        return ranked

    def space(self, c: Call) -> Columns[TritonConfig] | None:
        if c.arch not in tiles.SCALED_ARCHS or not c.M * c.N:
            return None
        return _variants(next(max_rows for max_rows in _TILES if c.M <= max_rows))

    def traits(self, config: TritonConfig, c: Call) -> tuple[float, ...]:
        chip, warps = ARCH_SPECS[c.arch], config.warps
        m, n, k = config.block_m, config.block_n, config.block_k
        return Traits(
            m,
            n,
            config.splits,
            k,
            resident_of(chip, m, n, k, warps),
            log_waves=math.log2(warps),
            busy_clocks=matrix_clocks(m, n, k),
        )

    def unsuited(self, c: Call, config: TritonConfig) -> str | None:
        elements = (c.M + c.N) * c.K
        if config.method == "expand" and elements > _MAX_EXPANDED:
            return f"method expand needs a workspace of {elements} elements, above {_MAX_EXPANDED}"
        return None

    def settled(self, c: Call, config: TritonConfig) -> TritonConfig:
        return config.filled(c.arch, c.M, c.N, c.K)

    def candidates(self, c: Call) -> Iterable[TritonConfig]:
        neighbours = tiles.candidates(self.default(c), c, c.M, True)
        return neighbours if self.space(c) is None else [*super().candidates(c), *neighbours]

    def variant(self, c: Call, config: TritonConfig) -> RunOf:
        """Launches of rows any distance apart (any stride(0)). With method expand each takes bf16
        [M + N, K] from torch's allocator."""
        bind = _bind_expanded if config.method == "expand" else _bind
        options = config.options(c.arch)
        return lambda m, n, k: bind(c.device, m, n, k, config.filled(c.arch, m, n, k), options)


def resident_of(chip: Arch, m: int, n: int, k: int, warps: int) -> int:
    """Return the programs of a tile of m x n that a CU holds at once, with K-steps of k bytes."""
    registers = (m * n + (m + n) * k // 4) // (WAVE * warps) + 40  # sums, loads in flight
    by_registers = chip.simds * min(MAX_WAVES, REGISTERS // registers) // warps
    return max(1, min(by_registers, chip.lds_bytes // ((m + n) * k)))


def matrix_clocks(m: int, n: int, k: int) -> float:
    """Return the clocks of one matrix unit for a K-step of a tile."""
    return m * n * k / _PRODUCTS


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
            _KERNELS, "gemm_kernel", device, {**constants, "WIDE": is_wide}, options=options
        ).prepare(
            "out x w x_scale w_scale needed", sources=_SOURCES, strides={"out": out, **_ROWS}
        )(grid, **sizes)
        for is_wide in (False, True)
    ]

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *tail_args: Any) -> None:
        is_wide = _is_wide(config, max(out.stride(-2), x.stride(0)), w.stride(0))
        runs[is_wide](out, x, w, *tail_args)

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
    exact_config = TritonConfig("exact", 32, 32, 64, config.group_m)
    k_again = ceil(k, exact_config.block_k) * exact_config.block_k
    sizes = {"M": m, "N": n, "K": k}
    gemm = _gemm(device, exact_config, exact_config.options(""), 1, {**sizes, "k_split": k_again})
    expand = BoundTriton(_KERNELS, "expand_kernel", device, {"BLOCKS": _EXPAND_BLOCKS}).prepare(
        "out codes scales out_of_range", strides={"codes": "stride_c _", "scales": "stride_s _"}
    )
    matmul = [
        BoundTriton(
            _KERNELS,
            "matmul_kernel",
            device,
            {**config.constants(k), "WIDE": is_wide},
            options=options,
        ).prepare("out x w", strides={"out": "stride_o _"})((_tiles(m, n, config), 1, 1), **sizes)
        for is_wide in (False, True)
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
