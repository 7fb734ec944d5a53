"""What a config's fields may be: no number below 0, no 0 and none without end, but where it is
named here. And the sizes that an op assumes for those that are not given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.kernel import Kernel
from rfops.dispatch.op import Op, ops

TAKE_0 = {
    "even",
    "lines",
    "x_first",
    "x_left",
    "pow2",
    "columns",
    "slots",
    "ring",
    "waves_per_eu",
    "kpack",
    "fill",
    "matrix_instr_nonkdim",
}
# Grouping of workgroups does not depend on how many there are; the rest kernels hold against a
# call's sizes and the chip's LDS, or Triton does.
NO_END = {"group_m", "group_n", "warps", "stages", "least", "rows", "steps", "tile_k", "tile_m",
          "batches", "panels", "split_k", "warps_k", "workspace_mib", "block_m", "block_n",
          "block_k"}  # fmt: skip
GIVEN = {
    "M": 16,
    "N": 4096,
    "K": 4096,
    "B": 4,
    "H": 16,
    "S": 512,
    "start": 0,
    "D": 2048,
    "T": 16,
    "G": 8,
    "I": 1024,
    "E": 8,
    "rows": 64,
}


def _call(op: Op, kernel: Kernel) -> Any:
    given: dict[str, Any] = {name: GIVEN[name] for name in op.asked}
    if op.name.startswith(("fused_moe", "moe_router", "grouped_topk", "topk", "moe_topk")):
        given["K"] = 4
    if "fp8" in op.name or "a8w8" in op.name:
        given |= {
            f"{arg.name}_dtype": "fp8"
            for arg in op.declaration.tensors
            if any(d.itemsize == 1 for d in arg.dtypes) and len(arg.dtypes) > 1
        }
    if kernel.name.startswith("shared"):
        given["H"] = 128  # more columns than a wave of flow's takes
    if kernel.name == "shared_fp8":
        given |= {"q_dtype": "fp8", "kv_dtype": "fp8"}
    nvidia = op.name == "batched_gemm_a16w8_blockscale" and kernel.name in ("rows", "staged")
    c = op.call_of("sm_90" if nvidia else "gfx950", **given)
    return c if kernel.unsupported_arch_reason(c) is None else op.call_of("gfx942", **given)


CONFIGS = [
    (op.name, kernel.name)
    for op in ops().values()
    for kernel in op.kernels.values()
    if dataclasses.is_dataclass(kernel.Config)
]


@pytest.mark.parametrize(("name", "kernel"), CONFIGS, ids=map(" ".join, CONFIGS))
def test_numbers_that_no_field_takes(name: str, kernel: str) -> None:
    own = ops()[name].kernels[kernel]
    config = own.default(_call(ops()[name], own))
    known = dataclasses.asdict(config)
    for field, value in known.items():
        if not isinstance(value, int):
            continue
        mismatches = [-1] if field not in ("waves_per_eu", "kpack", "fill") else []
        mismatches += [0] * (field not in TAKE_0) + [1 << 20] * (field not in NO_END | TAKE_0)
        for number in mismatches:
            with pytest.raises(ValueError, match=rf"^{type(config).__name__}[(:]"):
                type(config)(**(known | {field: number}))


@pytest.mark.parametrize("name", [*ops()])
def test_assumed_sizes_are_taken(name: str) -> None:
    op = ops()[name]
    c = _call(op, next(iter(op.kernels.values())))
    assert op.unsupported_reason(c, *c.sizes.values()) is None
    op.check_sizes(c)


@pytest.mark.parametrize(("tokens", "top_k", "block", "experts"), [(4, 2, 16, 8), (40, 8, 64, 3)])
def test_assumed_slots_are_those_of_a_layout(
    tokens: int, top_k: int, block: int, experts: int
) -> None:
    ids = torch.zeros(tokens, top_k, dtype=torch.int32)
    slots, blocks, _ = rfops.moe_align_block_size(ids, block, experts)
    c = ops()["grouped_gemm_mxfp8"].call_of(
        M=tokens * top_k, N=64, K=128, E=experts, block_m=block, top_k=top_k, a_div=top_k
    )
    assert (c.ids, c.blocks, c.A) == (len(slots), len(blocks), tokens)
