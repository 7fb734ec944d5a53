"""The plans of calls that differ in sizes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.routing import Router
from rfops.dispatch.tuned_table import getter

from .kernel import Call, Kernel, RunOf

if TYPE_CHECKING:
    from .op import Op

_MOST_SHARED = 1024  # decisions that a family of plans keeps


# A decision for all sizes between two coarse ones that its kernel takes: kernel, config, launches.
_Shared = tuple[Kernel, Any, RunOf]
_NONE: tuple[Any, Any, None] = (None, None, None)


class Family:
    """Makes the plans of calls that differ in sizes alone. Shapes between coarse sizes share a
    decision where it is the default of a HIP kernel, so that a shape which changes every call costs
    5 us and not 8. The kernel is asked about each shape: what it takes may depend on more than the
    coarse sizes."""

    def __init__(self, op: Op, like: Call, config: Any) -> None:
        self.op, self.like, self.config = op, like, config
        self.names = op.declaration.sizes
        self.router = Router(op.tuned, like.arch, like.cu_num) if op.tuned else None
        self._shared: dict[tuple[int, ...], _Shared] = {}
        if op.has_plain_plans:
            (result,) = op.declaration.results
            self._ends = op.dtype_of(result, like), like.device
            self._shape = getter([self.names.index(e.size) for e in result.extents])
        self._table_sizes = op.table_getter()
        self._table_values = op.table_sizes(like)[len(set(op.table) & set(self.names)) :]

    def __call__(self, *sizes: int) -> tuple[Any, ...] | None:
        c = self.like.resized(sizes)
        if self.op.refuses(c, *sizes) is not None:
            return None  # the checks say it
        key = self._key(sizes)
        kernel, config, run_of = self._shared.get(key, _NONE)
        if (
            run_of is None
            or kernel.refuses(c) is not None
            or kernel.refuses_config(c, config) is not None
            or not self._is_untuned(sizes)
        ):
            run_of = self._decide(c, key)
        run = run_of(*sizes)
        if self.op.has_plain_plans:
            return run, *self._ends, *self._shape(sizes)
        return self.op.plan_of(c, run)

    def _is_untuned(self, sizes: tuple[int, ...]) -> bool:
        if self.router is None:
            return True
        return self.router.is_untuned((*self._table_sizes(sizes), *self._table_values))

    def _key(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        key = list(sizes)
        for at, step in self.op.coarse_at:
            key[at] = coarse(sizes[at], step) if step else 0
        return tuple(key)

    def _decide(self, c: Call, key: tuple[int, ...]) -> RunOf:
        kernel, rule, config = self.op.decide(c, self.router, self.config)
        made = kernel.variant(c, config)
        if rule in ("envelope default", "first") and self.op.shares and self._holds(kernel, c, key):
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            self._shared[key] = kernel, config, made
        return made

    def _holds(self, kernel: Kernel, c: Call, key: tuple[int, ...]) -> bool:
        """Whether the same decision holds for the largest of these shapes, and so for all that the
        kernel takes: no kernel comes before it."""
        most = c.resized([k or s for k, s in zip(key, c.sizes.values(), strict=True)])
        is_first = kernel.name == next(iter(self.op.order(most)), None)
        return is_first and self.op.untuned(most) is None
