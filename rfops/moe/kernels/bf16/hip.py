"""fused_moe by HIP: four launches, no sort, no copy to the host; up to two more where a router
chooses (rfops/moe/router.py).

lists     tokens of each expert, by the router or by ids   csrc/moe/moe_router.hip, moe_lists.hip
experts   gate, up and SiLU of all experts' rows           csrc/moe/moe_experts.hip; on gfx950
experts   down of them                                     moe_experts_pingpong.hip
add       each token's rows, in a fixed order              csrc/moe/moe_add.hip
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.guards import MAX_BYTES, check_config_ints
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.steps import Step, run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.dispatch.time_model import TimedKernel
from rfops.jit import CompiledOp, compile_ops, u32
from rfops.jit.arch import ARCH_SPECS, WAVE
from rfops.jit.launch.signature import tensors

from ... import router
from ...terms import Traits
from ..limits import refuses_weights
from ..topk.choosing import refuses_choosing

IN_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}  # in csrc/
ID_TYPES = {torch.int32: "i32", torch.int64: "i64"}
VEC = 8  # elements that a lane loads at once
TOKENS, THREADS = 256, 512  # of a workgroup that makes lists; of one that multiplies
TILE, XCDS = 256, 8  # rows, and columns of weights; workgroups come in eights
PINGPONG_ROWS = 288  # of a tile of it: 256 and what chance adds
ADD_COLUMNS = 2048
TABLE = 64  # experts of a table
MAX_EXPERTS, MAX_TOP_K, MAX_SHARED = 512, 16, 8


@compile_ops("moe_lists", kernel="moe_lists", variants=lambda _arch: [{"ID": "i32", "TOP_K": 8}])
def moe_lists_kernel(
    counts: Tensor, rows: Tensor, slots: Tensor, topk_ids: Tensor, m: u32, experts: u32
) -> None:
    """csrc/moe/moe_lists.hip: the shapes stand there."""


def _experts_defines(
    is_table: bool,
    dtype: torch.dtype,
    stage: int,
    experts: int,
    rows: int,
    is_shuffled: bool = False,
) -> dict[str, Any]:
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
    """The parameters with stacked weights; csrc/moe/moe_experts.hip and moe_experts_pingpong.hip
    have the shapes."""


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
    """The parameters with tables of weights."""


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
            *all_but_last, last_height = map(str, self.heights)
            raise ValueError(f"{self}: rows are {', '.join(all_but_last)} or {last_height}")


class HipMoe(TimedKernel):
    name = "hip"
    module = "moe_experts"
    weight_bits = 16  # of an element, also of h
    Config: ClassVar[type[Any] | None] = FusedMoeHipConfig
    more_modules: ClassVar[tuple[str, ...]] = ("moe_experts_pingpong", "moe_lists", "moe_add")

    def __init__(self, is_table: bool) -> None:
        self.is_table = is_table  # weights come in tables of [K, N]

    def module_of(self, arch: str) -> str:
        return "moe_experts_pingpong" if arch == "gfx950" else self.module

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        max_experts = TABLE if self.is_table else MAX_EXPERTS
        if c.E > max_experts or c.K > MAX_TOP_K or (c.E - c.R) > MAX_SHARED:
            requested = f"{c.K} + {(c.E - c.R)} of {c.E} experts"
            return f"{requested} are more than {MAX_TOP_K} + {MAX_SHARED} of {max_experts}"
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
        if reason := refuses_weights(c, self.weight_bits):
            return reason
        if TILE * max(c.D, c.I) * self.weight_bits // 8 >= MAX_BYTES:
            return f"{TILE} rows of x or h are beyond signed 32-bit offsets (2 GiB)"
        if c.M * (c.K + (c.E - c.R)) * ceil(max(c.D, c.I), TILE // 2) >= 2**31:
            return "more than 2^31 routed rows"
        return refuses_lists(c)

    def heights(self, c: Call) -> tuple[int, ...]:
        """Return the heights that tiles may have."""
        return (PINGPONG_ROWS,) if c.arch == "gfx950" else (128, 160, 256)

    def unsupported_config_reason(self, c: Call, config: Any) -> str | None:
        heights = self.heights(c)
        if config.rows not in heights:
            return f"tiles have {' or '.join(map(str, heights))} rows here, not {config.rows}"
        return None

    def space(self, c: Call) -> Columns[Any] | None:
        return self.full_space(c)

    def full_space(self, c: Call) -> Columns[Any] | None:
        return None if self.unsupported_arch_reason(c) else self._variants(self.heights(c))

    @functools.lru_cache(maxsize=8)  # noqa: B019 # kernels live as long as the process
    def _variants(self, heights: tuple[int, ...]) -> Columns[Any]:
        assert self.Config is not None
        return Columns([self.Config(rows) for rows in heights])

    def family(self, config: FusedMoeHipConfig, c: Call) -> str:
        return str(config.rows)

    def traits(self, config: FusedMoeHipConfig, c: Call) -> tuple[float, ...]:
        return Traits(config.rows)

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        rows = config.rows
        return _experts_defines(self.is_table, c.x_dtype, 1, c.E, rows, _is_shuffled(c))

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(*sizes: int) -> Run:
            sized_call = c.with_sizes(**dict(zip(c.sizes, sizes, strict=True)))
            run = self.launches(sized_call, config)
            return _padded(run, TABLE - sized_call.E) if self.is_table else run

        return run_of

    def launches(self, c: Call, config: Any) -> Run:
        """The launches of one call: of tables, on tables of TABLE experts."""
        routes, of_router = router.steps(c, c.R, ROUTED, lists=True)
        return run_steps(
            c.device,
            self.arguments,
            [*routes, *self.lists(c), *self.experts(c, config), sum_of_rows(c)],
            arch=c.arch,
            workspace={**lists_workspace(c), **of_router},
            outer=bool(routes),
            zeros={"counts": c.E},
            temporaries={
                "h": ((num_rows(c), c.I), c.x_dtype),
                "y": ((num_rows(c), c.D), c.x_dtype),
            },
        )

    def lists(self, c: Call) -> list[Step]:
        """The tokens of each expert, where the router has not listed them."""
        if router.lists_tokens(c, c.R):
            return []
        step = Step(
            moe_lists_kernel,
            id_defines(c),
            TOKENS,
            ceil(c.M, TOKENS),
            {"rows": "lists", "topk_ids": chosen(c)["ids"], "m": c.M, "experts": c.R},
        )
        return [step]

    def experts(self, c: Call, config: Any) -> tuple[Step, Step]:
        """h = silu(x gate^T) * (x up^T) and y = h down^T, of all experts' rows."""
        x_row = matrix_strides(c, "x", c.D)[0]
        if self.is_table:
            up, down = {"first": "gate", "second": "up"}, {"first": "down", "second": "down"}
        else:
            up, down = {"weights": "w1"}, {"weights": "w2"}
        return (
            self._product(c, config, 1, c.I, c.D, {"out": "h", **up, "in_row": 2 * x_row}),
            self._product(
                c, config, 2, c.D, c.I, {"out": "y", "x": "h", **down, "in_row": 2 * c.I}
            ),
        )

    def _product(
        self, c: Call, config: Any, stage: int, n: int, k: int, arguments: Mapping[str, Any]
    ) -> Step:
        kernel = _KERNELS[c.arch][self.is_table]
        shuffled = _is_shuffled(c)
        defines = _experts_defines(self.is_table, c.x_dtype, stage, c.E, config.rows, shuffled)
        return product(c, kernel, defines, config.rows, stage, n, k, arguments)


