"""gemm_mxfp8 in Triton: the route of every shape and device that no HIP kernel takes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rfops.dispatch import tuned_table
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.tuned_table import serving
from rfops.jit.arch import ROWS
from rfops.quantization.mxfp8 import BLOCK
from rfops.triton import launch, tiles
from rfops.triton.bound import BoundTriton
from rfops.triton.splits import in_splits
from rfops.triton.tiles import TritonConfig

OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDE_FROM = 2**31  # elements that the rows of a tile span: from there offsets are 64-bit
MAX_SIZE = 2**31 - 256  # of M, N and K: beyond, the last tile's own index overflows
_EXPAND_BLOCKS = 64  # blocks of 32 of a program that expands


_MAX_EXPANDED = 2**30  # elements that method expand may take as a bf16 workspace without being told


class TritonGemm(Kernel):
    name = "triton"
    Config = TritonConfig
    tuned = tuned_table.declare("gemm_mxfp8_triton", "M<= N<= K<=", ("triton",))

    def refuses(self, c: Call) -> str | None:
        return refuses(c, max(c.M, c.N, c.K))

    def refuses_config(self, c: Call, config: TritonConfig) -> str | None:
        return config.refuses(True, c.arch)

    def default(self, c: Call) -> TritonConfig:
        """The table's tile."""
        return self.settled(c, tiles.of(self.own_row(c)))

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


def refuses(c: Call, largest: int) -> str | None:
    """Why Triton does not take a call of either op."""
    reason = launch.missing()
    if reason is None and serving(c.arch) is None:
        reason = f"no tiles for {c.arch}: {', '.join(ROWS)} and later NVIDIA GPUs have some"
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


_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "EVEN_K")


class _Gemm:
    """gemm_kernel in one config, for rows any distance apart."""

    def __init__(
        self, device: torch.device, k: int, config: TritonConfig, options: dict[str, object]
    ) -> None:
        self.config = config
        constants = config.constants(k)
        tile = [constants[name] for name in _TILE]
        self.kernels = [
            BoundTriton(
                "rfops.triton.mxfp8_kernels", "gemm_kernel", device,
                (*tile, config.method, config.group_m, wide), options=options,
            )
            for wide in (False, True)
        ]  # fmt: skip

    def __call__(
        self,
        grid: tuple[int, int, int],
        out: torch.Tensor,
        sources: tuple[torch.Tensor, ...],
        needed: torch.Tensor | None,
        sizes: tuple[int, int, int, int],
    ) -> None:
        """`sources` are x, w, x_scale and w_scale in bytes, `sizes` M, N, K and K of a split."""
        strides = (out.stride(-2), *[source.stride(0) for source in sources])
        wide = _is_wide(self.config, max(strides[0], strides[1]), strides[2])
        self.kernels[wide](grid, (out, *sources, needed), (*sizes, *strides))


def _as_bytes(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([tensor.view(torch.uint8) for tensor in tensors])


def _bind(
    device: torch.device, m: int, n: int, k: int, config: TritonConfig, options: dict[str, object]
) -> Run:
    k_split = ceil(k, config.splits * config.block_k) * config.block_k
    splits = ceil(k, k_split)
    gemm, grid = _Gemm(device, k, config, options), (_tiles(m, n, config), splits, 1)

    def run(
        out: torch.Tensor,
        x: torch.Tensor,
        w: torch.Tensor,
        x_scale: torch.Tensor,
        w_scale: torch.Tensor,
    ) -> None:
        gemm(grid, out, _as_bytes(x, w, x_scale, w_scale), None, (m, n, k, k_split))

    return in_splits(device, splits, m, n, run)


def _bind_expanded(
    device: torch.device, m: int, n: int, k: int, config: TritonConfig, options: dict[str, object]
) -> Run:
    again = TritonConfig("exact", 32, 32, 64, config.group_m)
    gemm, gemm_grid = _Gemm(device, k, again, again.options("")), (_tiles(m, n, again), 1, 1)
    k_again = ceil(k, again.block_k) * again.block_k
    expand = BoundTriton("rfops.triton.mxfp8_kernels", "expand_kernel", device, (_EXPAND_BLOCKS,))
    constants = config.constants(k)
    tile = [constants[name] for name in _TILE]
    matmul = [
        BoundTriton(
            "rfops.triton.mxfp8_kernels", "matmul_kernel", device, (*tile, config.group_m, wide),
            options=options,
        )
        for wide in (False, True)
    ]  # fmt: skip
    k_parts = ceil(k, _EXPAND_BLOCKS * BLOCK)

    def run(
        out: torch.Tensor,
        x: torch.Tensor,
        w: torch.Tensor,
        x_scale: torch.Tensor,
        w_scale: torch.Tensor,
    ) -> None:
        sources = _as_bytes(x, w, x_scale, w_scale)
        wide_x = torch.empty((m, k), dtype=torch.bfloat16, device=out.device)
        wide_w = torch.empty((n, k), dtype=torch.bfloat16, device=out.device)
        lost = torch.zeros(1, dtype=torch.int32, device=out.device)
        for values, codes, scales in ((wide_x, *sources[::2]), (wide_w, *sources[1::2])):
            grid = (values.shape[0], k_parts, 1)
            strides = codes.stride(0), scales.stride(0)
            expand(grid, (values, codes, scales, lost), (k, *strides))
        stride = out.stride(0)
        product = matmul[_is_wide(config, max(stride, k), k)]
        product((_tiles(m, n, config), 1, 1), (out, wide_x, wide_w), (m, n, k, stride))
        gemm(gemm_grid, out, sources, lost, (m, n, k, k_again))

    return run
