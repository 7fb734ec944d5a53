"""What a problem is, how its cases are written, and how two results are compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from rfops.challenge.data import tensors_of

Case = dict[str, int]
Result = torch.Tensor | tuple[torch.Tensor, ...]
_CHUNK_ELEMS = 1 << 22  # elements that are compared at once


class Probe(NamedTuple):
    """Input of our own whose result is known without a reference: what it finds, in words."""

    label: str
    data: Any
    expected: torch.Tensor
    bound: float  # of the worst row's relative L2 error


@dataclass(frozen=True)
class Problem:
    """One problem; `data` is what custom_kernel takes, as tensors of the CPU."""

    name: str
    arch: str
    tests: tuple[Case, ...]
    benchmarks: tuple[Case, ...]
    generate: Callable[[Case], Any]
    reference: Callable[[Any], Result]  # with the roundings of the official one
    shrink: Callable[[Case], Case]  # small enough to simulate in seconds
    rtol: float
    atol: float
    # Of the data and the reference's result: what the result may be, exact, by name.
    truths: Callable[[Any, Result], dict[str, torch.Tensor]]
    bound: float  # strict: the worst row's relative L2 error to the nearest truth
    forgiven: float = 0.0  # the share of wrong elements that the official check lets pass
    cold: bool = False  # caches are cleared before each timed call (2026)
    shuffled: tuple[int, ...] = ()  # inputs that aiter's shuffle_weight made, and marks
    probes: Callable[[Case], list[Probe]] = lambda _case: []
    in_place: Callable[[Any], list[torch.Tensor]] = lambda _data: []  # inputs that a call changes

    def official(self, expected: Result, result: Any, data: Any = None) -> str:
        """Why the official check refuses it, or nothing. `data`: what a folder's own check asks
        for."""
        del data
        pairs = zip(tensors_of(expected), tensors_of(result), strict=False)
        if len(tensors_of(expected)) != len(tensors_of(result)):
            return f"expected {len(tensors_of(expected))} tensors, got {_kind(result)}"
        return next(filter(None, (self._mismatch(e, g) for e, g in pairs)), "")

    def _mismatch(self, expected: torch.Tensor, result: torch.Tensor) -> str:
        if expected.shape != result.shape:
            return f"shape {tuple(result.shape)}, expected {tuple(expected.shape)}"
        count, first_index = 0, None
        chunks = zip(*(t.flatten().split(_CHUNK_ELEMS) for t in (expected, result)), strict=True)
        for chunk_idx, pair in enumerate(chunks):  # a cache of keys may have 10^9 elements
            if torch.equal(*pair):
                continue
            mismatch = self._mismatch_mask(*pair)
            if num_wrong := int(mismatch.sum()):
                count += num_wrong
                if first_index is None:
                    first_index = chunk_idx * _CHUNK_ELEMS + int(mismatch.nonzero()[0])
        if first_index is None or count <= self.forgiven * result.numel():
            return ""
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(first_index), result.shape))
        return (
            f"{count} of {result.numel()} elements beyond rtol {self.rtol:g}, atol {self.atol:g}; "
            f"the first at {index}: {result[index]:g}, expected {expected[index]:g}"
        )

    def _mismatch_mask(self, expected: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        e, g = expected.float(), result.float()
        mismatch = (g - e).abs() > self.atol + self.rtol * e.abs()
        for predicate in (torch.isnan, torch.isposinf, torch.isneginf):
            mismatch |= predicate(g) ^ predicate(e)
        return mismatch

    def strict(self, data: Any, result: Any, expected: Result) -> str:
        """Why the strict check refuses it, or nothing."""
        truths = self.truths(data, expected)
        errors = {name: error_of(t, tensors_of(result)[0]) for name, t in truths.items()}
        name = min(errors, key=lambda name: errors[name])
        if errors[name] <= self.bound:
            return ""
        return f"relative L2 error of a row {errors[name]:.2g} to {name}, bound {self.bound:g}"


def worst_element(expected: Result, result: Any) -> tuple[float, str]:
    """How far the element of the first tensor that is furthest off is, and where it is; inf where
    shapes differ or it is no number."""
    e, g = tensors_of(expected)[0], tensors_of(result)[0]
    if e.shape != g.shape:
        return float("inf"), f"shape {tuple(g.shape)}, expected {tuple(e.shape)}"
    if not e.numel():
        return 0.0, ""
    distance = (g.double() - e.double()).abs().nan_to_num(float("inf"), float("inf"))
    flat = distance.argmax()
    index = tuple(int(i) for i in torch.unravel_index(flat, distance.shape))
    text = f"{index}: {g[index]:g}, expected {e[index]:g}"
    return float(distance[index]), text


def _kind(result: Any) -> str:
    return f"{len(tensors_of(result))} in {type(result).__name__}"


def error_of(expected: torch.Tensor, result: torch.Tensor) -> float:
    """The worst row's relative L2 error; inf where a row is not finite or the shape is wrong."""
    if expected.shape != result.shape:
        return float("inf")
    e, g = (t.double().reshape(-1, t.shape[-1]) for t in (expected, result))
    worst = ((g - e).norm(dim=1) / e.norm(dim=1).clamp(min=1e-30)).max().item()
    return worst if worst == worst else float("inf")


_ITEM = re.compile(r"\s*([a-zA-Z_]+)\s*:\s*([+-]?\d+)\s*")


def case_of(text: str) -> Case:
    """`m: 64; n: 64; k: 128; seed: 1`. Raises ValueError."""
    case = {}
    for item in text.split(";"):
        matched = _ITEM.fullmatch(item)
        if matched is None:
            raise ValueError(f"case {text!r}: expected NAME: NUMBER; ..., got {item!r}")
        case[matched[1]] = int(matched[2])
    return case


def spec_of(case: Case) -> str:
    return "; ".join(f"{name}: {value}" for name, value in case.items())


def generator(case: Case) -> torch.Generator:
    """Other numbers than a GPU's generator gives for this seed: distributions are the same."""
    return torch.Generator().manual_seed(case["seed"])


def smaller(**limits: int) -> Callable[[Case], Case]:
    """A shrink that cuts each named size."""
    return lambda case: {n: min(v, limits.get(n, v)) for n, v in case.items()}
