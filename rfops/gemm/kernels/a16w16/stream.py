"""The HIP kernel of gemm_a16w16 and batched_gemm_a16w16, bound by reading w: the kernel's
signature, its variants, which one a shape gets, what it refuses, and the launch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from rfops.dispatch.config import Allowed, powers, up_to
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.workspace import SPLIT, with_partials
from rfops.jit import compile_ops, u32, u64
from rfops.jit.arch import ARCH_SPECS, MAX_GRID, WAVE

from ..variant import TILE, WavesConfig
from .shape import Shape, shape_of, strides

_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}  # in csrc/
_VEC = 8  # elements that a lane loads at once
_COUNT_STEP = 32  # words of a counter: kCounterStride of rfops/group/split_k_reduce.h
_STEP_K = 32  # elements of K of a step along it, times `slices`
_SPLIT_K = 256  # of a part of a split K, at least
_LONG_K = 1024
_MIN_WHOLE_LINES = 12 << 20  # bytes of w
LINE = 128  # bytes
_NEIGHBOURS = {  # values of fields that a tuner tries, the first fields first
    "split": (1, 4, 8, 16),
    "waves": (1, 2, 4, 8),
    "steps": (2, 4, 8),
    "n_tiles": (1, 2, 4),
    "m_tiles": (1, 2, 4),
    "waves_n": (1, 2),
}
_MAX_TILE = 512  # rows of w, or of x, of a workgroup


@dataclass(frozen=True)
class StreamConfig(WavesConfig):
    """A variant of csrc/gemm/a16w16_stream.hip; its head comment says what each means."""

    m_tiles: int  # matrix tiles of x of a workgroup
    n_tiles: int  # matrix tiles of w of a wave
    waves: int  # waves of a workgroup, side by side along K
    waves_n: int = 1  # and along N
    steps: int = 4  # steps along K that a wave has in flight
    slices: int = 1  # of K in a matrix tile, which has 16 / slices rows
    split: int = 1  # workgroups along K
    lines: int = 0  # of a row of w that a load asks for, then put into order by LDS; 0: half a one

    ALLOWED: ClassVar[Allowed] = {
        "m_tiles": up_to(4),
        "n_tiles": powers(1, 8),
        "waves": up_to(16),
        "waves_n": up_to(16),
        "steps": up_to(16),
        "slices": (1, 4, 16),
        "split": up_to(16),
        "lines": (0, 1, 2, 4),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slices > 1 and self.waves_n * self.split > 1:
            raise ValueError(f"{self}: slices above 1 need waves_n=1 and split=1")
        if self.lines and (self.slices > 1 or self.steps % (2 * self.lines)):
            raise ValueError(f"{self}: lines need slices=1 and steps a multiple of 2 * lines")
        if self.waves * self.waves_n > 16:
            raise ValueError(f"{self}: waves * waves_n must be at most 16")
        self.check_loads(self.steps * (self.m_tiles + self.n_tiles))
        self.check_registers(self.registers)

    @property
    def registers(self) -> int:
        """VGPRs, about: operands in flight, sums, and addresses."""
        tiles = self.m_tiles + self.n_tiles
        return 4 * (self.steps * tiles + self.m_tiles * self.n_tiles) + 24

    @property
    def lds_bytes(self) -> int:
        """The waves' sums, and what puts lines into order."""
        waves = self.waves * self.waves_n
        sums = 4 * self.m_tiles * self.n_tiles * TILE * TILE // self.slices**2
        has_sums = self.waves > 1 or self.slices > 1
        return waves * (has_sums * sums + self.lines * TILE * LINE)

    @property
    def tile_m(self) -> int:
        """Rows of x of a workgroup."""
        return self.m_tiles * TILE // self.slices

    @property
    def tile_n(self) -> int:
        """Rows of w of a workgroup."""
        return self.n_tiles * self.waves_n * TILE // self.slices

    @property
    def threads(self) -> int:
        return self.waves * self.waves_n * WAVE

    @property
    def words(self) -> int:
        return super().words * self.waves_n

    @property
    def step_k(self) -> int:
        """Elements of K that a workgroup has in flight."""
        return self.waves * self.steps * 4 * _VEC * self.slices

    def tiles(self, m: int, n: int) -> int:
        """Return the number of output tiles of a batch."""
        return ceil(m, self.tile_m) * ceil(n, self.tile_n)

    def defines(self) -> dict[str, int]:
        """Return the defines that select the variant, without RFOPS_."""
        return {
            "M_TILES": self.m_tiles,
            "N_TILES": self.n_tiles,
            "SLICES": self.slices,
            "STEPS": self.steps,
            "WAVES": self.waves,
            "WAVES_N": self.waves_n,
            "SPLIT": self.split,
            "LINES": self.lines,
        }


