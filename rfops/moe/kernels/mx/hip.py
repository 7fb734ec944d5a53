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
from dataclasses import replace
from typing import Any

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.steps import run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.jit.arch import ARCH_SPECS, WAVE

from ... import router
from ...fused_moe_mx import MXFP4, RAW, Format
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

FEW_TOKENS = 16
# When StagedDown is quicker than down and add: by 37 % with 140 rows of an expert and 2 K-steps
# of h, by 16 % with 4; slower by 30 % with 8 of them, and by 26 % with 62 rows (estimated, MI355X).
# DeepDown is quicker by 18 % with 8 K-steps, and as quick as these with 70 rows.
MAX_STAGED_STEPS, MAX_DEEP_STEPS, MIN_SUM_ROWS = 4, 8, 100


class HipMxMoe(Kernel):
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

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        shared = c.E - c.R
        if c.E > MAX_EXPERTS or c.K > MAX_TOP_K or shared > MAX_SHARED:
            most = f"{MAX_TOP_K} + {MAX_SHARED} of {MAX_EXPERTS}"
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
        if reason := refuses_weights(c, self.fmt.bits):
            return reason
        if c.M * (c.K + shared) * ceil(max(c.D, c.I), TILE) >= 2**31:
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
            if tiles > (most := down.MAX_TILES[down.waves]):
                return f"{tiles} tiles are more than the {most} that a wave holds"
        elif isinstance(down, DeepDown) and k_steps > MAX_DEEP_STEPS:
            return f"two tiles of {k_steps} steps are more than a wave holds"
        h_rows = num_rows(c) + (TILE - 1) * c.E
        if isinstance(down, StagedDown) and h_rows * k_steps * STEP_BYTES >= MAX_BYTES:
            return "h is beyond signed 32-bit offsets (2 GiB)"
        if steps.lds_bytes(c, self.fmt, config, down) > ARCH_SPECS[c.arch].lds_bytes:
            return f"rows of {c.M} tokens by {down.columns} columns do not fit in LDS"
        return None

    def default(self, c: Call) -> MxMoeConfig:
        """Tiles as high as an expert has rows, up to 64, as higher ones leave a CU one workgroup.
        Where one tile of 16 rows does, waves share out K: more workgroups, each of 32 columns."""
        rows = ceil(c.M * (c.K + c.E - c.R), max(c.E, 1))
        m_tiles = next((t for t in (1, 2) if rows <= t * TILE), 4)
        made = [MxMoeConfig(1, 1, k, 4, 1) for k in (4, 2) if m_tiles == 1]
        made.append(MxMoeConfig(m_tiles, 4, 1, 4, 1))
        first = next(config for config in made if self.unsupported_config_reason(c, config) is None)
        return next((fused for fused in self._fused(c, first)), first)

    def _fused(self, c: Call, config: MxMoeConfig) -> Iterator[MxMoeConfig]:
        """Yield configs with down and sum in one kernel, the best first. Each workgroup of
        RegisterDown reads all of h, which costs less than a round trip of y through memory with few
        tokens, or with few columns of h per column of out."""
        k_steps = down_product(c, config).steps(self.fmt)
        rows = 2 if config.m_tiles > 1 else 1
        for columns, waves in ((32, 8), (16, 16), (16, 8), (16, 4)):
            if c.M > FEW_TOKENS and k_steps * TILE > columns:
                continue
            made = replace(config, columns=columns, down_n=waves, rows=rows)
            if self.unsupported_config_reason(c, made) is None:
                yield made
        if k_steps <= MAX_DEEP_STEPS and _rows_of_expert(c) >= MIN_SUM_ROWS:
            made = replace(config, columns=32, down_n=_sum_waves(c), rows=1, slots=4)
            if k_steps > MAX_STAGED_STEPS:
                made = _deep(made)
            if self.unsupported_config_reason(c, made) is None:
                yield made

    def candidates(self, c: Call) -> list[MxMoeConfig]:
        first = self.default(c)
        made = [
            MxMoeConfig(m, up_n, up_k, down_n, 1, per_cu)
            for m in (1, 2, 4, 8)
            for up_n, up_k in ((1, 4), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1))
            for down_n in (4, 8)
            for per_cu in (1, 2, 4)
            if (up_k == 1 or m <= 2) and (m < 8 or up_n * up_k == down_n == 4)
        ]
        made += [
            replace(config, columns=columns, down_n=waves, rows=rows)
            for config in made
            if config.down_n == 4 and config.per_cu == 2
            for columns in (16, 32)
            for waves in RegisterDown.MAX_TILES
            for rows in (1, 2, 4)
        ]
        made += [
            replace(config, columns=32, down_n=_sum_waves(c), slots=4)
            for config in made
            if config.down_n == 4 and not config.columns
        ]
        made += [
            replace(config, m_tiles=m, up_n=up_n, ahead=PREFETCHED)
            for config in made
            if config.columns
            and (config.m_tiles, config.up_n, config.up_k, config.per_cu) == (4, 4, 1, 2)
            for m in (4, 8, TALLEST_M_TILES)
            for up_n in (3, 4)
        ]
        made += [_deep(config) for config in made if config.slots]
        if _sum_waves(c) > StagedDown.WAVES[-1] // 2:  # tiles enough for weights to pass by LDS
            alike = [one for one in made if (one.up_n, one.up_k, one.ahead) == (4, 1, 1)]
            made += [replace(one, ring=1) for one in alike]
        fit = (config for config in made if self.unsupported_config_reason(c, config) is None)
        return [first, *(config for config in fit if config != first)]

    def defines(self, c: Call, config: MxMoeConfig) -> Mapping[str, Any]:
        product = gate_up_product(c, config)
        return steps.experts_defines(c, self.fmt, config, product, config.expert_tiles)

    def variant(self, c: Call, config: MxMoeConfig) -> RunOf:
        return lambda *sizes: self.launches(
            c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))), config
        )

    def launches(self, c: Call, config: MxMoeConfig) -> Run:
        """The launches of one call."""
        routes = [router.step(c, c.R, lists=False, arguments=ROUTED)] * c.has("router_weight")
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
            workspace=steps.workspace(c, self.fmt),
            zeros={"counts": c.E},
            temporaries=steps.temporaries(c, self.fmt, config),
        )


def _rows_of_expert(c: Call) -> float:
    return float(c.M * (c.K + c.E - c.R) / max(c.E, 1))


def _sum_waves(c: Call) -> int:
    """Return the waves of StagedDown for an expert's rows and a margin for uneven routing."""
    waves = ceil(int(5 * _rows_of_expert(c)), 4 * TILE)
    return int(min(max(waves, StagedDown.WAVES[0]), StagedDown.WAVES[-1]))


def _deep(config: MxMoeConfig) -> MxMoeConfig:
    """Return the config with DeepDown in place of StagedDown: two tiles per wave."""
    waves = min(max(ceil(config.down_n, 2), DeepDown.WAVES[0]), DeepDown.WAVES[-1])
    return replace(config, down_n=waves, rows=2)
