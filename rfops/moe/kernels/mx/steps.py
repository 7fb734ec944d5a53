"""The launches of fused_moe with MX weights, as steps on named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.dispatch.steps import Step
from rfops.dispatch.strided import matrix_strides
from rfops.jit.arch import ARCH_SPECS, WAVE

from ...fused_moe_mx import RAW, Format, scale_columns
from ..bf16.hip import IN_TYPES, XCDS, chosen, id_defines, num_rows
from ..pairs import sum_of_pairs
from . import signatures as kernels
from .config import (
    DeepDown,
    Down,
    ExpertTiles,
    MxMoeConfig,
    RegisterDown,
    StagedDown,
)

TILE = 16  # rows of an operand
TILES = 4  # operands of weights per wave
ELEMS_PER_LANE, STEP_BYTES, BLOCK = 8, 128, 32
PREPARE_THREADS, LANES_PER_TOKEN = 512, 4  # of moe_mx_prepare: per workgroup; to list a token


@dataclass(frozen=True)
class Product:
    """Gate and up, stage 1, or down, stage 2: [rows, k] by w [n, k]."""

    stage: int
    n: int
    k: int
    max_chunk: int  # K-steps of rows in LDS at a time, at most

    def steps(self, fmt: Format) -> int:
        """Return the number of K-steps."""
        return int(ceil(self.k, fmt.step))

    def chunk(self, fmt: Format) -> int:
        """K-steps of rows in LDS at a time."""
        fit = (c for c in (8, 4, 2, 1) if c <= self.max_chunk)
        return next(c for c in fit if self.steps(fmt) % c == 0)

    def columns(self, fmt: Format) -> int:
        """Columns of the result, in stage 1 with h's padding."""
        return int(ceil(self.n, fmt.step) * fmt.step) if self.stage == 1 else self.n

    def row_bytes(self, c: Call, fmt: Format) -> dict[str, int]:
        """The distances of rows of weights and of their scales."""
        return {
            "w_row": self.k * fmt.bits // 8,
            "w_scale_row": scale_columns(c.scale_layout, self.k),
        }


def gate_up_product(c: Call, config: MxMoeConfig) -> Product:
    """Return the first product of an expert: x by gate and up."""
    return Product(1, c.I, c.D, 1 if config.ring else 4)


def down_product(c: Call, config: MxMoeConfig) -> Product:
    """Return the second product of an expert: h by down."""
    return Product(2, c.D, c.I, 8 if isinstance(config.down, DeepDown) else 4)


# ---------------------------------------------------------------- the tensors between steps


