"""Launches by the names of their arguments: prepared ones, and ops of several steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rfops.dispatch import op as op_module
from rfops.dispatch.kernel import Kernel
from rfops.dispatch.op import Op
from rfops.dispatch.steps import Launches, NestedRun, Step, run_steps
from rfops.jit import BindError, CompiledOp, HipError, compile_ops, f32, u32
from rfops.jit.launch import launcher

CPU = torch.device("cpu")
KERNELS = """
#include "rfops/chip/types.h"
using namespace rfops;
extern "C" __global__ void weigh(float* out, const float* x, const float* y, float a, u32 n,
                                 float b) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) out[i] = a * x[i] + (y ? b * y[i] : 0);
}
extern "C" __global__ void count_up(u32* counts, float* out, u32 n) {
  if (__builtin_amdgcn_workitem_id_x() < n) {
    out[__builtin_amdgcn_workitem_id_x()] += static_cast<float>(counts[0]);
  }
}
"""


def weigh(
    out: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None, a: f32, n: u32, b: f32
) -> None:
    """The kernel's parameters."""


def count_up(counts: torch.Tensor, out: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared here is gone afterwards."""
    monkeypatch.setattr(op_module, "_OPS", dict(op_module._OPS))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompiledOp]:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "steps.hip").write_text(KERNELS)
    config = folder / "config.json"
    config.write_text(json.dumps({"steps": {"srcs": ["steps.hip"]}}))
    return {f.__name__: compile_ops("steps", config=config)(f) for f in (weigh, count_up)}


@pytest.fixture(params=["native", "python"])
def bound(
    request: pytest.FixtureRequest, kernels: dict[str, CompiledOp], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """`weigh`, prepared natively or in Python."""
    kernel = kernels["weigh"].bind(CPU)
    monkeypatch.setattr(kernel, "_prepared", {})
    if request.param == "python":
        monkeypatch.delattr(kernel, "launch")
    else:
        assert launcher.native() or launcher.build()
    return kernel


X, Y = torch.arange(100.0), torch.arange(100.0) ** 2
BLOCK, GRID = (64, 1, 1), (2, 1, 1)


@pytest.mark.parametrize("arguments", ["out x y", ("y", "_", "x", "out", "more")])
def test_a_launch_finds_its_arguments_by_name(bound: Any, arguments: Any) -> None:
    run = bound.prepare(BLOCK, arguments)(GRID, n=100, b=3.0, a=2.0)
    names = arguments.split() if isinstance(arguments, str) else arguments
    out = torch.full((100,), torch.nan)
    run(*[{"out": out, "x": X, "y": Y}.get(name) for name in names])
    assert torch.equal(out, 2 * X + 3 * Y)


def test_arguments_of_other_names_and_none(bound: Any) -> None:
    out = torch.full((100,), torch.nan)
    launch = bound.prepare(BLOCK, "left right out", sources={"x": "right", "y": "left"})
    launch(GRID, a=2.0, n=100, b=3.0)(Y, X, out)
    assert torch.equal(out, 2 * X + 3 * Y)
    for sources in ({}, {"y": None}):  # y may be a null pointer
        launch = bound.prepare(BLOCK, "out x", sources=sources)
        launch(GRID, a=2.0, n=100, b=3.0)(out.fill_(torch.nan), X)
        assert torch.equal(out, 2 * X)


def test_one_argument_for_two_parameters(bound: Any) -> None:
    out = torch.full((100,), torch.nan)
    launch = bound.prepare(BLOCK, "out x", sources={"y": "x"})
    launch(GRID, a=2.0, n=100, b=3.0)(out, X)
    assert torch.equal(out, 2 * X + 3 * X)


def test_positions_and_tuples_still_do(bound: Any) -> None:
    """As ops outside of this repository may have them."""
    out = torch.full((100,), torch.nan)
    bound.prepare(BLOCK, (1, 2, 0))(GRID, (2.0, 100, 3.0))(Y, out, X)
    assert torch.equal(out, 2 * X + 3 * Y)


def test_names_that_do_not_fit_are_refused(bound: Any) -> None:
    for arguments, sources, message in (
        ("out y", {}, "parameter x must have a source among the launch's arguments, out y, got x"),
        ("out x", {"x": "z"}, "parameter x must have a source .*, out x, got z"),
        ("out x", {"y": "z"}, "parameter y must have a source .*, out x, got z"),
        ("out x", {"z": "x"}, "sources must name tensor parameters, out, x, y, got z"),
        ("out x", {"n": "x"}, "sources must name tensor parameters, out, x, y, got n"),
    ):
        with pytest.raises(BindError, match=f"^weigh: {message}"):
            bound.prepare(BLOCK, arguments, sources=sources)
    launch = bound.prepare(BLOCK, "out x y")
    for scalars, given in (
        ({"a": 2.0, "n": 100}, "a, n"),
        ({"a": 2.0, "n": 100, "b": 3.0, "c": 1}, "a, n, b, c"),
        ({"a": 2.0, "n": 100, "c": 3.0}, "a, n, c"),
        ({}, "none"),
    ):
        with pytest.raises(TypeError, match=f"^weigh: scalars must be a, n, b, got {given}$"):
            launch(GRID, **scalars)
    run = launch(GRID, a=2.0, n=100, b=3.0)
    assert run.num_arguments == 3
    words = "^weigh: a prepared launch of the tensors out x y must have 3 or more arguments, got 2"
    with pytest.raises(TypeError, match=words):
        run(torch.empty(100), X)
    with pytest.raises(ValueError, match="argument n must be an int from 0 to 4294967295, got -1"):
        launch(GRID, a=2.0, n=-1, b=3.0)(torch.empty(100), X, Y)


def steps_of(kernels: dict[str, CompiledOp], failing: bool = False) -> list[Any]:
    """out = 4 * x + y by two launches; a third adds what counts say."""
    weights = {"n": 100, "b": 1.0}
    return [
        Step(kernels["weigh"], {}, 64, 2, {"out": "half", "y": None, "a": 2.0, **weights}),
        Step(kernels["weigh"], {}, 64, (2, 1, 1), {"x": "half", "a": 2.0, **weights}),
        Step(kernels["count_up"], {}, 0 if failing else 64, 1, {"n": 64}),
    ]


def test_steps_share_a_workspace_and_temporaries(kernels: dict[str, CompiledOp]) -> None:
    kinds: list[dict[str, Any]] = [{"workspace": {}}, {"temporaries": {}}]
    for kind in kinds:
        (where,) = kind
        kind[where] = {"half": (100, torch.float32)}
        run = run_steps(CPU, ("out", "x", "y"), steps_of(kernels), zeros={"counts": 4}, **kind)
        out = torch.full((100,), torch.nan)
        for _ in range(2):
            run(out, X, Y)
            assert torch.equal(out, 4 * X + Y), "counts are zero"
        assert isinstance(run, Launches)
        tensors = dict(zip(run.names, run.tensors(out, X, Y), strict=True))
        assert tensors["half"].shape == (100,) and tensors["counts"].shape == (4,)


def test_steps_that_fail_leave_zeros(kernels: dict[str, CompiledOp]) -> None:
    temporaries = {"half": (100, torch.float32)}
    run = run_steps(
        CPU,
        ("out", "x", "y"),
        steps_of(kernels, failing=True),
        zeros={"counts": 4},
        temporaries=temporaries,
    )
    assert isinstance(run, Launches)
    tensors = run.tensors(torch.empty(100), X, Y)
    counts = dict(zip(run.names, tensors, strict=True))["counts"]
    counts.fill_(7)
    with pytest.raises(HipError, match="block 0x1x1"):
        run.launch(tensors)
    assert not counts.any()


def test_another_ops_launch_is_a_step(kernels: dict[str, CompiledOp]) -> None:
    inner = kernels["weigh"].bind(CPU).prepare(BLOCK, "out x y")(GRID, a=2.0, n=100, b=1.0)
    step = NestedRun(inner, ("out", "x", "y"), {"x": "left"})
    out = torch.full((100,), torch.nan)
    run_steps(CPU, ("out", "left"), [step])(out, X)  # without y
    assert torch.equal(out, 2 * X)
    run_steps(CPU, ("y", "left", "out"), [step])(Y, X, out)
    assert torch.equal(out, 2 * X + Y)


def test_a_tensor_that_no_step_can_have_is_refused(kernels: dict[str, CompiledOp]) -> None:
    with pytest.raises(BindError, match="parameter out must have a source among the launch's"):
        run_steps(CPU, ("out", "x", "y"), steps_of(kernels), zeros={"counts": 4})


def test_a_kernel_of_two_ops_knows_the_arguments_of_each() -> None:
    class Torch(Kernel):
        name = "torch"

    shared = Torch()
    first = Op("test_steps_first", "x: f32[N]\n-> out: f32[N]", kernels=(shared,))
    second = Op("test_steps_second", "y: f32[N] inout\nz: any?", kernels=(shared,))
    assert first.kernels["torch"].arguments == ("out", "x")
    assert second.kernels["torch"].arguments == ("_", "y")


def test_the_old_name_of_a_kernels_compiler_config(tmp_path: Path) -> None:
    class Old(Kernel):
        name, module, config = "old", "steps", tmp_path / "config.json"

    class Derived(Old):
        name = "derived"

    for kernel in (Old(), Derived()):
        assert kernel.compiler_config == kernel.config == tmp_path / "config.json"
    kernel = Kernel()
    kernel.config = tmp_path
    assert kernel.compiler_config == tmp_path != Old().config
