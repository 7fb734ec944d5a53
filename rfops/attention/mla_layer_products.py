"""The HIP kernels of mla_layer_decode: their parameters, and a product's constants and grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS

from .mla_layer_parts import CACHE_ROW, LATENT, NOPE, ROPE, V

DOWN, VALUE = range(2)  # stages of csrc/attention/mla_layer_decode.hip
OUT, OUT_WIDE, DOWN_WIDE = range(2, 5)  # kernels of their own
BY_WAVES = (OUT_WIDE, DOWN_WIDE)  # half of whose waves fetch, and whose sums meet wave by wave
TILE, PIECE, STEP = 16, 32, 128  # rows of an operand, K of one and of a step
WAVES, THREADS = 4, 256
QUERY_WIDE = {"M_TILES": 4, "SPLIT": 1}  # of a kernel of its own
FEW_ROWS = 32  # of x: of more, waves of their own fetch weights
WIDE_ROWS = 128  # of x, of a workgroup of OUT_WIDE
MOST_SPLIT = 8  # more sums to add than CUs bring: down of MI300X 22.2 us by 9, 19.4 by 7


def _m_tiles(m: int, max_tiles: int) -> int:
    """Return how many tiles of 16 rows of x a workgroup has for `m` rows: a power of two."""
    return min(max_tiles, 1 << (ceil(max(m, 1), TILE) - 1).bit_length())


@dataclass(frozen=True)
class Product:
    """A launch of a product: sizes, and how its operands lie."""

    stage: int
    n: int
    k: int
    columns: int  # of a workgroup
    x_row: int = 0
    heads: int = 1
    x_head: int = 0
    w_first: int = 0
    w_head: int = 0
    n_other: int = 0
    most_m: int = 8  # tiles of 16 rows of x
    chunk: int = 1  # steps of K of a chunk, of OUT_WIDE

    def tiles(self, m: int) -> int:
        """Return the number of workgroups for `m` rows of x where K is not split."""
        along_n = ceil(self.n, self.columns) + ceil(self.n_other, self.columns)
        return ceil(m, _m_tiles(m, self.most_m) * TILE) * along_n * self.heads

    def defines(self, m: int, cus: int) -> dict[str, int]:
        """Return the kernel's defines for `m` rows of x on `cus` CUs. K is split for as many
        workgroups as there are CUs; a split has at least two K-steps, or one chunk where K is cut
        into chunks (OUT: a step per wave, OUT_WIDE: `chunk` steps)."""
        steps = {OUT: WAVES, OUT_WIDE: self.chunk}.get(self.stage, 1)  # of a chunk
        k_chunks, min_steps = ceil(self.k, STEP * steps), 1 if self.stage in (OUT, OUT_WIDE) else 2
        split = max(1, min(cus // self.tiles(m), k_chunks // min_steps, MOST_SPLIT))
        defines = {
            "M_TILES": _m_tiles(m, self.most_m),
            "SPLIT": ceil(k_chunks, ceil(k_chunks, split)),
        }
        if self.stage == DOWN_WIDE:
            return {"SPLIT": defines["SPLIT"], "N_TILES": self.columns // TILE}
        if self.stage == OUT_WIDE:
            return {**defines, "N_TILES": self.columns // TILE, "STEPS": self.chunk}
        if self.stage == OUT:
            return {**defines, "N_TILES": self.columns // TILE}
        return {**defines, "N_TILES": self.columns // (TILE * WAVES), "STAGE": self.stage}

    def groups(self, m: int, cus: int) -> int:
        """Return the number of workgroups for M = `m` on `cus` CUs, splits of K included."""
        return self.tiles(m) * self.defines(m, cus)["SPLIT"]

    def sums(self, m: int, split: int) -> int:
        """Return the fp32 elements of the workspace for partials, 0 where K is not split."""
        of_tile = max(_m_tiles(m, self.most_m) * TILE * self.columns, WAVES * TILE * TILE)
        return self.tiles(m) * split * of_tile if split > 1 else 0


def products(c: Call) -> tuple[Product, ...]:
    """Return the layer's products in launch order: down, value, out."""
    heads = c.V // V
    up = (NOPE + V) * LATENT  # of a head
    return (
        down_product(c),
        Product(VALUE, V, LATENT, 64, heads * LATENT, heads, LATENT, NOPE * LATENT, up),
        out_product(c),
    )


