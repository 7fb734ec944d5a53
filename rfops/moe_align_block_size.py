"""moe_align_block_size: routed rows sorted by expert, in blocks of one expert each, on the device.

    topk_ids [[2, 0], [0, 2]], block_size 2, num_experts 3
    sorted_token_ids 1 2 | 0 3 | 4 ...    expert_ids 0 2 0 ...    num_tokens_post_padded 4

Two routes: HIP on AMD GPUs and on the virtual GPU, plain torch elsewhere; neither synchronises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from .guards import MAX_BYTES, Guard, check_flag, check_int, check_layout
from .heuristic import ceil
from .jit import Plans, compile_ops, hip, u32
from .registration import must_dispatch, register

OP = "moe_align_block_size"
WAVE = 64  # lanes
LDS_WORDS = 64 * 1024 // 4 - 1  # of a gfx942; one word more is the kernel's own
MAX_WAVES = 16
# Rows that one workgroup sorts, 8 turns of its waves. More are split over workgroups, which costs
# a second launch.
GROUP_ROWS, MAX_GROUPS = 8 * MAX_WAVES * WAVE, 64
ID_DTYPES = {torch.int32: "i32", torch.int64: "i64"}


class Aligned(NamedTuple):
    sorted_token_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_post_padded: torch.Tensor


_Run = Callable[[Aligned, torch.Tensor, torch.Tensor | None, torch.Tensor | None], None]
_Plan = tuple[int, int, _Run]  # slots, blocks, and what fills them
_PLANS = Plans(sizes="rows E", shapes=("*rows", "", "E", "E"))


@compile_ops("moe_align_block_size", variants=lambda _arch: [_defines(16, torch.int32)])
def moe_align_count(
    counts: torch.Tensor,
    topk_ids: torch.Tensor,
    row_map: torch.Tensor | None,
    num_rows: u32,
    num_experts: u32,
    num_groups: u32,
) -> None:
    """csrc/moe_align_block_size.hip: the shapes stand there."""


@compile_ops("moe_align_block_size", variants=lambda _arch: [_defines(16, torch.int32)])
def moe_align_place(
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_padded: torch.Tensor,
    topk_ids: torch.Tensor,
    row_map: torch.Tensor | None,
    block_map: torch.Tensor | None,
    counts: torch.Tensor | None,
    num_rows: u32,
    num_experts: u32,
    block: u32,
    num_slots: u32,
    num_blocks: u32,
    num_groups: u32,
) -> None:
    """csrc/moe_align_block_size.hip: the shapes stand there."""


def _defines(waves: int, dtype: torch.dtype) -> dict[str, int | str]:
    return {"WAVES": waves, "ID": ID_DTYPES[dtype]}


def moe_align_block_size(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> Aligned:
    """Sorts the routed rows 0..topk_ids.numel()-1 by their expert, in vLLM's layout.

    Parameters
    ----------
    topk_ids : int32 or int64, any shape: the expert of each row. Rows of experts outside
        0..num_experts-1 are in no block.
    block_size : rows of a block; each expert's rows are padded to a multiple of it.
    num_experts : E; with an expert_map the number of global experts.
    expert_map : [E] int32, the local expert of a global one, or -1. Blocks of experts with -1 keep
        their place and have -1 in expert_ids, or are left out with `ignore_invalid_experts`.
    pad_sorted_ids : make the length of sorted_token_ids a multiple of block_size.

    Returns
    -------
    sorted_token_ids : [S] int32, in an expert the rows in order; padding, and all that is beyond
        num_tokens_post_padded, is topk_ids.numel(). S = min(numel * block_size,
        numel + E * (block_size - 1)), the most that can be needed.
    expert_ids : [ceil(S / block_size)] int32; beyond those in use, what stands for expert 0.
    num_tokens_post_padded : [1] int32.

    Stable, deterministic, without synchronisation, and can be captured into a graph. Raises
    ValueError for what does not fit, and what building the kernel raises.
    """
    plan = None
    if not is_dynamo_compiling():  # which traces Python, and cannot trace `find`
        plan = _PLANS.find(
            topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts
        )
    if plan is None:
        sizes = _check_sizes(block_size, num_experts)
        flags = _check_flags(pad_sorted_ids, ignore_invalid_experts)
        call = (topk_ids, *sizes, expert_map, *flags)
        if must_dispatch(topk_ids, expert_map) and isinstance(topk_ids, torch.Tensor):
            return Aligned(*_op(*call))
        plan = _add_plan(*call)
    slots, blocks, run = plan
    device = topk_ids.device
    aligned = Aligned(
        torch.empty(slots, dtype=torch.int32, device=device),
        torch.empty(blocks, dtype=torch.int32, device=device),
        torch.empty(1, dtype=torch.int32, device=device),
    )
    maps = (expert_map, None) if ignore_invalid_experts else (None, expert_map)
    run(aligned, topk_ids, *maps)
    return aligned


def _add_plan(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None,
    pad_sorted_ids: bool,
    ignore_invalid_experts: bool,
) -> _Plan:
    _check(topk_ids, block_size, num_experts, expert_map)
    family = _Family(topk_ids.device, topk_ids.dtype, block_size, pad_sorted_ids)
    plan = family.plan(topk_ids.numel(), num_experts)
    args = topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts
    _PLANS.add_family(family, *args)
    _PLANS.add(plan, *args)
    return plan


class _Family:
    """Makes the plans of calls that differ in rows and experts alone."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, block_size: int, pad: bool
    ) -> None:
        self.device, self.dtype, self.block_size, self.pad = device, dtype, block_size, pad
        self.has_hip = device.type == "cpu" or torch.version.hip is not None
        self.arch = hip.device_arch(device) if self.has_hip else ""

    def __call__(self, rows: int, num_experts: int) -> _Plan | None:
        if _too_many(rows, num_experts, self.block_size):
            return None  # the guards say it
        return self.plan(rows, num_experts)

    def plan(self, rows: int, num_experts: int) -> _Plan:
        slots, blocks = _sizes(rows, self.block_size, num_experts, self.pad)
        if not self.has_hip or 3 * num_experts > LDS_WORDS:
            return slots, blocks, functools.partial(_run_torch, self.block_size, num_experts)
        sizes = rows, num_experts, self.block_size, slots, blocks
        return slots, blocks, _prepare_hip(self.device, self.dtype, self.arch, sizes)


