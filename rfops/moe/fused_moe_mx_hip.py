"""fused_moe with MXFP4 or MX-FP8 weights by HIP: four launches, or three where rows of down fit in
LDS; one more where a router chooses.

prepare   tokens of each expert, and x quantised   csrc/moe/moe_mx_prepare.hip
experts   gate, up, SiLU, h quantised              csrc/moe/moe_mx_experts.hip, of many rows
                                                   an expert csrc/moe/moe_mx_gate_up.hip
experts   down                                     csrc/moe/moe_mx_experts.hip
add       each token's rows, in a fixed order      csrc/moe/moe_add_pairs.hip
down      in place of the last two                 csrc/moe/moe_mx_down.hip, for more tokens
                                                   csrc/moe/moe_mx_down_sums.hip, where h is
                                                   beyond L2 csrc/moe/moe_mx_down_deep.hip
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import MAX_BYTES, check_config_ints
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.strided import matrix_strides
from rfops.dispatch.workspace import Workspace
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ROWS, WAVE

from . import router
from .choosing import refuses_choosing
from .fused_moe_hip import (
    ADD_COLUMNS,
    ID_TYPES,
    IN_TYPES,
    MOST_CHOSEN,
    MOST_EXPERTS,
    MOST_SHARED,
    VEC,
    XCDS,
    _bind,
    refuses_lists,
)  # fmt: skip
from .fused_moe_mx import MXFP4, RAW, Format, scale_columns

TILE, TILES = 16, 4  # rows of an operand; operands of weights of a wave
EIGHTS, STEP_BYTES, BLOCK = 8, 128, 32
# lanes of csrc/moe/moe_mx_prepare.hip: of a workgroup, and a token's lists
PREPARES, OF_TOKEN = 512, 4
MAX_M_TILES, MAX_WAVES, MAX_PER_CU = 8, 8, 8
MORE_M_TILES = 9  # of MXFP4 in 1024s of K: what fits in LDS
FEW_TOKENS = 16
RING_TILES, RING_WAVES = 9, 10  # of moe_mx_gate_up: tiles of rows; waves, two of which load
# Of moe_mx_down by its waves: tiles of weights and of rows times steps, twice in registers.
MAX_HELD = {4: 24, 8: 11, 16: 4}
# When moe_mx_down_sums is quicker than down and add: by 37 % with 140 rows of an expert and 2 steps
# of h, by 16 % with 4; slower by 30 % with 8 of them, and by 26 % with 62 rows (estimated, MI355X).
# moe_mx_down_deep is quicker by 18 % with 8 steps, and as quick as these with 70 rows.
MOST_SUM_STEPS, MOST_DEEP_STEPS, FEWEST_SUM_ROWS = 4, 8, 100
# Of moe_mx_down_sums and moe_mx_down_deep: waves that multiply; weights in LDS.
SUM_WAVES, DEEP_WAVES, SLOTS = range(2, 16), range(2, 8), range(3, 6)


@dataclass(frozen=True)
class MxMoeConfig:
    """A variant of csrc/moe/moe_mx_experts.hip; its head comment says what each means."""

    m_tiles: int  # tiles of 16 rows of an expert, of a workgroup
    up_n: int  # waves side by side along the columns of gate and up
    up_k: int  # waves that share out K there
    down_n: int  # the same of down
    down_k: int
    per_cu: int = 2  # workgroups of a CU, at most
    columns: int = 0  # of a workgroup of csrc/moe/moe_mx_down.hip, of down_n waves; 0: not by it
    rows: int = 1  # tiles of 16 rows that a wave of it multiplies at a time
    ahead: int = 1  # steps of weights of gate and up on their way
    # Of weights in LDS, of csrc/moe/moe_mx_down_sums.hip, with rows=2 of moe_mx_down_deep.hip;
    # 0: by neither.
    slots: int = 0
    ring: int = 0  # 1: gate and up by csrc/moe/moe_mx_gate_up.hip, of many rows an expert

    def __post_init__(self) -> None:
        check_config_ints(self)
        for name in ("m_tiles", "up_n", "up_k", "down_n", "down_k"):
            value = getattr(self, name)
            is_more = (name, value) in (("m_tiles", MORE_M_TILES), ("up_n", 3))
            if (value < 1 or value & (value - 1)) and not (
                is_more or (self.slots and name == "down_n")
            ):
                raise ValueError(f"{self}: {name} must be a power of two")
        if self.m_tiles > MORE_M_TILES or not 1 <= self.per_cu <= MAX_PER_CU:
            raise ValueError(f"{self}: m_tiles is 1 to {MORE_M_TILES}, per_cu 1 to {MAX_PER_CU}")
        pairs = ((self.up_n, self.up_k), (self.down_n, self.down_k))
        for n, k in pairs[:1] if self.columns else pairs:
            if n * k > MAX_WAVES or k > 4:
                raise ValueError(f"{self}: n * k is 1 to {MAX_WAVES} waves, of k 1 to 4")
            if self.m_tiles >= MAX_M_TILES and n * k > 4:
                raise ValueError(f"{self}: sums of m_tiles=8 fit the registers of 4 waves alone")
            if k > 1 and self.m_tiles > 2:
                raise ValueError(f"{self}: waves share out K with m_tiles of 1 and 2 alone")
        if self.columns not in (0, TILE, 2 * TILE) or self.rows not in (1, 2, 4):
            raise ValueError(f"{self}: columns are 0, 16 or 32, rows 1, 2 or 4")
        if (self.m_tiles == MORE_M_TILES or self.up_n == 3) and not (
            self.columns and self.ahead > 1
        ):
            raise ValueError(f"{self}: m_tiles=9 and up_n=3 are with columns and ahead=3 alone")
        if self.ahead not in (1, 3) or (self.ahead > 1 and self.up_n * self.up_k > 4):
            raise ValueError(f"{self}: ahead is 1, or 3 with up to 4 waves of gate and up")
        if self.slots and (self.slots not in SLOTS or not self.columns or self.rows > 2):
            raise ValueError(f"{self}: slots are 0, or 3 to 5 with columns and rows of 1 or 2")
        if self.ring not in (0, 1) or (
            self.ring and (self.up_n, self.up_k, self.ahead) != (4, 1, 1)
        ):
            raise ValueError(f"{self}: ring is 0, or 1 with up_n=4, up_k=1 and ahead=1")
        waves, known = (SUM_WAVES, "2 to 15") if self.slots else (MAX_HELD, "4, 8 or 16")
        if self.is_deep:
            waves, known = DEEP_WAVES, "2 to 7"
        if self.columns and (self.down_k > 1 or self.down_n not in waves):
            with_ = "slots" if self.slots else "columns"
            raise ValueError(f"{self}: with {with_} down_n is {known}, and down_k 1")

    @property
    def is_deep(self) -> bool:
        """Down by csrc/moe/moe_mx_down_deep.hip."""
        return self.slots > 0 and self.rows > 1


@dataclass(frozen=True)
class Stage:
    """One of the two products: [rows, k] by w [n, k]."""

    number: int
    n: int
    k: int
    n_waves: int
    k_waves: int
    most_chunk: int = 4  # steps of rows in LDS at a time, at most

    def steps(self, fmt: Format) -> int:
        return int(ceil(self.k, fmt.step))

    def chunk(self, fmt: Format, m_tiles: int) -> int:
        """Steps of rows in LDS at a time."""
        fit = (c for c in (8, 4, 2, 1) if c <= self.most_chunk)
        return next(c for c in fit if self.steps(fmt) % c == 0)

    def columns(self, fmt: Format) -> int:
        """Of the result, of stage 1 with what pads h."""
        return int(ceil(self.n, fmt.step) * fmt.step) if self.number == 1 else self.n

    @property
    def tile(self) -> int:
        """Columns of a workgroup."""
        return self.n_waves * TILES * TILE // (2 if self.number == 1 else 1)


def stages(c: Call, config: MxMoeConfig) -> tuple[Stage, Stage]:
    return (
        Stage(1, c.I, c.D, config.up_n, config.up_k, 1 if config.ring else 4),
        Stage(2, c.D, c.I, config.down_n, config.down_k, 8 if config.is_deep else 4),
    )


@compile_ops(
    "moe_mx_prepare",
    kernel="moe_mx_prepare",
    variants=lambda _arch: [
        {"IN": "bf16", "ID": "i32", "TOP_K": 8, "FORMAT": "Mxfp4", "BUMP": 0x200000, "CHUNK": 4}
    ],
)
def moe_mx_prepare_kernel(
    topk_ids: Tensor, x: Tensor, m: u32, k: u32, x_row: u32, steps: u32, experts: u32,
    list_groups: u32, q: Tensor, counts: Tensor, lists: Tensor, scale: Tensor,
) -> None:  # fmt: skip
    """csrc/moe/moe_mx_prepare.hip: the shapes stand there."""


def _experts_arguments(
    counts: Tensor, m: u32, routed: u32, experts: u32, n: u32, k: u32, out_steps: u32, groups: u32,
    lists: Tensor, x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, offsets: Tensor,
    out: Tensor, out_scale: Tensor, w_row: u32, w_scale_row: u32,
) -> None:  # fmt: skip
    """csrc/moe/moe_mx_experts.hip and moe_mx_gate_up.hip: the shapes stand there."""


_BUILT: dict[str, int | str] = {
    "HALF": "bf16", "FORMAT": "Mxfp4", "BUMP": 0x200000, "M_TILES": 1, "CHUNK": 4, "OUT_CHUNK": 1,
    "SHUFFLED": 1, "SHUFFLED_SCALES": 1, "TAIL": 0, "EACH": 5, "TOP_K": 8, "STAGE": 1, "N_WAVES": 1,
    "K_WAVES": 4, "TILED_H": 1, "AHEAD": 1,
}  # fmt: skip


moe_mx_experts_kernel = compile_ops(
    "moe_mx_experts", kernel="moe_mx_experts", variants=lambda _arch: [_BUILT]
)(_experts_arguments)
_RING = {name: _BUILT[name] for name in ("HALF", "BUMP", "OUT_CHUNK", "TOP_K", "TILED_H")}
moe_mx_gate_up_kernel = compile_ops(
    "moe_mx_gate_up", kernel="moe_mx_gate_up", variants=lambda _arch: [_RING]
)(_experts_arguments)


_DOWN: dict[str, int | str] = {
    "HALF": "bf16", "ID": "i32", "FORMAT": "Mxfp4", "TILES": 2, "ROW_TILES": 1, "STEPS": 1,
    "WAVES": 8, "CHUNK": 1, "SHUFFLED": 1, "SHUFFLED_SCALES": 1, "TAIL": 0, "EACH": 5, "TOP_K": 8,
    "SHARED": 1,
}  # fmt: skip
_SUMS: dict[str, int | str] = {
    **{name: value for name, value in _DOWN.items() if name not in ("SHARED", "ROW_TILES")},
    "SLOTS": 4,
}  # fmt: skip
_DEEP: dict[str, int | str] = {**_SUMS, "ROW_TILES": 2, "STEPS": 8, "CHUNK": 8}


def _down_arguments(
    rows_of: Tensor, m: u32, routed: u32, experts: u32, n: u32, weights: Tensor, ids: Tensor,
    h: Tensor, h_scale: Tensor, w: Tensor, w_scale: Tensor, lists: Tensor, counts: Tensor,
    out: Tensor, k: u32, w_row: u32, w_scale_row: u32,
) -> None:  # fmt: skip
    """csrc/moe/moe_mx_down.hip, _sums.hip and _deep.hip: the shapes stand there."""


moe_mx_down_kernel = compile_ops(
    "moe_mx_down", kernel="moe_mx_down", variants=lambda _arch: [_DOWN]
)(_down_arguments)
moe_mx_down_deep_kernel = compile_ops(
    "moe_mx_down_deep", kernel="moe_mx_down_deep", variants=lambda _arch: [_DEEP]
)(_down_arguments)
moe_mx_down_sums_kernel = compile_ops(
    "moe_mx_down_sums", kernel="moe_mx_down_sums", variants=lambda _arch: [_SUMS]
)(_down_arguments)


@compile_ops(
    "moe_add_pairs",
    kernel="moe_add_pairs",
    variants=lambda _arch: [{"IN": "bf16", "ID": "i32", "TOP_K": 8, "SHARED": 0}],
)
def moe_add_pairs_kernel(
    out: Tensor, rows: Tensor, weights: Tensor, ids: Tensor, m: u32, n: u32, routed: u32
) -> None:
    """csrc/moe/moe_add_pairs.hip: the shapes stand there."""


class HipMxMoe(Kernel):
    name = "hip"
    module = "moe_mx_experts"
    # And the router's.
    more_modules = (
        "moe_mx_prepare", "moe_mx_gate_up", "moe_mx_down", "moe_mx_down_deep", "moe_mx_down_sums",
        "moe_add_pairs",
    )  # fmt: skip
    Config = MxMoeConfig

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def refuses(self, c: Call) -> str | None:
        if reason := self.refuses_arch(c):
            return reason
        shared = c.E - c.R
        if c.E > MOST_EXPERTS or c.K > MOST_CHOSEN or shared > MOST_SHARED:
            most = f"{MOST_CHOSEN} + {MOST_SHARED} of {MOST_EXPERTS}"
            return f"{c.K} + {shared} of {c.E} experts are more than {most}"
        row, column = matrix_strides(c, "x", c.D)
        if column != 1 or row % VEC or c.align("x") % (2 * VEC):
            return f"x does not lie in rows of {2 * VEC} bytes"
        if c.scale_layout != RAW and c.align("w1_scale", "w2_scale") % 4:
            return "shuffled scales do not begin at multiples of 4 bytes"
        if c.has("router_weight"):
            reason = refuses_choosing(c) or router.refuses_rows(c, c.R)
            if reason:
                return f"the router's {reason}"
        if (c.M + 1) * ceil(c.D, self.fmt.step) * STEP_BYTES >= MAX_BYTES:
            return "x quantised is beyond signed 32-bit offsets (2 GiB)"
        if 2 * c.D * c.I * self.fmt.bits // 8 >= MAX_BYTES:
            return "an expert's weights are beyond signed 32-bit offsets (2 GiB)"
        if c.M * (c.K + shared) * ceil(max(c.D, c.I), TILE) >= 2**31:
            return "more than 2^31 routed rows"
        return refuses_lists(c)

    def refuses_config(self, c: Call, config: MxMoeConfig) -> str | None:
        up, down = stages(c, config)
        if config.columns and (reason := self._refuses_fused(c, config, down)):
            return reason
        as_loaded = self.fmt is MXFP4 and RAW not in (c.w_layout, c.scale_layout)
        is_high = config.m_tiles in (4, 8, MORE_M_TILES)
        fit = as_loaded and is_high and c.D % (4 * self.fmt.step) == 0
        if config.ahead > 1 and not fit:
            return (
                "three steps ahead want m_tiles=4, 8 or 9, D in 1024s, and all of MXFP4 weights "
                "shuffled"
            )
        if config.ring and not (as_loaded and c.E <= WAVE and c.D % self.fmt.step == 0):
            return (
                f"a ring wants all of MXFP4 weights shuffled, D in {self.fmt.step}s and up to "
                f"{WAVE} experts"
            )
        for stage in (up,) if config.columns else (up, down):
            if stage.chunk(self.fmt, config.m_tiles) % stage.k_waves:
                return f"{stage.steps(self.fmt)} steps of K are not shared by {stage.k_waves} waves"
        return None

    def _refuses_fused(self, c: Call, config: MxMoeConfig, down: Stage) -> str | None:
        """Whether moe_mx_down has registers for an expert's weights, and either LDS for what it
        keeps of all tokens."""
        held = down.steps(self.fmt) * (config.columns // TILE + config.rows)
        if not config.slots and held > MAX_HELD[config.down_n]:
            return f"{held} tiles are more than the {MAX_HELD[config.down_n]} that a wave holds"
        if config.is_deep and down.steps(self.fmt) > MOST_DEEP_STEPS:
            return f"two tiles of {down.steps(self.fmt)} steps are more than a wave holds"
        h_rows = c.M * (c.K + c.E - c.R) + (TILE - 1) * c.E
        if config.slots and h_rows * down.steps(self.fmt) * STEP_BYTES >= MAX_BYTES:
            return "h is beyond signed 32-bit offsets (2 GiB)"
        if self.lds_bytes(c, config) > ROWS[c.arch].lds_bytes:
            return f"rows of {c.M} tokens by {config.columns} columns do not fit in LDS"
        return None

    def lds_bytes(self, c: Call, config: MxMoeConfig) -> int:
        """Of a workgroup of moe_mx_down, moe_mx_down_sums or moe_mx_down_deep."""
        height = (config.down_n * config.rows if config.slots else config.rows) * TILE
        table = (_row_tiles(c, height) + 1) * 16
        if config.slots:
            tiles, steps = config.columns // TILE, min(2, stages(c, config)[1].chunk(self.fmt, 1))
            words = ceil(tiles, 2) if c.scale_layout != RAW else tiles * self.fmt.step // BLOCK // 4
            item = steps * (tiles * TILE * STEP_BYTES + words * WAVE * 4)
            weights = ceil(c.M * c.K, 4) * 16
            unread = WAVE * 4 if config.is_deep else 0
            return int(config.slots * item + c.M * config.columns * 4 + weights + table + unread)
        staging = config.down_n * TILE * STEP_BYTES if c.w_layout == RAW else 0
        return int(staging + c.M * (c.K + c.E - c.R) * config.columns * 2 + table)

    def default(self, c: Call) -> MxMoeConfig:
        """Tiles as high as an expert has rows, up to 64, as higher ones leave a CU one workgroup.
        Where one tile of 16 rows does, waves share out K: more workgroups, each of 32 columns."""
        rows = ceil(c.M * (c.K + c.E - c.R), max(c.E, 1))
        m_tiles = next((t for t in (1, 2) if rows <= t * TILE), 4)
        made = [MxMoeConfig(1, 1, k, 4, 1) for k in (4, 2) if m_tiles == 1]
        made.append(MxMoeConfig(m_tiles, 4, 1, 4, 1))
        first = next(config for config in made if self.refuses_config(c, config) is None)
        return next((fused for fused in self._fused(c, first)), first)

    def _fused(self, c: Call, config: MxMoeConfig) -> Iterator[MxMoeConfig]:
        """By moe_mx_down, whose workgroups each read all of h, while that costs less than rows of
        the result that go to memory and back: with few tokens, or few columns of h a column of
        out."""
        steps = stages(c, config)[1].steps(self.fmt)
        rows = 2 if config.m_tiles > 1 else 1
        for columns, waves in ((32, 8), (16, 16), (16, 8), (16, 4)):
            if c.M > FEW_TOKENS and steps * TILE > columns:
                continue
            made = replace(config, columns=columns, down_n=waves, rows=rows)
            if self.refuses_config(c, made) is None:
                yield made
        if steps <= MOST_DEEP_STEPS and _rows_of_expert(c) >= FEWEST_SUM_ROWS:
            made = replace(config, columns=32, down_n=_sum_waves(c), rows=1, slots=4)
            if steps > MOST_SUM_STEPS:
                made = _deep(made)
            if self.refuses_config(c, made) is None:
                yield made

    def candidates(self, c: Call) -> list[MxMoeConfig]:
        first = self.default(c)
        made = [
            MxMoeConfig(m, up_n, up_k, down_n, 1, per_cu)
            for m in (1, 2, 4, 8)
            for up_n, up_k in ((1, 4), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1))
            for down_n in (4, 8)
            for per_cu in (1, 2, 4)
            if (up_k == 1 or m <= 2) and (m < MAX_M_TILES or up_n * up_k == down_n == 4)
        ]
        made += [
            replace(config, columns=columns, down_n=waves, rows=rows)
            for config in made if config.down_n == 4 and config.per_cu == 2
            for columns in (16, 32) for waves in MAX_HELD for rows in (1, 2, 4)
        ]  # fmt: skip
        made += [
            replace(config, columns=32, down_n=_sum_waves(c), slots=4)
            for config in made if config.down_n == 4 and not config.columns
        ]  # fmt: skip
        made += [
            replace(config, m_tiles=m, up_n=up_n, ahead=3)
            for config in made if config.columns
            and (config.m_tiles, config.up_n, config.up_k, config.per_cu) == (4, 4, 1, 2)
            for m in (4, 8, MORE_M_TILES) for up_n in (3, 4)
        ]  # fmt: skip
        made += [_deep(config) for config in made if config.slots]
        if _sum_waves(c) > SUM_WAVES[-1] // 2:  # tiles enough for weights to pass by LDS
            alike = [one for one in made if (one.up_n, one.up_k, one.ahead) == (4, 1, 1)]
            made += [replace(one, ring=1) for one in alike]
        fit = (config for config in made if self.refuses_config(c, config) is None)
        return [first, *(config for config in fit if config != first)]

    def defines(self, c: Call, config: MxMoeConfig) -> Mapping[str, Any]:
        return self.of_stage(c, config, stages(c, config)[0])

    def of_stage(self, c: Call, config: MxMoeConfig, stage: Stage) -> dict[str, Any]:
        fmt, down = self.fmt, stages(c, config)[1]
        return {
            "HALF": IN_TYPES[c.x_dtype],
            "FORMAT": fmt.name,
            "BUMP": fmt.bumps[c.rounding],
            "M_TILES": config.m_tiles,
            "CHUNK": stage.chunk(fmt, config.m_tiles),
            "OUT_CHUNK": down.chunk(fmt, config.m_tiles),
            "SHUFFLED": int(c.w_layout != RAW),
            "SHUFFLED_SCALES": int(c.scale_layout != RAW),
            "TAIL": int(stage.k % fmt.step != 0),
            "EACH": ceil(c.E, WAVE),
            "TOP_K": c.K,
            "STAGE": stage.number,
            "N_WAVES": stage.n_waves,
            "K_WAVES": stage.k_waves,
            "TILED_H": int(config.columns > 0),
            "AHEAD": config.ahead if stage.number == 1 else 1,
        }

    def variant(self, c: Call, config: MxMoeConfig) -> RunOf:
        return lambda *sizes: _Launches(
            c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))), config, self
        )


def _rows_of_expert(c: Call) -> float:
    return float(c.M * (c.K + c.E - c.R) / max(c.E, 1))


def _sum_waves(c: Call) -> int:
    """Of moe_mx_down_sums: an expert's rows with what chance adds."""
    waves = ceil(int(5 * _rows_of_expert(c)), 4 * TILE)
    return int(min(max(waves, SUM_WAVES[0]), SUM_WAVES[-1]))