def _busiest(c: Call, product: Product, *alternatives: Product) -> Product:
    """Return `product`, or an alternative that has over a tenth more workgroups than it."""
    best = product
    for p in alternatives:
        if p.groups(c.B, c.cu_num) > 1.1 * best.groups(c.B, c.cu_num):
            best = p
    return best


def down_product(c: Call) -> Product:
    """Return the product by q_down and kv_down: a workgroup has up to 64 rows of x, and splits of K
    are reduced by the last to arrive. Workgroups that read the same rows of w share an L2
    (estimated, MI300X: 21.5 -> 16.8 us). Estimated, MI355X: 128 sequences 13.6 us with 96 columns
    per workgroup, 14.7 with 64; 256 sequences 20.7 with 128."""
    stage, widths = DOWN, [64, 128]
    if c.B > FEW_ROWS:  # two buffers of x and w
        room = ARCH_SPECS[c.arch].lds_bytes // (4 * STEP) - 64
        stage, widths = DOWN_WIDE, [n for n in (64, 96, 128) if n <= room]
    variants = (Product(stage, c.R, c.D, n, c.D, n_other=CACHE_ROW, most_m=4) for n in widths)
    return _busiest(c, *variants)


def out_product(c: Call) -> Product:
    """Return the product by o. For DeepSeek-V3 48 columns per workgroup and two splits occupy 300
    CUs of MI300X, 64 columns and two splits 224 of MI355X (estimated 49 us; 112 columns and
    four splits 52 us). With more rows x bounds the time, and wide tiles read it less often."""
    if c.B <= FEW_ROWS:
        return Product(OUT, c.D, c.V, 64)
    widths = (48, 64) if c.B <= WIDE_ROWS else (96, 112)
    lds = ARCH_SPECS[c.arch].lds_bytes
    variants = (
        Product(OUT_WIDE, c.D, c.V, n, chunk=2 if 4 * n * 2 * STEP <= lds else 1) for n in widths
    )
    return _busiest(c, *variants)


