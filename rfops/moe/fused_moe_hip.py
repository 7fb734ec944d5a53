"""fused_moe by HIP: four launches, no sort, no copy to the host.

lists     tokens of each expert, by the router or by ids   csrc/moe/moe_router.hip, moe_lists.hip
experts   gate, up and SiLU of all experts' rows           csrc/moe/moe_experts.hip; on gfx950
experts   down of them                                     moe_experts_pingpong.hip
add       each token's rows, in a fixed order              csrc/moe/moe_add.hip
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.guards import MAX_BYTES, check_config_ints
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.strided import matrix_strides
from rfops.dispatch.workspace import Workspace
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ROWS, WAVE
from rfops.jit.launch.signature import tensors

from . import router
from .choosing import refuses_choosing

IN_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}  # in csrc/
ID_TYPES = {torch.int32: "i32", torch.int64: "i64"}
VEC = 8  # elements that a lane loads at once
TOKENS, THREADS = 256, 512  # of a workgroup that makes lists; of one that multiplies
TILE, XCDS = 256, 8  # rows, and columns of weights; workgroups come in eights
PINGPONG_ROWS = 288  # of a tile of it: 256 and what chance adds
ADD_COLUMNS = 2048
TABLE = 64  # experts of a table
MOST_EXPERTS, MOST_CHOSEN, MOST_SHARED = 512, 16, 8


@compile_ops("moe_lists", kernel="moe_lists", variants=lambda _arch: [{"ID": "i32", "TOP_K": 8}])
def moe_lists_kernel(
    counts: Tensor, rows: Tensor, slots: Tensor, topk_ids: Tensor, m: u32, experts: u32
) -> None:
    """csrc/moe/moe_lists.hip: the shapes stand there."""


def _experts_defines(
    is_table: bool, dtype: torch.dtype, stage: int, experts: int, rows: int,
    is_shuffled: bool = False,
) -> dict[str, Any]:  # fmt: skip
    return {
        "IN": IN_TYPES[dtype],
        "STAGE": stage,
        "TABLE": TABLE if is_table else 0,
        "EACH": ceil(experts, WAVE),
        "SHUFFLED": int(is_shuffled),
        "ROWS": rows,
    }


def _arguments(
    out: Tensor,
    x: Tensor,
    weights: Tensor,
    lists: Tensor,
    counts: Tensor,
    offsets: Tensor,
    m: u32,
    routed: u32,
    experts: u32,
    all_rows: u32,
    n: u32,
    k: u32,
    in_row: u32,
    groups: u32,
) -> None:
    """Of stacked weights; csrc/moe/moe_experts.hip and moe_experts_pingpong.hip: the shapes."""


def _table_arguments(
    out: Tensor,
    x: Tensor,
    first: tensors(TABLE),  # type: ignore[valid-type]
    second: tensors(TABLE),  # type: ignore[valid-type]
    lists: Tensor,
    counts: Tensor,
    offsets: Tensor,
    m: u32,
    routed: u32,
    experts: u32,
    all_rows: u32,
    n: u32,
    k: u32,
    in_row: u32,
    groups: u32,
) -> None:
    """Of weights in tables."""


def _stages(rows: int, is_table: bool = False) -> Callable[[str], list[dict[str, Any]]]:
    """A variant a stage for `rfops build`."""
    dtype = torch.float16 if is_table else torch.bfloat16
    return lambda _arch: [_experts_defines(is_table, dtype, stage, 64, rows) for stage in (1, 2)]


moe_experts_kernel = compile_ops("moe_experts", kernel="moe_experts", variants=_stages(256))(
    _arguments
)
moe_experts_table_kernel = compile_ops(
    "moe_experts", kernel="moe_experts_table", variants=_stages(256, is_table=True)
)(_table_arguments)
moe_experts_pingpong_kernel = compile_ops(
    "moe_experts_pingpong", kernel="moe_experts_pingpong", variants=_stages(PINGPONG_ROWS)
)(_arguments)
moe_experts_pingpong_table_kernel = compile_ops(
    "moe_experts_pingpong",
    kernel="moe_experts_pingpong_table",
    variants=_stages(PINGPONG_ROWS, is_table=True),
)(_table_arguments)

# By whether weights are in tables, as the architecture has them.
_KERNELS = {
    "gfx942": (moe_experts_kernel, moe_experts_table_kernel),
    "gfx950": (moe_experts_pingpong_kernel, moe_experts_pingpong_table_kernel),
}


@compile_ops(
    "moe_add",
    kernel="moe_add",
    variants=lambda _arch: [{"IN": "bf16", "ID": "i32", "TOP_K": 8, "SHARED": 0}],
)
def moe_add_kernel(
    out: Tensor,
    rows: Tensor,
    weights: Tensor,
    ids: Tensor,
    slots: Tensor,
    offsets: Tensor,
    n: u32,
    routed: u32,
    all_rows: u32,
) -> None:
    """csrc/moe/moe_add.hip: the shapes stand there."""


@dataclass(frozen=True)
class FusedMoeHipConfig:
    """A variant of csrc/moe/moe_experts.hip, or of moe_experts_pingpong.hip."""

    heights: ClassVar[tuple[int, ...]] = (128, 160, 256, PINGPONG_ROWS)

    rows: int  # of a tile at most

    def __post_init__(self) -> None:
        check_config_ints(self)
        if self.rows not in self.heights:
            *others, last = map(str, self.heights)
            raise ValueError(f"{self}: rows are {', '.join(others)} or {last}")


class HipMoe(Kernel):
    name = "hip"
    module = "moe_experts"
    Config: ClassVar[type[Any] | None] = FusedMoeHipConfig
    more_modules: ClassVar[tuple[str, ...]] = ("moe_experts_pingpong", "moe_lists", "moe_add")

    def __init__(self, is_table: bool) -> None:
        self.is_table = is_table  # weights come in tables of [K, N]

    def module_of(self, arch: str) -> str:
        return "moe_experts_pingpong" if arch == "gfx950" else self.module

    def refuses(self, c: Call) -> str | None:
        if reason := self.refuses_arch(c):
            return reason
        most = TABLE if self.is_table else MOST_EXPERTS
        if c.E > most or c.K > MOST_CHOSEN or (c.E - c.R) > MOST_SHARED:
            chosen = f"{c.K} + {(c.E - c.R)} of {c.E} experts"
            return f"{chosen} are more than {MOST_CHOSEN} + {MOST_SHARED} of {most}"
        if c.D % VEC or c.I % VEC or c.D == 0 or c.I == 0:
            return f"D={c.D}, I={c.I}: no multiples of {VEC}"
        row, column = matrix_strides(c, "x", c.D)
        if column != 1 or row % VEC or c.align("x") % (2 * VEC) or (row < c.D and c.M > 1):
            return f"x does not lie in rows of {2 * VEC} bytes"
        if 2 * c.M * row >= MAX_BYTES:
            return "x is beyond signed 32-bit offsets (2 GiB)"
        if c.has("router_weight"):
            reason = refuses_choosing(c) or router.refuses_rows(c, c.R)
            if reason:
                return f"the router's {reason}"
        if 4 * c.D * c.I >= MAX_BYTES or 2 * TILE * max(c.D, c.I) >= MAX_BYTES:
            return "an expert's weights are beyond signed 32-bit offsets (2 GiB)"
        if c.M * (c.K + (c.E - c.R)) * ceil(max(c.D, c.I), TILE // 2) >= 2**31:
            return "more than 2^31 routed rows"
        return refuses_lists(c)

    def heights(self, c: Call) -> tuple[int, ...]:
        """What tiles may have of rows."""
        return (PINGPONG_ROWS,) if c.arch == "gfx950" else (128, 160, 256)

    def refuses_config(self, c: Call, config: Any) -> str | None:
        heights = self.heights(c)
        if config.rows not in heights:
            return f"tiles have {' or '.join(map(str, heights))} rows here, not {config.rows}"
        return None

    def default(self, c: Call) -> Any:
        """The lower tiles where they hold most experts' rows."""
        heights = self.heights(c)
        return FusedMoeHipConfig(heights[0 if 1.1 * c.M * c.K <= heights[0] * c.R else -1])

    def candidates(self, c: Call) -> list[Any]:
        assert self.Config is not None
        return [self.Config(rows) for rows in self.heights(c)]

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        rows = config.rows
        return _experts_defines(self.is_table, c.x_dtype, 1, c.E, rows, _is_shuffled(c))

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda *sizes: self.launches(
            c.with_sizes(**dict(zip(c.sizes, sizes, strict=True))), config
        )

    def launches(self, c: Call, config: Any) -> Launches:
        return _Launches(c, config, self.is_table)


