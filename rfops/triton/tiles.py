"""Tiles of the MX-FP8 Triton kernels: their config, which are worth timing.

A kernel's own table (configs/*_mxfp8_triton.csv) has tiles by bounds on the shape, empty for any.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rfops.dispatch import routing
from rfops.dispatch.declare import MX_BLOCK as BLOCK
from rfops.dispatch.guards import check_config_ints
from rfops.dispatch.kernel import Call
from rfops.dispatch.tuned_table import Row, serving
from rfops.jit.arch import ARCH_SPECS

METHODS = ("scaled", "blocks", "exact", "expand")
AMD_NUMBERS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
MAX_SPLITS = 16
FILLS = (0, 1, 2, 4)
SCALED_ARCHS = ("gfx950",)  # whose matrix instruction scales; elsewhere dot_scaled goes by bf16


@dataclass(frozen=True)
class TritonConfig:
    """A variant of rfops/triton/mxfp8_kernels.py; that file says what METHOD means."""

    method: str
    block_m: int
    block_n: int
    block_k: int
    group_m: int = 1
    warps: int = 4
    stages: int = 2
    waves_per_eu: int = 0  # AMD only, as the next two; 0: Triton's choice
    matrix_instr_nonkdim: int = 0
    kpack: int = 0
    splits: int = 1  # of K, at most; dense only
    fill: int = 0  # split K until a compute unit has so many programs; 0: into `splits`

    def __post_init__(self) -> None:
        check_config_ints(self, "method")
        for name in ("block_m", "block_n", "block_k", "warps"):
            value = getattr(self, name)
            if value <= 0 or value & (value - 1):
                self._fail(name, "a power of two", value)
        if self.method not in METHODS:
            self._fail("method", f"one of {', '.join(METHODS)}", self.method)
        min_block_k = 4 * BLOCK if self.method == "scaled" else BLOCK
        if self.block_k < min_block_k:
            self._fail("block_k", f"at least {min_block_k} with method {self.method}", self.block_k)
        if self.block_m < 8 or self.block_n < 16:
            self._fail("block_m and block_n", "at least 8 and 16", (self.block_m, self.block_n))
        for name in ("group_m", "stages"):
            if getattr(self, name) < 1:
                self._fail(name, "at least 1", getattr(self, name))
        if not 1 <= self.splits <= MAX_SPLITS:
            self._fail("splits", f"1 to {MAX_SPLITS}", self.splits)

    def _fail(self, name: str, expected: str, value: object) -> None:
        raise ValueError(f"TritonConfig: {name} must be {expected}, got {value!s:.80}")

    def unsupported_reason(self, is_dense: bool, arch: str) -> str | None:
        """None if this tile is one of that product and architecture, else the reason."""
        if self.method == "scaled" and arch not in SCALED_ARCHS:
            return f"method scaled is for {', '.join(SCALED_ARCHS)}, not {arch}: take blocks"
        if not is_dense and (self.method == "expand" or self.splits > 1 or self.fill):
            return "method expand and splits are for the dense product alone"
        return None

    def filled(self, arch: str, m: int, n: int, k: int) -> TritonConfig:
        """With as many parts of K as `fill` asks for, two steps along K in each at least."""
        if not self.fill:
            return self
        tiles = -(-m // self.block_m) * -(-n // self.block_n)
        wanted_splits = self.fill * ARCH_SPECS[serving(arch) or arch].cus // max(tiles, 1)
        splits = max(1, min(wanted_splits, MAX_SPLITS, k // (2 * self.block_k)))
        return replace(self, splits=splits, fill=0)

    def constants(self, k: int) -> dict[str, object]:
        """The compile-time constants that all kernels have."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "EVEN_K": k % self.block_k == 0,
            "GROUP_M": self.group_m,
        }

    def options(self, arch: str) -> dict[str, object]:
        """Triton's compile options; unset, fp fusion warns in 3.9 and changes in 3.10."""
        options: dict[str, object] = {
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": True,
        }
        if arch.startswith("gfx"):
            options |= {name: getattr(self, name) for name in AMD_NUMBERS if getattr(self, name)}
        return options


def config_of(row: Row) -> TritonConfig:
    """Return the config of a tuned row. Raises as routing.parse_config."""
    config: TritonConfig = routing.parse_config(TritonConfig, row.config, row)
    return config


def candidates(tile: TritonConfig, c: Call, m: int, is_dense: bool) -> Iterator[TritonConfig]:
    """A tile and those around it, in one or two numbers by a factor of two; on an NVIDIA GPU then
    those that wider searches on an H200 left, for tiles of up to `m` rows."""
    yield tile
    changes = [
        {name: value}
        for name, min_value in (("block_n", 16), ("block_k", 128), ("warps", 1), ("splits", 1))
        for value in (2 * getattr(tile, name), getattr(tile, name) // 2)
        if value >= min_value and (is_dense or name != "splits")
    ]
    for change in [*changes, *({**changes[0], **change_} for change_ in changes[2:4])]:
        with contextlib.suppress(ValueError):
            yield replace(tile, **change)
    if c.arch.startswith("sm_"):
        yield from _on_nvidia(m, is_dense)


def _on_nvidia(m: int, is_dense: bool) -> Iterator[TritonConfig]:
    """What does not fit the GPU fails to compile, and is left out."""
    if is_dense and m >= 128:
        tiles = ((64, 128, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8))
        for (rows, bn, warps), stages in itertools.product(tiles, (3, 4)):
            yield TritonConfig("expand", rows, bn, 64, 8, warps, stages)
    if m > 128:
        return
    max_rows = min(1 << max(m - 1, 7).bit_length(), 64)
    for rows in (max_rows,) if is_dense else (16, 8):
        for bn, bk, warps, stages in itertools.product(
            (32, 64, 128), (64, 128, 256), (2, 4, 8), (3, 4)
        ):
            acc_registers = bk // BLOCK * bn * rows // (32 * warps)  # registers of a thread
            in_flight = bn * bk * (stages - 1)  # bytes of a program
            if acc_registers <= 64 and bk // BLOCK >= warps and 8192 <= in_flight <= 65536:
                for fill in FILLS if is_dense else (0,):
                    yield TritonConfig("blocks", rows, bn, bk, 1, warps, stages, fill=fill)
