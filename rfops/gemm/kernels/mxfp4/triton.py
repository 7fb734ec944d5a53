"""gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4 in Triton: AMD's and NVIDIA's GPUs, any strides and
layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.config import Allowed, powers
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.quantization.mxfp4 import ROUNDING
from rfops.quantization.mxfp8 import BLOCK
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import MAX_SPLITS, GemmTileConfig, TritonKernel, spec_of, stages_in_lds
from rfops.triton.tiles import SCALED_ARCHS

from ...mxfp4_op import RAW, x_bits

_KERNELS = "rfops.gemm.kernels.mxfp4.triton_kernels"
_COLUMNS = 256  # of a program that adds splits
_NOT_INSIDE = {4: -1, 8: -2}  # what stands for BUMP where x is quantised, by its bits


@dataclass(frozen=True)
class Mxfp4TritonConfig(GemmTileConfig):
    """A variant of triton_kernels.py."""

    block_k: int = 128
    splits: int = 1
    group_m: int = 8
    warps: int = 4
    stages: int = 3

    ALLOWED: ClassVar[Allowed] = {**GemmTileConfig.ALLOWED, "block_k": powers(128, 512)}


class TritonGemm(TritonKernel):
    """The MXFP4 GEMMs in Triton, for every architecture."""

    Config = Mxfp4TritonConfig

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        if c.M < 1 or c.N < 1:
            return f"M={c.M}, N={c.N}: nothing to compute"
        if 256 * c.N >= MAX_BYTES:
            return "256 rows of out are beyond signed 32-bit offsets (2 GiB)"
        for name, (row, column) in zip(_OPERANDS, _strides(c, c.M, c.N, c.K), strict=True):
            if 256 * abs(row) + 1024 * abs(column) >= MAX_BYTES // 2:
                return f"256 rows of {name} are beyond signed 32-bit offsets (2 GiB)"
        return None

    def lds_bytes(self, c: Call, config: Mxfp4TritonConfig) -> int:
        """The operands in flight; one stage of both in bf16 where no matrix instruction takes FP4;
        1 KB for the rest."""
        m, n, k = config.block_m, config.block_n, config.block_k
        in_flight = int((m * x_bits(c) / 8 + n / 2) * k) * stages_in_lds(config.stages, c.arch)
        return in_flight + (0 if c.arch in SCALED_ARCHS else (m + n) * k) + 1024

    def default(self, c: Call) -> Mxfp4TritonConfig:
        """Tiles as M has rows; K split until there are programs for all units."""
        block_m = min(64, max(16, 1 << (c.M - 1).bit_length()))
        block_n = 128 if block_m >= 64 else 64
        cus = spec_of(c.arch).cus
        tiles = ceil(c.M, block_m) * ceil(c.N, block_n)
        splits = min(MAX_SPLITS, max(1, int(cus // tiles)), max(1, c.K // 512))
        stages = 2 if c.arch.startswith("gfx") else 3
        return Mxfp4TritonConfig(block_m, block_n, 128, splits, 8, 4, stages)

    def candidates(self, c: Call) -> list[Mxfp4TritonConfig]:
        """The default, and others near it."""
        default = self.default(c)
        are_few_rows = c.M <= 32
        rows = (
            (default.block_m,)
            if are_few_rows
            else (default.block_m // 2, default.block_m, 2 * default.block_m)
        )
        splits = sorted({1, default.splits, max(1, default.splits // 2), 2 * default.splits})
        configs = [
            Mxfp4TritonConfig(
                block_m, block_n, block_k, split, 8, warps, default.stages + method_idx
            )
            for block_m in rows
            for block_n in ((32, 64, 128) if are_few_rows else (64, 128))
            for block_k in ((128, 256) if are_few_rows else (128,))
            for split in splits
            if split == 1 or (split <= MAX_SPLITS and c.K >= 2 * split * block_k)
            for warps in ((4,) if block_m * block_n < 8192 else (4, 8))
            for method_idx in ((0,) if are_few_rows else (0, 1))
        ]
        fit = (config for config in configs if self.unsupported_config_reason(c, config) is None)
        return [default, *(config for config in fit if config != default)]

    def variant(self, c: Call, config: Mxfp4TritonConfig) -> RunOf:
        """Launches; with splits each takes fp32 [splits, M, N] from torch's allocator."""
        return lambda m, n, k, *_scales: _bind(c, config, m, n, k)