class Launches:
    """Of one call: lists and the sum of rows; experts are subclasses'. Lists are in the workspace;
    what experts make is torch's allocator's."""

    def __init__(self, c: Call, config: FusedMoeHipConfig) -> None:
        self.c, self.config = c, config
        ids = ID_TYPES[c.values.get("topk_ids_dtype", torch.int32)]
        routed, m = c.R, c.M
        self.rows = m * (c.K + c.E - c.R)
        self.scratch = Workspace(
            c.device,
            (routed * m, torch.int32),  # lists
            (m * c.K, torch.int32),  # slots
            (c.E + 1, torch.int32),  # offsets
            (m * c.K, torch.float32),  # weights and ids, where a router makes them
            (m * c.K, torch.int32),
            zeros=c.E,
        )
        of_ids = self.of_ids = {"ID": ids, "TOP_K": c.K}
        self.is_routed = c.has("router_weight")
        if self.is_routed:
            self.lists = router.prepare(c, routed, True)(m, c.D, routed)
        else:
            self.lists = self.lists_of_ids()
        self.gate_up, self.down = self.experts(1, c.I, c.D), self.experts(2, c.D, c.I)
        add = {"IN": IN_TYPES[c.x_dtype], **of_ids, "SHARED": (c.E - c.R)}
        grid = m, ceil(c.D, ADD_COLUMNS), 1
        self.add = _bind(c, moe_add_kernel, add, 256, 6)(grid, (c.D, routed, self.rows))

    def lists_of_ids(self) -> Run:
        c = self.c
        launch = _bind(c, moe_lists_kernel, self.of_ids, TOKENS, 4)
        run: Run = launch((ceil(c.M, TOKENS), 1, 1), (c.M, c.R))
        return run

    def experts(self, stage: int, n: int, k: int) -> Run:
        """The launch of gate and up, stage 1, or of down, n columns of out by k."""
        c, rows = self.c, self.config.rows
        kernel, defines, given, more = self.kernel(stage, k)
        tiles = self.row_tiles(rows) * ceil(n, TILE // 2 if stage == 1 else TILE)
        groups = min(ROWS[c.arch].cus, ceil(tiles, XCDS) * XCDS)
        launch = _bind(c, kernel, defines, THREADS, given)
        run: Run = launch((groups, 1, 1), (c.M, c.R, c.E, self.rows, n, k, *more, groups))
        return run

    def kernel(self, stage: int, k: int) -> tuple[Any, Mapping[str, Any], int, tuple[int, ...]]:
        """Of a stage: its constants, how many tensors it takes, and numbers after k."""
        raise NotImplementedError

    def between(self, x: Tensor) -> tuple[Tensor, ...]:
        """What stages leave for each other: made before the first launch, as counts are 0 again
        only after the last."""
        raise NotImplementedError

    def prepare(
        self, x: Tensor, ids: Tensor, lists: Tensor, slots: Tensor, counted: Tensor, between: Any
    ) -> None:
        """Makes lists, where a router has not."""
        if not self.is_routed:
            self.lists(counted, lists, slots, ids)

    def multiply(self, y: Tensor, x: Tensor, weights: Any, lists: Any, between: Any) -> None:
        """All experts' rows: y [rows, D]."""
        raise NotImplementedError

    def row_tiles(self, rows: int) -> int:
        """The most tiles of so many rows that experts can have."""
        c = self.c
        routed = c.M * c.K
        most = ceil(routed, rows) + min(routed, c.E) + (c.E - c.R) * ceil(c.M, rows)
        return int(most)

    def __call__(self, out: Tensor, x: Tensor, *rest: Any) -> None:
        *weights, p, ids, router_weight = rest
        lists, slots, offsets, made_p, made_ids, counted = self.scratch()
        y = torch.empty((self.rows, self.c.D), dtype=x.dtype, device=x.device)
        between = self.between(x)
        if self.is_routed:
            p, ids = made_p, made_ids
            self.lists(p, ids, x, router_weight, counted, lists, slots)
        self.prepare(x, ids, lists, slots, counted, between)
        self.multiply(y, x, weights, (lists, counted, offsets), between)
        self.add(out, y, p, ids, slots, offsets)


class _Launches(Launches):
    """Of weights of x's dtype."""

    def __init__(self, c: Call, config: FusedMoeHipConfig, is_table: bool) -> None:
        self.is_table = is_table
        super().__init__(c, config)

    def kernel(self, stage: int, k: int) -> tuple[Any, Mapping[str, Any], int, tuple[int, ...]]:
        c, rows = self.c, self.config.rows
        kernel = _KERNELS[c.arch][self.is_table]
        defines = _experts_defines(self.is_table, c.x_dtype, stage, c.E, rows, _is_shuffled(c))
        row = matrix_strides(c, "x", c.D)[0] if stage == 1 else k
        return kernel, defines, 7 if self.is_table else 6, (2 * row,)

    def between(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.empty((self.rows, self.c.I), dtype=x.dtype, device=x.device),)

    def multiply(self, y: Tensor, x: Tensor, weights: Any, lists: Any, between: Any) -> None:
        if self.is_table:
            gate, up, down = ((*w, *[None] * (TABLE - self.c.E)) for w in weights)
            weights = [gate, up, down, down]
        half = len(weights) // 2
        (h,) = between
        self.gate_up(h, x, *weights[:half], *lists)
        self.down(y, h, *weights[half:], *lists)


def _is_shuffled(c: Call) -> bool:
    return bool(c.values.get("w_layout", "raw") != "raw")


def refuses_lists(c: Call) -> str | None:
    """Lists of tokens, a row an expert; and counts may say M of each, whose sum kernels look at."""
    if 4 * c.M * c.E >= 2 * MAX_BYTES:
        return f"lists of {c.M} tokens for {c.E} experts are beyond 32-bit offsets (4 GiB)"
    return None


def _bind(c: Call, kernel: Any, defines: Mapping[str, Any], threads: int, given: int) -> Any:
    return kernel.bind(c.device, defines, c.arch).prepare((threads, 1, 1), tuple(range(given)))
