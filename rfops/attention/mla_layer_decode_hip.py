"""mla_layer_decode by HIP: six launches.

down     q_down and kv_down of x, the cache's new rows   csrc/mla_layer_decode.hip
query    q_up, and RoPE of q                             "
absorb   kv_up's half of k into q, by heads              "
         mla_decode's kernel, which turns keys           csrc/mla_decode_*.hip
value    kv_up's half of v, by heads                     csrc/mla_layer_decode.hip
out      o                                               "
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.workspace import Workspace, with_workspace
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ROWS

from .mla_layer_parts import (
    CACHE_ROW,
    LATENT,
    NOPE,
    V,
    attention,
    attention_call,
    attention_kernel,
)

DOWN, QUERY, ABSORB, PLAIN = range(4)  # stages of csrc/mla_layer_decode.hip
TILE, PIECE, STEP = 16, 32, 128  # rows of an operand, K of one and of a step
WAVES, THREADS = 4, 256
MOST_SPLIT = 8  # more sums to add than CUs bring: down of MI300X 22.2 us by 9, 19.4 by 7
_BF16, _F32, _I32 = torch.bfloat16, torch.float32, torch.int32


@dataclass(frozen=True)
class Product:
    """A launch of csrc/mla_layer_decode.hip: its stage, sizes and how its operands lie."""

    stage: int
    n: int
    k: int
    x_row: int
    out_row: int
    heads: int = 1
    x_head: int = 0
    w_first: int = 0
    w_head: int = 0
    out_head: int = 0
    n_tiles: int = 4  # of 16 rows of w, of a wave
    n_other: int = 0
    most_m: int = 8  # tiles of 16 rows of x

    def m_tiles(self, m: int) -> int:
        """Of 16 rows of x."""
        return min(self.most_m, 1 << (ceil(max(m, 1), TILE) - 1).bit_length())

    def tiles(self, m: int) -> int:
        """Workgroups of an unsplit K."""
        columns = WAVES * self.n_tiles * TILE
        along_n = ceil(self.n, columns) + ceil(self.n_other, columns)
        return ceil(m, self.m_tiles(m) * TILE) * along_n * self.heads

    def defines(self, m: int, cus: int) -> dict[str, int]:
        """K is split for as many workgroups as there are CUs, of two steps at least."""
        steps = ceil(self.k, STEP)
        split = max(1, min(cus // self.tiles(m), steps // 2, MOST_SPLIT))
        split = ceil(steps, ceil(steps, split))  # none is without a step
        return {"STAGE": self.stage, "M_TILES": self.m_tiles(m), "N_TILES": self.n_tiles,
                "SPLIT": split}  # fmt: skip


def products(c: Call) -> tuple[Product, ...]:
    """down, query, absorb, value, out.

    Some have 64 rows of x a workgroup, which wants more of these: absorb, whose two steps of K they
    hide from each other (MI300X 15.8 us, 13.5 so), and down and out, of less parts that the last
    one adds up; two that read the same of w share an L2 (21.5 and 82.8 us, 16.8 and 77.8 so).
    """
    heads = c.V // V
    up = (NOPE + V) * LATENT  # of a head
    return (
        Product(DOWN, c.R, c.D, c.D, c.R, n_tiles=1, n_other=CACHE_ROW, most_m=4),
        Product(QUERY, c.Q, c.R, c.R, heads * NOPE, n_tiles=2),
        Product(ABSORB, LATENT, NOPE, heads * NOPE, heads * CACHE_ROW, heads, NOPE, 0, up,
                CACHE_ROW, most_m=4),
        Product(PLAIN, V, LATENT, heads * LATENT, c.V, heads, LATENT, NOPE * LATENT, up, V, 1),
        Product(PLAIN, c.D, c.V, c.V, c.D, n_tiles=2, most_m=4),
    )  # fmt: skip


def _variants(arch: str) -> list[dict[str, int]]:
    """DeepSeek-V3's, of one sequence and of 128."""
    c = Call(arch, ROWS[arch].cus, torch.device("cpu"),
             {"D": 7168, "R": 1536, "Q": 24576, "V": 16384}, {}, {})  # fmt: skip
    return [p.defines(m, c.cu_num) for m in (1, 128) for p in products(c)]