_OPERANDS = ("x", "w", "x_scale", "w_scale")


def _strides(c: Call, m: int, n: int, k: int) -> list[tuple[int, int]]:
    """Return the operands' strides in elements, for a call like `c` of these sizes: contiguous
    tensors stay contiguous, others keep their strides."""
    is_quantised = x_bits(c) < 16
    blocks, padded = k // BLOCK, -(-k // BLOCK // 8) * 8
    columns = {
        "x": k * min(8, x_bits(c)) // 8,
        "w": k // 2,
        "x_scale": padded if is_quantised and c.x_scale_layout != RAW else blocks,
        "w_scale": padded if c.w_scale_layout != RAW else blocks,
    }
    return [_stride(c, name, columns[name]) for name in _OPERANDS]


def _stride(c: Call, name: str, columns: int) -> tuple[int, int]:
    tensor = c.tensors.get(name)
    if tensor is None or tensor.is_contiguous():
        return columns, 1
    row, column = tensor.strides
    # A single row lies nowhere, but for what its stride may be told: that of a contiguous one.
    return (columns if tensor.shape[0] == 1 else row), column


def _bind(c: Call, config: Mxfp4TritonConfig, m: int, n: int, k: int) -> Run:
    rounding = c.values.get("rounding")
    strides = _strides(c, m, n, k)
    (x_m, x_k), step = strides[0], config.block_k
    per_split = ceil(ceil(k, step), config.splits) * step
    splits = ceil(k, per_split)
    is_paired = rounding is not None and x_k == 1 and x_m % 2 == 0 and c.align("x") >= 4
    method = "scaled" if c.arch in SCALED_ARCHS else "upcast"
    bump = _NOT_INSIDE[x_bits(c)] if rounding is None else ROUNDING[rounding]
    is_raw = {name: c.values.get(f"{name}_layout", RAW) == RAW for name in _OPERANDS}
    has_bias = c.has("bias")
    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": step,
        "GROUP_M": config.group_m,
        "METHOD": method,
        "BUMP": bump,
        "W_SHUFFLED": not is_raw["w"],
        "WS_SHUFFLED": not is_raw["w_scale"],
        "XS_SHUFFLED": not is_raw["x_scale"],
        "PAIRED": is_paired,
        "EVEN_K": k % step == 0,
        "HAS_BIAS": has_bias and splits == 1,
    }
    gemm = BoundTriton(_KERNELS, "gemm", c.device, constants, config.warps, config.stages)
    constants = {"SPLITS": splits, "COLUMNS": _COLUMNS, "HAS_BIAS": has_bias}
    add = BoundTriton(_KERNELS, "add_splits", c.device, constants)
    # A kernel that quantises x does not read x_scale.
    x_scale, sources = ("x_scale", {}) if rounding is None else ("", {"x_scale": "w_scale"})
    run_gemm = gemm.prepare(f"out x w {x_scale} w_scale bias", sources=sources)(
        (config.tiles(m, n), splits, 1),
        m=m,
        n=n,
        k=k,
        per_split=per_split,
        out_m=n,
        strides=tuple(strides),
    )
    run_add = add.prepare("out parts bias")((m, ceil(n, _COLUMNS), 1), m=m, n=n)

    def run(out: Tensor, x: Tensor, *inputs: Any) -> None:
        *operands, bias = inputs  # w and scales
        x = x.view(torch.uint8) if rounding is None else x
        partials = out
        if splits > 1:
            partials = torch.empty((splits, m, n), dtype=torch.float32, device=out.device)
        run_gemm(partials, x, *[operand.view(torch.uint8) for operand in operands], bias)
        if splits > 1:
            run_add(out, partials, bias)

    return run
