"""fused_moe with MXFP4 or MX-FP8 weights by HIP: four launches, or three where rows of down fit in
LDS; two more where a router chooses.

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

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.steps import run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.dispatch.time_model import TimedKernel
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, WAVE

from ... import router
from ...fused_moe_mx import MXFP4, RAW, Format
from ...mx_terms import Traits
from ..bf16.hip import (
    MAX_EXPERTS,
    MAX_SHARED,
    MAX_TOP_K,
    ROUTED,
    VEC,
    num_rows,
    refuses_lists,
)
from ..limits import refuses_weights
from ..topk.choosing import refuses_choosing
from . import steps
from .config import (
    PREFETCHED,
    TALLEST_M_TILES,
    DeepDown,
    ExpertTiles,
    MxMoeConfig,
    RegisterDown,
    RingGateUp,
    StagedDown,
)
from .steps import STEP_BYTES, TILE, down_product, gate_up_product

OTHER_REGISTERS = 40  # of a wave of ExpertTiles, beside sums and weights
MAX_DEEP_STEPS = 8  # K-steps of h whose rows a wave of DeepDown holds
# Alternatives of MxMoeConfig that calls choose among: m_tiles, up_n and up_k of gate and up by
# tiles, m_tiles and up_n with K-steps prefetched, and waves of down.
_TILED_UP = (
    *((m, n, k) for m in (1, 2) for n, k in ((1, 4), (2, 2), (4, 1))),
    *((4, 4, 1), (8, 4, 1)),
)
_PREFETCHED_UP = tuple((m, n) for m in (4, 8, TALLEST_M_TILES) for n in (3, 4))
_FEW_ROW_TILES = 4  # of 16 rows that down multiplies at once, where gate and up may split K
_STAGED_WAVES, _DEEP_WAVES = (2, 4, 6, 8, 10, 12, 15), (2, 3, 4, 5, 6, 7)


@functools.cache
def _variants() -> tuple[MxMoeConfig, ...]:
    """Every gate and up with every down that it goes with."""
    tiled = [MxMoeConfig(*up, 4, 1, per_cu) for up in _TILED_UP for per_cu in (2, 4)]
    narrow = [one for one in tiled if one.per_cu == 2]
    high = [one for one in narrow if one.m_tiles > 1 and one.up_k == 1]
    prefetched = [MxMoeConfig(m, n, 1, 8, 1, 2, 32, ahead=PREFETCHED) for m, n in _PREFETCHED_UP]
    rings = [MxMoeConfig(4, n, 1, 2, 1, 2, 32, ring=1, slots=4) for n in RingGateUp.M_TILES]
    configs = list(tiled)
    for columns, waves, rows in itertools.product((16, 32), RegisterDown.MAX_TILES, (1, 2, 4)):
        overrides = {"columns": columns, "down_n": waves, "rows": rows}
        configs += [replace(one, **overrides) for one in (*narrow, *prefetched) if one.m_tiles <= 4]
    for rows, all_waves in ((1, _STAGED_WAVES), (2, _DEEP_WAVES)):
        for waves in all_waves:
            overrides = {"columns": 32, "down_n": waves, "rows": rows, "slots": 4}
            few_rows = rows * waves <= _FEW_ROW_TILES
            ups = (*narrow, *prefetched) if few_rows else (*high, *prefetched, *rings)
            configs += [replace(one, **overrides) for one in ups]
    return tuple(configs)


class HipMxMoe(TimedKernel):
    """Experts of MX weights on gfx950: lists, quantised x, gate and up, down."""

    name = "hip"
    module = "moe_mx_experts"
    # And the router's.
    more_modules = (
        "moe_mx_prepare",
        "moe_mx_gate_up",
        "moe_mx_down",
        "moe_mx_down_deep",
        "moe_mx_down_sums",
        "moe_add_pairs",
    )
    Config = MxMoeConfig

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt
        self._spaces: dict[tuple[Any, ...], Columns[MxMoeConfig]] = {}  # by layer

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        num_shared = c.E - c.R
        if c.E > MAX_EXPERTS or c.K > MAX_TOP_K or num_shared > MAX_SHARED:
            limits = f"{MAX_TOP_K} + {MAX_SHARED} of {MAX_EXPERTS}"
            return f"{c.K} + {num_shared} of {c.E} experts are more than {limits}"
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
        if reason := refuses_weights(c, self.fmt.bits):
            return reason
        if c.M * (c.K + num_shared) * ceil(max(c.D, c.I), TILE) >= 2**31:
            return "more than 2^31 routed rows"
        return refuses_lists(c)

    def unsupported_config_reason(self, c: Call, config: MxMoeConfig) -> str | None:
        gate_up, down = config.gate_up, config.down
        if not isinstance(down, ExpertTiles) and (reason := self._refuses_sums(c, config, down)):
            return reason
        as_loaded = self.fmt is MXFP4 and RAW not in (c.w_layout, c.scale_layout)
        if isinstance(gate_up, RingGateUp):
            if not (as_loaded and c.E <= WAVE and c.D % self.fmt.step == 0):
                return (
                    f"a ring wants all of MXFP4 weights shuffled, D in {self.fmt.step}s and up to "
                    f"{WAVE} experts"
                )
        elif gate_up.prefetch > 1:
            is_high = config.m_tiles in (4, 8, TALLEST_M_TILES)
            if not (as_loaded and is_high and c.D % (4 * self.fmt.step) == 0):
                return (
                    "three steps ahead want m_tiles=4, 8 or 9, D in 1024s, and all of MXFP4 "
                    "weights shuffled"
                )
        products = (gate_up, gate_up_product(c, config)), (down, down_product(c, config))
        for tiles, product in products:
            if isinstance(tiles, ExpertTiles) and product.chunk(self.fmt) % tiles.k_waves:
                return (
                    f"{product.steps(self.fmt)} steps of K are not shared by {tiles.k_waves} waves"
                )
        return None

    def _refuses_sums(
        self, c: Call, config: MxMoeConfig, down: RegisterDown | StagedDown
    ) -> str | None:
        """Whether registers hold an expert's weights or rows, and LDS what is kept of all
        tokens."""
        k_steps = down_product(c, config).steps(self.fmt)
        if isinstance(down, RegisterDown):
            tiles = k_steps * (down.columns // TILE + down.row_tiles)
            if tiles > (max_tiles := down.MAX_TILES[down.waves]):
                return f"{tiles} tiles are more than the {max_tiles} that a wave holds"
        elif isinstance(down, DeepDown) and k_steps > MAX_DEEP_STEPS:
            return f"two tiles of {k_steps} steps are more than a wave holds"
        h_rows = num_rows(c) + (TILE - 1) * c.E
        if isinstance(down, StagedDown) and h_rows * k_steps * STEP_BYTES >= MAX_BYTES:
            return "h is beyond signed 32-bit offsets (2 GiB)"
        if steps.lds_bytes(c, self.fmt, config, down) > ARCH_SPECS[c.arch].lds_bytes:
            return f"rows of {c.M} tokens by {down.columns} columns do not fit in LDS"
        return None

    def space(self, c: Call) -> Columns[MxMoeConfig] | None:
        if self.unsupported_arch_reason(c):
            return None
        names = "D", "I", "E", "K", "R", "w_layout", "scale_layout"
        key = tuple([getattr(c, name) for name in names])
        if key not in self._spaces:
            one = c.with_sizes(M=1)
            fit = [v for v in _variants() if self.unsupported_config_reason(one, v) is None]
            self._spaces[key] = Columns(fit)
        return self._spaces[key]

    def traits(self, config: MxMoeConfig, c: Call) -> tuple[float, ...]:
        gate_up, down = config.gate_up, config.down
        columns = config.up_n * steps.TILES * TILE // 2
        common = Traits(
            up_rows=gate_up.m_tiles * TILE,
            up_columns=columns,
            up_k_waves=config.up_k,
            up_resident=1 if isinstance(gate_up, RingGateUp) else self._resident(gate_up),
            is_ring=isinstance(gate_up, RingGateUp),
            is_prefetched=config.ahead > 1,
        )
        if isinstance(down, ExpertTiles):
            return common._replace(
                is_tiled=True,
                down_rows=down.m_tiles * TILE,
                down_columns=down.n_waves * steps.TILES * TILE,
                down_resident=self._resident(down),
            )
        fixed, token = steps.lds_parts(c, self.fmt, config, down)
        row_bytes = down_product(c, config).steps(self.fmt) * STEP_BYTES
        is_register = isinstance(down, RegisterDown)
        return common._replace(
            is_register=is_register,
            is_staged=type(down) is StagedDown,
            is_deep=isinstance(down, DeepDown),
            down_rows=steps.rows_at_once(down),
            down_columns=down.columns,
            tiles_at_once=down.waves if is_register else 1,
            down_waves=down.waves,
            lds_bytes=fixed,
            lds_token_bytes=token,
            most_h_rows=math.inf if is_register else MAX_BYTES / row_bytes,
        )

    def _resident(self, tiles: ExpertTiles) -> int:
        """The workgroups of a CU at once: by LDS, which has two chunks of rows, and by registers,
        which have sums and K-steps of weights."""
        chip, rows = ARCH_SPECS["gfx950"], tiles.m_tiles * TILE
        weights = steps.TILES * self.fmt.bits * (tiles.prefetch + 1)
        registers = 4 * steps.TILES * tiles.m_tiles + weights + OTHER_REGISTERS
        waves = chip.simds * min(MAX_WAVES, REGISTERS // registers)
        by_registers = waves // (tiles.n_waves * tiles.k_waves)
        by_lds = chip.lds_bytes // (2 * 4 * rows * STEP_BYTES)
        return max(1, min(tiles.per_cu, by_registers, by_lds))

    def defines(self, c: Call, config: MxMoeConfig) -> Mapping[str, Any]:
        product = gate_up_product(c, config)
        launched = [one for one in (config.gate_up, config.down) if isinstance(one, ExpertTiles)]
        tiles = launched[0] if launched else ExpertTiles(4, 4, 1, config.per_cu)
        return steps.experts_defines(c, self.fmt, config, product, tiles)

    def variant(self, c: Call, config: MxMoeConfig) -> RunOf:
        return lambda *sizes: self.launches(
            c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))), config
        )

    def launches(self, c: Call, config: MxMoeConfig) -> Run:
        """The launches of one call."""
        routes, of_router = router.steps(c, c.R, ROUTED)
        return run_steps(
            c.device,
            self.arguments,
            [
                *routes,
                steps.prepare(c, self.fmt, config),
                steps.gate_up(c, self.fmt, config),
                *steps.down(c, self.fmt, config),
            ],
            arch=c.arch,
            workspace={**steps.workspace(c, self.fmt), **of_router},
            outer=bool(routes),
            zeros={"counts": c.E},
            temporaries=steps.temporaries(c, self.fmt, config),
        )
