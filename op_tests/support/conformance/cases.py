"""What cases of both engines share: the table of cases, and tensors as engines make them."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.quantization.mxfp4 import dequant_mxfp4, quant_mxfp4_ref
from support import mla_problems

from . import reference
from .engine_code import World

BF16, F32, I32, I64, U8 = torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.uint8
FP4 = torch.float4_e2m1fn_x2
ARCHS = ("gfx950", "gfx942")
SCALE = 1 / 24  # of attention's scores
words = types.SimpleNamespace


@dataclass(frozen=True)
class Case:
    """A replay: engine code called with tensors, and what must come of it.

    refused : a pattern of why the call is left to the original, in the wrapper's words; "" where
        rfops takes it.
    """

    name: str
    engine: str
    run: Callable[[World], None]
    archs: tuple[str, ...] = ARCHS
    refused: str = ""


CASES: dict[str, Case] = {}


def case(
    engine: str, archs: Sequence[str] = ARCHS, refused: str = "", each: Sequence[Any] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A function of a world as a case; of a world and each of some values, as several."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        for value in each or (None,):
            name = f"{engine}: {run.__name__}" + ("" if value is None else f"[{value}]")
            one = run if value is None else (lambda world, value=value: run(world, value))
            CASES[name] = Case(name, engine, one, tuple(archs), refused)
        return run

    return add


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 7919 + sum(shape) + 31 * len(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def nan(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.full(shape, float("nan")).to(dtype)


# ---------------------------------------------------------------- attention


def paged(arch: str, lens: Sequence[int], heads: int = 16, **options: Any) -> mla_problems.Problem:
    """Pages of one token in any order, as the engines' aiter backends have them, after the used
    indices some of an earlier step."""
    p = mla_problems.problem(lens, heads, arch=arch, **options)
    p.kv_scale = p.q_scale = torch.ones(())
    if p.kv.element_size() == 1:
        p.kv = (p.kv.float() / 32).to(p.kv.dtype)
    if p.q.element_size() == 1:
        p.q = (p.q.float() / 2).to(p.q.dtype)
    if p.kv_indices.dim() == 1:
        p.kv_indices = torch.cat([p.kv_indices, torch.zeros(5, dtype=I32)])
    return p


def starts(rows: int, rows_per_sequence: int = 1) -> Tensor:
    return torch.arange(0, rows * rows_per_sequence + 1, rows_per_sequence, dtype=I32)


def keys_of(p: mla_problems.Problem) -> list[Tensor]:
    """By row of q, the keys that it sees."""
    rows = []
    for b, length in enumerate(p.lens):
        key = p.keys(b)
        for t in range(p.qo_len):
            rows.append(key[: max(length - (p.qo_len - 1 - t) * p.causal, 0)])
    return rows


# Persistent metadata of aiter's MLA, whose contents rfops does not read.
METADATA = {
    name: torch.zeros(8, dtype=I32)
    for name in (
        "work_meta_data",
        "work_indptr",
        "work_info_set",
        "reduce_indptr",
        "reduce_final_map",
        "reduce_partial_map",
    )
}


# ---------------------------------------------------------------- experts


@dataclass
class Experts:
    """Weights as an engine has them after loading, and their values in float64."""

    w1: Tensor
    w2: Tensor
    exact: tuple[Tensor, Tensor]
    w1_scale: Tensor | None = None
    w2_scale: Tensor | None = None


def parameter(w: Tensor, mark: bool) -> Tensor:
    """A weight of a layer; the mark of shuffled weights is an attribute of the tensor."""
    result = torch.nn.Parameter(w, requires_grad=False)
    if mark:
        result.is_shuffled = True  # type: ignore[attr-defined]
    return result


def shuffled(w: Tensor) -> Tensor:
    data: Tensor = rfops.shuffle_weight(w).data
    return data


def bf16_experts(
    e: int = 8, d: int = 256, i: int = 128, mark: bool = True, seed: int = 0
) -> Experts:
    w1, w2 = normal(e, 2 * i, d, seed=seed) / d**0.5, normal(e, d, i, seed=seed) / i**0.5
    exact = w1.double(), w2.double()
    return Experts(parameter(shuffled(w1), mark), parameter(shuffled(w2), mark), exact)


def fp8_experts(arch: str, e: int = 8, d: int = 256, i: int = 128, mark: bool = True) -> Experts:
    result = []
    for w in (normal(e, 2 * i, d, dtype=F32) / d**0.5, normal(e, d, i, dtype=F32) / i**0.5):
        items = [reference.quant_fp8(item, 128, False, fp8_of(arch)) for item in w]
        result += [torch.stack([item[n] for item in items]) for n in (0, 1)]
    w1, s1, w2, s2 = result
    exact = reference.fp8_weight(w1, s1), reference.fp8_weight(w2, s2)
    shuffle = shuffled if mark else lambda w: w
    return Experts(parameter(shuffle(w1), mark), parameter(shuffle(w2), mark), exact, s1, s2)


def mxfp4_experts(
    e: int = 8, d: int = 256, i: int = 256, mark: bool = True, dtype: torch.dtype = FP4
) -> Experts:
    """Shuffled e2m1 [E, rows, K/2] and shuffled e8m0 [E * rows, K/32]."""
    result, exact = [], []
    for w in (normal(e, 2 * i, d, dtype=F32) / d**0.5, normal(e, d, i, dtype=F32) / i**0.5):
        payload, scale = quant_mxfp4_ref(w.flatten(0, 1), "even")
        exact.append(dequant_mxfp4(payload, scale, torch.float64).view(w.shape))
        data = shuffled(payload.view(U8).view(*w.shape[:2], -1)).view(dtype)
        result += [
            parameter(data, mark),
            rfops.shuffle_scale(scale).data[: w.shape[0] * w.shape[1]],
        ]
    return Experts(result[0], result[2], (exact[0], exact[1]), result[1], result[3])


def choice(m: int, e: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Weights [m, k] of float32 and ids of int32, as routers leave them."""
    p = normal(m, e, seed=seed, dtype=F32).softmax(1)
    weights, ids = p.topk(k, 1)
    return weights / weights.sum(1, True), ids.to(I32)


# ---------------------------------------------------------------- linear layers


def fp8_weight(arch: str, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    w, scale = reference.quant_fp8(normal(n, k, dtype=F32), 128, False, fp8_of(arch))
    return w, scale, reference.fp8_weight(w, scale)


def assert_fp8(result: tuple[Tensor, Tensor], x: Tensor, arch: str) -> None:
    """The quantiser's own codes and scales, bit by bit."""
    payload, scale = reference.quant_fp8(x, 1, False, fp8_of(arch))
    assert result[0].dtype == payload.dtype and result[1].shape == scale.shape
    assert torch.equal(result[0].view(U8), payload.view(U8)) and torch.equal(result[1], scale)


def mxfp4_weight(n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    payload, scale = quant_mxfp4_ref(normal(n, k, dtype=F32), "even")
    return payload.view(U8), scale.view(U8), dequant_mxfp4(payload, scale, torch.float64)


def mxfp4_rows(x: Tensor) -> Tensor:
    return dequant_mxfp4(*quant_mxfp4_ref(x, "even"), torch.float64)


def assert_mxfp4(result: tuple[Tensor, Tensor], x: Tensor) -> None:
    payload, scale = quant_mxfp4_ref(x, "even")
    assert torch.equal(result[0].reshape(payload.shape).view(U8), payload.view(U8))
    assert torch.equal(result[1].reshape(scale.shape).view(U8), scale.view(U8))
