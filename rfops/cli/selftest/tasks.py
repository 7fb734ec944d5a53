"""What a worker of `rfops selftest` does: one case, or one time. What is wrong is raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rfops.cli.bench import bench
from rfops.cli.common import load_ops
from rfops.cli.model_timings import call_text
from rfops.cli.selftest.cases import Case
from rfops.dispatch import routing
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Launch, Problem, call_on


def run_case(case: Case, device: str, files: Sequence[Path]) -> str:
    """What holds of the kernel at the shape. Raises AssertionError, and what the engine raises."""
    _load(files)
    op = ops()[case.op]
    problem = Problem(op, call_on(op, case.shape, torch.device(device)))
    kernel = case.kernel or op.decide(problem.call, None, None)[0].name
    launch = problem.launch_by(problem.prepare(kernel)) if case.kernel else problem.launch
    problem.renew()
    results = launch()
    problem.check(results, kernel)
    first_bytes = _bytes(problem, results)
    _check_same(problem, launch, first_bytes, "a second launch")
    if problem.call.device.type == "cpu":
        return "right, twice the same"
    if not op.kernels[kernel].is_capturable:
        return "right, twice the same; reads on the host, so that no graph captures it"
    _check_same(problem, _replayed(problem, launch), first_bytes, "a graph's replay")
    return "right, twice the same, the same in a graph"


def run_time(name: str, shape: Mapping[str, Any], device: str, files: Sequence[Path]) -> Any:
    """The row of `rfops bench`, with the call and the chip. Raises AssertionError for a wrong
    result."""
    _load(files)
    row, wrong = bench(ops()[name], dict(shape), torch.device(device))
    if wrong:
        raise AssertionError("; ".join(wrong))
    arch, cu_num = routing.chip(torch.device(device))
    return row | {"call": call_text(shape), "arch": arch, "cu_num": cu_num}


def _load(files: Sequence[Path]) -> None:
    for path in files:
        load_ops(path)


def _bytes(problem: Problem, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All that a launch writes, as it is in memory."""
    outputs = [*results, *(tensor for _, tensor in problem.written())]
    return [tensor.contiguous().reshape(-1).view(torch.uint8).clone() for tensor in outputs]


def _check_same(
    problem: Problem, launch: Launch, first_bytes: Sequence[torch.Tensor], launch_name: str
) -> None:
    problem.renew()
    repeat_bytes = _bytes(problem, launch())
    for expected, actual in zip(first_bytes, repeat_bytes, strict=True):
        if not torch.equal(expected, actual):
            mismatch = int((expected != actual).nonzero()[0])
            raise AssertionError(
                f"{launch_name} gives other bits than the first, at byte {mismatch} first"
            )


def _replayed(problem: Problem, launch: Launch) -> Callable[[], Sequence[torch.Tensor]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = launch()

    def replay() -> Sequence[torch.Tensor]:
        for tensor in results:
            tensor.view(torch.uint8).fill_(0x55)
        graph.replay()
        return results

    return replay
