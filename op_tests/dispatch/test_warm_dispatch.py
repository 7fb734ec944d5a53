"""A warm call of an op, one whose plan is known, is still seen by whatever has to see each op:
torch.compile, fake tensors, modes, transforms, subclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rfops
from rfops.dispatch.op import ops
from rfops.dispatch.registration import transparent
from rfops.jit import BoundKernel, compiled_ops
from rfops.jit.launch import launcher
from support.warm_ops import OPS

BF16 = torch.bfloat16


@dataclass
class Op:
    """An op with its arguments and, made once, an out."""

    name: str
    args: tuple[Any, ...]
    out: torch.Tensor

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        function: Callable[..., torch.Tensor] = getattr(rfops, self.name)
        return function(*(args or self.args), **kwargs)

    @property
    def registered(self) -> set[str]:
        return {f"rfops.{self.name}.default", f"rfops.{self.name}_out.default"}


@pytest.fixture(params=["native", "python"])
def _table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of either kind."""
    if request.param == "native":
        assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    else:
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
        monkeypatch.setattr(launcher, "_native", None)
        for kernel in compiled_ops():
            monkeypatch.setattr(kernel, "_bound", {})


@pytest.fixture(params=list(OPS))
def warm(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _table: None
) -> Iterator[Op]:
    """The op after two calls, with and without out; the second of each found its plan."""
    make, shape = OPS[request.param]
    plans = ops()[request.param].plans.new_table()
    monkeypatch.setattr(ops()[request.param], "plans", plans)
    op = Op(request.param, make(), torch.empty(shape, dtype=BF16))
    for _ in range(2):
        op()
        op(out=op.out)
    assert (plans.hits, plans.misses) == (2, 2)
    yield op
    hits = plans.hits
    op()
    assert plans.hits == hits + 1, "the plan was lost"


def test_plans_that_were_replaced_do_not_take_the_call_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launcher is built in the background, and makes all tables native in any order."""
    op = ops()["gemm_mxfp8"]
    replaced = op.plans.new_table()
    monkeypatch.setattr(op, "plans", replaced)
    monkeypatch.setattr(op, "plans", op.plans.new_table())
    call = op.call
    nothing = {name: lambda *_args: None for name in ("add", "clear", "add_family", "caller")}
    replaced.use_native(SimpleNamespace(**nothing))
    assert op.call is call


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_it(warm: Op) -> None:
    with Recorder() as recorder:
        actual = warm()
        warm(out=warm.out)
    assert recorder.seen >= warm.registered
    assert torch.equal(actual, warm())


def test_a_transparent_mode_sees_what_it_does_instead(warm: Op) -> None:
    """Its result's memory, and not the op; outside again the op."""
    with Recorder() as recorder, transparent():
        actual = warm()
    assert "aten.empty.memory_format" in recorder.seen and not recorder.seen & warm.registered
    assert torch.equal(actual, warm())
    with Recorder() as recorder:
        warm()
    assert recorder.seen & warm.registered


def test_a_function_mode_sees_it(warm: Op) -> None:
    seen = set()

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.add(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        actual = warm()
        warm(out=warm.out)
    assert seen >= warm.registered
    assert torch.equal(actual, warm())


def test_a_compiled_function_calls_it(warm: Op) -> None:
    seen = set()

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        seen.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def both(out: torch.Tensor, *args: Any) -> torch.Tensor:
        return warm(*args) + warm(*args, out=out)

    torch.compiler.reset()  # each op is another compilation of `both`
    compiled = torch.compile(both, backend=backend, fullgraph=True)
    assert torch.equal(compiled(warm.out, *warm.args), both(warm.out, *warm.args))
    assert seen >= warm.registered


def test_fake_tensors_have_no_result(warm: Op) -> None:
    """Neither converted ones nor plain ones in the mode reach the kernel."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in warm.args]
        for args in (fake, warm.args):
            actual = warm(*args)
            assert (
                isinstance(actual, torch._subclasses.FakeTensor) and actual.shape == warm.out.shape
            )
    actual = warm(*fake)
    assert isinstance(actual, torch._subclasses.FakeTensor), "outside of the mode as well"


def test_a_subclass_sees_it(warm: Op) -> None:
    seen = set()

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.add(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    warm(warm.args[0].as_subclass(Sub), *warm.args[1:])
    warm(out=warm.out.as_subclass(Sub))
    assert seen >= warm.registered


def test_vmap_does_not_pass_it_by(warm: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a transform the op goes to torch, which runs it, batched or not, or refuses."""
    recorded_calls = []
    op = ops()[warm.name]
    dispatch = op._dispatch
    monkeypatch.setattr(op, "_dispatch", lambda args: recorded_calls.append(args) or dispatch(args))

    def captured(row: torch.Tensor) -> torch.Tensor:
        recorded_calls.clear()
        assert torch.equal(warm(), expected)
        return row

    expected = warm()
    torch.func.vmap(captured)(torch.ones(3, 4))
    assert recorded_calls, "went past torch"


def test_a_plan_takes_the_launch_of_the_moment(warm: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one it was made with: the native launcher may be built later, and where every launch
    goes through Python, the native one does too."""
    recorded_calls: list[object] = []
    launch = BoundKernel.launch
    monkeypatch.setattr(
        BoundKernel, "launch", lambda *args: recorded_calls.append(args) or launch(*args)
    )
    launcher.slow_down(1)
    try:
        warm()
    finally:
        launcher.slow_down(-1)
    if warm.name != "batched_gemm_a16w8_blockscale":  # its kernels are Triton's
        assert len(recorded_calls) == 1
