"""moe_align_block_size: routed rows sorted by expert, in blocks of one expert each, on the device.

    topk_ids [[2, 0], [0, 2]], block_size 2, num_experts 3
    sorted_token_ids 1 2 | 0 3 | 4 ...    expert_ids 0 2 0 ...    num_tokens_post_padded 4

HIP on AMD GPUs and on the virtual GPU, Triton on others (kernels/align/triton.py), else plain
torch; none synchronises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.steps import Shaped, Step, run_steps
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS, WAVE

from .experts import layout_sizes
from .kernels.align.triton import TritonAlign

__all__ = ["moe_align_block_size"]

LDS_WORDS = ARCH_SPECS["gfx942"].lds_bytes // 4 - 1  # the least; one word more is the kernel's own
MAX_WAVES = 16
# Rows that one workgroup sorts, 8 turns of its waves. More are split over workgroups, which costs
# a second launch.
GROUP_ROWS, MAX_GROUPS = 8 * MAX_WAVES * WAVE, 64
ID_DTYPES = {torch.int32: "i32", torch.int64: "i64"}


class Aligned(NamedTuple):
    """The results of moe_align_block_size."""

    sorted_token_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_post_padded: torch.Tensor


@compile_ops("moe_align_block_size", variants=lambda _arch: [_defines(16, torch.int32)])
def moe_align_count(
    counts: torch.Tensor,
    topk_ids: torch.Tensor,
    row_map: torch.Tensor | None,
    num_rows: u32,
    num_experts: u32,
    num_groups: u32,
) -> None:
    """csrc/moe/moe_align_block_size.hip: the shapes stand there."""


@compile_ops("moe_align_block_size", variants=lambda _arch: [_defines(16, torch.int32)])
def moe_align_place(
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
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
    """csrc/moe/moe_align_block_size.hip: the shapes stand there."""


def _defines(waves: int, dtype: torch.dtype) -> dict[str, int | str]:
    return {"WAVES": waves, "ID": ID_DTYPES[dtype]}


class Align(Kernel):
    """The HIP kernel: one workgroup, or a count and a placement by several."""

    name = "align"
    module = "moe_align_block_size"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if 3 * c.E > LDS_WORDS:
            return f"{c.E} experts are more than the workgroup's memory counts"
        return None

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda rows, experts: _launches(c, self.arguments, rows, experts)


class Torch(Kernel):
    """The reference in plain torch, for every device and call."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda _rows, experts: functools.partial(align_by_torch, c, experts)


class _MoeAlign(Op):
    def result_sizes(self, c: Call) -> Mapping[str, int]:
        num_slots, blocks = layout_sizes(c.rows, c.block_size, c.E, c.pad_sorted_ids)
        return {**c.sizes, "slots": num_slots, "blocks": blocks}

    def is_empty(self, c: Call) -> bool:
        return False  # without rows the layout says so

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Every row has an expert; with a map, every other one is here."""
        local = torch.arange(c.E, dtype=torch.int32, device=c.device)
        experts = {"expert_map": torch.where(local % 2 == 0, local // 2, -1)}
        ids = draw.ints((c.rows,), 0, max(c.E, 1), c.topk_ids_dtype)
        return {"topk_ids": ids, **(experts if c.has("expert_map") else {})}

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        """Byte offsets of the slots are signed 32-bit."""
        rows, experts = sizes
        num_slots = rows + experts * c.block_size
        if 4 * num_slots < MAX_BYTES:
            return None
        return (
            "topk_ids",
            f"small enough for {MAX_BYTES // 4} slots",
            f"{num_slots} slots",
            "split the rows",
        )


OP = _MoeAlign(
    "moe_align_block_size",
    """
    topk_ids: i32|i64[*rows]
    block_size: int >= 1
    num_experts: E >= 1
    expert_map: i32[E]?
    pad_sorted_ids: bool
    ignore_invalid_experts: bool
    -> sorted_token_ids: i32[slots] new
    -> expert_ids: i32[blocks] new
    -> num_tokens_post_padded: i32[1] new
    """,
    sizes="rows E",
    kernels=(Align(), TritonAlign(), Torch()),
    usual={"block_size": 16},
    shapes={
        "decode": grid("E", [(e,) for e in (8, 32, 128, 256)], rows=(8, 64, 512)),
        "prefill": grid("E", [(e,) for e in (32, 256)], rows=(8192, 65536), block_size=(64, 128)),
    },
    hints={
        "topk_ids": "convert it with .to(torch.int32)",
        "expert_map": "pass the local expert of each global one, or -1",
    },
    result=Aligned,
    max_bytes=MAX_BYTES,
)


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
        their place and have -1 in expert_ids.
    ignore_invalid_experts : leave blocks of experts with -1 out instead.
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

    Source: vLLM's moe_align_block_size.
    """
    call: Callable[..., Aligned] = OP.traced if is_dynamo_compiling() else OP.call
    return call(
        topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts
    )


moe_align_block_size.supports = OP.supports  # type: ignore[attr-defined]


