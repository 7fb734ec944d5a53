"""mla_decode in Triton: AMD's and NVIDIA's GPUs, pages of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import check_config_ints, check_config_powers
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.tuned_table import serving
from rfops.dispatch.workspace import Workspace
from rfops.jit.arch import ARCH_SPECS
from rfops.quantization.fp8_blockscale import FNUZ
from rfops.triton import launch
from rfops.triton.bound import BoundTriton

from .mla_decode_flow import is_table

_KERNELS = "rfops.attention.mla_decode_triton_kernels"
_BF16 = torch.bfloat16
D_V = 512
MAX_SPLITS = 64


@dataclass(frozen=True)
class MlaTritonConfig:
    """A variant of rfops/attention/mla_decode_triton_kernels.py."""

    block_n: int  # tokens at once
    splits: int  # parts of a sequence
    block_m: int = 16  # columns of a program
    warps: int = 4
    stages: int = 2

    def __post_init__(self) -> None:
        check_config_ints(self)
        check_config_powers(self, "block_m", "block_n", "warps")
        if not 16 <= self.block_m <= 64 or not 16 <= self.block_n <= 128:
            raise ValueError(f"{self}: block_m is 16 to 64, block_n 16 to 128")
        if not 1 <= self.splits <= MAX_SPLITS or not 1 <= self.stages <= 4:
            raise ValueError(f"{self}: splits is 1 to {MAX_SPLITS}, stages 1 to 4")


class TritonMla(Kernel):
    name = "triton"
    turns = True  # as flow's
    Config = MlaTritonConfig
    error = 2.0**-8  # P in bf16

    def unsupported_reason(self, c: Call) -> str | None:
        reason = launch.missing()
        if reason is not None:
            return reason
        if serving(c.arch) is None:
            return f"no tiles for {c.arch}: {', '.join(ARCH_SPECS)} and later NVIDIA GPUs have some"
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
        chip = ARCH_SPECS[serving(c.arch) or "sm_90"]
        programs = max(1, min(c.B * ceil(columns, block_m), c.B + ceil(c.T * c.H, block_m)))
        tokens = c.S * c.page // max(1, c.B)
        splits = max(1, min(MAX_SPLITS, 2 * chip.cus // programs, tokens // 64))
        block_n = 32 if c.arch.startswith("gfx") or block_m > 16 else 64
        return MlaTritonConfig(block_n, splits, block_m)

    def candidates(self, c: Call) -> list[MlaTritonConfig]:
        first = self.default(c)
        made = [
            MlaTritonConfig(block_n, splits, first.block_m, warps, stages)
            for block_n in (32, 64)
            for splits in sorted({1, 2, 4, 8, 16, 32, first.splits})
            for warps in (4, 8)
            for stages in (2, 3)
        ]
        return [first, *(config for config in made if config != first)]

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
        part = BoundTriton(_KERNELS, "part", c.device, constants, config.warps, config.stages)
        launch_part = part.prepare((*self.arguments, "angles", "sums", "stats"))
        most = 1 << (config.splits - 1).bit_length()
        add = BoundTriton(_KERNELS, "add_splits", c.device, {"SPLITS": most})
        launch_add = add.prepare("out lse sums stats kv_scale qo_indptr")
        has_table = is_table(c)

        def run_of(
            batch: int,
            rows: int,
            heads: int,
            _entries: int,
            _pages: int,
            page: int,
            _ends: int,
            width: int,
        ) -> Run:
            columns, splits = c.qo_len * heads, config.splits
            hidden = int(c.causal) if c.has("qo_indptr") else (c.qo_len - 1) * c.causal
            run_part = launch_part(
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

            def run(
                out: torch.Tensor,
                q: torch.Tensor,
                kv: torch.Tensor,
                kv_indptr: torch.Tensor,
                kv_indices: torch.Tensor,
                kv_lens: torch.Tensor | None,
                kv_scale: torch.Tensor | None,
                q_scale: torch.Tensor | None,
                lse: torch.Tensor | None,
                qo_indptr: torch.Tensor | None,
                angles: torch.Tensor | None = None,
            ) -> None:
                sums, stats = scratch() if splits > 1 else (None, None)
                run_part(
                    out,
                    _bytes(q),
                    _bytes(kv),
                    kv_indptr,
                    kv_indices,
                    kv_lens,
                    kv_scale,
                    q_scale,
                    lse,
                    qo_indptr,
                    angles,
                    sums,
                    stats,
                )
                if splits > 1:
                    run_add(out, lse, sums, stats, kv_scale, qo_indptr)

            return run

        return run_of


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """FP8 as bytes, so that no Triton refuses a dtype."""
    return tensor if tensor.dtype == _BF16 else tensor.view(torch.uint8)