@compile_ops("mla_layer_decode", kernel="mla_layer_decode", variants=_variants)
def mla_layer_decode_kernel(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    other: Tensor | None,
    w_other: Tensor | None,
    angles: Tensor | None,
    positions: Tensor | None,
    lens: Tensor | None,
    table: Tensor | None,
    workspace: Tensor | None,
    counts: Tensor | None,
    m: u32,
    n: u32,
    n_other: u32,
    heads: u32,
    k: u32,
    x_row: u32,
    x_head: u32,
    w_first: u32,
    w_head: u32,
    out_row: u32,
    out_head: u32,
    start: u32,
    cache_rows: u32,
    width: u32,
) -> None:
    """csrc/mla_layer_decode.hip: the shapes stand there."""


class HipLayer(Kernel):
    name = "hip"
    module = "mla_layer_decode"
    more_modules = ("mla_decode_flow", "mla_decode_shared")
    error = 2.0**-6  # five roundings to bf16, and P

    def refuses(self, c: Call) -> str | None:
        if reason := self.refuses_arch(c):
            return reason
        if c.D % PIECE or c.R % PIECE:
            return f"D={c.D}, R={c.R}: no multiples of {PIECE}"
        rows = 8 * TILE
        if 2 * rows * max(c.D, c.R, c.V * LATENT // V) >= MAX_BYTES:
            return f"{rows} rows of an operand are beyond signed 32-bit offsets (2 GiB)"
        if c.B * c.L >= 2**31:
            return f"a cache of {c.B * c.L} rows, 2^31 or more"
        kernel, reason = attention_kernel(attention_call(c, page_of(c)), hip=True)
        return None if kernel is not None else f"its attention is not taken: {reason}"

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return products(c)[-1].defines(c.B, c.cu_num)

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(*sizes: int) -> Run:
            launches = _Launches(c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))))
            return with_workspace(launches.run, launches.workspace)

        return run_of


def page_of(c: Call) -> int:
    """The largest power of two of rows that a sequence's are a multiple of."""
    return c.L & -c.L if c.L else 1


class _Launches:
    """Of one call; what is between launches lies in the workspace."""

    def __init__(self, c: Call) -> None:
        all_of_it = [(p, p.defines(c.B, c.cu_num)) for p in products(c)]
        self.products = [self._launch(c, *pair) for pair in all_of_it]
        page = page_of(c)
        self.attention = attention(c, page, hip=True)
        heads, pages = c.V // V, c.L // page
        self.workspace = Workspace(
            c.device,
            (c.B, _I32),  # lens
            ((c.B, pages), _I32),  # table
            ((c.B, c.R), _BF16),  # q_lora
            ((c.B, heads, NOPE), _BF16),
            ((c.B, heads, CACHE_ROW), _BF16),  # q
            ((c.B, heads, LATENT), _BF16),  # what attention gives
            ((c.B, heads, V), _BF16),
            (max(_sums(p, c.B, defines) for p, defines in all_of_it), _F32),
            zeros=max(p.tiles(c.B) for p, _ in all_of_it),
            outer=True,
        )

    def _launch(self, c: Call, p: Product, defines: Mapping[str, int]) -> Run:
        bound = mla_layer_decode_kernel.bind(c.device, defines, c.arch)
        groups = p.tiles(c.B) * defines["SPLIT"]
        numbers = (c.B, p.n, p.n_other, p.heads, p.k, p.x_row, p.x_head, p.w_first, p.w_head,
                   p.out_row, p.out_head, c.start, c.L, c.L // page_of(c))  # fmt: skip
        run: Run = bound.prepare((THREADS, 1, 1), tuple(range(11)))((groups, 1, 1), numbers)
        return run

    def run(
        self, out: Tensor, x: Tensor, cache: Tensor, q_down: Tensor, q_up: Tensor, kv_down: Tensor,
        kv_up: Tensor, o: Tensor, angles: Tensor, positions: Tensor | None, lens: Tensor,
        table: Tensor, q_lora: Tensor, nope: Tensor, q: Tensor, seen: Tensor, value: Tensor,
        *sums: Tensor,
    ) -> None:  # fmt: skip
        down, query, absorb, values, last = self.products
        none = (None,) * 6
        down(q_lora, x, q_down, cache, kv_down, None, positions, lens, table, *sums)
        query(nope, q_lora, q_up, q, None, angles, positions, None, None, *sums)
        absorb(q, nope, kv_up, *none, *sums)
        self.attention(seen, q, cache, lens, table, lens, None, None, None, angles)
        values(value, seen, kv_up, *none, *sums)
        last(out, value, o, *none, *sums)


def _sums(p: Product, m: int, defines: Mapping[str, int]) -> int:
    """fp32 that workgroups leave for the last one."""
    split = defines["SPLIT"]
    if split == 1:
        return 0
    return p.tiles(m) * split * defines["M_TILES"] * WAVES * defines["N_TILES"] * TILE * TILE
