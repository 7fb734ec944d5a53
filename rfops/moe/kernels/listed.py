"""fused_moe for experts of few rows by HIP, of 16-bit or FP8 weights, each read once.

(router   each token's experts, two launches            rfops/moe/router.py)
quantise  x, of FP8 weights, where `up` does not        csrc/quantization/quant_fp8_blockscale.hip
up        gate, up and SiLU of each expert's rows       csrc/moe/moe_listed.hip
up        FP8, up to 16 tokens: these two in one        csrc/moe/moe_fp8_stream_up_tile.hip
quantise  h, of FP8 weights, where `down` does not      csrc/quantization/quant_fp8_blockscale.hip
down      down of them                                  csrc/moe/moe_listed.hip
add       each token's rows, in a fixed order           csrc/moe/moe_add_pairs.hip
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call, Run
from rfops.dispatch.steps import Step, run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.jit import compile_ops, u32

from .. import router
from ..terms import FEW_ROWS, MANY_PASS_TILES, Traits, pass_tiles
from .bf16.hip import IN_TYPES, XCDS, HipMoeFixed, chosen, id_defines, num_rows
from .fp8.hip import quantise, quantized
from .fp8.stream import TILE, hits, up_tile
from .pairs import sum_of_pairs

MAX_TOKENS = 512
THREADS, WAVES = 256, 4  # of a workgroup; a thread finds the experts of each 256th token
LINE, FEW_LINES = 128, 4  # bytes of K; lines up to which a load has two
PASS_LINES, MANY_PASS_LINES = 4, 2  # that a load of weights brings, where passes have many tiles
_ONE = Columns([None])  # it has no variants
# Rows of an expert on average up to which `up` quantises x of shuffled weights, whose loads leave
# registers for it. Timing mode, MI355X: 2 rows, 7168 x 256: 133.2 us instead of 133.6 and a launch
# of 3.6; 4 rows, 2048 x 768: 68.2, 66.8 and 3.3; 9.6 rows, 5120 x 384: 116.5, 106.4 and 3.9.
MAX_RAW_ROWS = 5
MAX_SHORT_I = 1024  # on gfx942, of experts of shuffled weights that one tile loads by two lines
UP_COLUMNS, STRIP = 16, 32  # columns of a workgroup of `up`; of a wave of `down` at a time
# Of x that stays in an L2 beside weights: half of it. Where x is more, and all experts have about
# as many rows, the workgroups of an expert in `up` are of one XCD.
L2_X_BYTES = 2 << 20
_USED_CUS = 0.8  # of all, where an expert's strips could be spread over more workgroups of `down`
GROUPS_PER_CU = 8  # of `down`, about, of all experts that may have a row


@compile_ops(
    "moe_listed",
    kernel="moe_listed",
    variants=lambda _arch: [
        {
            **{"IN": "bf16", "ID": "i32", "STAGE": stage, "FP8": is_fp8, "TOP_K": 8, "ROUNDS": 1},
            **{"TILES": 1, "LINES": 4, "SHUFFLED": 0},
            **{"H_BLOCKS": 0, "H_BY_TOKEN": 0, "BY_XCD": 0, "RAW_X": 0},
        }
        for stage in (1, 2)
        for is_fp8 in (0, 1)
    ],
)
def moe_listed_kernel(
    topk_ids: Tensor,
    m: u32,
    routed: u32,
    shared: u32,
    w: Tensor,
    n: u32,
    k_bytes: u32,
    x: Tensor,
    in_row: u32,
    w_scale: Tensor | None,
    x_scale: Tensor | None,
    out: Tensor,
    strips: u32,
) -> None:
    """csrc/moe/moe_listed.hip: the shapes stand there."""


class HipListed(HipMoeFixed):
    """Finds an expert's rows in each of its workgroups, which have a few columns of it each."""

    name = "listed"
    module = "moe_listed"
    more_modules: ClassVar[tuple[str, ...]] = ("moe_add_pairs",)  # and the router's

    @property
    def is_fp8(self) -> bool:
        return self.weight_bits == 8

    def space(self, c: Call) -> Columns[Any] | None:
        elements = LINE * 8 // self.weight_bits
        fits = c.D % elements == c.I % elements == 0
        return _ONE if fits and not self.unsupported_arch_reason(c) else None

    def full_space(self, c: Call) -> Columns[Any] | None:  # type: ignore[override]
        return self.space(c)

    def family(self, _config: Any, _c: Call) -> str:
        return ""

    def traits(self, _config: Any, _c: Call) -> tuple[float, ...]:
        return Traits(rows=TILE * MANY_PASS_TILES, max_tokens=MAX_TOKENS, is_listed=1.0)

    def unsupported_reason(self, c: Call) -> str | None:
        if c.M > MAX_TOKENS:
            return f"{c.M} tokens: it takes up to {MAX_TOKENS}"
        elements = LINE * 8 // self.weight_bits
        if c.D % elements or c.I % elements:
            return f"D={c.D}, I={c.I}: no multiples of {elements}"
        if self.is_fp8 and c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        if reason := super().unsupported_reason(c):
            return reason
        if num_rows(c) * max(c.I * self.weight_bits // 8, 2 * c.I) >= MAX_BYTES:
            return "h is beyond signed 32-bit offsets (2 GiB)"
        return None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return self._step_defines(c, 1, c.D)

    def launches(self, c: Call, config: Any) -> Run:
        routes, of_router = router.steps(c, c.R, chosen(c))
        return run_steps(
            c.device,
            self.arguments,
            [*routes, *self.products(c), sum_of_pairs(c)],
            arch=c.arch,
            workspace={
                "routed_weights": (c.M * c.K, torch.float32),
                "routed_ids": (c.M * c.K, torch.int32),
                **hits(c),
                **of_router,
            },
            outer=bool(routes),
            temporaries={
                **self.quantised(c),
                "h": ((num_rows(c), c.I), c.x_dtype),
                "y": ((num_rows(c), c.D), c.x_dtype),
            },
        )

    def products(self, c: Call) -> list[Step]:
        """h and y of all experts' rows."""
        x_stride_bytes = 2 * matrix_strides(c, "x", c.D)[0]
        return [self.up(c, "x", x_stride_bytes), self.down(c, "h")]

    def quantised(self, c: Call) -> dict[str, Any]:
        """Operands in FP8 and their scales."""
        return {}

    def tiles(self, c: Call) -> tuple[int, int]:
        """Tiles of 16 rows that a pass over an expert's weights has, and cache lines of a row that
        a load of weights brings: many rows leave registers for few lines."""
        tiles = pass_tiles(c)
        return tiles, MANY_PASS_LINES if tiles == MANY_PASS_TILES else PASS_LINES

    def raw_blocks(self, c: Call) -> int:
        """Blocks of K of h that `down` quantises; 0: it does not."""
        return 0

    def quantises_x(self, c: Call) -> bool:
        """Whether `up` quantises x, for each of its workgroups again."""
        return False

    def min_strips(self, c: Call) -> int:
        """Strips of a wave of `down` at least."""
        return 1

    def up(self, c: Call, x: str, x_stride_bytes: int) -> Step:
        by_xcd = not _has_few_rows(c) and self._bytes(c.M * c.D) > L2_X_BYTES
        slots = ceil(self._num_slots(c), XCDS) * XCDS if by_xcd else self._num_slots(c)
        sizes = {"n": c.I, "k_bytes": self._bytes(c.D), "in_row": x_stride_bytes, "strips": 0}
        defines = {**self._step_defines(c, 1, c.D), "BY_XCD": int(by_xcd)}
        return self._step(c, defines, (ceil(c.I, UP_COLUMNS), slots), x, "w1", "h", sizes)

    def down(self, c: Call, h: str, h_by_token: bool = False) -> Step:
        all_strips = ceil(c.D, WAVES * STRIP)
        strips = self.strips(c, all_strips)
        row = self._bytes(c.I)
        sizes = {"n": c.D, "k_bytes": row, "in_row": row, "strips": strips}
        defines = {**self._step_defines(c, 2, c.I), "H_BY_TOKEN": int(h_by_token)}
        grid = ceil(all_strips, strips), self._num_slots(c)
        return self._step(c, defines, grid, h, "w2", "y", sizes)

    def strips(self, c: Call, all_strips: int) -> int:
        """Strips of a wave of `down`, of `all_strips` that an expert has for each wave.

        All workgroups have as many where that is possible: workgroups go to XCDs in turn, so that
        one with fewer is of the same XCDs for all experts, and the others take longer. Timing mode,
        MI300X: 192 tokens, 160 experts of 5120 x 384: three strips, for the last workgroup one,
        88.1 us, four 75.7; 512 tokens, 384 experts of 7168 x 256: ten, for the last six, 189.8 us,
        seven 164.1 to 169.3."""
        max_groups = max(1, GROUPS_PER_CU * c.cu_num // self._num_slots(c))
        fewest = max(self.min_strips(c), ceil(all_strips, max_groups))
        if all_strips % fewest == 0:
            return fewest
        # As long as each XCD has a workgroup; fewer strips than `fewest`, but more than half, where
        # no larger number is left.
        equal = [s for s in range(fewest // 2 + 1, all_strips // XCDS + 1) if all_strips % s == 0]
        return next((s for s in equal if s > fewest), max(equal, default=fewest))

    def _step(
        self,
        c: Call,
        defines: Mapping[str, Any],
        grid: tuple[int, int],
        x: str,
        w: str,
        out: str,
        sizes: Mapping[str, int],
    ) -> Step:
        """Columns of `out`: a workgroup has some, of an expert that may have a row."""
        arguments = {
            "topk_ids": chosen(c)["ids"],
            "x": x,
            "w": w,
            "out": out,
            "w_scale": f"{w}_scale" if self.is_fp8 else None,
            "x_scale": f"{x.removesuffix('_q')}_scale" if x.endswith("_q") else None,
        }
        experts = {"m": c.M, "routed": c.R, "shared": c.E - c.R}
        return Step(
            moe_listed_kernel, defines, THREADS, (*grid, 1), {**arguments, **experts, **sizes}
        )

    def _bytes(self, elements: int) -> int:
        return elements * self.weight_bits // 8

    def _num_slots(self, c: Call) -> int:
        """Passes over shared experts, and experts that may have a row, as many as there can be."""
        passes = ceil(c.M, TILE * self.tiles(c)[0])
        return int((c.E - c.R) * passes + min(c.R, c.M * c.K))

    def _step_defines(self, c: Call, stage: int, k: int) -> dict[str, Any]:
        tiles, lines = self.tiles(c)
        blocks = self.raw_blocks(c) if stage == 2 else 0
        return {
            "IN": IN_TYPES[c.x_dtype],
            **id_defines(c),
            "STAGE": stage,
            "FP8": int(self.is_fp8),
            "ROUNDS": ceil(c.M, THREADS),
            "TILES": tiles,
            "LINES": 2 if blocks or self._bytes(k) <= FEW_LINES * LINE else lines,
            "SHUFFLED": int(c.values.get("w_layout", "raw") != "raw"),
            **{"H_BLOCKS": blocks, "H_BY_TOKEN": 0, "BY_XCD": 0},
            "RAW_X": int(stage == 1 and self.quantises_x(c)),
        }


def _has_few_rows(c: Call) -> bool:
    return bool(c.M * c.K <= FEW_ROWS * c.R)


class HipFp8Listed(HipListed):
    """The same of FP8 weights. x is quantised by a launch of its own, or by `up` for few tokens and
    for few rows of an expert; h by `down`, for each of its workgroups again, where its rows fit
    beside weights in LDS."""

    more_modules: ClassVar[tuple[str, ...]] = (*HipListed.more_modules, "moe_fp8_stream_up_tile")
    weight_bits = 8
    # Tiles of 16 rows by 128 of h, that leave a CU two workgroups on gfx942, three on gfx950.
    max_h_tiles: ClassVar[Mapping[str, int]] = {"gfx942": 7, "gfx950": 12}
    # Strips of a wave of `down` of several tiles. Timing mode, two and four: 256 tokens, 128
    # experts of 2048 x 384: MI355X 72.7 us, 70.2, MI300X 96.9, 102.0; 128 tokens, 64 of
    # 4096 x 384: MI355X 71.0, 69.1, MI300X 100.2, 98.7.
    min_tall_strips: ClassVar[Mapping[str, int]] = {"gfx942": 2, "gfx950": 4}

    def products(self, c: Call) -> list[Step]:
        quantises_h = self.raw_blocks(c) > 0
        if quantises_h and c.M <= TILE:
            return [up_tile(c), self.down(c, "h", h_by_token=True)]
        quantise_h = [] if quantises_h else [quantise(c, "h", num_rows(c), c.I)]
        if self.quantises_x(c):
            up = [self.up(c, "x", 2 * c.D)]
        else:
            up = [quantise(c, "x", c.M, c.D), self.up(c, "x_q", c.D)]
        return [
            *up,
            *quantise_h,
            self.down(c, "h" if quantises_h else "h_q"),
        ]

    def quantised(self, c: Call) -> dict[str, Any]:
        return {
            **quantized("x", c.M, c.D, c.w1_dtype),
            **quantized("h", num_rows(c), c.I, c.w1_dtype),
        }

    def tiles(self, c: Call) -> tuple[int, int]:
        # Lines are for rows of HBM, which shuffled weights open as few of with two; a CU has more
        # waves then (timing mode, 64 tokens, 256 experts of 7168 x 256: MI355X 212.9 us with four,
        # 212.1 with two; MI300X 300.1, 297.2; but 24 tokens, 64 of 7168 x 2048, 596 and 626).
        tiles, lines = super().tiles(c)
        is_short = c.arch != "gfx942" or c.I <= MAX_SHORT_I
        return tiles, 2 if c.w_layout != "raw" and (tiles > 1 or is_short) else lines

    def quantises_x(self, c: Call) -> bool:
        is_few = c.M * c.K <= MAX_RAW_ROWS * c.R
        return bool(is_few) and c.w_layout != "raw" and self.tiles(c)[1] == 2

    def min_strips(self, c: Call) -> int:
        # Of one strip a workgroup reads as many bytes of h as a quarter or half of its weights.
        strips = self.min_tall_strips[c.arch] if self.tiles(c)[0] > 1 else 1
        # But few CUs are to be without one. Timing mode, 64 tokens, 8 experts of 4096 x 1792:
        # MI355X, 64 workgroups of four strips 74.8 us, 256 of one 52.0; MI300X, 128 of two 72.1,
        # 256 of one 66.8; but 60 tokens, 32 of 2048 x 256, 256 of two 30.6, 512 of one 32.1.
        all_strips = ceil(c.D, WAVES * STRIP) * self._num_slots(c)
        while strips > 1 and all_strips < _USED_CUS * strips * c.cu_num:
            strips //= 2
        return strips

    def raw_blocks(self, c: Call) -> int:
        tiles, blocks = self.tiles(c)[0], c.I // LINE
        used_blocks = blocks if tiles == 1 else ceil(blocks, 2) * 2
        return blocks if tiles * used_blocks <= self.max_h_tiles[c.arch] else 0
