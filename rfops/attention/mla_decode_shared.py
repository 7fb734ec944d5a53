"""mla_decode in HIP, 128 columns (a query's head) at a time: what many heads or queries want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.quantization.fp8_blockscale import fp8_of

from .mla_decode_flow import _BF16, Flow, FlowConfig, _defines, arguments

WAVE_COLUMNS = 32
LEAST = 128  # tokens of a worker: its part of the result is as large as 230 tokens of bf16


@dataclass(frozen=True)
class SharedConfig(FlowConfig):
    """A variant of csrc/mla_decode_shared.hip: workers that share the tokens of 128 columns."""


def _variants(arch: str) -> list[dict[str, int]]:
    return [_defines(kv, _BF16, LEAST) for kv in (_BF16, fp8_of(arch))]


_bind = compile_ops("mla_decode_shared", kernel="mla_decode_shared", variants=_variants)
mla_decode_shared = _bind(arguments)


class Shared(Flow):
    name, module = "shared", "mla_decode_shared"
    turns = True  # as flow's
    Config = SharedConfig
    source: ClassVar[Any] = staticmethod(mla_decode_shared)
    columns, least = 128, LEAST

    def refuses(self, c: Call) -> str | None:
        columns = c.H * c.qo_len
        if 0 < columns <= WAVE_COLUMNS:
            return f"{columns} columns: for one wave of four; flow takes up to {WAVE_COLUMNS}"
        return super().refuses(c)
