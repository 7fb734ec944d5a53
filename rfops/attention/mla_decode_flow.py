"""mla_decode in HIP, 16 columns (a query's head) at a time: the cache is read once for each 16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rfops.dispatch.guards import check_config_ints
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.workspace import Workspace
from rfops.jit import compile_ops, f32, u32
from rfops.jit.arch import MAX_GRID, ROWS
from rfops.quantization.fp8_blockscale import fp8_of

COLUMNS = 16  # of a workgroup
D_V = 512
_MOST_WORKERS = 4096
_BF16 = torch.bfloat16


def granule(kv_dtype: torch.dtype) -> int:
    """Tokens of a wave's tile, to which cuts are rounded up."""
    return 16 if kv_dtype == _BF16 else 32


@dataclass(frozen=True)
class FlowConfig:
    """A variant of csrc/mla_decode_flow.hip."""

    workers: int  # workgroups that share the tokens of all sequences, of each 16 columns
    least: int  # tokens of a worker at least, where there are fewer than for all

    def __post_init__(self) -> None:
        check_config_ints(self)
        if not 1 <= self.workers <= _MOST_WORKERS:
            raise ValueError(f"{self}: workers is 1 to {_MOST_WORKERS}")
        if self.least < 32:
            raise ValueError(f"{self}: least is 32 or more")


def _defines(kv: torch.dtype, q: torch.dtype, least: int) -> dict[str, int]:
    return {"KV_FP8": int(kv != _BF16), "Q_FP8": int(q != _BF16), "LEAST": least}


def _variants(arch: str) -> list[dict[str, int]]:
    return [_defines(kv, _BF16, least_of(kv)) for kv in (_BF16, fp8_of(arch))]


def least_of(kv: torch.dtype) -> int:
    """A tile for each of four waves: fewer tokens cost more in partial results than they save."""
    return 4 * granule(kv)


@compile_ops("mla_decode_flow", variants=_variants)
def mla_decode_flow(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    parts: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_lens: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    sm_scale: f32,
    batch: u32,
    columns: u32,
    heads: u32,
    unseen: u32,
    page_shift: u32,
    width: u32,
    workers: u32,
) -> None:
    """csrc/mla_decode_flow.hip: the shapes stand there."""


@compile_ops(
    "mla_decode_reduce",
    variants=lambda _arch: [{"GRANULE": g, "LEAST": 4 * g} for g in (16, 32)],
)
def mla_decode_reduce(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    parts: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_lens: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    batch: u32,
    columns: u32,
    page_shift: u32,
    workers: u32,
) -> None:
    """csrc/mla_decode_reduce.hip: the shapes stand there."""


class Flow(Kernel):
    name, module = "flow", "mla_decode_flow"
    Config = FlowConfig
    error = 2.0**-8  # P in bf16

    def refuses(self, c: Call) -> str | None:
        if reason := self.refuses_arch(c):
            return reason
        for name in ("q", "kv"):
            dtype = getattr(c, f"{name}_dtype")
            if dtype not in (_BF16, fp8_of(c.arch)):
                return f"{c.arch} has {fp8_of(c.arch)}, {name} is {dtype}"
        if c.page < 1 or c.page & (c.page - 1):
            return f"pages of {c.page} tokens, not a power of two"
        if c.P * c.page >= 2**32:
            return f"{c.P * c.page} rows of kv, 2^32 or more"
        return None

    def default(self, c: Call) -> FlowConfig:
        """A worker for each CU; where several read the same tokens, on one die each."""
        groups = max(1, ceil(c.H * c.qo_len, COLUMNS))
        workers = c.cu_num // groups
        xcds = ROWS[c.arch].xcds
        if groups > 1 and workers > xcds:
            workers -= workers % xcds
        return FlowConfig(max(1, workers), least_of(c.kv_dtype))

    def candidates(self, c: Call) -> list[FlowConfig]:
        first = self.default(c)
        others = [FlowConfig(first.workers, least) for least in (first.least * 2, first.least * 4)]
        return [first, *others]

    def defines(self, c: Call, config: FlowConfig) -> Mapping[str, Any]:
        return _defines(c.kv_dtype, c.q_dtype, config.least)

    def variant(self, c: Call, config: FlowConfig) -> RunOf:
        flow = mla_decode_flow.bind(c.device, self.defines(c, config), c.arch)
        defines = {"GRANULE": granule(c.kv_dtype), "LEAST": config.least}
        reduce = mla_decode_reduce.bind(c.device, defines, c.arch)
        # Of out, the inputs in their order, then lse and parts.
        launch = flow.prepare((256, 1, 1), (0, 8, 9, 1, 2, 3, 4, 5, 6, 7))
        add = reduce.prepare((D_V // 4, 1, 1), (0, 8, 9, 3, 5, 6))
        is_table = c.tensors["kv_indices"].dim() == 2

        def run_of(
            batch: int, rows: int, heads: int, entries: int, _pages: int, page: int, _ends: int
        ) -> Run:
            columns, workers = rows // batch * heads, config.workers
            groups = ceil(columns, COLUMNS)
            width, shift = entries // batch if is_table else 0, page.bit_length() - 1
            unseen = c.qo_len - 1 if c.causal else 0
            scratch = Workspace(
                c.device, (groups * workers * 2 * COLUMNS * (D_V + 2), torch.float32)
            )
            first = launch(
                (groups * workers, 1, 1),
                (c.sm_scale, batch, columns, heads, unseen, shift, width, workers),
            )
            deep = ceil(batch, MAX_GRID)
            second = add((columns, min(batch, MAX_GRID), deep), (batch, columns, shift, workers))

            def run(out: torch.Tensor, *inputs: torch.Tensor) -> None:
                (parts,) = scratch()
                first(out, *inputs, parts)
                second(out, *inputs, parts)

            return run

        return run_of