def workspace(c: Call, fmt: Format) -> dict[str, Any]:
    """Return size and dtype of the buffers that all configs use: token lists and quantised x."""
    steps = int(ceil(c.D, fmt.step))
    return {
        "lists": (c.R * c.M, torch.int32),
        "offsets": (c.E + 1, torch.int32),
        "x_q": (c.M * steps * STEP_BYTES, torch.uint8),
        "x_scale": (c.M * steps * fmt.step // BLOCK, torch.uint8),
        "routed_weights": (c.M * c.K, torch.float32),
        "routed_ids": (c.M * c.K, torch.int32),
    }


def temporaries(c: Call, fmt: Format, config: MxMoeConfig) -> dict[str, Any]:
    """h, in tiles of one expert each where down needs it; and y, where down has a launch of its
    own."""
    steps, is_separate = int(ceil(c.I, fmt.step)), isinstance(config.down, ExpertTiles)
    rows = num_rows(c) if is_separate else num_rows(c) + (TILE - 1) * c.E
    buffers: dict[str, Any] = {
        "h_q": ((rows, steps * STEP_BYTES), torch.uint8),
        "h_scale": ((rows, steps * fmt.step // BLOCK), torch.uint8),
    }
    return {**buffers, "y": ((rows, c.D), c.x_dtype)} if is_separate else buffers


# ---------------------------------------------------------------- the steps


def prepare(c: Call, fmt: Format, config: MxMoeConfig) -> Step:
    """The tokens of each expert, and x quantized."""
    product = gate_up_product(c, config)
    lists, steps = ceil(c.M, PREPARE_THREADS // LANES_PER_TOKEN), product.steps(fmt)
    groups = lists + ceil(c.M * steps * fmt.step // ELEMS_PER_LANE, PREPARE_THREADS)
    defines = {
        "IN": IN_TYPES[c.x_dtype],
        **id_defines(c),
        "FORMAT": fmt.name,
        "BUMP": fmt.bumps[c.rounding],
        "CHUNK": product.chunk(fmt),
    }
    return Step(
        kernels.moe_mx_prepare_kernel,
        defines,
        PREPARE_THREADS,
        groups,
        {
            "topk_ids": chosen(c)["ids"],
            "m": c.M,
            "k": c.D,
            "x_row": matrix_strides(c, "x", c.D)[0],
            "steps": steps,
            "experts": c.R,
            "list_groups": lists,
            "q": "x_q",
            "scale": "x_scale",
        },
    )


def gate_up(c: Call, fmt: Format, config: MxMoeConfig) -> Step:
    """h = q(silu(x gate^T) * (x up^T)), of all experts' rows."""
    product, tiles = gate_up_product(c, config), config.gate_up
    tensors = {"x": "x_q", "w": "w1", "w_scale": "w1_scale", "out": "h_q", "out_scale": "h_scale"}
    if isinstance(tiles, ExpertTiles):
        return _expert_tiles(c, fmt, config, product, tiles, tensors)
    defines = {
        "HALF": IN_TYPES[c.x_dtype],
        "BUMP": fmt.bumps[c.rounding],
        "OUT_CHUNK": down_product(c, config).chunk(fmt),
        "TOP_K": c.K,
        "TILED_H": int(config.columns > 0),
        "N_WAVES": tiles.n_waves,
    }
    groups = _groups(c, fmt, product, tiles.m_tiles, tiles.n_waves, per_cu=1)
    return Step(
        kernels.moe_mx_gate_up_kernel,
        defines,
        tiles.waves * WAVE,
        groups,
        {**_sizes(c, fmt, config, product), **tensors, "groups": groups},
    )


def down(c: Call, fmt: Format, config: MxMoeConfig) -> list[Step]:
    """y = h down^T and the weighted sum of each token's rows: two steps or one."""
    product, kind = down_product(c, config), config.down
    if not isinstance(kind, ExpertTiles):
        return [_down_and_sum(c, fmt, config, product, kind)]
    tensors = {
        "x": "h_q",
        "x_scale": "h_scale",
        "w": "w2",
        "w_scale": "w2_scale",
        "out": "y",
        "out_scale": None,
    }
    return [_expert_tiles(c, fmt, config, product, kind, tensors), sum_of_pairs(c)]


def _expert_tiles(
    c: Call,
    fmt: Format,
    config: MxMoeConfig,
    product: Product,
    tiles: ExpertTiles,
    tensors: Mapping[str, str | None],
) -> Step:
    """A product by moe_mx_experts."""
    groups = _groups(c, fmt, product, tiles.m_tiles, tiles.n_waves, tiles.per_cu)
    return Step(
        kernels.moe_mx_experts_kernel,
        experts_defines(c, fmt, config, product, tiles),
        tiles.n_waves * tiles.k_waves * WAVE,
        groups,
        {**_sizes(c, fmt, config, product), **tensors, "groups": groups},
    )


def _sizes(c: Call, fmt: Format, config: MxMoeConfig, product: Product) -> dict[str, int]:
    return {
        "m": c.M,
        "routed": c.R,
        "experts": c.E,
        "n": product.n,
        "k": product.k,
        "out_steps": down_product(c, config).steps(fmt),
        **product.row_bytes(c, fmt),
    }


def _groups(c: Call, fmt: Format, product: Product, m_tiles: int, n_waves: int, per_cu: int) -> int:
    """Workgroups: as many as there are tiles, or as stay resident."""
    columns = n_waves * TILES * TILE // (2 if product.stage == 1 else 1)
    tiles = row_tiles(c, m_tiles * TILE) * ceil(product.columns(fmt), columns)
    # An XCD may have one more, as routed and shared experts are shared out each by themselves.
    return int(min(ARCH_SPECS[c.arch].cus * per_cu, (ceil(tiles, XCDS) + 1) * XCDS))


def experts_defines(
    c: Call, fmt: Format, config: MxMoeConfig, product: Product, tiles: ExpertTiles
) -> dict[str, Any]:
    """The constants of moe_mx_experts."""
    return {
        "HALF": IN_TYPES[c.x_dtype],
        "FORMAT": fmt.name,
        "BUMP": fmt.bumps[c.rounding],
        "M_TILES": tiles.m_tiles,
        "CHUNK": product.chunk(fmt),
        "OUT_CHUNK": down_product(c, config).chunk(fmt),
        "SHUFFLED": int(c.w_layout != RAW),
        "SHUFFLED_SCALES": int(c.scale_layout != RAW),
        "TAIL": int(product.k % fmt.step != 0),
        "EACH": ceil(c.E, WAVE),
        "TOP_K": c.K,
        "STAGE": product.stage,
        "N_WAVES": tiles.n_waves,
        "K_WAVES": tiles.k_waves,
        "TILED_H": int(config.columns > 0),
        "AHEAD": tiles.prefetch,
    }


def _down_and_sum(
    c: Call, fmt: Format, config: MxMoeConfig, product: Product, kind: RegisterDown | StagedDown
) -> Step:
    """Down and the sum in one kernel."""
    defines = {
        "HALF": IN_TYPES[c.x_dtype],
        **id_defines(c),
        "FORMAT": fmt.name,
        "TILES": kind.columns // TILE,
        "STEPS": product.steps(fmt),
        "WAVES": kind.waves,
        "CHUNK": product.chunk(fmt),
        "SHUFFLED": int(c.w_layout != RAW),
        "SHUFFLED_SCALES": int(c.scale_layout != RAW),
        "TAIL": int(product.k % fmt.step != 0),
        "EACH": ceil(c.E, WAVE),
    }
    waves = kind.waves
    if isinstance(kind, RegisterDown):
        kernel = kernels.moe_mx_down_kernel
        defines |= {"ROW_TILES": kind.row_tiles, "SHARED": c.E - c.R}
    else:  # a wave more loads weights
        kernel, waves = kernels.moe_mx_down_sums_kernel, waves + 1
        defines["SLOTS"] = kind.stages
        if isinstance(kind, DeepDown):
            kernel = kernels.moe_mx_down_deep_kernel
            defines["ROW_TILES"] = kind.row_tiles
    sizes = {"m": c.M, "routed": c.R, "experts": c.E, "n": product.n, "k": product.k}
    return Step(
        kernel,
        defines,
        waves * WAVE,
        ceil(product.n // kind.columns, XCDS) * XCDS,
        {
            "rows_of": "offsets",
            **chosen(c),
            "h": "h_q",
            "w": "w2",
            "w_scale": "w2_scale",
            **sizes,
            **product.row_bytes(c, fmt),
        },
        lds_bytes(c, fmt, config, kind),
    )


# ---------------------------------------------------------------- what a workgroup needs


def row_tiles(c: Call, height: int) -> int:
    """The tiles of rows of all experts, at most."""
    routed, num_shared = c.M * c.K, c.E - c.R
    return int(routed // height + min(routed, c.E) + num_shared * ceil(c.M, height))


def lds_parts(c: Call, fmt: Format, config: MxMoeConfig, kind: Down) -> tuple[int, int]:
    """The dynamic LDS of a workgroup of down and sum in one kernel: bytes for any number of tokens
    except for its tile table, and bytes per token."""
    assert not isinstance(kind, ExpertTiles)
    if isinstance(kind, RegisterDown):
        staging = kind.waves * TILE * STEP_BYTES if c.w_layout == RAW else 0
        return staging, (c.K + c.E - c.R) * kind.columns * 2
    tiles, steps = kind.columns // TILE, min(2, down_product(c, config).chunk(fmt))
    scale_words = ceil(tiles, 2) if c.scale_layout != RAW else tiles * fmt.step // BLOCK // 4
    stage = steps * (tiles * TILE * STEP_BYTES + scale_words * WAVE * 4)
    unread = WAVE * 4 if isinstance(kind, DeepDown) else 0
    return int(kind.stages * stage + unread), (kind.columns + c.K) * 4


def rows_at_once(kind: RegisterDown | StagedDown) -> int:
    """The rows of an expert in an entry of the tile table."""
    waves = 1 if isinstance(kind, RegisterDown) else kind.waves
    return waves * kind.row_tiles * TILE


def lds_bytes(c: Call, fmt: Format, config: MxMoeConfig, kind: Down) -> int:
    """The dynamic LDS of a workgroup of down and sum in one kernel."""
    assert not isinstance(kind, ExpertTiles)
    fixed, token = lds_parts(c, fmt, config, kind)
    return int(fixed + ceil(c.M * token, 16) * 16 + (row_tiles(c, rows_at_once(kind)) + 1) * 16)
