"""Torch routes that a graph may capture: they read nothing back and copy nothing from the host.

On the CPU no stream is captured, so the operators that would break a capture on a GPU are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rfops.dispatch.problem import Problem, call_on
from support.small_calls import Case, cases

_HOST_READS = ("nonzero", "_local_scalar_dense", "is_nonzero", "masked_select", "unique")
_HOST_COPIES = ("lift_fresh", "lift_fresh_copy")  # torch.tensor and new_tensor
_READS_ON_THE_CPU_ALONE = {"grouped_gemm_mxfp8"}  # the number of rows, to compute no others
CASES = [
    case
    for case in cases()
    if "torch" in case.op.kernels
    and case.op.kernels["torch"].is_capturable
    and case.op.name not in _READS_ON_THE_CPU_ALONE
]


class _RefuseHost(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in (*_HOST_READS, *_HOST_COPIES):
            raise AssertionError(f"{name} breaks a capture")
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                if index is not None and index.dtype is torch.bool:
                    raise AssertionError(f"{name} by a mask counts its elements on the host")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_passes_through_the_host(case: Case) -> None:
    problem = Problem(case.op, call_on(case.op, case.given, torch.device("cpu")))
    launch = problem.launch_by(problem.prepare("torch"))
    launch()  # what is made once, at the first call, may come from the host
    with _RefuseHost():
        launch()
