"""mla_decode in HIP, 128 columns (a query's head) at a time: what many heads or queries want."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import Columns
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS

from .mla_decode_flow import _BF16, Flow, FlowConfig, _defines, arguments
from .mla_terms import D_V

WAVE_COLUMNS = 32
MIN_TOKENS = 128  # tokens of a worker: its part of the result is as large as 120 tokens of bf16


@dataclass(frozen=True)
class SharedConfig(FlowConfig):
    """A variant of csrc/attention/mla_decode_shared.hip: workers share tokens of 128 columns."""


@dataclass(frozen=True)
class SharedFp8Config(FlowConfig):
    """The same with P in FP8, as q and the cache: twice the rate, a relative error of 2 %."""


def _variants(arch: str) -> list[dict[str, int]]:
    kinds = itertools.product((_BF16, fp8_of(arch)), (False, True))
    return [_defines(kv, _BF16, MIN_TOKENS, even=even) for kv, even in kinds]


def _fp8_defines(defines: Mapping[str, int]) -> dict[str, int]:
    """Return the defines of mla_decode_shared_fp8.hip, which has q and the cache in FP8 and no
    RoPE."""
    return {name: defines[name] for name in ("PAGED", "RAGGED", "EVEN", "LEAST", "TURNS")}


def _fp8_variants(arch: str) -> list[dict[str, int]]:
    fp8 = fp8_of(arch)
    kinds = (False, True) if arch in SharedFp8Kernel.archs else ()
    return [_fp8_defines(_defines(fp8, fp8, MIN_TOKENS, even=even)) for even in kinds]


_bind = compile_ops("mla_decode_shared", kernel="mla_decode_shared", variants=_variants)
mla_decode_shared = _bind(arguments)
_bind_fp8 = compile_ops("mla_decode_shared_fp8", kernel="mla_decode_shared", variants=_fp8_variants)
mla_decode_shared_fp8 = _bind_fp8(arguments)


class SharedKernel(Flow):
    name, module = "shared", "mla_decode_shared"
    rotates_keys = True  # as flow's
    Config: ClassVar[type[FlowConfig]] = SharedConfig
    source: ClassVar[Any] = staticmethod(mla_decode_shared)
    columns, min_tokens, short_min_tokens = 128, MIN_TOKENS, MIN_TOKENS
    words = D_V // 2 + D_V // 32 + 2  # sums in fp16, their units, totals
    min_tokens_choices = (MIN_TOKENS, 2 * MIN_TOKENS, 4 * MIN_TOKENS)
    has_single = False
    max_flat_splits = 40  # kMaxShared of csrc/attention/mla_partials.h
    stage_tokens: ClassVar[Mapping[str, int]] = {"gfx942": 16, "gfx950": 32}  # of a stage of LDS

    def unsupported_reason(self, c: Call) -> str | None:
        columns = c.H * c.qo_len
        if 0 < columns <= WAVE_COLUMNS:
            return f"{columns} columns: for one wave of four; flow takes up to {WAVE_COLUMNS}"
        return super().unsupported_reason(c)

    def space(self, c: Call) -> Columns[Any] | None:
        """Return the variants, or None for so few tokens that workgroups of the first XCD have
        little but a sequence's fixed cost: timing mode samples that XCD alone and would estimate
        3.5 us where 20 us are right. `flow` is faster there."""
        table = self.full_space(c)
        return None if table is None or self.has_few_tokens(c) else table

    def has_few_tokens(self, c: Call) -> bool:
        if c.arch not in self.stage_tokens:
            return False
        overhead = self.overhead(c.arch, None)
        return bool(c.S * c.page + c.B * overhead <= ARCH_SPECS[c.arch].xcds * overhead)

    def full_space(self, c: Call) -> Columns[Any] | None:
        is_wide = c.H * c.qo_len > WAVE_COLUMNS
        return super().space(c) if is_wide and c.arch in self.stage_tokens else None

    def overhead(self, arch: str, config: FlowConfig | None) -> int:
        """Return the fixed cost of a sequence in tokens: kItemCost of
        csrc/attention/mla_decode_many_rows.h."""
        tokens = self.stage_tokens[arch]
        return (12 if tokens == 16 else 28) * tokens

    def tokens(self, c: Call, config: FlowConfig) -> tuple[int, int]:
        return self.stage_tokens[c.arch], self.stage_tokens[c.arch]

    def max_single(self, c: Call, config: FlowConfig) -> int:
        return 0  # ranges stay as they are


class SharedFp8Kernel(SharedKernel):
    name, module = "shared_fp8", "mla_decode_shared_fp8"
    rotates_keys = False
    archs = ("gfx950",)
    stage_tokens: ClassVar[Mapping[str, int]] = {"gfx950": 64}
    Config = SharedFp8Config
    source: ClassVar[Any] = staticmethod(mla_decode_shared_fp8)
    error = 2.0**-4 * 2.14  # P in e4m3, in the sum above and the one below: 2 / (1 - 2^-4)

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        if c.arch not in self.archs:
            return f"no kernel for {c.arch}, only for {', '.join(self.archs)}"
        for name in ("q", "kv"):
            if getattr(c, f"{name}_dtype") == _BF16:
                return f"{name} is bfloat16; where q and kv are FP8, P is"
        return "keys of FP8 are not turned" if c.has("angles") else None

    def full_space(self, c: Call) -> Columns[Any] | None:
        is_fp8 = _BF16 not in (c.q_dtype, c.kv_dtype)
        return super().full_space(c) if is_fp8 and not c.has("angles") else None

    def defines(self, c: Call, config: FlowConfig) -> Mapping[str, Any]:
        return _fp8_defines(super().defines(c, config))