def _deep(config: MxMoeConfig) -> MxMoeConfig:
    """Two tiles a wave in place of one."""
    waves = min(max(ceil(config.down_n, 2), DEEP_WAVES[0]), DEEP_WAVES[-1])
    return replace(config, down_n=waves, rows=2)


def _row_tiles(c: Call, height: int) -> int:
    """Of all experts, at most."""
    routed, shared = c.M * c.K, c.E - c.R
    return int(routed // height + min(routed, c.E) + shared * ceil(c.M, height))


class _Launches:
    """Of one call. Lists and rows of x are in the workspace; what experts make is torch's
    allocator's."""

    def __init__(self, c: Call, config: MxMoeConfig, kernel: HipMxMoe) -> None:
        self.c, self.config, self.kernel, fmt = c, config, kernel, kernel.fmt
        ids = ID_TYPES[c.values.get("topk_ids_dtype", torch.int32)]
        routed, m = c.R, c.M
        up, down = stages(c, config)
        self.rows = m * (c.K + c.E - routed)
        self.x_bytes = up.steps(fmt) * STEP_BYTES, up.steps(fmt) * fmt.step // BLOCK
        self.h_bytes = down.steps(fmt) * STEP_BYTES, down.steps(fmt) * fmt.step // BLOCK
        self.scratch = Workspace(
            c.device,
            (routed * m, torch.int32),  # lists
            (c.E + 1, torch.int32),  # offsets
            (m * self.x_bytes[0], torch.uint8),
            (m * self.x_bytes[1], torch.uint8),
            (m * c.K, torch.float32),  # weights and ids, where a router makes them
            (m * c.K, torch.int32),
            zeros=c.E,
        )
        of_ids = {"ID": ids, "TOP_K": c.K}
        self.is_routed = c.has("router_weight")
        if self.is_routed:
            self.route = router.prepare(c, routed, False)(m, c.D, routed)
        lists = ceil(m, PREPARES // OF_TOKEN)
        prepare = {
            "IN": IN_TYPES[c.x_dtype], **of_ids, "FORMAT": fmt.name,
            "BUMP": fmt.bumps[c.rounding], "CHUNK": up.chunk(fmt, config.m_tiles),
        }  # fmt: skip
        eights = m * up.steps(fmt) * fmt.step // EIGHTS
        launch = _bind(c, moe_mx_prepare_kernel, prepare, PREPARES, 6)
        numbers = m, c.D, matrix_strides(c, "x", c.D)[0], up.steps(fmt), routed, lists
        self.prepare = launch((lists + ceil(eights, PREPARES), 1, 1), numbers)
        self.gate_up = self._experts(up, down)
        if config.columns:
            self.down_and_add = self._down_and_add(down, of_ids)
            return
        self.down = self._experts(down, down)
        add = {"IN": IN_TYPES[c.x_dtype], **of_ids, "SHARED": c.E - routed}
        grid = m, ceil(c.D, ADD_COLUMNS), 1
        self.add = _bind(c, moe_add_pairs_kernel, add, 256, 4)(grid, (m, c.D, routed))

    def _experts(self, stage: Stage, down: Stage) -> Run:
        c, config, fmt = self.c, self.config, self.kernel.fmt
        threads, kernel = stage.n_waves * stage.k_waves * WAVE, moe_mx_experts_kernel
        defines = self.kernel.of_stage(c, config, stage)
        m_tiles, per_cu = config.m_tiles, config.per_cu
        if config.ring and stage.number == 1:
            threads, kernel, m_tiles, per_cu = (
                RING_WAVES * WAVE,
                moe_mx_gate_up_kernel,
                RING_TILES,
                1,
            )
            defines = {name: value for name, value in defines.items() if name in _RING}
        launch = _bind(c, kernel, defines, threads, 9)
        tiles = _row_tiles(c, m_tiles * TILE) * ceil(stage.columns(fmt), stage.tile)
        # An XCD may have one more, as routed and shared experts are shared out each by themselves.
        groups = min(ROWS[c.arch].cus * per_cu, (ceil(tiles, XCDS) + 1) * XCDS)
        row, scale_row = stage.k * fmt.bits // 8, scale_columns(c.scale_layout, stage.k)
        numbers = c.M, c.R, c.E, stage.n, stage.k, down.steps(fmt), groups, row, scale_row
        run: Run = launch((groups, 1, 1), numbers)
        return run

    def _down_and_add(self, stage: Stage, of_ids: Mapping[str, Any]) -> Run:
        c, config, fmt = self.c, self.config, self.kernel.fmt
        defines = {
            name: value for name, value in self.kernel.of_stage(c, config, stage).items()
            if name in _DOWN
        } | {
            **of_ids, "TILES": config.columns // TILE, "ROW_TILES": config.rows,
            "STEPS": stage.steps(fmt), "WAVES": stage.n_waves, "SHARED": c.E - c.R,
        }  # fmt: skip
        waves, kernel = stage.n_waves, moe_mx_down_kernel
        if config.slots:  # a wave more brings weights
            waves, kernel = waves + 1, moe_mx_down_sums_kernel
            del defines["SHARED"]
            defines["SLOTS"] = config.slots
            if config.is_deep:
                kernel = moe_mx_down_deep_kernel
            else:
                del defines["ROW_TILES"]
        bound = kernel.bind(c.device, defines, c.arch)
        threads, lds = waves * WAVE, self.kernel.lds_bytes(c, config)
        launch = bound.prepare((threads, 1, 1), tuple(range(10)), lds)
        groups = ceil(stage.n // config.columns, XCDS) * XCDS
        rows = stage.k * fmt.bits // 8, scale_columns(c.scale_layout, stage.k)
        numbers = c.M, c.R, c.E, stage.n, stage.k, *rows
        run: Run = launch((groups, 1, 1), numbers)
        return run

    def __call__(self, out: Tensor, x: Tensor, *rest: Any) -> None:
        w1, w2, s1, s2, p, ids, router_weight = rest
        lists, offsets, xq, xs, made_p, made_ids, counts = self.scratch()
        new = x.new_empty
        is_fused = self.config.columns > 0
        h_rows = self.rows + (TILE - 1) * self.c.E if is_fused else self.rows
        hq, hs = (new((h_rows, b), dtype=torch.uint8) for b in self.h_bytes)
        y = None if is_fused else new((self.rows, self.c.D))
        if self.is_routed:
            p, ids = made_p, made_ids
            self.route(p, ids, x, router_weight, counts, lists, lists)
        self.prepare(ids, x, xq, counts, lists, xs)
        self.gate_up(counts, lists, xq, xs, w1, s1, offsets, hq, hs)
        if is_fused:
            self.down_and_add(offsets, p, ids, hq, hs, w2, s2, lists, counts, out)
            return
        self.down(counts, lists, hq, hs, w2, s2, offsets, y, hs)
        self.add(out, y, p, ids)
