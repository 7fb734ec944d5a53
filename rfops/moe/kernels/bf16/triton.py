"""fused_moe in Triton: rows sorted by moe_align_block_size, gate and up with SiLU, down, a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.config import Allowed, powers
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.jit.launch import tensor_memory
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import TileConfig, TritonKernel, stages_in_lds

from ...align_block_size import moe_align_block_size
from ...experts import layout_sizes, with_shared
from ...router import moe_router
from ..limits import refuses_slots

_KERNELS = "rfops.moe.kernels.bf16.triton_kernels"
LAYOUT = "ids expert_ids num_padded"  # the kernels' parameters that take moe_align_block_size's
_ADD_COLUMNS = 1024  # of a program that adds rows
_MAX_TABLES = 64
_tables: dict[tuple[Any, ...], Tensor] = {}


@dataclass(frozen=True)
class FusedMoeTritonConfig(TileConfig):
    """A variant of triton_kernels.py."""

    block_m: int
    block_n: int  # of down; gate and up have half of it each
    block_k: int
    group_m: int = 8
    warps: int = 8
    stages: int = 3

    ALLOWED: ClassVar[Allowed] = {**TileConfig.ALLOWED, "block_k": powers(16, 128)}


class TritonMoe(TritonKernel):
    """Experts in Triton: gate and up with SwiGLU, then down, of 16-bit weights."""

    Config = FusedMoeTritonConfig
    item_bytes = 2  # of an element in LDS
    # block_n and block_k worth timing.
    blocks: ClassVar[Sequence[tuple[int, int]]] = (
        (64, 64),
        (128, 32),
        (128, 64),
        (256, 32),
        (256, 64),
    )

    def __init__(self, is_table: bool) -> None:
        self.is_table = is_table  # weights come in tables of [K, N]

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        if c.values.get("w_layout", "raw") != "raw":
            return "weights are shuffled"
        if c.D == 0 or c.I == 0 or c.E == 0:
            return f"D={c.D}, I={c.I}, E={c.E}: nothing to multiply"
        return refuses_slots(c)

    def lds_bytes(self, c: Call, config: FusedMoeTritonConfig) -> int:
        stages = stages_in_lds(config.stages, c.arch)
        return self.item_bytes * (config.block_m + config.block_n) * config.block_k * stages + 1024

    def default(self, c: Call) -> FusedMoeTritonConfig:
        """Tiles as high as an expert has rows."""
        rows = ceil(c.M * (c.K + (c.E - c.R)), max(c.E, 1))
        block_m = min(128, max(16, 1 << (rows - 1).bit_length()))
        if c.arch.startswith("gfx"):
            block_n, block_k = (128, 64) if block_m >= 64 else (64, 64)
            return FusedMoeTritonConfig(block_m, block_n, block_k, 8, 8 if block_m > 64 else 4, 2)
        if block_m >= 64:  # measured on an H200, E=32, M=2048: 2.61 ms; stages=3, group_m=8 3.05
            return FusedMoeTritonConfig(block_m, 256, 64, 4, 8, 4)
        return FusedMoeTritonConfig(block_m, 128, 64, 8, 4, 4)

    def candidates(self, c: Call) -> list[FusedMoeTritonConfig]:
        default = self.default(c)
        configs = [
            FusedMoeTritonConfig(m, n, k, 8, warps, stages)
            for m in sorted(
                {max(16, default.block_m // 2), default.block_m, min(256, 2 * default.block_m)}
            )
            for n, k in self.blocks
            for warps in (4, 8)
            for stages in ((2,) if c.arch.startswith("gfx") else (3, 4))
        ]
        fit = (config for config in configs if self.unsupported_config_reason(c, config) is None)
        return [default, *(config for config in fit if config != default)]

    def variant(self, c: Call, config: FusedMoeTritonConfig) -> RunOf:
        return lambda *sizes: self.launches(c.resized(sizes), config)

    def launches(self, c: Call, config: FusedMoeTritonConfig) -> Run:
        """Return the launches of one call."""
        return _Launches(c, config, self.is_table)


def add_rows(c: Call) -> Run:
    """The sum of each token's rows y, weighted: run(out, y, weights, ids)."""
    all_k = c.K + c.E - c.R
    constants = {"TOP": all_k, "COLUMNS": _ADD_COLUMNS}
    kernel = BoundTriton(_KERNELS, "add_rows", c.device, constants)
    return kernel.prepare("out y weights ids")(
        (c.M, ceil(c.D, _ADD_COLUMNS), 1), n=c.D, experts=c.R, top_k=c.K, all_k=all_k
    )


