"""Small calls of every op of the registry: inputs that are valid, from the op's declaration alone.

    for case in CASES:  # of all ops
        args = arguments(case)  # by position, as OP.call takes them

An op without an entry in SIZES gets the least sizes that its declaration allows, doubled, so that a
new op is covered from its first day.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import rfops
from rfops.dispatch.declare import TensorArg
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, call_on

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Sizes and values of a call; optional tensors are given where their names are true."""

    op: Op
    name: str
    given: dict[str, Any] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.op.name}-{self.name}"


_EXPERTS = {"M": 5, "D": 256, "I": 128, "E": 4, "K": 2}
_ROUTED = {**_EXPERTS, "router_weight": True, "R": 4, "routed": 4, "top_k": 2}
_HALF = {"x_dtype": torch.float16}  # as test_fused_moe.py, whose builds take long
_ONE_EXPERT = {**_EXPERTS, "M": 1, "E": 1, "K": 1}
_SHUFFLED = {
    "M": 5,
    "N": 48,
    "K": 256,
    "w_layout": "16x16",
    "x_scale_layout": "32x8",
    "w_scale_layout": "32x8",
}
_MLA = {"B": 2, "H": 16, "S": 48}
_TINY = {"T": 1, "L": 2, "R": 2, "page": 1}
# By op: the calls, by name. `one` has as many sizes of 1 as the op takes.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "quant_fp8_blockscale": {
        "rows": {"M": 5, "K": 256, "block_rows": 1},
        "blocks": {"M": 130, "K": 256, "block_rows": 128},
        "one": {"M": 1, "K": 128, "block_rows": 1},
    },
    "rms_norm_quant": {"few": {"M": 5, "K": 256}, "one": {"M": 1, "K": 128}},
    "act_mul_quant": {"few": {"M": 5, "N": 512}, "one": {"M": 1, "N": 256}},
    "quant_mxfp8": {"few": {"M": 5, "K": 256}, "one": {"M": 1, "K": 32}},
    "quant_mxfp4": {"few": {"M": 5, "K": 256}, "one": {"M": 1, "K": 32}},
    "gemm_a8w8_blockscale": {
        "few": {"M": 5, "N": 144, "K": 256},
        "many": {"M": 80, "N": 144, "K": 256},
        "one": {"M": 1, "N": 16, "K": 128},
        "shuffled": {"M": 5, "N": 144, "K": 256, "w_layout": "16x16"},
    },
    "gemm_a16w16": {
        "few": {"M": 5, "N": 144, "K": 256},
        "long": {"M": 5, "N": 16, "K": 2048},
        "one": {"M": 1, "N": 16, "K": 1024},
    },
    "batched_gemm_a16w16": {"few": {"B": 2, "M": 5, "N": 144, "K": 256}},
    "batched_gemm_a16w8_blockscale": {
        "few": {"B": 2, "M": 5, "N": 144, "K": 256},
        "one": {"B": 1, "M": 1, "N": 16, "K": 128},
    },
    "gemm_a8wfp4": {
        "shuffled": _SHUFFLED,
        "few": {"M": 5, "N": 48, "K": 256, "bias": True},
        "many": {"M": 80, "N": 48, "K": 256},
        "one": {"M": 1, "N": 16, "K": 32},
    },
    "gemm_a16wfp4": {
        "few": {"M": 5, "N": 48, "K": 256, "bias": True},
        "many": {"M": 80, "N": 48, "K": 256},
        "one": {"M": 1, "N": 16, "K": 32},
    },
    "gemm_afp4wfp4": {
        "shuffled": _SHUFFLED,
        "few": {"M": 5, "N": 48, "K": 256, "bias": True},
        "many": {"M": 80, "N": 48, "K": 256},
        "one": {"M": 1, "N": 16, "K": 32},
    },
    "gemm_mxfp8": {"few": {"M": 3, "N": 48, "K": 256}, "many": {"M": 20, "N": 48, "K": 256},
                   "one": {"M": 1, "N": 1, "K": 32}},
    "moe_align_block_size": {
        "few": {"rows": 10, "E": 4, "block_size": 4, "expert_map": True},
        "one": {"rows": 1, "E": 1, "block_size": 4},
    },
    "grouped_gemm_mxfp8": {
        "few": {"M": 8, "N": 48, "K": 256, "E": 3, "top_k": 2, "a_div": 2, "block_m": 16,
                "mul_weight_by": True},
        "one": {"M": 1, "N": 16, "K": 32, "E": 1, "top_k": 1, "a_div": 1, "block_m": 16},
    },
    "moe_router": {
        "few": {"M": 5, "D": 256, "E": 8, "K": 2}, "one": {"M": 1, "D": 64, "E": 1, "K": 1},
    },
    "topk_softmax": {"few": {"M": 5, "E": 8, "K": 2}, "one": {"M": 1, "E": 1, "K": 1}},
    "grouped_topk": {
        "few": {"M": 5, "E": 8, "K": 2, "num_groups": 2, "topk_groups": 1, "bias": True},
        "one": {"M": 1, "E": 1, "K": 1, "num_groups": 1, "topk_groups": 1},
    },
    "moe_topk_align": {
        "few": {"M": 5, "E": 8, "K": 2, "block_size": 4, "bias": True, "expert_map": True},
        "many": {"M": 600, "E": 8, "K": 2, "block_size": 4},
        "one": {"M": 1, "E": 1, "K": 1, "block_size": 4},
    },
    **{
        name: {"few": _EXPERTS, "one": _ONE_EXPERT}
        for name in ("fused_moe_fp8", "fused_moe_mxfp4", "fused_moe_mxfp8")
    },
    "fused_moe_tables": {"few": {**_EXPERTS, **_HALF}, "one": {**_ONE_EXPERT, **_HALF}},
    "fused_moe": {"few": {**_EXPERTS, **_HALF}, "routed": {**_ROUTED, **_HALF},
                  "one": {**_ONE_EXPERT, **_HALF}},
    "mla_decode": {
        "few": _MLA,
        "lens": {**_MLA, "kv_lens": True, "kv_scale": True, "q_scale": True, "lse": True},
        "one": {"B": 1, "H": 16, "S": 1},
    },
    "rope": {"few": {"T": 5, "H": 3, "G": 1, "D": 64, "P": 9, "C": 32, "first": 16},
             "tables": {"T": 5, "H": 3, "G": 1, "D": 64, "P": 9, "sin": True, "interleaved": True},
             "one": {"T": 1, "H": 1, "G": 1, "D": 2, "P": 1}},
    "mla_cache_write": {"few": {"T": 5, "L": 32, "R": 16, "page": 3}, "one": _TINY},
    "mla_rope_cache_write": {"few": {"T": 5, "H": 3, "L": 32, "R": 16, "page": 3},
                             "one": {**_TINY, "H": 1}},
    "mla_rope_concat_cache_write": {
        "few": {"T": 5, "H": 3, "L": 32, "R": 16, "page": 3, "k_pe_out": True},
        "fp8": {"T": 5, "H": 3, "L": 32, "R": 16, "page": 3, "dtype": "fp8", "kv_dtype": "fp8"},
        "one": {**_TINY, "H": 1},
    },
    "linear_fp8_blockscale": {"few": {"M": 3, "N": 160, "K": 256},
                              "many": {"M": 17, "N": 48, "K": 128}},
    "mla_absorb_cache_write": {
        "few": {"T": 5, "H": 3, "L": 128, "R": 16, "D": 32, "page": 3, "kv_norm": True,
                "k_pe_out": True},
        "fp8": {"T": 5, "H": 3, "L": 128, "R": 16, "D": 128, "page": 3, "k_up_dtype": "fp8",
                "k_up_scale": True, "dtype": "fp8", "kv_dtype": "fp8"},
        "one": {"T": 1, "H": 1, "L": 2, "R": 2, "D": 2, "page": 1},
    },
    "kv_cache_write": {"few": {"T": 5, "G": 2, "D": 32, "page": 3},
                       "one": {"T": 1, "G": 1, "D": 2, "page": 1}},
    "mla_layer_decode_fp8": {
        "few": {"B": 2, "D": 128, "R": 128, "H": 16, "page": 16, "W": 2, "C": 64},
    },
    "mla_layer_decode": {"few": {"B": 1, "start": 3, "D": 256, "R": 256, "V": 2048, "L": 8}},
}  # fmt: skip


