"""The check of what a kernel's `variant` returns, once per variant, when a plan is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rfops.jit import BindError

from .kernel import Kernel, Run, RunOf
from .steps import Launches

if TYPE_CHECKING:
    from .op import Op


def first_run(op: Op, kernel: Kernel, run_of: RunOf, sizes: Sequence[int]) -> Run:
    """Return run_of(*sizes), which a plan can call. Raises BindError where it cannot: a plan passes
    the result, or the tuple of several, and each input tensor."""
    d = op.declaration
    names = [result.name for result in d.results]
    results = names[0] if len(names) == 1 else f"({', '.join(names)})"
    inputs = [arg.name for arg in d.tensors]
    call = f"run({', '.join([results, *inputs])})"
    of_sizes = f"a function of the sizes ({', '.join(d.sizes)})"
    prefix = f"{op.name}: {kernel.name}.variant"
    if not callable(run_of):
        raise BindError(f"{prefix} must return {of_sizes}, got {run_of!r}")
    run = run_of(*sizes)
    if run is None:
        raise BindError(f"{prefix} must return {of_sizes} that returns {call}, got one of None")
    num_needed, num_passed = getattr(run, "num_arguments", None), 1 + len(inputs)
    if num_needed is None:
        return run  # a function of the author's own
    if len(names) > 1:
        raise BindError(
            f"{prefix} must return a launch for {call}, got one whose arguments are {num_needed} "
            "tensors. Return lambda results, *tensors: launch(*results, *tensors)"
        )
    is_exact = isinstance(run, Launches)  # further arguments would be taken for its workspace
    if num_needed == num_passed or (num_needed < num_passed and not is_exact):
        return run
    raise BindError(
        f"{prefix} must return a launch for {call}, of {num_passed} arguments, got one of "
        f"{num_needed}{'' if is_exact else ' or more'}. Name as its arguments the result and the "
        "op's tensors, in this order"
    )
