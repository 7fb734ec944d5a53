"""The kernel of gemm_a8w8_blockscale that stages operands through registers, for both: any M."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from rfops.dispatch.heuristic import Columns
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops

from .a8w8_launch import signature
from .a8w8_layout import is_columns
from .a8w8_tiles import TileConfig, TileKernel


class StagedConfig(TileConfig):
    """A variant of csrc/a8w8_blockscale_staged.hip."""

    TILES = MappingProxyType({(128, 128): 248, (128, 64): 168, (64, 64): 120, (64, 128): 168})
    stages, threads = 1, 256

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
        return {**super().defines(dtype, shuffled), "X_COLUMNS": 0, "W_COLUMNS": 0}


_turned: dict[tuple[bool, bool, int], Columns[Any]] = {}  # by which is column-major, and how many


def _prebuilt() -> list[dict[str, int | str]]:
    return [StagedConfig(128, n).defines(torch.bfloat16) for n in (128, 64)]


class Staged(TileKernel):
    name = "staged"
    module = "a8w8_blockscale_staged"
    Config = StagedConfig
    most_rows, takes_columns = 128, True
    compiled = compile_ops(
        "a8w8_blockscale_staged",
        kernel="a8w8_blockscale_staged",
        variants=lambda _arch: _prebuilt(),
    )(signature)

    def refuses_config(self, c: Call, config: Any) -> str | None:
        for name, rows in (("x", config.m), ("w", config.n)):
            if rows != self.most_rows and is_columns(c, name):
                return f"{name} is column-major, which takes tiles of {self.most_rows} rows of it"
        return super().refuses_config(c, config)

    def variants(self, c: Call) -> Columns[Any]:
        every = super().variants(c)
        turned = is_columns(c, "x"), is_columns(c, "w")
        if not any(turned):
            return every
        known = _turned.get((*turned, len(every.candidates)))
        if known is None:
            fit = [config for config in every if self.refuses_config(c, config) is None]
            known = _turned[*turned, len(every.candidates)] = Columns(fit)
        return known

    def defines(self, c: Call, config: Any) -> Mapping[str, int | str]:
        columns = {"X_COLUMNS": int(is_columns(c, "x")), "W_COLUMNS": int(is_columns(c, "w"))}
        return {**super().defines(c, config), **columns}