class HipMoeFixed(HipMoe):
    """A kernel with nothing to choose, of stacked weights."""

    Config = None
    limits = "M"

    def __init__(self) -> None:
        super().__init__(is_table=False)

    def module_of(self, _arch: str) -> str:
        return self.module

    def full_space(self, c: Call) -> None:
        return None

    def default(self, c: Call) -> None:
        return None

    def candidates(self, c: Call) -> list[Any]:
        return []

    def unsupported_config_reason(self, c: Call, config: Any) -> str | None:
        return None


def _padded(run: Run, missing: int) -> Run:
    """The launches on tables of fewer experts than TABLE."""
    padding = (None,) * missing

    def run_on_tables(
        out: Tensor, x: Tensor, gate: Any, up: Any, down: Any, *args: Tensor | None
    ) -> None:
        run(out, x, (*gate, *padding), (*up, *padding), (*down, *padding), *args)

    return run_on_tables


# ---------------------------------------------------------------- steps that kinds of weights share

# Where a router chooses, it writes weights and ids to the workspace.
ROUTED = {"weights": "routed_weights", "ids": "routed_ids"}


def chosen(c: Call) -> Mapping[str, str]:
    """The names of the tensors that hold each token's weights and ids of experts."""
    if c.has("router_weight"):
        return ROUTED
    return {"weights": "topk_weights", "ids": "topk_ids"}


