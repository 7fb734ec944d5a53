"""gemm_mxfp8 in Triton: the route of every shape and device that no HIP kernel takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rfops.quant_mxfp8 import BLOCK
from rfops.triton import launch, tiles
from rfops.triton.tiles import TritonConfig

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDE_FROM = 2**31  # elements that the rows of a tile span: from there offsets are 64-bit
MAX_SIZE = 2**31 - 256  # of M, N and K: beyond, the last tile's own index overflows
_REDUCE_N = 256  # columns of a program of the reduction
_EXPAND_BLOCKS = 64  # blocks of 32 of a program that expands


def refuses(
    m: int, n: int, k: int, *, arch: str, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    """None if this route takes the shape on that architecture, else the reason."""
    reason = launch.missing() or refuses_arch(arch)
    if reason is None and dtype not in OUT_DTYPES:
        reason = f"dtype {dtype}: out is bfloat16, float16 or float32"
    if reason is None and (k <= 0 or k % BLOCK):
        reason = f"K={k} is not a positive multiple of {BLOCK}"
    if reason is None and max(m, n, k) > MAX_SIZE:
        reason = f"a size of {max(m, n, k)}: at most {MAX_SIZE}"
    return reason


def refuses_arch(arch: str) -> str | None:
    if tiles.rows_for(arch) is None:
        return f"no tiles for {arch}: {', '.join(tiles.UNITS)} and later NVIDIA GPUs have some"
    return None


def from_table(arch: str, m: int, n: int, k: int) -> TritonConfig:
    """The tile that a shape gets; its `origin` says where it comes from."""
    return tiles.find("dense", arch, m, n, k)


def prepare(
    device: torch.device,
    m: int,
    n: int,
    k: int,
    config: TritonConfig | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Launch:
    """The launch of one shape: launch(out, x, w, x_scale, w_scale).

    out [M, N] of `dtype`, x [M, K] and w [N, K] e4m3, scales [M, K/32] and [N, K/32] e8m0 or uint8;
    rows may be apart (any stride(0)), columns are contiguous. All on `device`; nothing is checked
    here beyond `refuses`. Deterministic for one config. Each launch takes its workspace from
    torch's allocator: with splits fp32 [splits, M, N], with method expand bf16 [M + N, K]. Raises
    ValueError for what `refuses` and `config.refuses` name.
    """
    arch = launch.arch_of(device)
    reason = refuses(m, n, k, arch=arch, dtype=dtype)
    if reason is None and config is not None:
        reason = config.refuses("dense", arch)
    if reason is not None:
        raise ValueError(f"gemm_mxfp8 (Triton): {reason}")
    if m == 0 or n == 0:
        return lambda *_: None
    config = config or from_table(arch, m, n, k)
    bind = _bind_expanded if config.method == "expand" else _bind
    return bind(device, m, n, k, config, config.options(arch))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _tiles(m: int, n: int, config: TritonConfig) -> int:
    return _ceil(m, config.block_m) * _ceil(n, config.block_n)


def _sources(*tensors: torch.Tensor) -> tuple[list[torch.Tensor], list[int]]:
    """As bytes, with the distances of their rows."""
    return [t.view(torch.uint8) for t in tensors], [t.stride(0) for t in tensors]


def _is_wide(config: TritonConfig, x_or_out: int, w: int) -> bool:
    """Whether the rows of a tile, that far apart, need 64-bit offsets."""
    return max(config.block_m * x_or_out, config.block_n * w) >= WIDE_FROM


def _bind(
    device: torch.device, m: int, n: int, k: int, config: TritonConfig, options: dict[str, object]
) -> Launch:
    from rfops.triton.mxfp8_kernels import gemm_kernel, reduce_kernel

    k_split = _ceil(k, config.splits * config.block_k) * config.block_k
    splits = _ceil(k, k_split)
    grid = (_tiles(m, n, config), splits)
    constants = config.constants(k) | {"METHOD": config.method} | options
    reduce_grid = (m, _ceil(n, _REDUCE_N))

    def run(
        out: torch.Tensor,
        x: torch.Tensor,
        w: torch.Tensor,
        x_scale: torch.Tensor,
        w_scale: torch.Tensor,
    ) -> None:
        parts = out
        if splits > 1:
            parts = torch.empty((splits, m, n), dtype=torch.float32, device=out.device)
        sources, strides = _sources(x, w, x_scale, w_scale)
        wide = _is_wide(config, max(parts.stride(-2), strides[0]), strides[1])
        with launch.on(device):
            gemm_kernel[grid](
                parts, *sources, None, m, n, k, k_split, parts.stride(-2), *strides,
                WIDE=wide, **constants,
            )  # fmt: skip
            if splits > 1:
                reduce_kernel[reduce_grid](
                    out, parts, m, n, out.stride(0), SPLITS=splits, BLOCK_N=_REDUCE_N,
                    enable_fp_fusion=True,
                )  # fmt: skip

    return run


def _bind_expanded(
    device: torch.device, m: int, n: int, k: int, config: TritonConfig, options: dict[str, object]
) -> Launch:
    from rfops.triton.mxfp8_kernels import expand_kernel, gemm_kernel, matmul_kernel

    again = TritonConfig("exact", 32, 32, 64, config.group_m)
    constants = config.constants(k) | options
    again_constants = again.constants(k) | again.options("") | {"METHOD": again.method}
    k_parts = _ceil(k, _EXPAND_BLOCKS * BLOCK)

    def run(
        out: torch.Tensor,
        x: torch.Tensor,
        w: torch.Tensor,
        x_scale: torch.Tensor,
        w_scale: torch.Tensor,
    ) -> None:
        sources, strides = _sources(x, w, x_scale, w_scale)
        wide_x = torch.empty((m, k), dtype=torch.bfloat16, device=out.device)
        wide_w = torch.empty((n, k), dtype=torch.bfloat16, device=out.device)
        lost = torch.zeros(1, dtype=torch.int32, device=out.device)
        stride = out.stride(0)
        with launch.on(device):
            for operand, values in enumerate((wide_x, wide_w)):
                expand_kernel[(values.shape[0], k_parts)](
                    values, sources[operand], sources[operand + 2], lost, k, strides[operand],
                    strides[operand + 2], BLOCKS=_EXPAND_BLOCKS, enable_fp_fusion=True,
                )  # fmt: skip
            matmul_kernel[(_tiles(m, n, config),)](
                out, wide_x, wide_w, m, n, k, stride,
                WIDE=_is_wide(config, max(stride, k), k), **constants,
            )  # fmt: skip
            gemm_kernel[(_tiles(m, n, again), 1)](
                out, *sources, lost, m, n, k, _ceil(k, again.block_k) * again.block_k, stride,
                *strides, WIDE=_is_wide(again, max(stride, strides[0]), strides[1]),
                **again_constants,
            )  # fmt: skip

    return run