def _launches(c: Call, arguments: Sequence[str], rows: int, num_experts: int) -> Run:
    """The launches for so many rows and experts; builds the kernels or finds them."""
    steps, workspace = align_steps(c, rows, num_experts, c.topk_ids_dtype)
    run = run_steps(c.device, arguments, steps, arch=c.arch, workspace=workspace)
    return lambda aligned, *inputs: run(*aligned, *inputs)


def align_steps(
    c: Call, rows: int, num_experts: int, dtype: torch.dtype, topk_ids: str = "topk_ids"
) -> tuple[Sequence[Step], Mapping[str, Shaped] | None]:
    """The launches on the tensors of moe_align_block_size, of which `topk_ids` has that name and
    dtype, and their workspace; the other values are those of `c`."""
    num_slots, blocks = layout_sizes(rows, c.block_size, num_experts, c.pad_sorted_ids)
    waves = MAX_WAVES
    while (waves + 2) * num_experts > LDS_WORDS:
        waves //= 2
    groups = max(1, min(MAX_GROUPS, ceil(rows, GROUP_ROWS)))
    defines, threads = _defines(waves, dtype), waves * WAVE
    # Ids outside of the map are left out; or each block's expert is looked up in it.
    row_map, block_map = ("expert_map", None) if c.ignore_invalid_experts else (None, "expert_map")
    ids = {"topk_ids": topk_ids, "row_map": row_map}
    sizes = {"num_rows": rows, "num_experts": num_experts, "num_groups": groups}
    count = Step(moe_align_count, defines, threads, groups, {**ids, **sizes}, 4 * num_experts)
    place_step = Step(
        moe_align_place,
        defines,
        threads,
        groups,
        {
            **ids,
            "block_map": block_map,
            **sizes,
            "block": c.block_size,
            "num_slots": num_slots,
            "num_blocks": blocks,
        },
        4 * (waves + 2) * num_experts,
    )
    if groups > 1:
        return [count, place_step], {"counts": (groups * num_experts, torch.int32)}
    return [place_step], None


# ---------------------------------------------------------------- torch


def align_by_torch(
    c: Call,
    num_experts: int,
    aligned: Aligned,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
) -> None:
    """Compute the layout by a stable sort; no shape depends on data, so nothing synchronizes."""
    row_map, block_map = (expert_map, None) if c.ignore_invalid_experts else (None, expert_map)
    device, rows, block_size = topk_ids.device, topk_ids.numel(), c.block_size
    expert = topk_ids.reshape(-1).long()
    is_valid = (expert >= 0) & (expert < num_experts)
    if row_map is not None and rows:
        expert = row_map[torch.where(is_valid, expert, 0)].long()
        is_valid &= (expert >= 0) & (expert < num_experts)
    expert = torch.where(is_valid, expert, num_experts)  # one more, which gets no block

    count = torch.zeros(num_experts + 1, dtype=torch.long, device=device)
    count.scatter_add_(0, expert, torch.ones_like(expert))
    padded = (count + block_size - 1) // block_size * block_size
    padded[num_experts:].zero_()  # an assignment would copy a 0 from the host
    end = padded.cumsum(0)
    start, row_begin = end - padded, count.cumsum(0) - count

    by_expert, order = torch.sort(expert, stable=True)
    rank = torch.arange(rows, device=device) - row_begin[by_expert]
    num_slots = aligned.sorted_token_ids.shape[0]
    list_idx = torch.where(by_expert < num_experts, start[by_expert] + rank, num_slots)
    filled = torch.full((num_slots + 1,), rows, dtype=torch.int32, device=device)
    filled[list_idx] = torch.where(list_idx < num_slots, order, rows).to(torch.int32)
    aligned.sorted_token_ids.copy_(filled[:num_slots])

    blocks = torch.arange(aligned.expert_ids.shape[0], device=device) * block_size
    of_block = torch.searchsorted(end[:num_experts], blocks, right=True)
    of_block = torch.where(of_block < num_experts, of_block, 0)
    aligned.expert_ids.copy_(of_block if block_map is None else block_map[of_block])
    aligned.num_tokens_post_padded.copy_(end[-1:])


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
    num_slots, num_blocks = layout_sizes(rows, block_size, num_experts, pad_sorted_ids)
    sorted_ids: list[int] = []
    blocks: list[int] = []
    for expert, expert_rows in enumerate(of_expert):
        count = ceil(len(expert_rows), block_size)
        sorted_ids += expert_rows + [rows] * (count * block_size - len(expert_rows))
        blocks += [expert] * count
    num_used = len(sorted_ids)
    sorted_ids += [rows] * (num_slots - num_used)
    blocks += [0] * (num_blocks - len(blocks))
    if local and not ignore_invalid_experts:
        blocks = [local[expert] for expert in blocks]

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=topk_ids.device)

    return Aligned(tensor(sorted_ids), tensor(blocks), tensor([num_used]))


OP.reference = moe_align_block_size_ref
