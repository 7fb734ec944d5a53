"""Random calls of every op, as a caller may make them one after the other: sizes, values, dtypes,
views of every tensor, tables of tensors, `out`.

    rng = random.Random(7)
    recipe = draw(rng, ops()["gemm_mxfp8"])  # what a call is made from; prints in one line
    recipe = change(rng, recipe)  # a call that differs from it in one respect
    call = Made(recipe)  # its tensors
    print(outcome(call))  # what it computes, or how it is refused

A recipe makes the same call each time. Tensors are drawn by the op itself (rfops.dispatch.problem).
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from rfops.dispatch.compare import HALF_ULP
from rfops.dispatch.declare import TensorArg, fp8_of
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, call_on, poison
from rfops.jit import RfopsError
from rfops.jit.launch.hip import device_arch

CPU = torch.device("cpu")

# How a tensor lies in memory. From "rows" on several elements share an address; the other layouts
# hold the tensor's elements.
STRIDED = (
    "padded",
    "padded_16",
    "transposed",
    "step",
    "rows",
    "rows_step",
    "columns",
    "scalar",
    "overlapping",
)
DENSE = ("dense", "offset_16", "offset_1", "offset_3", "size_one")
KINDS = (*DENSE, *STRIDED)
ALIGNED = ("dense", "offset_16", "size_one")  # what every op takes


def view_of(tensor: torch.Tensor, kind: str, rng: random.Random) -> torch.Tensor:
    """A tensor of the same sizes and dtype in a buffer of its own, which it does not fill. Strides
    of dimensions of size 1 are arbitrary, but for "dense"."""
    shape = list(tensor.shape)
    if tensor.numel() == 0 or not shape:
        return tensor.clone()
    strides = _strides(shape, kind)
    offset = {"offset_16": 16 // min(tensor.itemsize, 16), "offset_1": 1, "offset_3": 3}.get(
        kind, 0
    )
    if kind != "dense":
        strides = [
            rng.choice((0, 1, 5, 7, 1000)) if n == 1 else s
            for n, s in zip(shape, strides, strict=True)
        ]
    last_elem = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    buffer = _tiled(tensor, offset + last_elem + 1 + 64)
    view = buffer.as_strided(shape, strides, offset)
    if kind not in STRIDED[4:]:
        _bytes(view).copy_(_bytes(tensor))
    return view


def _strides(shape: list[int], kind: str) -> list[int]:
    order = list(range(len(shape)))
    if kind == "transposed" and len(shape) > 1:
        order[-2:] = order[-1], order[-2]
    step = {"step": 2, "rows_step": 2, "columns": 0, "scalar": 0}.get(kind, 1)
    padding = {"padded": 3, "padded_16": 16}.get(kind, 0)
    strides, reach = [0] * len(shape), step
    for i in reversed(order):
        strides[i] = reach
        reach = reach * shape[i] + padding
        padding = 0
        if kind == "columns" and i == len(shape) - 1:
            reach = 1
    if kind == "overlapping" and len(shape) > 1:
        strides[-2] = 16
    if kind.startswith("rows"):
        strides[0] = 0
    return strides


def _tiled(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """So many of the tensor's elements, over and over: what lies around a view is as plausible as
    what it holds, and differs from place to place."""
    flat = _bytes(tensor.contiguous().view(-1))
    buffer = flat.repeat(-(-count // flat.numel()))[:count].clone()
    return buffer if tensor.dtype == buffer.dtype else buffer.view(tensor.dtype)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """FP8 and FP4, of which torch computes little."""
    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


# ---------------------------------------------------------------- recipes

Choices = Mapping[str, tuple[Any, ...]]
_GEMM: Choices = {"M": (1, 2, 4, 5, 16, 17), "N": (16, 32, 48, 80), "K": (128, 256, 384)}
_CHOOSE: Choices = {"M": (1, 2, 3, 4, 9), "E": (8, 12, 16), "K": (1, 2, 4)}
_MOE: Choices = {"M": (1, 2, 3, 5), "D": (128, 256), "I": (128,), "E": (4, 6), "K": (1, 2)}
_QUANT: Choices = {"M": (1, 2, 3, 5, 8), "K": (128, 256, 384)}
# Of each op the sizes and ints that calls are made of: small, and of few kernel variants.
SIZES: Mapping[str, Choices] = {
    "batched_gemm_a16w8_blockscale": {"B": (1, 2, 3), "M": (1, 2, 4), "N": (16, 32), "K": (128,)},
    "gemm_a16w16": {"M": (1, 2, 17), "N": (16, 48), "K": (100, 128, 1024)},
    "batched_gemm_a16w16": {"B": (1, 2, 3), "M": (1, 2, 17), "N": (16, 48), "K": (100, 128)},
    "gemm_mxfp8": _GEMM,
    "gemm_a8w8_blockscale": {**_GEMM, "M": (1, 4, 5, 16), "N": (16, 48, 128)},
    "gemm_a16wfp4": {**_GEMM, "M": (1, 4, 5), "N": (16, 32)},
    "gemm_a8wfp4": {**_GEMM, "M": (1, 4, 5), "N": (16, 32)},
    "gemm_afp4wfp4": {**_GEMM, "M": (1, 4, 5), "N": (16, 32)},
    "grouped_gemm_mxfp8": {
        "M": (2, 4, 8),
        "N": (16, 32),
        "K": (128, 160, 256),
        "E": (2, 4),
        "top_k": (1, 2),
        "block_m": (4, 16),
        "a_div": (1, 2),
    },
    "grouped_topk": {**_CHOOSE, "num_groups": (1, 2, 4), "topk_groups": (1, 2)},
    "topk_softmax": _CHOOSE,
    "moe_router": {**_CHOOSE, "D": (64, 128), "num_groups": (1, 2, 4), "topk_groups": (1, 2)},
    "moe_align_block_size": {"rows": (1, 4, 7), "K": (2,), "E": (4, 8), "block_size": (4, 16)},
    "mla_decode": {
        "B": (1, 2, 3),
        "H": (4, 16),
        "S": (2, 4, 6, 12, 13),
        "qo_len": (1, 2),
        "page": (1, 2, 16, 31, 32, 63, 64),
    },
    "mla_layer_decode": {
        "B": (1, 2),
        "start": (0, 3, 9),
        "D": (128,),
        "R": (64,),
        "V": (128, 256),
        "L": (16,),
    },
    "quant_fp8_blockscale": {**_QUANT, "block_rows": (1, 128)},
    "quant_mxfp4": _QUANT,
    "quant_mxfp8": _QUANT,
    **{f"fused_moe{kind}": _MOE for kind in ("", "_fp8", "_mxfp4", "_mxfp8", "_tables")},
}


@dataclass(frozen=True)
class Recipe:
    """What a call is made from."""

    op: str
    given: tuple[tuple[str, Any], ...]  # sizes, values, dtypes, and optional tensors that are given
    views: tuple[tuple[str, str], ...]  # of tensors that are not dense: their kinds
    out: str = ""  # how what the caller passes lies; empty: nothing is passed
    form: str = ""  # of arguments: "list" for a table, "table" of mla_decode's pages
    seed: int = 0

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.given]
        words += [f"{name}:{kind}" for name, kind in self.views]
        words += [f"out:{self.out}"] * bool(self.out) + [self.form] * bool(self.form)
        return f"{self.op}({' '.join(words)} seed={self.seed})"


def draw(rng: random.Random, op: Op) -> Recipe:
    """A call that the op's sizes allow, most of them without views."""
    while True:
        values = {name: rng.choice(choices) for name, choices in _choices(op).items()}
        recipe = Recipe(op.name, tuple(values.items()), (), seed=rng.randrange(3))
        if _problem(op.name, recipe.given, recipe.seed) is not None:
            return change_layout(rng, recipe) if rng.random() < 0.5 else recipe