def _sizes(rows: int, block_size: int, num_experts: int, pad: bool) -> tuple[int, int]:
    """The most slots and blocks that any routing needs."""
    slots = min(rows * block_size, rows + num_experts * (block_size - 1))
    blocks = ceil(slots, block_size)
    return blocks * block_size if pad else slots, blocks


def _check_sizes(block_size: Any, num_experts: Any) -> tuple[int, int]:
    return check_int(OP, "block_size", block_size), check_int(OP, "num_experts", num_experts)


def _check_flags(pad_sorted_ids: Any, ignore_invalid_experts: Any) -> tuple[bool, bool]:
    ignore = check_flag(OP, "ignore_invalid_experts", ignore_invalid_experts)
    return check_flag(OP, "pad_sorted_ids", pad_sorted_ids), ignore


def _check(
    topk_ids: torch.Tensor, block_size: int, num_experts: int, expert_map: torch.Tensor | None
) -> None:
    guard = Guard(OP)
    if not isinstance(topk_ids, torch.Tensor):
        guard.fail("topk_ids", "a tensor", type(topk_ids).__name__, "pass the routing's result")
    dims = tuple(f"topk_ids.shape[{i}]" for i in range(topk_ids.dim()))
    guard.tensor("topk_ids", topk_ids, dims, tuple(ID_DTYPES), "convert it with .to(torch.int32)")
    check_layout(OP, "topk_ids", topk_ids, topk_ids.element_size())
    if _too_many(topk_ids.numel(), num_experts, block_size):
        wanted = f"small enough for {MAX_BYTES // 4} slots"
        slots = topk_ids.numel() + num_experts * block_size
        guard.fail("topk_ids", wanted, f"{slots} slots", "split the rows")
    if expert_map is not None:
        guard.sizes["num_experts"] = num_experts
        way = "pass the local expert of each global one, or -1"
        guard.tensor("expert_map", expert_map, ("num_experts",), (torch.int32,), way)
        check_layout(OP, "expert_map", expert_map, 4)


def _too_many(rows: int, num_experts: int, block_size: int) -> bool:
    """Whether byte offsets of the slots may be beyond signed 32 bits."""
    return 4 * (rows + num_experts * block_size) >= MAX_BYTES


def _prepare_hip(
    device: torch.device, dtype: torch.dtype, arch: str, sizes: tuple[int, int, int, int, int]
) -> _Run:
    """The launches for `sizes` (rows, experts, block size, slots, blocks); builds the kernels or
    finds them."""
    rows, num_experts, *_ = sizes
    waves = MAX_WAVES
    while (waves + 2) * num_experts > LDS_WORDS:
        waves //= 2
    groups = max(1, min(MAX_GROUPS, ceil(rows, GROUP_ROWS)))
    grid, block = (groups, 1, 1), (waves * WAVE, 1, 1)
    defines = _defines(waves, dtype)
    place = moe_align_place.bind(device, defines, arch)
    count = moe_align_count.bind(device, defines, arch) if groups > 1 else None

    def run(
        aligned: Aligned,
        topk_ids: torch.Tensor,
        row_map: torch.Tensor | None,
        block_map: torch.Tensor | None,
    ) -> None:
        counts = None
        if count is not None:
            counts = torch.empty((groups, num_experts), dtype=torch.int32, device=device)
            args = counts, topk_ids, row_map, rows, num_experts, groups
            count.launch(grid, block, args, 4 * num_experts)
        place.launch(
            grid, block, (*aligned, topk_ids, row_map, block_map, counts, *sizes, groups),
            4 * (waves + 2) * num_experts,
        )  # fmt: skip

    return run