def cases(name: str = "") -> list[Case]:
    """Those of one op, or of all."""
    found = []
    for op in ops().values():
        least = {size: 2 * op._multiple_of(size) for size in op.asked}
        for kind, given in SIZES.get(op.name, {"few": least}).items():
            found.append(Case(op, kind, given))
    return [case for case in found if not name or case.op.name == name]


def arguments(case: Case) -> list[Any]:
    """The parameters of OP.call by position: inputs, no results, no config."""
    op = case.op
    problem = Problem(op, call_on(op, case.given, CPU))
    return [*problem.inputs, *[None] * op.num_passed, *[None] * op.takes_config]


def public(case: Case) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The public function of an op, and the arguments of a valid call by name."""
    op, args = case.op, arguments(case)
    given = dict(zip((arg.name for arg in op.declaration.inputs), args, strict=False))
    function = getattr(rfops, op.name)
    names = inspect.signature(function).parameters
    return function, {name: value for name, value in given.items() if name in names}


def tensors_of(op: Op, args: Sequence[Any]) -> list[tuple[int, int, TensorArg, torch.Tensor]]:
    """Position, place in a table or -1, declaration and tensor of each tensor that is given."""
    found = []
    for at, arg in enumerate(op.declaration.inputs):
        if not isinstance(arg, TensorArg) or args[at] is None:
            continue
        if arg.times is None:
            found.append((at, -1, arg, args[at]))
        else:
            found += [(at, i, arg, tensor) for i, tensor in enumerate(args[at])]
    return found


def replaced(args: Sequence[Any], at: int, place: int, value: Any) -> list[Any]:
    """The arguments with another value of one, or of one of a table's tensors."""
    made = list(args)
    if place < 0:
        made[at] = value
    else:
        made[at] = tuple(value if i == place else t for i, t in enumerate(args[at]))
    return made
