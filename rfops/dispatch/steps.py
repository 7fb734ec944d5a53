"""An op of several launches: its steps, in order, with arguments and workspace by name.

    return run_steps(
        c.device,
        self.arguments,  # the op's own: out x w
        [
            Step(quantize, defines, threads=256, grid=groups, arguments={"m": m, "k": k}),
            Step(multiply, {}, threads=256, grid=tiles, arguments={"x": "x_q", "m": m, "n": n}),
        ],
        workspace={"x_q": ((m, k), torch.uint8), "x_scale": ((m, k // 32), torch.uint8)},
        zeros={"counts": tiles},
    )

A step names its tensors; which memory each gets is settled once, when the plan is made. A call
then passes one tuple of tensors to all launches, each of which knows the positions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from rfops.jit import CompiledOp

from .kernel import Call, Run
from .view import View
from .workspace import Workspace

if TYPE_CHECKING:
    from .op import Op

Shaped = tuple[int | tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Step:
    """One launch of a kernel.

    `arguments` has the number of each scalar parameter. A tensor parameter takes the tensor of its
    own name; where that is another one, `arguments` has its name, or None for a null pointer.
    """

    kernel: CompiledOp
    defines: Mapping[str, Any]
    threads: int  # of a workgroup
    grid: int | tuple[int, int, int]  # workgroups
    arguments: Mapping[str, int | float | str | None] = field(default_factory=dict)
    lds: int = 0  # bytes of dynamic LDS

    def bind(self, device: torch.device, arch: str | None, names: Sequence[str]) -> Run:
        """The launch, which takes the tensors `names`. Raises as CompiledOp.bind."""
        sources, scalars = {}, {}
        for name, value in self.arguments.items():
            if isinstance(value, str) or value is None:
                sources[name] = value
            else:
                scalars[name] = value
        bound = self.kernel.bind(device, self.defines, arch)
        grid = (self.grid, 1, 1) if isinstance(self.grid, int) else self.grid
        return bound.prepare((self.threads, 1, 1), names, self.lds, sources)(grid, **scalars)


@dataclass(frozen=True)
class NestedRun:
    """A step that is another op's launches. `run` takes the tensors `parameters`; each is the
    tensor of its own name, or that which `sources` names, or None where there is neither."""

    run: Run
    parameters: Sequence[str]
    sources: Mapping[str, str | None] = field(default_factory=dict)

    def bind(self, _device: torch.device, _arch: str | None, names: Sequence[str]) -> Run:
        """Return the run, which takes the tensors `names` and picks its own."""
        index_of = {name: index for index, name in enumerate(names)}
        arguments = [self.sources.get(name, name) for name in self.parameters]
        pick = itemgetter(*[index_of.get(name or "", len(names)) for name in arguments])
        run = self.run
        return lambda *tensors: run(*pick((*tensors, None)))


Source = str | tuple[str, Callable[[torch.Tensor], torch.Tensor]]


@dataclass(frozen=True)
class OpStep:
    """A step that is a call of another op, by the kernel which that op chooses.

    `given` has the call's sizes and values; `sources` the tensor of each result and input of the
    op, by name or as a view of the tensor of a name; what is not in it is None. `shaped` has shape
    and dtype of these tensors, by which the op sees how they lie: contiguous, views and all of them
    at multiples of 16 bytes.
    """

    op: Op
    given: Mapping[str, Any]
    sources: Mapping[str, Source]
    shaped: Mapping[str, tuple[Sequence[int], torch.dtype]]
    cu_num: int | None = None

    def bind(self, device: torch.device, arch: str | None, names: Sequence[str]) -> Run:
        """Return the launch, which takes the tensors `names`. Raises as the op's kernel does."""
        assert arch is not None
        c = self._call(device, arch)
        kernel, _, config = self.op.decide(c, None, None)
        run = kernel.variant(c, config)(*c.sizes.values())
        picks = [self._pick(name, names) for name in kernel.arguments if name != "_"]
        count = len(self.op.declaration.results)

        def launch(*tensors: Any) -> None:
            picked = [pick(tensors) for pick in picks]
            results = picked[0] if count == 1 else tuple(picked[:count]) if count else None
            run(results, *picked[count:])

        return launch

    def _call(self, device: torch.device, arch: str) -> Call:
        views: dict[str, View | None] = {arg.name: None for arg in self.op.declaration.tensors}
        for name, source in self.sources.items():
            shape, dtype = self.shaped[source if isinstance(source, str) else source[0]]
            tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
            tensor = tensor if isinstance(source, str) else source[1](tensor)
            views[name] = replace(View.of(tensor), device=device)
        dtypes = {f"{name}_dtype": view.dtype for name, view in views.items() if view is not None}
        c = self.op.call_of(arch, self.cu_num, **{**dtypes, **self.given})
        return Call(arch, c.cu_num, device, c.sizes, c.values, views)

    def _pick(self, name: str, names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
        source = self.sources.get(name)
        if source is None:
            return lambda _tensors: None
        if isinstance(source, str):
            return itemgetter(names.index(source))
        index, view = names.index(source[0]), source[1]
        return lambda tensors: view(tensors[index])


class Bindable(Protocol):
    """What is a step of an op: Step, NestedRun, rfops.triton.bound.TritonStep."""

    def bind(self, device: torch.device, arch: str | None, names: Sequence[str], /) -> Run:
        """Return a function that launches the step on the tensors `names`, given in that order."""


class Launches:
    """The bound steps of one plan; a call launches them in order.

    `names` are those of all tensors: the op's, which are the `num_arguments` of a call, the
    workspace's, zeros, temporaries.
    """

    def __init__(
        self,
        device: torch.device,
        launches: Sequence[Run],
        names: Sequence[str],
        workspace: Workspace,
        temporaries: Sequence[Shaped],
        num_arguments: int,
    ) -> None:
        self.device, self.names, self.num_arguments = device, tuple(names), num_arguments
        self.launches, self.workspace = tuple(launches), workspace
        self._temporaries = tuple(temporaries)

    def tensors(self, *arguments: Any) -> tuple[Any, ...]:
        """All tensors of a call, in the order of `names`."""
        make, device = torch.empty, self.device
        tensors = [make(shape, dtype=dtype, device=device) for shape, dtype in self._temporaries]
        return (*arguments, *self.workspace(), *tensors)

    def launch(self, tensors: Sequence[Any]) -> None:
        """Launch the steps on `tensors`; zeros are zero again though a launch fails."""
        try:
            for launch in self.launches:
                launch(*tensors)
        except BaseException:
            if self.workspace.zeros:
                tensors[-1 - len(self._temporaries)].zero_()
            raise

    def __call__(self, *arguments: Any) -> None:
        self.launch(self.tensors(*arguments))


def run_steps(
    device: torch.device,
    arguments: Sequence[str],
    steps: Sequence[Bindable],
    *,
    arch: str | None = None,
    workspace: Mapping[str, Shaped] | None = None,
    zeros: Mapping[str, int] | None = None,
    temporaries: Mapping[str, Shaped] | None = None,
    outer: bool = False,
) -> Run:
    """Bind the steps; return `run(*tensors)`, which launches them on tensors named `arguments`.

    Parameters
    ----------
    workspace : tensors that are kept from call to call (workspace.py), each a shape and a dtype.
    zeros : one tensor of int32 that is zero before each call; the last step leaves it so.
    temporaries : tensors that torch's allocator makes for each call, before the first launch.
    outer : the steps include another op's, which has a workspace of its own.

    Raises as CompiledOp.bind, and BindError for a tensor that is not declared. A call that fails
    half-way leaves `zeros` zero.
    """
    workspaces, tensors = dict(workspace or {}), dict(temporaries or {})
    counts = {name: count for name, count in (zeros or {}).items() if count}
    assert len(counts) <= 1, "one tensor of zeros"
    names = (*arguments, *workspaces, *counts, *tensors)
    launches = [step.bind(device, arch, names) for step in steps]
    if len(launches) == 1 and not (workspaces or counts or tensors):
        return launches[0]
    scratch = Workspace(device, *workspaces.values(), zeros=sum(counts.values()), outer=outer)
    return Launches(device, launches, names, scratch, list(tensors.values()), len(arguments))
