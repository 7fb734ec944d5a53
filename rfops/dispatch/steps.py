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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

import torch

from rfops.jit import CompiledOp

from .kernel import Run
from .workspace import Workspace

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
        known = {name: at for at, name in enumerate(names)}
        taken = [self.sources.get(name, name) for name in self.parameters]
        pick = itemgetter(*[known.get(name or "", len(names)) for name in taken])
        run = self.run
        return lambda *tensors: run(*pick((*tensors, None)))


class Bindable(Protocol):
    """What is a step of an op: Step, NestedRun, rfops.triton.bound.TritonStep."""

    def bind(self, device: torch.device, arch: str | None, names: Sequence[str], /) -> Run: ...


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
        made = [make(shape, dtype=dtype, device=device) for shape, dtype in self._temporaries]
        return (*arguments, *self.workspace(), *made)

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
    kept, made = dict(workspace or {}), dict(temporaries or {})
    counts = {name: count for name, count in (zeros or {}).items() if count}
    assert len(counts) <= 1, "one tensor of zeros"
    names = (*arguments, *kept, *counts, *made)
    launches = [step.bind(device, arch, names) for step in steps]
    if len(launches) == 1 and not (kept or counts or made):
        return launches[0]
    scratch = Workspace(device, *kept.values(), zeros=sum(counts.values()), outer=outer)
    return Launches(device, launches, names, scratch, list(made.values()), len(arguments))