def num_rows(c: Call) -> int:
    """The rows of all experts: each token's chosen and shared ones."""
    return int(c.M * (c.K + c.E - c.R))


def id_defines(c: Call) -> dict[str, Any]:
    """The constants of a kernel that reads ids."""
    return {"ID": ID_TYPES[c.values.get("topk_ids_dtype", torch.int32)], "TOP_K": c.K}


def lists_workspace(c: Call) -> dict[str, Any]:
    """The tokens of each expert, the slot of each choice in them, the first row of each expert, and
    what a router writes."""
    return {
        "lists": (c.R * c.M, torch.int32),
        "slots": (c.M * c.K, torch.int32),
        "offsets": (c.E + 1, torch.int32),
        "routed_weights": (c.M * c.K, torch.float32),
        "routed_ids": (c.M * c.K, torch.int32),
    }


def product(
    c: Call,
    kernel: CompiledOp,
    defines: Mapping[str, Any],
    rows: int,
    stage: int,
    n: int,
    k: int,
    arguments: Mapping[str, Any],
) -> Step:
    """The step that multiplies all experts' rows: gate and up, stage 1, or down; n columns of out,
    K of k, tiles of `rows` rows."""
    tiles = max_row_tiles(c, rows) * ceil(n, TILE // 2 if stage == 1 else TILE)
    groups = min(ARCH_SPECS[c.arch].cus, ceil(tiles, XCDS) * XCDS)
    sizes = {"m": c.M, "routed": c.R, "experts": c.E, "all_rows": num_rows(c), "n": n, "k": k}
    return Step(kernel, defines, THREADS, groups, {**sizes, "groups": groups, **arguments})


def sum_of_rows(c: Call) -> Step:
    """The weighted sum of each token's rows of y, in a fixed order."""
    return row_sum(c, moe_add_kernel, {"all_rows": num_rows(c)})


def row_sum(c: Call, kernel: CompiledOp, sizes: Mapping[str, int]) -> Step:
    """The step of a kernel that sums rows of y, with the sizes that it takes beside N."""
    defines = {"IN": IN_TYPES[c.x_dtype], **id_defines(c), "SHARED": c.E - c.R}
    grid = (c.M, ceil(c.D, ADD_COLUMNS), 1)
    arguments = {"rows": "y", **chosen(c), "n": c.D, "routed": c.R, **sizes}
    return Step(kernel, defines, 256, grid, arguments)


def max_row_tiles(c: Call, rows: int) -> int:
    """The most tiles of so many rows that experts can have."""
    routed = c.M * c.K
    return int(ceil(routed, rows) + min(routed, c.E) + (c.E - c.R) * ceil(c.M, rows))


def _is_shuffled(c: Call) -> bool:
    return bool(c.values.get("w_layout", "raw") != "raw")


def refuses_lists(c: Call) -> str | None:
    """Refuse token lists, one row per expert, that exceed 32-bit offsets; so would the sum of
    counts, each of which may be M."""
    if 4 * c.M * c.E >= 2 * MAX_BYTES:
        return f"lists of {c.M} tokens for {c.E} experts are beyond 32-bit offsets (4 GiB)"
    return None