# ---------------------------------------------------------------- torch


def _run_torch(
    block_size: int,
    num_experts: int,
    aligned: Aligned,
    topk_ids: torch.Tensor,
    row_map: torch.Tensor | None,
    block_map: torch.Tensor | None,
) -> None:
    """The same by a stable sort; no shape depends on data, so nothing synchronises."""
    device, rows = topk_ids.device, topk_ids.numel()
    expert = topk_ids.reshape(-1).long()
    inside = (expert >= 0) & (expert < num_experts)
    if row_map is not None and rows:
        expert = row_map[torch.where(inside, expert, 0)].long()
        inside &= (expert >= 0) & (expert < num_experts)
    expert = torch.where(inside, expert, num_experts)  # one more, which gets no block

    count = torch.zeros(num_experts + 1, dtype=torch.long, device=device)
    count.scatter_add_(0, expert, torch.ones_like(expert))
    padded = (count + block_size - 1) // block_size * block_size
    padded[num_experts] = 0
    end = padded.cumsum(0)
    start, first = end - padded, count.cumsum(0) - count

    by_expert, order = torch.sort(expert, stable=True)
    rank = torch.arange(rows, device=device) - first[by_expert]
    slots = aligned.sorted_token_ids.shape[0]
    place = torch.where(by_expert < num_experts, start[by_expert] + rank, slots)
    filled = torch.full((slots + 1,), rows, dtype=torch.int32, device=device)
    filled[place] = torch.where(place < slots, order, rows).to(torch.int32)
    aligned.sorted_token_ids.copy_(filled[:slots])

    blocks = torch.arange(aligned.expert_ids.shape[0], device=device) * block_size
    of_block = torch.searchsorted(end[:num_experts], blocks, right=True)
    of_block = torch.where(of_block < num_experts, of_block, 0)
    aligned.expert_ids.copy_(of_block if block_map is None else block_map[of_block])
    aligned.num_tokens_post_padded.copy_(end[-1:])


# ---------------------------------------------------------------- torch.ops.rfops


def _real(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None,
    pad_sorted_ids: bool,
    ignore_invalid_experts: bool,
) -> Aligned:
    return moe_align_block_size(
        topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts
    )


def _fake(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    _expert_map: torch.Tensor | None,
    pad_sorted_ids: bool,
    _ignore_invalid_experts: bool,
) -> Aligned:
    slots, blocks = _sizes(topk_ids.numel(), block_size, num_experts, pad_sorted_ids)
    return Aligned(*(topk_ids.new_empty(size, dtype=torch.int32) for size in (slots, blocks, 1)))


_op = register(
    f"{OP}(Tensor topk_ids, int block_size, int num_experts, Tensor? expert_map, "
    "bool pad_sorted_ids, bool ignore_invalid_experts) -> (Tensor, Tensor, Tensor)",
    _real,
    _fake,
)


def supports(*, arch: str, dtype: torch.dtype = torch.int32, shape: tuple[int, ...] = ()) -> bool:
    """Whether the op takes topk_ids of `dtype` and any shape on `arch`: gfx942, sm_90, ..."""
    return dtype in ID_DTYPES and arch.startswith(("gfx", "sm_"))


moe_align_block_size.supports = supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- reference


def moe_align_block_size_ref(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> Aligned:
    """`moe_align_block_size` row by row in Python."""
    experts, rows = topk_ids.reshape(-1).tolist(), topk_ids.numel()
    local = None if expert_map is None else expert_map.tolist()
    of_expert: list[list[int]] = [[] for _ in range(num_experts)]
    for row, expert in enumerate(experts):
        if not 0 <= expert < num_experts:
            continue
        if local and ignore_invalid_experts:
            expert = local[expert]
        if 0 <= expert < num_experts:
            of_expert[expert].append(row)
    slots, num_blocks = _sizes(rows, block_size, num_experts, pad_sorted_ids)
    sorted_ids: list[int] = []
    blocks: list[int] = []
    for expert, own in enumerate(of_expert):
        count = ceil(len(own), block_size)
        sorted_ids += own + [rows] * (count * block_size - len(own))
        blocks += [expert] * count
    used = len(sorted_ids)
    sorted_ids += [rows] * (slots - used)
    blocks += [0] * (num_blocks - len(blocks))
    if local and not ignore_invalid_experts:
        blocks = [local[expert] for expert in blocks]

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=topk_ids.device)

    return Aligned(tensor(sorted_ids), tensor(blocks), tensor([used]))