def change(rng: random.Random, recipe: Recipe) -> Recipe:
    """The call with another size, value, dtype, view, result or form."""
    if rng.random() < 0.4:
        return change_layout(rng, recipe)
    op = ops()[recipe.op]
    choices = _choices(op)
    sizes = [name for name in choices if name in SIZES.get(op.name, op.asked)]
    for _ in range(20):
        values = dict(recipe.given)
        label = rng.random()
        name = sizes[0] if label < 0.4 else rng.choice(sizes if label < 0.75 else list(choices))
        values[name] = rng.choice(choices[name])
        result = replace(recipe, given=tuple(values.items()))
        if result != recipe and _problem(op.name, result.given, result.seed) is not None:
            return result
    return recipe


def change_layout(rng: random.Random, recipe: Recipe) -> Recipe:
    """The call with its tensors in another place, or of another form."""
    op = ops()[recipe.op]
    label = rng.random()
    if label < 0.25 and op.num_passed:
        kinds = (
            "",
            "dense",
            "dense",
            "offset_16",
            "offset_1",
            "size_one",
            "padded_16",
            "transposed",
        )
        return replace(recipe, out=rng.choice(kinds))
    if label < 0.35:
        return replace(recipe, form=rng.choice(("", "list", "table")))
    views = dict(recipe.views)
    strided = [arg for arg in op.declaration.tensors if arg.strided]
    arg = rng.choice(strided if strided and label < 0.85 else op.declaration.tensors)
    # A view that the op refuses is a call as well, but no frequent one.
    kind = rng.choice(KINDS if arg.strided or rng.random() < 0.2 else ALIGNED)
    views[arg.name] = kind
    if kind == "dense":
        del views[arg.name]
    return replace(recipe, views=tuple(sorted(views.items())))