def _usual_variants(arch: str) -> list[dict[str, int | str]]:
    """What `rfops build` prepares: a gate and both absorbed weights of few tokens in bf16."""
    from rfops.dispatch.op import ops  # by then they are declared

    kernel = Stream()
    shapes: dict[str, dict[str, Any]] = {
        "gemm_a16w16": {"M": 1, "N": 256, "K": 7168},
        "batched_gemm_a16w16": {"B": 16, "M": 16, "N": 512, "K": 128},
    }
    calls = [ops()[op].call_of(arch, **sizes) for op, sizes in shapes.items()]
    return [dict(kernel.defines(c, kernel.default(c))) for c in calls]


@compile_ops("a16w16_stream", variants=_usual_variants)
def a16w16_stream(
    x: torch.Tensor,
    w: torch.Tensor,
    m: u32,
    n: u32,
    k: u32,
    x_row: u32,
    w_row: u32,
    tiles: u32,
    x_batch: u64,
    w_batch: u64,
    out: torch.Tensor,
    out_batch: u64,
    out_row: u32,
    workspace: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> None:
    """csrc/gemm/a16w16_stream.hip has the shapes; the config is compile-time constants."""


class Stream(Kernel):
    """w goes from memory to registers once for each tile of rows of x."""

    name = "stream"
    module = "a16w16_stream"
    Config = StreamConfig
    is_ranked = False

    def unsupported_reason(self, c: Call) -> str | None:
        return self.unsupported_arch_reason(c) or _layout_reason(c, shape_of(*c.sizes.values()))

    def unsupported_config_reason(self, c: Call, config: StreamConfig) -> str | None:
        if _is_columns(c) and (config.slices > 1 or config.lines or config.n_tiles == 1):
            return "w is column-major, which slices, lines and n_tiles=1 do not take"
        if _is_columns(c) and config.steps * (config.m_tiles + _VEC) > 63:
            return f"steps={config.steps} of a column-major w are more than 63 loads in flight"
        if config.lds_bytes > ARCH_SPECS[c.arch].lds_bytes:
            return f"{config.lds_bytes} bytes of LDS, a CU has {ARCH_SPECS[c.arch].lds_bytes}"
        return None

    def default(self, c: Call) -> StreamConfig:
        """By estimates of timing mode for gates, absorbed weights and heads of 1 to 256 rows.

        Few tiles: K split over workgroups and waves until all of it is in flight at once. Many of
        few rows: whole lines, so that HBM opens fewer rows: 232 MB and 16 tokens take 44.8 us
        instead of 55.4.
        """
        shape = shape_of(*c.sizes.values())
        if _is_columns(c):
            return _of_columns(shape, c.cu_num)
        if shape.m == 1 and shape.k >= _LONG_K:
            slices_k = 16 * _STEP_K
            waves = min(8, ceil(shape.k, slices_k))
            n_tiles = 2 if shape.b * shape.n > 4 * c.cu_num else 1
            return StreamConfig(1, n_tiles, waves, steps=2, slices=16)
        if shape.m <= TILE and shape.k >= _LONG_K and shape.b * shape.n >= 2 * TILE * c.cu_num:
            return StreamConfig(1, 1, 1, steps=8, lines=4)
        bytes_of_w = 2 * shape.b * shape.n * shape.k
        if shape.m <= TILE and shape.k >= 2 * _LONG_K and bytes_of_w >= _MIN_WHOLE_LINES:
            return _of_whole_lines(shape, c)
        return _of_rows(shape, c.cu_num)

    def candidates(self, c: Call) -> Iterable[StreamConfig]:
        """The default, and others that differ in one field or two."""
        default = self.default(c)
        values = {
            name: {*neighbours, getattr(default, name)} for name, neighbours in _NEIGHBOURS.items()
        }
        configs = {default: None}
        for pair in itertools.combinations(values, 2):
            for numbers in itertools.product(*[sorted(values[name]) for name in pair]):
                with contextlib.suppress(ValueError):  # does not fit
                    config = replace(default, **dict(zip(pair, numbers, strict=True)))
                    if self.unsupported_config_reason(c, config) is None:
                        configs[config] = None
        return configs

    def defines(self, c: Call, config: StreamConfig) -> Mapping[str, int | str]:
        types = {"IN": _TYPES[c.x_dtype], "OUT": _TYPES[c.dtype]}
        return {**types, "W_COLUMNS": int(_is_columns(c)), **config.defines()}

    def variant(self, c: Call, config: StreamConfig) -> RunOf:
        kernel = a16w16_stream.bind(c.device, self.defines(c, config), c.arch)
        is_split = config.split > 1
        arguments = (*self.arguments, *(SPLIT if is_split else ()))
        launch = kernel.prepare((config.threads, 1, 1), arguments)

        def run_of(*sizes: int) -> Run:
            shape = shape_of(*sizes)
            x, w, out = (strides(c, name, shape) for name in ("x", "w", "out"))
            m_tiles, n_tiles = ceil(shape.m, config.tile_m), ceil(shape.n, config.tile_n)
            tiles = n_tiles * m_tiles * shape.b
            run = launch(
                (n_tiles, config.split, m_tiles * shape.b),
                m=shape.m,
                n=shape.n,
                k=shape.k,
                tiles=tiles,
                x_row=x[1],
                w_row=w[2] if _is_columns(c) else w[1],
                out_row=out[1],
                x_batch=x[0],
                w_batch=w[0],
                out_batch=out[0],
            )
            if not is_split:
                return run
            words = tiles * config.split * config.words
            return with_partials(run, c.device, words, tiles * config.waves_n * _COUNT_STEP)

        return run_of


def _of_rows(shape: Shape, cus: int) -> StreamConfig:
    """The largest tiles of which there are enough, with K split; then waves along K."""
    max_split = 1 if shape.k < _LONG_K else min(16, shape.k // _SPLIT_K)
    largest = ceil(shape.m, TILE)
    sizes = [tiles for tiles in ((4, 4), (4, 2), (2, 2), (2, 1), (1, 2)) if tiles[0] <= largest]
    m_tiles, n_tiles = next(
        (t for t in sizes if shape.m > 8 and max_split * shape.tiles(*t) >= cus), (1, 1)
    )
    split = max(1, min(max_split, cus // shape.tiles(m_tiles, n_tiles)))
    steps = 2 if m_tiles * n_tiles == 16 and shape.k < _LONG_K else 4
    if split == 1 and shape.tiles(m_tiles, n_tiles) >= cus and shape.k <= _LONG_K:
        waves_n = 2 if n_tiles == 4 or (n_tiles == 2 and shape.k <= 2 * steps * _STEP_K) else 1
        return StreamConfig(m_tiles, n_tiles, 1, waves_n, steps)
    max_waves = 4 if m_tiles * n_tiles == 16 else 8
    waves = min(max_waves, ceil(shape.k, split * steps * _STEP_K))
    return StreamConfig(m_tiles, n_tiles, waves, steps=steps, split=split)


def _of_whole_lines(shape: Shape, c: Call) -> StreamConfig:
    """Loads of whole lines and two workgroups per CU, for w that cannot be in flight all at once.

    Estimated, MI355X: 16 x 1,280 x 7,168 takes 7.7 us instead of 9.4, 16 x 2,880 x 4,096 8.6, not
    10.2. MI300X, whose LDS has room for half as many lines, has four tiles of w by one of x where
    they fill it at once with K split, because x takes half of what is in flight otherwise: 8.7 us
    of 9.9, 9.8 of 10.4. A plain read of the 18 MB of the former takes 6.6 and 7.9 us.
    """
    lines = 4 if ARCH_SPECS[c.arch].lds_bytes > 64 << 10 else 2
    steps, max_split = 2 * lines, min(16, shape.k // _SPLIT_K)
    split = min(16, c.cu_num // shape.tiles(1, 4))
    if lines == 2 and split >= 6 and shape.k >= 4 * _LONG_K:
        return StreamConfig(1, 4, 2, steps=steps, split=split, lines=lines)
    split = max(1, min(max_split, round(2 * c.cu_num / shape.tiles(1, 1))))
    waves = min(4, ceil(shape.k, split * steps * _STEP_K))
    return StreamConfig(1, 1, waves, steps=steps, split=split, lines=lines)


def _of_columns(shape: Shape, cus: int) -> StreamConfig:
    """The largest tiles of which there are enough."""
    largest = ceil(shape.m, TILE)
    sizes = [tiles for tiles in ((4, 4), (2, 4), (2, 2), (1, 4)) if tiles[0] <= largest]
    m_tiles, n_tiles = next(
        (t for t in sizes if shape.m > 8 and shape.tiles(t[0], 2 * t[1]) >= cus), (1, 2)
    )
    steps = 2 if m_tiles == 4 else 4
    waves = min(4, ceil(shape.k, steps * _STEP_K))
    return StreamConfig(m_tiles, n_tiles, waves, 2 if waves <= 2 else 1, steps)


def _is_columns(c: Call) -> bool:
    """Whether neighbours of w are elements of one k."""
    _, row, column = strides(c, "w", shape_of(*c.sizes.values()))
    return row == 1 and column != 1


def _layout_reason(c: Call, shape: Shape) -> str | None:
    """Why the kernel does not take operands that lie as these do."""
    if shape.k % _VEC:
        return f"K={shape.k} is not a multiple of {_VEC}"
    for name in ("x", "w", "out"):
        batch, row, column = strides(c, name, shape)
        _, rows, columns = shape.sizes_of(name)
        is_columns = name == "w" and _is_columns(c)
        if is_columns:
            row, column, rows, columns = column, row, columns, rows
        if column != 1:
            return f"neither rows nor columns of {name} lie side by side"
        if min(batch, row) < 0 or (row < columns and rows > 1):
            return f"rows of {name} overlap"
        if name != "out" and ((batch | row) % _VEC or c.align(name) % (2 * _VEC)):
            return f"rows of {name} do not begin at multiples of {2 * _VEC} bytes"
        rows = _MAX_TILE + (rows if name == "w" else 0)
        if rows * row * (4 if name == "out" else 2) >= MAX_BYTES:
            return f"{rows} rows of {name} are beyond signed 32-bit offsets (2 GiB)"
    if shape.b * shape.m > MAX_GRID:
        return f"B={shape.b} by M={shape.m} may be more than {MAX_GRID} tiles"
    return None