class _Launches:
    """The launches of one call; temporaries come from torch's allocator."""

    def __init__(self, c: Call, config: FusedMoeTritonConfig, is_table: bool) -> None:
        self.c, self.config, self.is_table = c, config, is_table
        gate_n = max(16, config.block_n // 2)

        def gemm(name: str, block_n: int, k: int) -> BoundTriton:
            constants = {
                "BLOCK_M": config.block_m,
                "BLOCK_N": block_n,
                "BLOCK_K": config.block_k,
                "GROUP_M": config.group_m,
                "EVEN_K": k % config.block_k == 0,
                "IS_TABLE": is_table,
            }
            return BoundTriton(_KERNELS, name, c.device, constants, config.warps, config.stages)

        self.all_k = c.K + c.E - c.R
        self.num_ids = c.M * self.all_k
        self.num_slots, blocks = layout_sizes(self.num_ids, config.block_m, c.E, True)
        common = {"of_expert": 0} if is_table else {}
        self.gate_up = gemm("gate_up", gate_n, c.D).prepare(
            f"h x gate up gates ups {LAYOUT} w1",
            strides={"x": "x_m _", "gate": "w_k w_n", **_stack("w1", is_table)},
        )(
            (blocks * ceil(c.I, gate_n), 1, 1),
            sizes=(self.num_ids, blocks, c.I, c.D, self.all_k),
            **common,
        )
        self.down = gemm("down", config.block_n, c.I).prepare(
            f"y h w table {LAYOUT} w2",
            strides={"w": "w_k w_n", **_stack("w2", is_table)},
        )(
            (blocks * ceil(c.D, config.block_n), 1, 1),
            sizes=(self.num_ids, blocks, c.D, c.I),
            **common,
        )
        self.add = add_rows(c)

    def __call__(self, out: Tensor, x: Tensor, *args: Any) -> None:
        *weights, topk_weights, topk_ids, router = args
        c, config = self.c, self.config
        if router is not None:
            topk_weights, topk_ids = moe_router(
                x, router, c.K, c.renormalize, round_scores=c.round_scores
            )
        ids = topk_ids
        if c.E > c.R:
            ids = with_shared(topk_weights, topk_ids, c.E, c.E - c.R)[1]
        layout = moe_align_block_size(ids, config.block_m, c.E, None, True)
        h = torch.empty((self.num_slots, c.I), dtype=x.dtype, device=x.device)
        y = torch.empty((self.num_ids, c.D), dtype=x.dtype, device=x.device)
        x = x if x.stride(1) == 1 else x.contiguous()
        gate, up, down, tables, stacks = self._weights(weights)
        with tensor_memory.registered_tensors(c.device, weights if self.is_table else ()):
            self.gate_up(h, x, gate, up, *tables[:2], *layout, stacks[0])
            self.down(y, h, down, tables[2], *layout, stacks[1])
        self.add(out, y, topk_weights, topk_ids)

    def _weights(self, weights: Sequence[Any]) -> tuple[Any, ...]:
        """The first expert's three matrices as [K, N]; tables of all; or w1 and w2 of all."""
        if self.is_table:
            return *(w[0] for w in weights), [_addresses(w) for w in weights], (None, None)
        w1, w2 = weights
        w1_t, i = w1[0].T, self.c.I
        return w1_t[:, :i], w1_t[:, i:], w2[0].T, (None, None, None), (w1, w2)


def _stack(name: str, is_table: bool) -> dict[str, str]:
    """The strides of stacked weights; a table's kernel takes of_expert as a number."""
    return {} if is_table else {name: "of_expert _ _"}


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    """On the device, kept while a caller's weights are the same."""
    key = tensors[0].device, *[t.data_ptr() for t in tensors]
    if key not in _tables:
        if len(_tables) >= _MAX_TABLES:
            _tables.clear()
        _tables[key] = torch.tensor(key[1:], dtype=torch.int64, device=tensors[0].device)
    return _tables[key]