def _choices(op: Op) -> dict[str, tuple[Any, ...]]:
    """Of each size and value of an op, what it may be."""
    results: dict[str, tuple[Any, ...]] = dict(
        SIZES.get(op.name, dict.fromkeys(op.asked, (1, 2, 3, 128)))
    )
    fp8 = fp8_of(device_arch(CPU))
    for value in op.declaration.values:
        if value.kind == "bool":
            results[value.name] = (False, True)
        elif value.kind == "word":
            results[value.name] = value.words
        elif value.kind == "dtype":
            results[value.name] = value.dtypes
        elif value.kind == "float":
            results[value.name] = (0.125, 1.5, -0.0)
    for arg in op.declaration.tensors:
        dtypes = tuple(
            d
            for d in arg.dtypes
            if d.itemsize > 1
            or d.is_floating_point is False
            or d in (fp8, torch.float8_e8m0fnu)
            or len(arg.dtypes) == 1
        )
        if len(dtypes) > 1:
            results[f"{arg.name}_dtype"] = dtypes
        if arg.optional:
            results[arg.name] = (False, True)
    return results


@functools.lru_cache(maxsize=256)
def _problem(op: str, given: tuple[tuple[str, Any], ...], seed: int) -> Problem | None:
    """Its tensors as they are drawn; None where the op refuses such sizes and values."""
    try:
        return Problem(ops()[op], call_on(ops()[op], dict(given), CPU), seed)
    except (ValueError, RfopsError, KeyError, RuntimeError, TypeError):
        return None


# ---------------------------------------------------------------- calls


class CallInputs:
    """A call with tensors of its own: `args` are the parameters of `op.call`."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.op = recipe, ops()[recipe.op]
        problem = _problem(recipe.op, recipe.given, recipe.seed)
        assert problem is not None, f"{recipe} was drawn"
        rng, views = random.Random(recipe.seed), dict(recipe.views)
        self.inputs: list[Any] = []
        for arg, value in zip(self.op.declaration.inputs, problem.inputs, strict=True):
            if isinstance(arg, TensorArg) and value is not None and not arg.ignored:
                value = _lay_out(value, views.get(arg.name, "dense"), rng)
            if isinstance(value, tuple) and recipe.form == "list":
                value = list(value)
            self.inputs.append(value)
        if recipe.op == "mla_decode" and recipe.form == "table":
            self._as_block_table()
        self.passed: list[torch.Tensor | None] = [None] * self.op.num_passed
        if recipe.out:
            result_specs = self.op.result_specs(problem.call)[: self.op.num_passed]
            self.passed = [
                view_of(torch.zeros(tuple(shape), dtype=dtype), recipe.out, rng)
                for shape, dtype in result_specs
            ]

    def _as_block_table(self) -> None:
        """mla_decode's list of pages as a table of equal rows, where it has so many."""
        offset = {arg.name: i for i, arg in enumerate(self.op.declaration.inputs)}
        pages, lens = self.inputs[offset["kv_indices"]], self.inputs[offset["kv_lens"]]
        if lens is not None and lens.numel() and pages.numel() % lens.numel() == 0:
            rows = pages.numel() // lens.numel()
            page = self.inputs[offset["kv"]].shape[1]
            self.inputs[offset["kv_indices"]] = pages.clone().view(-1, rows)
            self.inputs[offset["kv_lens"]] = lens.clamp(max=rows * page)
            self.inputs[offset["kv_indptr"]] = self.inputs[offset["kv_lens"]]

    @property
    def args(self) -> tuple[Any, ...]:
        return (*self.inputs, *self.passed, *[None] * self.op.takes_config)

    @property
    def written(self) -> list[torch.Tensor]:
        """What the caller passes to be written."""
        pairs = zip(self.op.declaration.inputs, self.inputs, strict=True)
        of_inputs = [
            t for a, t in pairs if isinstance(a, TensorArg) and a.written and t is not None
        ]
        return of_inputs + [t for t in self.passed if t is not None]


