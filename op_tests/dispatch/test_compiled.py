"""Every public function under torch.compile(fullgraph=True) with all defaults: whatever it decides
before its op, as the FP8 of the device, must not break the graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import rfops
from support.small_calls import Case, cases, public

PUBLIC = [case for case in cases() if hasattr(rfops, case.op.name) and case.name in ("few", "rows")]


@pytest.fixture(autouse=True)
def _no_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def flat(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results or ())


@pytest.mark.parametrize("given", ["no optional ones", "all"])
@pytest.mark.parametrize("case", PUBLIC, ids=str)
def test_fullgraph(case: Case, given: str) -> None:
    function, good = public(case)
    parameters = inspect.signature(function).parameters
    if given != "all":
        good = {name: value for name, value in good.items() if parameters[name].default is not None}
    compiled = torch.compile(lambda **kwargs: function(**kwargs), fullgraph=True, backend="eager")
    written = {arg.name for arg in case.op.declaration.inputs if getattr(arg, "written", False)}

    def call(options: Any) -> list[torch.Tensor]:
        fresh = {n: v.clone() if n in written and v is not None else v for n, v in good.items()}
        results = flat(options(**fresh))
        return results + [v for n, v in fresh.items() if n in written and v is not None]

    expected, actual = call(function), call(compiled)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
