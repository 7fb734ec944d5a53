"""The plans of calls that differ in sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.routing import KernelSelector
from rfops.dispatch.tuned_table import getter

from .first_run import first_run
from .kernel import Call, Kernel, Run, RunOf

if TYPE_CHECKING:
    from .op import Op

_MOST_SHARED = 1024  # decisions that a family of plans keeps


class Traced(Call):
    """A call that records which of its sizes are read. A function of a call that gave None gives
    None again for every call with the same values of these sizes."""

    _read: set[str]

    @classmethod
    def of(cls, c: Call) -> Traced:
        """Return a copy of the call that records which sizes are read."""
        traced = cls.__new__(cls)
        object.__getattribute__(traced, "__dict__").update(vars(c), _read=set())
        return traced

    def __getattribute__(self, name: str) -> Any:
        attributes = object.__getattribute__(self, "__dict__")
        if name == "__dict__":  # a copy of the call: of all sizes
            attributes["_read"].update(attributes["size_names"])
        elif name in attributes["size_names"]:
            attributes["_read"].add(name)
        return object.__getattribute__(self, name)

    @property
    def read(self) -> frozenset[str]:
        """The names of the sizes that have been read."""
        return frozenset(object.__getattribute__(self, "_read"))


@dataclass(frozen=True, slots=True)
class _SharedDecision:
    """A decision for all sizes of one coarse step that its kernel takes: those whose values of the
    sizes at `exact` are `values`, and whose sizes at `bounds` are at most these."""

    kernel: Kernel
    config: Any
    run_of: RunOf
    exact: Callable[[Sequence[int]], tuple[int, ...]]
    values: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]

    def takes(self, sizes: Sequence[int]) -> bool:
        if self.exact(sizes) != self.values:
            return False
        for index, max_size in self.bounds:
            if sizes[index] > max_size:
                return False
        return True


class DynamicShapePlan:
    """Makes the plans of calls that differ in sizes alone. Shapes between coarse sizes share a
    decision where it is the default of a HIP kernel, so that a shape which changes every call costs
    5 us and not 8. What a kernel takes may depend on more than the coarse sizes: it is asked where
    a size differs that its answer has read, except for sizes that it declares as `limits`."""

    def __init__(self, op: Op, example: Call, config: Any) -> None:
        self.op, self.like, self.config = op, example, config
        self.names = op.declaration.sizes
        self.router = KernelSelector(op.tuned, example.arch, example.cu_num) if op.tuned else None
        self._shared_decisions: dict[tuple[int, ...], _SharedDecision] = {}
        self._plain = op.has_plain_plans
        if self._plain:
            (result,) = op.declaration.results
            self._ends = op.dtype_of(result, example), example.device
            self._shape = getter([self.names.index(e.size) for e in result.extents])
        self._table_sizes = op.table_getter()
        self._table_values = op.table_sizes(example)[len(set(op.table) & set(self.names)) :]

    def __call__(self, *sizes: int) -> tuple[Any, ...] | None:
        if self.op.unsupported_reason(self.like, *sizes) is not None:
            return None  # the checks say it
        key = self._key(sizes)
        decision = self._shared_decisions.get(key)
        if decision is not None and not decision.takes(sizes):
            decision = self._share_decision(
                decision.kernel, decision.config, decision.run_of, sizes, key
            )
        if decision is not None and self._is_untuned(sizes):
            run = decision.run_of(*sizes)
        else:
            run = self._decide(self.like.resized(sizes), key)
        if self._plain:
            return run, *self._ends, *self._shape(sizes)
        return self.op.plan_of(self.like.resized(sizes), run)

    def _is_untuned(self, sizes: tuple[int, ...]) -> bool:
        if self.router is None:
            return True
        return self.router.is_untuned((*self._table_sizes(sizes), *self._table_values))

    def _key(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        key = list(sizes)
        for index, step in self.op.coarse_at:
            key[index] = coarse(sizes[index], step) if step else 0
        return tuple(key)

    def _decide(self, c: Call, key: tuple[int, ...]) -> Run:
        kernel, rule, config = self.op.decide(c, self.router, self.config)
        run_of, sizes = kernel.variant(c, config), tuple(c.sizes.values())
        run = first_run(self.op, kernel, run_of, sizes)
        if (
            rule in ("envelope default", "first")
            and self.op.shares_decisions
            and self._holds(kernel, c, key)
        ):
            self._share_decision(kernel, config, run_of, sizes, key)
        return run

    def _share_decision(
        self,
        kernel: Kernel,
        config: Any,
        run_of: RunOf,
        sizes: tuple[int, ...],
        key: tuple[int, ...],
    ) -> _SharedDecision | None:
        """Ask the kernel about these sizes, and remember for which others the answer holds; None
        where it refuses."""
        limits = [index for index, name in enumerate(self.names) if name in kernel.limits.split()]
        bounds_ = list(sizes)
        for index in limits:
            bounds_[index] = key[index] or 1 << sizes[index].bit_length()
        all_bounds = [bounds_, list(sizes)] if bounds_ != list(sizes) else [bounds_]
        for bounds in all_bounds:
            traced = Traced.of(self.like.resized(bounds))
            if (
                kernel.unsupported_reason(traced) is None
                and kernel.unsupported_config_reason(traced, config) is None
            ):
                break
        else:
            return None
        read = [index for index, name in enumerate(self.names) if name in traced.read]
        exact = getter([index for index in read if index not in limits])
        upper = tuple(
            [
                (index, bounds[index])
                for index in read
                if index in limits and bounds[index] > key[index]
            ]
        )
        if bounds is not bounds_:  # near a limit: these sizes alone
            exact, upper = getter(read), ()
        decision = _SharedDecision(kernel, config, run_of, exact, exact(sizes), upper)
        if len(self._shared_decisions) >= _MOST_SHARED:
            self._shared_decisions.clear()
        self._shared_decisions[key] = decision
        return decision

    def _holds(self, kernel: Kernel, c: Call, key: tuple[int, ...]) -> bool:
        """Whether the same decision holds for the largest of these shapes, and so for all that the
        kernel takes: no kernel comes before it."""
        largest = c.resized([k or s for k, s in zip(key, c.sizes.values(), strict=True)])
        return kernel.name == next(iter(self.op.order(largest)), None)