def query_defines(m: int, heads: int, k: int, cus: int) -> Mapping[str, int]:
    """Return the defines of the query product: a workgroup has one head and up to 64 rows of x. K
    is split, into at least two steps each, where heads alone occupy at most a quarter of the CUs:
    estimated, MI300X, one sequence: 16 heads 19.2 -> 11.5 us (128 heads would be 29.8 -> 30.5).
    QUERY_WIDE has more loads in flight: where no two workgroups read the same weights, a third of
    the CUs suffice (64 sequences 31.3 us, by all CUs 32.6)."""
    tiles = _m_tiles(m, 4)
    while tiles > 1:
        groups = query_groups(m, heads, tiles)
        if (3 if tiles == 4 and groups == heads else 2) * groups > cus:
            break
        tiles //= 2
    if tiles == 4:
        return QUERY_WIDE
    k_chunks = ceil(k, 2 * STEP)
    split = (
        min(cus // query_groups(m, heads, tiles), k_chunks, MOST_SPLIT) if 4 * heads <= cus else 1
    )
    return {"M_TILES": tiles, "SPLIT": ceil(k_chunks, ceil(k_chunks, max(1, split)))}


def query_groups(m: int, heads: int, tiles: int) -> int:
    """Return the number of workgroups of the query product where K is not split."""
    return heads * ceil(m, tiles * TILE)


def query_sums(m: int, heads: int, defines: Mapping[str, int]) -> int:
    """Return the fp32 elements of the query product's workspace, 0 where K is not split."""
    tiles, split = defines["M_TILES"], defines["SPLIT"]
    of_tile = tiles * TILE * (NOPE + ROPE)
    return query_groups(m, heads, tiles) * split * of_tile if split > 1 else 0


def _defines(arch: str) -> list[list[dict[str, int]]]:
    """Return the defines of DeepSeek-V3's products for one sequence and for 128."""
    defines = []
    for m in (1, 128):
        c = Call(
            arch,
            ARCH_SPECS[arch].cus,
            torch.device("cpu"),
            {"B": m, "D": 7168, "R": 1536, "Q": 24576, "V": 16384},
            {},
            {},
        )
        defines.append([p.defines(m, c.cu_num) for p in products(c)])
    return defines


@compile_ops(
    "mla_layer_decode",
    kernel="mla_layer_decode",
    variants=lambda arch: [*_defines(arch)[0][:2], _defines(arch)[1][1]],
)
def mla_layer_decode_kernel(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    cache: Tensor | None,
    w_other: Tensor | None,
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
    start: u32,
    cache_rows: u32,
    width: u32,
) -> None:
    """csrc/attention/mla_layer_decode.hip: the shapes stand there."""


@compile_ops(
    "mla_layer_decode_down",
    kernel="mla_layer_decode_down",
    variants=lambda arch: [_defines(arch)[1][0]],
)
def mla_layer_decode_down(
    x: Tensor,
    w: Tensor,
    w_other: Tensor,
    m: u32,
    n: u32,
    n_other: u32,
    k: u32,
    x_row: u32,
    out: Tensor,
    cache: Tensor,
    positions: Tensor | None,
    lens: Tensor,
    table: Tensor,
    workspace: Tensor | None,
    counts: Tensor | None,
    start: u32,
    cache_rows: u32,
    width: u32,
) -> None:
    """csrc/attention/mla_layer_decode_down.hip: the shapes stand there."""


@compile_ops(
    "mla_layer_decode_query",
    kernel="mla_layer_decode_query",
    variants=lambda arch: [query_defines(m, 128, 1536, ARCH_SPECS[arch].cus) for m in (1, 32)],
)
def mla_layer_decode_query(
    q: Tensor,
    q_lora: Tensor,
    q_up: Tensor,
    kv_up: Tensor,
    angles: Tensor,
    positions: Tensor | None,
    workspace: Tensor | None,
    counts: Tensor | None,
    m: u32,
    heads: u32,
    k: u32,
    start: u32,
    length: u32,
) -> None:
    """csrc/attention/mla_layer_decode_query.hip: the shapes stand there."""


@compile_ops("mla_layer_decode_query_wide", kernel="mla_layer_decode_query_wide")
def mla_layer_decode_query_wide(
    q_lora: Tensor,
    q_up: Tensor,
    kv_up: Tensor,
    m: u32,
    heads: u32,
    k: u32,
    start: u32,
    q: Tensor,
    angles: Tensor,
    positions: Tensor | None,
    length: u32,
) -> None:
    """csrc/attention/mla_layer_decode_query_wide.hip: the shapes stand there."""


def _product_arguments(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    workspace: Tensor | None,
    counts: Tensor | None,
    m: u32,
    n: u32,
    k: u32,
) -> None:
    """csrc/attention/mla_layer_decode_out.hip and mla_layer_decode_wide.hip document the shapes."""


mla_layer_decode_out = compile_ops(
    "mla_layer_decode_out",
    kernel="mla_layer_decode_out",
    variants=lambda arch: [_defines(arch)[0][2]],
)(_product_arguments)
mla_layer_decode_wide = compile_ops(
    "mla_layer_decode_wide",
    kernel="mla_layer_decode_wide",
    variants=lambda arch: [_defines(arch)[1][2]],
)(_product_arguments)