def _lay_out(value: Any, kind: str, rng: random.Random) -> Any:
    if isinstance(value, tuple):
        return tuple([view_of(tensor, kind, rng) for tensor in value])
    return view_of(value, kind, rng)


@dataclass
class Outcome:
    """What a call computed, all that it wrote included; or its error."""

    tensors: list[torch.Tensor]
    error: str = ""

    def difference(self, expected: Outcome) -> str:
        """In words; empty where both are the same to the last bit."""
        if self.error or expected.error:
            is_same = self.error == expected.error
            return (
                "" if is_same else f"{self.error or 'a result'} and {expected.error or 'a result'}"
            )
        for index, (a, b) in enumerate(zip(self.tensors, expected.tensors, strict=True)):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"tensor {index}: {list(a.shape)} {a.dtype} and {list(b.shape)} {b.dtype}"
            unlike = _as_ints(a) != _as_ints(b)
            if unlike.any():
                return _worst(index, a, b, unlike)
        return ""


def _as_ints(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.itemsize])


def _worst(offset: int, a: torch.Tensor, b: torch.Tensor, unlike: torch.Tensor) -> str:
    of_float = a.dtype in HALF_ULP or a.dtype.is_floating_point
    one, two = (t.double() if of_float else t.to(torch.int64).double() for t in (a, b))
    distance = torch.where(unlike, (one - two).abs().nan_to_num(math.inf), -1.0)
    position = int(distance.flatten().argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(position), a.shape)]
    values = f"{one.flatten()[position]:.9g} and {two.flatten()[position]:.9g}"
    count = f"{int(unlike.sum())} of {a.numel()}"
    return f"tensor {offset}: {count} differ; the worst at {index}: {values}"


def outcome(call: CallInputs) -> Outcome:
    """Of one call; what it writes is poisoned before and as it was after. A tensor whose elements
    share memory, which torch writes to no more than an op does, is left as it is."""
    previous = [tensor.clone() for tensor in call.written]
    for tensor in call.passed:
        if tensor is not None:
            with contextlib.suppress(RuntimeError):
                _poison(tensor)
    try:
        result = call.op.call(*call.args)
        results = [result] if isinstance(result, torch.Tensor) else list(result or ())
        return Outcome([t.clone() for t in (*results, *call.written)])
    except (ValueError, RfopsError) as error:
        return Outcome([], f"{type(error).__name__}: {error}")
    finally:
        for tensor, old in zip(call.written, previous, strict=True):
            with contextlib.suppress(RuntimeError):
                _bytes(tensor).copy_(_bytes(old))


def _poison(tensor: torch.Tensor) -> None:
    if tensor.itemsize == 1:
        tensor.view(torch.uint8).fill_(0x7F)
    else:
        poison(tensor)


@contextlib.contextmanager
def empty_plans() -> Iterator[None]:
    """Every op starts without plans, and has the ones from before again afterwards."""
    previous = {op: op.plans for op in ops().values()}
    for op, plans in previous.items():
        op.plans = plans.new_table()
    try:
        yield
    finally:
        for op, plans in previous.items():
            op.plans = plans


Step = Callable[[CallInputs], str]


def compare_with_fresh(call: CallInputs) -> str:
    """How the call differs from the same one on empty plans; empty where it does not."""
    warm = outcome(call)
    with empty_plans():
        return warm.difference(outcome(call))


def sequence(seed: int, length: int, names: list[str]) -> Iterator[Recipe]:
    """Recipes of so many calls: most of them differ in one respect from the last one of the op."""
    rng = random.Random(seed)
    last_recipes: dict[str, Recipe] = {}
    for _ in range(length):
        name = rng.choice(names)
        previous = last_recipes.get(name)
        result = (
            draw(rng, ops()[name])
            if previous is None or rng.random() < 0.15
            else change(rng, previous)
        )
        last_recipes[name] = without_refused_layouts(result)
        yield result


def without_refused_layouts(recipe: Recipe) -> Recipe:
    """The recipe without the layouts that its op refuses, of which the next call has none."""
    op = ops()[recipe.op]
    strided = {arg.name for arg in op.declaration.tensors if arg.strided}
    views = tuple((name, kind) for name, kind in recipe.views if name in strided or kind in ALIGNED)
    is_strided = any(arg.strided for arg in op.declaration.results)
    out = recipe.out if is_strided or recipe.out in ALIGNED else ""
    return replace(recipe, views=views, out=out)
