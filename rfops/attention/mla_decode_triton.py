"""mla_decode in Triton: AMD's and NVIDIA's GPUs, pages of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rfops.dispatch.config import Allowed, powers, up_to
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.workspace import Workspace
from rfops.quantization.fp8_blockscale import FNUZ
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import TileConfig, TritonKernel, spec_of

from .mla_decode_flow import is_table

_KERNELS = "rfops.attention.mla_decode_triton_kernels"
_BF16 = torch.bfloat16
D_V = 512
MAX_SPLITS = 64


@dataclass(frozen=True)
class MlaTritonConfig(TileConfig):
    """A variant of rfops/attention/mla_decode_triton_kernels.py."""

    block_n: int  # tokens at once
    splits: int  # parts of a sequence
    block_m: int = 16  # columns of a program
    warps: int = 4
    stages: int = 2

    ALLOWED: ClassVar[Allowed] = {
        **TileConfig.ALLOWED,
        "block_m": powers(16, 64),
        "block_n": powers(16, 128),
        "splits": up_to(MAX_SPLITS),
        "stages": up_to(4),
    }


class TritonMla(TritonKernel):
    """MLA decode in Triton; splits of a sequence are combined by a second launch."""

    rotates_keys = True  # as flow's
    Config = MlaTritonConfig
    error = 2.0**-8  # P in bf16

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        for name in ("q", "kv"):
            dtype = getattr(c, f"{name}_dtype")
            if dtype not in (_BF16, fp8_of(c.arch)):
                return f"{c.arch} has {fp8_of(c.arch)}, {name} is {dtype}"
        if c.has("angles") and c.kv_dtype != _BF16:
            return "keys of FP8 are not turned"
        if c.H * c.qo_len > 16 * 65_535:  # least block_m, most programs of a grid's second number
            return f"{c.H * c.qo_len} columns of a sequence, more than a grid has programs"
        return None

    def default(self, c: Call) -> MlaTritonConfig:
        """Programs for all units twice, with 64 tokens each as far as S tells; the tile is what was
        quickest on an H200, and half of it on AMD's, whose LDS is less."""
        columns = c.H * c.qo_len
        block_m = 16 if columns <= 16 else 32
        chip = spec_of(c.arch)
        programs = max(1, min(c.B * ceil(columns, block_m), c.B + ceil(c.T * c.H, block_m)))
        tokens = c.S * c.page // max(1, c.B)
        splits = max(1, min(MAX_SPLITS, 2 * chip.cus // programs, tokens // 64))
        block_n = 32 if c.arch.startswith("gfx") or block_m > 16 else 64
        return MlaTritonConfig(block_n, splits, block_m)

    def candidates(self, c: Call) -> list[MlaTritonConfig]:
        default = self.default(c)
        configs = [
            MlaTritonConfig(block_n, splits, default.block_m, warps, stages)
            for block_n in (32, 64)
            for splits in sorted({1, 2, 4, 8, 16, 32, default.splits})
            for warps in (4, 8)
            for stages in (2, 3)
        ]
        return [default, *(config for config in configs if config != default)]

    def variant(self, c: Call, config: MlaTritonConfig) -> RunOf:
        constants = {
            "SM_SCALE": c.sm_scale,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "CAUSAL": bool(c.causal) and (c.has("qo_indptr") or c.qo_len > 1),
            "KV_FP8": c.kv_dtype != _BF16,
            "Q_FP8": c.q_dtype != _BF16,
            "FNUZ": fp8_of(c.arch) == FNUZ,
        }
        partial_kernel = BoundTriton(
            _KERNELS, "attend_split", c.device, constants, config.warps, config.stages
        )
        arguments = (*self.arguments, *(("angles",) if c.has("angles") else ()), "sums", "stats")
        sources = {} if c.has("angles") else {"angles": None}
        launch_splits = partial_kernel.prepare(arguments, sources=sources)
        block_splits = 1 << (config.splits - 1).bit_length()
        add = BoundTriton(_KERNELS, "add_splits", c.device, {"SPLITS": block_splits})
        launch_add = add.prepare(arguments)
        has_table = is_table(c)

        def run_of(*sizes: int) -> Run:
            batch, rows, heads, _entries, _pages, page, _ends, width = sizes
            columns, splits = c.qo_len * heads, config.splits
            hidden = int(c.causal) if c.has("qo_indptr") else (c.qo_len - 1) * c.causal
            run_splits = launch_splits(
                (batch, ceil(columns, config.block_m), splits),
                columns=columns,
                rows=rows,
                heads=heads,
                hidden=hidden,
                page=page,
                width=width * has_table,
                splits=splits,
            )
            run_add = launch_add((rows * heads, 1, 1), splits=splits, batch=batch, heads=heads)
            count = rows * heads * splits
            scratch = Workspace(c.device, (count * D_V, torch.float32), (count * 2, torch.float32))

            def run(out: Tensor, q: Tensor, kv: Tensor, *inputs: Tensor | None) -> None:
                partials = scratch() if splits > 1 else (None, None)  # sums, stats
                tensors = out, _bytes(q), _bytes(kv), *inputs, *partials
                run_splits(*tensors)
                if splits > 1:
                    run_add(*tensors)

            return run

        return run_of


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return an FP8 tensor viewed as bytes, so that no version of Triton refuses its dtype; bf16 as
    it is."""
    return tensor if tensor.dtype == _BF16 else tensor.view(torch.uint8)
