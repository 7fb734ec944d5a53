"""What a declaration cannot say: an op's subclass overrides it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rfops.moved import add_method_aliases

from .checks import Checked, flat
from .declare import DTYPES, TensorArg
from .kernel import Call, Kernel, Run
from .tuned_table import Tuned, getter

if TYPE_CHECKING:
    from .problem import InputGenerator
    from .routing import Decision
    from .time_model import TimeModel


_PRODUCT = {
    d: u
    for u, names in (("fp8", ("e4m3", "e4m3fnuz")), ("bf16", ("bf16", "f16")))
    for name in names
    for d in DTYPES[name]
}


class Hooks(Checked):
    """The part of an op that its kind may change; here what most are."""

    kernels: Mapping[str, Kernel]
    tuned: Tuned | None
    time_model: TimeModel | None
    table: tuple[str, ...]

    # As torch.library.register_vmap takes it; without one torch goes row by row, and warns.
    vmap: Callable[..., Any] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        add_method_aliases(cls)

    def result_sizes(self, c: Call) -> Mapping[str, int]:
        """The sizes that results have, where they are not all of the inputs'."""
        return c.sizes

    def is_empty(self, c: Call) -> bool:
        """Whether nothing is to be launched."""
        sizes, d = self.result_sizes(c), self.declaration
        outputs = d.results or [arg for arg in d.tensors if arg.written]
        return all(any(extent.of(sizes) == 0 for extent in arg.extents) for arg in outputs)

    def run_empty(self, c: Call) -> Run:
        """What is done instead."""
        return _nothing

    def finish_run(self, c: Call, run: Run) -> Run:
        """What a plan launches, where that is more than the kernel's own launch."""
        return run

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        """What sizes must be to each other, in a call like `c` but for them: a refusal's argument,
        expected, got and way out; None if they fit."""
        return None

    def order(self, c: Call) -> Sequence[str]:
        """The kernels that a call takes without a tuned row, the first one first: by their
        predicted times where the op has a model; HIP's."""
        names = [name for name, kernel in self.kernels.items() if kernel.is_hip]
        if self.time_model is None:
            return names
        ranked = self.time_model.rank(c)
        return [*ranked, *[name for name in names if name not in ranked]]

    # Of the sizes that `assume` fills in, those that `rfops why` and `profile` have an option for,
    # and what it says.
    more_sizes: ClassVar[Mapping[str, str]] = {}

    @property
    def route_words(self) -> Mapping[str, Sequence[str]]:
        """Arguments that only the op's function has and that decide the route, each with the words
        that it takes, the default first; one without words is a flag. `rfops why` has options for
        them."""
        return {}

    def route_of_words(self, c: Call, words: Mapping[str, Any]) -> tuple[Decision, Any] | None:
        """The decision and the default config of a call with these `route_words`; None where it is
        that of a call without them."""
        return None

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """Fill in sizes that decide nothing, for calls of sizes alone."""

    # ------------------------------------------------------------ bench and tune

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Of random inputs by name, those that must fit each other; the rest is drawn by dtype."""
        return {}

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Sizes and values of a random call, as models have them: what the op's time model is
        fitted to."""
        raise NotImplementedError(f"{self.name} says no calls to fit a model to")

    def layouts(self, sizes: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
        """The orders of operands, as values of a call, in which calls that take one tuned row come:
        those in which it is timed."""
        return ({},)

    def is_chained(self, c: Call) -> bool:
        """Whether what a launch does follows from what all workgroups of one before it write: then
        timing mode must run them all."""
        return False

    def peer(self, c: Call) -> tuple[str, Callable[[], object]] | None:
        """What users without the op call, on tensors that are made here, and its name."""
        return None

    def flops(self, c: Call) -> int:
        """Return the floating-point operations of the call; 0 if the roofline is bytes only."""
        return 0

    def roundings(self, c: Call) -> int:
        """The longest chain of fp32 roundings of a product, the reference's own included."""
        result_sizes = {extent.size for arg in self.declaration.results for extent in arg.extents}
        summed = [size for name, size in c.sizes.items() if name not in result_sizes]
        return 8 + 2 * math.prod(summed) if summed else 8

    def product_type(self, c: Call) -> str:
        """As what matrix units multiply, by which they have their peak: fp4, fp8, bf16, or nothing
        that has one. Here the first tensor's type."""
        return _PRODUCT.get(getattr(c, f"{self.declaration.tensors[0].name}_dtype"), "")

    def traffic(self, c: Call) -> int:
        """Bytes that must move at least: inputs and results once each."""
        moved = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.result_specs(c))
        for arg in self.declaration.tensors:
            if not arg.ignored:
                argument_bytes = sum(t.nbytes for _, t in flat({arg.name: c.tensors[arg.name]}))
                moved += argument_bytes * (2 if arg.written else 1)
        return moved

    def published(self, c: Call) -> tuple[Mapping[str, float], str] | None:
        """Figures of others for such a call on its architecture, and where they stand."""
        row = self.tuned.published(c.arch, self.table_sizes(c)) if self.tuned else None
        return (dict(row.figures), row.source) if row else None

    # ------------------------------------------------------------ what follows from it

    def result_specs(self, c: Call) -> list[tuple[Sequence[int], torch.dtype]]:
        """Shape and dtype of each result."""
        specs: list[tuple[Sequence[int], torch.dtype]] = []
        sizes = self.result_sizes(c)
        for arg in self.declaration.results:
            shape = [extent.of(sizes) for extent in arg.extents]
            if arg.leads:
                leader = self.declaration.leader(arg)
                template = c.tensors.get(leader.name)
                shape[:1] = shape[:1] if template is None else leader.leading(template.shape)
            specs.append((shape, self.dtype_of(arg, c)))
        return specs

    def dtype_of(self, arg: TensorArg, c: Call) -> torch.dtype:
        """Return a result's dtype: that of the argument it follows, else the declared one."""
        # e8m0 itself, not bytes
        dtype: torch.dtype = getattr(c, arg.dtype_of) if arg.dtype_of else arg.dtypes[-1]
        return dtype

    def table_sizes(self, c: Call) -> tuple[int, ...]:
        """What a tuned row of the call is found by."""
        return tuple([self._table_value(c, name) for name in self.table])

    def sizes_of_row(self, row_sizes: Mapping[str, int]) -> Mapping[str, int]:
        """The sizes of the call that a tuned row was made for, from its cells that are not empty,
        by the table's names."""
        return row_sizes

    def table_getter(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        """table_sizes from the sizes of the declaration alone, as far as they go."""
        names = self.declaration.sizes
        return getter([names.index(name) for name in self.table if name in names])

    def _table_value(self, c: Call, name: str) -> int:
        if any(arg.name == name for arg in self.declaration.tensors):
            return int(c.has(name))
        return int(getattr(c, name))


add_method_aliases(Hooks)


def _nothing(*_args: object) -> None:
    """The launch of an empty result."""
