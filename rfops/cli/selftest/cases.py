"""What `rfops selftest` runs of an op: a case is one kernel at one shape.

A kernel gets the shape of the op's sets that is the least work, its sizes halved until the work is
small and as long as the kernel still takes the call; on a GPU it also gets shapes of the sets as
they are. Such a search needs no list of shapes, and serves ops that are declared elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rfops.cli.model_timings import call_text
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.jit import UnsupportedArch

# Floating-point operations and bytes of tensors. Halving stops at `TARGET_WORK`, which the virtual
# GPU runs in a second; up to `SMALL` it is run there. A shape as it is must leave room for a
# reference in fp32 and for copies.
TARGET_WORK = 64 << 20, 4 << 20
SMALL = 256 << 20, 64 << 20
LARGE = 4 << 40, 4 << 30
Shape = dict[str, Any]


class Case(NamedTuple):
    """One kernel of an op at one shape, or without a kernel the op itself; `why_not` where there is
    none that can be run."""

    op: str
    kernel: str
    shape: Shape
    why_not: str = ""

    @property
    def text(self) -> str:
        """Its sizes and values."""
        return call_text(self.shape)


def cases(op: Op, arch: str, is_thin: bool) -> Iterator[Case]:
    """The op's cases in the order of its kernels. Thin: a small one of each kernel, else also
    shapes of the sets as they are: of the least, of median and of the most work."""
    shapes, has_route = _by_work(op, arch), False
    for name in op.kernels:
        supported = [shape for shape in shapes if refusal(op, name, arch, shape) is None]
        if not supported:
            yield Case(op.name, name, {}, _why_none(op, name, arch, shapes))
            continue
        selected = [_halved(op, name, arch, supported[len(supported) // 2])]
        if not _fits(op, arch, selected[0], *SMALL):
            selected = [_halved(op, name, arch, supported[0])]
        small = [shape for shape in selected if _fits(op, arch, shape, *SMALL)]
        if is_thin and not small:
            flops, size = work(op, arch, selected[0])
            minimum = f"{flops / 1e9:.1f} GFLOP and {size / 1e6:.0f} MB"
            yield Case(op.name, name, selected[0], f"its least case takes {minimum}: --all runs it")
        full_size = (
            [] if is_thin else [shape for shape in supported if _fits(op, arch, shape, *LARGE)]
        )
        indices = sorted({0, len(full_size) // 2, len(full_size) - 1}) if full_size else []
        different: list[Shape] = []
        for shape in (*small, *(full_size[i] for i in indices)):
            if shape not in different:
                different.append(shape)
        yield from (Case(op.name, name, shape) for shape in different)
        if small and not has_route:
            has_route = True
            yield Case(op.name, "", small[0])


def shapes_timed(op: Op, arch: str, count: int) -> list[Shape]:
    """So many of the shapes that have a published figure, else of all, evenly by their work."""
    fitting = [shape for shape in _by_work(op, arch) if _fits(op, arch, shape, *LARGE)]
    published = [shape for shape in fitting if op.published(op.call_of(arch, **shape))]
    shapes = published or fitting
    count = min(count, len(shapes))
    return [shapes[index * (len(shapes) - 1) // max(count - 1, 1)] for index in range(count)]


def _by_work(op: Op, arch: str) -> list[Shape]:
    """All shapes of the op's sets, the least work first."""
    sets = [dict(shape) for set_ in op.shapes.values() for shape in set_]
    return sorted(sets, key=lambda shape: work(op, arch, shape))


def _why_none(op: Op, kernel: str, arch: str, shapes: list[Shape]) -> str:
    reasons = [refusal(op, kernel, arch, shape) for shape in shapes]
    return f"no shape of its sets: {reasons[0]}" if reasons else "the op has no set of shapes"


def refusal(op: Op, kernel: str, arch: str, shape: Mapping[str, Any]) -> str | None:
    """Why the kernel does not take the shape on the architecture; None if it does."""
    try:
        c = op.call_of(arch, **shape)
        op.check_sizes(c)
        return op.kernels[kernel].unsupported_reason(c)
    except (ValueError, UnsupportedArch) as error:
        return str(error)


def work(op: Op, arch: str, shape: Mapping[str, Any]) -> tuple[int, int]:
    """Floating-point operations and bytes of the call's tensors."""
    c = op.call_of(arch, **shape)
    return op.flops(c), _bytes(op, c)


def _bytes(op: Op, c: Call) -> int:
    total = sum(math.prod(shape) * dtype.itemsize for shape, dtype in op.result_specs(c))
    for arg in op.declaration.tensors:
        if not arg.optional or c.has(arg.name):
            count = arg.times.of(c.sizes) if arg.times else 1
            shape = [extent.of(c.sizes) for extent in arg.extents]
            total += count * math.prod(shape) * getattr(c, f"{arg.name}_dtype").itemsize
    return total


def _fits(op: Op, arch: str, shape: Mapping[str, Any], flops: int, size: int) -> bool:
    work_done = work(op, arch, shape)
    return work_done[0] <= flops and work_done[1] <= size


def _halved(op: Op, kernel: str, arch: str, shape: Shape) -> Shape:
    """Its largest size halved, again and again, until the work is small; a size that the kernel
    does not take halved stays."""
    fixed: set[str] = set()
    while not _fits(op, arch, shape, *TARGET_WORK):
        sizes = {
            name: value
            for name, value in shape.items()
            if name in op.declaration.sizes and name not in fixed and value > 1
        }
        if not sizes:
            break
        largest = max(sizes, key=lambda name: sizes[name])
        candidate = shape | {largest: sizes[largest] // 2}
        if refusal(op, kernel, arch, candidate) is None:
            shape = candidate
        else:
            fixed.add(largest)
    return shape
