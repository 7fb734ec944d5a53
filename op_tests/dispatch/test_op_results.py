"""Results of small ops: two of them, of any leading dimensions, in place, metadata that the caller
keeps; what a variant returns that is no run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.steps import Step, run_steps
from rfops.jit import compile_ops, u32
from support.small_ops import MODULE, Small, op_call, random, unique

pytestmark = pytest.mark.usefixtures("own_registry", "launch_path")


# ---------------------------------------------------------------- two results


def extremes(low: torch.Tensor, high: torch.Tensor, x: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


class Extremes(Small):
    name = "extremes"

    def variant(self, c: Call, config: Any) -> RunOf:
        launch = self.op.bind(c.device, None, c.arch).prepare((64, 1, 1), self.arguments)

        def run_of(m: int, n: int) -> Run:
            run = launch((m, 1, 1), n=n)
            return lambda results, x: run(*results, x)

        return run_of


# What a variant returns in place of a run of ((low, high), x), and what is said of it.
NO_RUNS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "the launch": (
        lambda launch, _: lambda m, n: launch((m, 1, 1), n=n),
        r"a launch for run\(\(low, high\), x\), got one whose arguments are 3 tensors\. "
        r"Return lambda results, \*tensors: launch\(\*results, \*tensors\)",
    ),
    "a launch of two": (
        lambda _, two: lambda m, n: two((m, 1, 1), n=n),
        r"a launch for .*, got one whose arguments are 2 tensors\. Return lambda results, ",
    ),
    "no function": (lambda *_: None, r"a function of the sizes \(M, N\), got None"),
    "no run": (
        lambda *_: lambda m, n: None,
        r"a function of the sizes \(M, N\) that returns run\(\(low, high\), x\), got one of None",
    ),
}


@pytest.mark.parametrize("label", NO_RUNS)
def test_a_variant_that_returns_no_run(config: Path, label: str) -> None:
    """Said when the plan is made, by the call and by `prepare`, before anything is launched."""
    result, message = NO_RUNS[label]

    class Wrong(Extremes):
        def variant(self, c: Call, config: Any) -> Any:
            prepare = self.op.bind(c.device, None, c.arch).prepare
            two = prepare((64, 1, 1), "low x", sources={"high": "low"})
            return result(prepare((64, 1, 1), "low high x"), two)

    text = "x: f32[M, N]\n-> low: f32[M]\n-> high: f32[M]"
    kernel = Wrong(compile_ops(MODULE, config=config)(extremes))
    op = Op(unique("extremes"), text, positive="N", kernels=(kernel,))
    for _ in range(2):
        with pytest.raises(
            rfops.BindError, match=rf"^{op.name}: extremes.variant must return {message}"
        ):
            op.call(random(5, 33), None, None)
    with pytest.raises(rfops.BindError, match=message):
        op.prepare("extremes", op.call_of("gfx950", M=5, N=33))


@pytest.mark.parametrize("names", ["low x high", "low", "x high low other"])
def test_a_launch_whose_arguments_are_not_the_ops(config: Path, names: str) -> None:
    """Of steps with a workspace, whose tensors come after the arguments: one that is too few or too
    many would shift them in silence."""

    class Wrong(Extremes):
        def variant(self, c: Call, config: Any) -> RunOf:
            sources = {"high": "high" if "high" in names else "kept", "x": names.split()[-1]}
            step = Step(self.op, {}, 64, 1, {**sources, "n": 33})
            kept = {"kept": (99, torch.float32)}
            return lambda _m, _n: run_steps(c.device, names.split(), [step], workspace=kept)

    kernel = Wrong(compile_ops(MODULE, config=config)(extremes))
    op = Op(unique("low"), "x: f32[M, N]\n-> low: f32[M]", positive="N", kernels=(kernel,))
    given = len(names.split())
    with pytest.raises(
        rfops.BindError, match=rf"run\(low, x\), of 2 arguments, got one of {given}\."
    ):
        op.call(random(5, 33), None)


def test_two_results(config: Path) -> None:
    op = Op(
        unique("extremes"),
        """
        x: f32[M, N]
        -> low: f32[M]
        -> high: f32[M]
        """,
        positive="N",
        kernels=(Extremes(compile_ops(MODULE, config=config)(extremes)),),
    )
    x = random(5, 33)
    expected = x.amin(1), x.amax(1)
    for _ in range(2):
        for given in ((None, None), (torch.empty(5), None), (None, torch.empty(5)), expected):
            actual = op.call(
                x, *(None if g is None else torch.full_like(g, math.nan) for g in given)
            )
            assert all(map(torch.equal, actual, expected))
    low, high = torch.empty(5), torch.empty(5)
    assert op.call(x, low, high)[1] is high and torch.equal(high, expected[1])
    with pytest.raises(ValueError, match=r"high must not overlap low|low must not overlap high"):
        op.call(x, low, low)
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, (x,))
    torch.library.opcheck(getattr(torch.ops.rfops, f"{op.name}_out").default, (x, low, high))
    compiled = torch.compile(lambda x: op_call(op, x, None, low)[0] + 1, backend="aot_eager")
    assert torch.equal(compiled(x), expected[0] + 1) and torch.equal(low, expected[1])
    with pytest.raises(ValueError, match=r"N must be positive, got N=0"):
        op.call(random(3, 0), None, None)


# ---------------------------------------------------------------- any leading dimensions


def normalise(unit: torch.Tensor, peak: torch.Tensor, x: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


def test_any_leading_dimensions(config: Path) -> None:
    op = Op(
        unique("normalise"),
        """
        x: f32[*M, K]
        -> unit: f32[*M, K]
        -> peak: f32[*M]
        """,
        positive="K",
        kernels=(Extremes(compile_ops(MODULE, config=config)(normalise)),),
    )
    for shape in ((33,), (5, 33), (2, 3, 33), (6, 33), (2, 3, 33), (0, 33), (2, 0, 33)):
        x = random(*shape)
        peak = x.abs().amax(-1)
        expected = (x / peak.unsqueeze(-1), peak)
        for given in ((None, None), (None, torch.full_like(peak, math.nan))):
            actual = op.call(x, *given)
            assert [t.shape for t in actual] == [t.shape for t in expected]
            assert all(map(torch.equal, actual, expected)) and given[1] in (None, actual[1])
    x = random(2, 3, 33)
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, (x,))
    outs = torch.empty(2, 3, 33), torch.empty(2, 3)
    torch.library.opcheck(getattr(torch.ops.rfops, f"{op.name}_out").default, (x, *outs))
    compiled = torch.compile(lambda x: op_call(op, x, None, None)[0] + 1, backend="aot_eager")
    assert torch.equal(compiled(x), op.call(x, None, None)[0] + 1)
    for args, message in (
        ((torch.tensor(1.0), None, None), r"x must be a \[\.\.\., K\] tensor, got \[\] float32"),
        (
            (x, random(6, 33), None),
            r"unit must be a \[x.shape\[0\]=2, x.shape\[1\]=3, K=33\]",
        ),
        ((x, None, random(3, 2)), r"peak must be a \[x.shape\[0\]=2, x.shape\[1\]=3\] tensor"),
        ((random(2, 0), None, None), "K must be positive, got K=0"),
    ):
        with pytest.raises(ValueError, match=message):
            op.call(*args)


def test_leading_dimensions_of_one_count(config: Path) -> None:
    """Of several inputs the product must agree; the result has those of the first."""

    class Add(Kernel):
        name = "add"

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda m, k: lambda out, x, y: torch.add(x, y.view(x.shape), out=out)

    text = "x: f32[*M, K] strided\ny: f32[*M, K]\n-> out: f32[*M, K]"
    op = Op(unique("add"), text, kernels=(Add(),))
    x, y = random(4, 6).T.view(6, 2, 2), random(12, 2, seed=1)
    for _ in range(2):
        assert torch.equal(op.call(x, y, None), x + y.view(x.shape))
    with pytest.raises(ValueError, match=r"y must be of M = 12 rows, got \[6, 2\]"):
        op.call(x, y[:6], None)
    assert op.call_of(M=3, K=2).sizes == {"M": 3, "K": 2}


# ---------------------------------------------------------------- in place, caller's metadata


def append(cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


class Append(Small):
    name = "append"

    def variant(self, c: Call, config: Any) -> RunOf:
        launch = self.op.bind(c.device, None, c.arch).prepare((64, 1, 1), self.arguments)
        return lambda _slots, n, tokens: launch((tokens, 1, 1), n=n)


def test_in_place(config: Path) -> None:
    op = Op(
        unique("append"),
        """
        cache: f32[S, N] inout
        x: f32[T, N]
        slots: i32[T]
        """,
        kernels=(Append(compile_ops(MODULE, config=config)(append)),),
    )
    slots = torch.tensor([3, 0, 6], dtype=torch.int32)
    for _ in range(2):
        cache, x = torch.zeros(8, 20), random(3, 20)
        assert op.call(cache, x, slots) is None
        expected = torch.zeros(8, 20)
        expected[slots.long()] = x
        assert torch.equal(cache, expected)
    with pytest.raises(ValueError, match="cache must not overlap x"):
        op.call(cache, cache[:3], slots)
    schema = str(getattr(torch.ops.rfops, op.name).default._schema)
    assert "Tensor(b!) cache, Tensor x" in schema and schema.endswith("-> ()")
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, (cache, x, slots))

    def twice(cache: torch.Tensor) -> torch.Tensor:
        op_call(op, cache, x, slots)
        return cache * 2

    actual = torch.compile(twice, backend="aot_eager", fullgraph=True)(cache.zero_())
    assert torch.equal(actual, 2 * expected)


def find_starts(starts: torch.Tensor, count: torch.Tensor, group: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


class FindStarts(Small):
    name = "find_starts"

    def variant(self, c: Call, config: Any) -> RunOf:
        launch = self.op.bind(c.device, None, c.arch).prepare((64, 1, 1), self.arguments)
        return lambda n: launch((1, 1, 1), n=n)


def test_metadata_that_the_caller_keeps(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made on the device into tensors of the most that a batch can need, which later calls and
    captured graphs find at the same place."""
    op = Op(
        unique("find_starts"),
        """
        starts: i32[64] inout
        count: i32[1] inout
        group: i32[T]
        """,
        kernels=(FindStarts(compile_ops(MODULE, config=config)(find_starts)),),
    )
    starts, count = (torch.full((n,), -7, dtype=torch.int32) for n in (64, 1))
    for groups in ([0, 0, 2, 2, 2, 5], [1], [0, 1, 1], [0, 0, 2, 2, 2, 5]):
        group = torch.tensor(groups, dtype=torch.int32)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", lambda *_args, **_more: pytest.fail("allocates"))
            assert op.call(starts, count, group) is None
        expected = torch.searchsorted(group, torch.arange(64, dtype=torch.int32))
        assert torch.equal(starts, expected.int()) and count.tolist() == [groups[-1] + 1]
    for args, message in (
        ((starts[:32], count, group), r"starts must be a \[64\] tensor, got \[32\]"),
        ((starts, starts[:1], group), "starts must not overlap count"),
        ((starts, count, starts[:6]), "starts must not overlap group"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                op.call(*args)
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, (starts, count, group))
