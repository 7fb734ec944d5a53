"""The MXFP4 kernel for so many tiles that the matrix cores are the limit and a workgroup makes
several: their sums leave a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rfops.dispatch.guards import check_config_ints
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.jit import compile_ops

from .loop import Loop, LoopConfig, arguments
from .prepare import Prepared

TILE = 256
PAIR_K, MIN_K = 512, 2560  # four parts, a pair of K-steps behind each other, and a pair more
_ALIGN = 16  # bytes, of rows of out
_MAX_TILE_DISTANCE = 2048  # rows of x from a tile to the next one of a workgroup
_GROUPS = (4, 8, 2, 1)

# What `rfops build` makes: bf16, weights as they are loaded most quickly.
_SKEW: dict[str, int | str] = {"GROUP_N": 4, "OUT": "bf16", "SHUFFLED": 1, "X_SHUFFLED": 0}


mxfp4_skew = compile_ops("mxfp4_skew", kernel="mxfp4_skew", variants=lambda _arch: [_SKEW])(
    arguments
)


@dataclass(frozen=True)
class SkewConfig:
    """A variant of csrc/gemm/mxfp4_skew.hip; its head comment says what it means."""

    group_n: int = 4  # tiles along N of a group of workgroups

    split: ClassVar[int] = 1
    threads: ClassVar[int] = 256
    words: ClassVar[int] = TILE * TILE

    def __post_init__(self) -> None:
        check_config_ints(self)
        if not 1 <= self.group_n <= 16:
            raise ValueError(f"{self}: group_n is 1 to 16")

    def tiles(self, m: int, n: int) -> int:
        return int(ceil(m, TILE) * ceil(n, TILE))


class Skew(Prepared):
    name = "skew"
    module = "mxfp4_skew"
    more_modules = ("mxfp4_prepare",)
    Config = SkewConfig
    max_rows = TILE + _MAX_TILE_DISTANCE
    compiled = mxfp4_skew

    def refuses(self, c: Call) -> str | None:
        if reason := super().refuses(c):
            return reason
        if c.K % PAIR_K or c.K < MIN_K:
            return f"K={c.K} is no multiple of {PAIR_K} from {MIN_K} on"
        if c.N * c.dtype.itemsize % _ALIGN:
            return f"rows of out, N={c.N}, are no multiple of {_ALIGN} bytes"
        return "a bias has no room in LDS" if c.has("bias") else None

    def refuses_config(self, c: Call, config: Any) -> str | None:
        return None

    def default(self, c: Call) -> SkewConfig:
        return SkewConfig()

    def candidates(self, c: Call) -> list[SkewConfig]:
        return [SkewConfig(group) for group in _GROUPS]

    def defines(self, c: Call, config: SkewConfig) -> Mapping[str, Any]:
        every = super().defines(c, config)
        return {name: every[name] for name in _SKEW}

    def kind(self, c: Call, config: Any, k: int) -> Mapping[str, int]:
        return {}

    def grid(self, c: Call, config: SkewConfig, items: int) -> tuple[int, Mapping[str, int]]:
        groups = min(items, c.cu_num)
        return groups, {"groups": groups}

    def variant(self, c: Call, config: Any) -> RunOf:
        """Into a result that is not aligned by the loop."""
        run_of = super().variant(c, config)
        loop: Callable[..., Run] | None = None

        def aligned_run_of(*sizes: int) -> Run:
            run = run_of(*sizes)

            def either(out: torch.Tensor, *inputs: Any) -> None:
                nonlocal loop
                if out.data_ptr() % _ALIGN == 0:
                    return run(out, *inputs)
                if loop is None:
                    kernel = Loop()
                    kernel.arguments = self.arguments
                    loop = kernel.variant(c, LoopConfig(TILE, TILE))
                return loop(*sizes)(out, *inputs)

            return either

        return aligned_run_of
