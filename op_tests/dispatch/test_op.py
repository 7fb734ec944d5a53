"""Small ops of their own, each declared once, for what real ones need of a declaration: several
launches with scratch memory, two results, in-place results, tables of pointers, metadata that the
caller keeps, weights in another layout, fused epilogues. Everything else follows."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch import guards, tuned_table, workspace
from rfops.dispatch import op as op_module
from rfops.dispatch.declare import Declaration
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.layout import Shuffled, shuffled, unwrap
from rfops.dispatch.op import Op, ops
from rfops.dispatch.steps import Step, run_steps
from rfops.dispatch.workspace import Workspace
from rfops.jit import CompiledOp, compile_ops, f32, tensors, u32
from rfops.jit.launch import hip, launcher

SOURCE = """
#include "rfops/chip/types.h"
using namespace rfops;

struct Table { const float* rows[100]; };

// out[i] = act(a * x[i] + bias[i])
extern "C" __global__ void affine(float* out, const float* x, const float* bias, float a, u32 n) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i >= n) return;
  float y = a * x[i];
#if RFOPS_BIAS
  y += bias[i];
#endif
#if RFOPS_RELU
  y = y > 0 ? y : 0;
#endif
  out[i] = y;
}

// low[r], high[r] = least and largest of x[r, :]; one lane a row
extern "C" __global__ void extremes(float* low, float* high, const float* x, u32 n) {
  const u32 r = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float least = x[r * n], most = x[r * n];
  for (u32 i = 1; i < n; ++i) {
    least = x[r * n + i] < least ? x[r * n + i] : least;
    most = x[r * n + i] > most ? x[r * n + i] : most;
  }
  low[r] = least, high[r] = most;
}

// unit[r, :] = x[r, :] / peak[r], peak[r] = largest |x[r, :]|; one lane a row
extern "C" __global__ void normalise(float* unit, float* peak, const float* x, u32 n) {
  const u32 r = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float most = 0;
  for (u32 i = r * n; i < r * n + n; ++i) most = __builtin_fmaxf(most, __builtin_fabsf(x[i]));
  for (u32 i = r * n; i < r * n + n; ++i) unit[i] = x[i] / most;
  peak[r] = most;
}

// partial[g] = sum of 64 elements of x; one lane a group
extern "C" __global__ void partial_sums(float* partial, const float* x, u32 n) {
  const u32 g = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float sum = 0;
  for (u32 i = g * 64; i < n && i < g * 64 + 64; ++i) sum += x[i];
  partial[g] = sum;
}

extern "C" __global__ void total(float* out, const float* partial, u32 groups) {
  if (__builtin_amdgcn_workitem_id_x()) return;
  float sum = 0;
  for (u32 g = 0; g < groups; ++g) sum += partial[g];
  out[0] = sum;
}

// out[i] = x[i] * w[i], w stored from its end where RFOPS_REVERSED
extern "C" __global__ void scale_by(float* out, const float* x, const float* w, u32 n) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
#if RFOPS_REVERSED
  if (i < n) out[i] = x[i] * w[n - 1 - i];
#else
  if (i < n) out[i] = x[i] * w[i];
#endif
}

// starts[g] = the first i with group[i] >= g, of groups in order; count[0] = how many there are
extern "C" __global__ void find_starts(int* starts, int* count, const int* group, u32 n) {
  const u32 g = __builtin_amdgcn_workitem_id_x();
  u32 i = 0;
  while (i < n && static_cast<u32>(group[i]) < g) ++i;
  starts[g] = static_cast<int>(i);
  if (g == 0) count[0] = n == 0 ? 0 : group[n - 1] + 1;
}

// cache[slots[t], :] = x[t, :]
extern "C" __global__ void append(float* cache, const float* x, const int* slots, u32 n) {
  const u32 t = __builtin_amdgcn_workgroup_id_x(), i = __builtin_amdgcn_workitem_id_x();
  if (i < n) cache[slots[t] * n + i] = x[t * n + i];
}

// out[e] = sum of the 64 elements of rows[e]
extern "C" __global__ void gather(float* out, Table table) {
  const u32 e = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float sum = 0;
  for (u32 i = 0; i < 64; ++i) sum += table.rows[e][i];
  out[e] = sum;
}
"""
MODULE = "small"


@pytest.fixture(autouse=True)
def _no_trace_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_module, "_OPS", dict(op_module._OPS))
    monkeypatch.setattr(tuned_table, "TABLES", dict(tuned_table.TABLES))


@pytest.fixture(autouse=True, params=["native", "python"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    else:
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
        monkeypatch.setattr(launcher, "_native", None)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.hip").write_text(SOURCE)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({MODULE: {"srcs": ["small.hip"]}}))
    return path


_count = 0


def unique(name: str) -> str:
    """torch.ops keeps a name for the process."""
    global _count
    _count += 1
    return f"test_{name}_{_count}"


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- a fused epilogue


def affine(out: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, a: f32, n: u32) -> None:
    """The kernel's parameters."""


class Small(Kernel):
    module = MODULE

    def __init__(self, op: CompiledOp) -> None:
        self.op, self.compiler_config = op, op.config


class Affine(Small):
    name = "affine"

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return {"BIAS": int(c.has("bias")), "RELU": int(c.activation == "relu")}

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.op.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((64, 1, 1), self.arguments)
        return lambda n: launch((-(-n // 64), 1, 1), n=n, a=float(c.a))


def affine_op(config: Path) -> Op:
    return Op(
        unique("affine"),
        """
        x: f32[N]
        bias: f32[N]?
        a: float
        activation: none|relu
        -> out: f32[N]
        """,
        kernels=(Affine(compile_ops(MODULE, config=config)(affine)),),
        coarse={"N": 64},
    )


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_fused_epilogue(config: Path, activation: str, with_bias: bool) -> None:
    op = affine_op(config)
    for n in (1, 64, 200, 201):
        x, bias = random(n), random(n, seed=1) if with_bias else None
        expected = 2.5 * x + (bias if bias is not None else 0)
        expected = expected.relu() if activation == "relu" else expected
        for _ in range(2):
            out = torch.full((n,), math.nan)
            assert op.call(x, bias, 2.5, activation, out) is out
            torch.testing.assert_close(out, expected)
        torch.testing.assert_close(op.call(x, bias, 2.5, activation, None), expected)
    args = (random(70), random(70), 0.5, activation)
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, args)
    torch.library.opcheck(getattr(torch.ops.rfops, f"{op.name}_out").default, (*args, random(70)))
    assert op.call(random(0), None, 1.0, "none", None).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [1.0]}, r"x must be a \[N\] tensor, got list"),
        ({"x": random(4).double()}, "x must be float32, got .*float64"),
        ({"x": random(8)[::2]}, "x must be contiguous"),
        ({"bias": random(3)}, r"bias must be a \[N=4\] tensor, got \[3\]"),
        ({"bias": 3}, "bias must be a tensor or None, got int"),
        ({"a": "much"}, "a must be a float, got 'much'"),
        ({"activation": "gelu"}, "activation must be none or relu, got 'gelu'"),
        ({"out": random(5)}, r"out must be a \[N=4\] tensor, got \[5\]"),
    ],
)
def test_its_refusals(config: Path, change: dict[str, Any], message: str) -> None:
    op = affine_op(config)
    args = {"x": random(4), "bias": None, "a": 1.0, "activation": "none", "out": None, **change}
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{op.name}: {message}"):
            op.call(*args.values())


def test_an_overlap_is_refused(config: Path) -> None:
    memory = random(100)
    op = affine_op(config)
    with pytest.raises(ValueError, match=r"out must not overlap x, .*pass another out, or none"):
        op.call(memory[:64], None, 1.0, "none", memory[36:])


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


def op_call(op: Op, *args: Any) -> Any:
    """As a public function calls it."""
    call = op.traced if torch.compiler.is_dynamo_compiling() else op.call
    return call(*args)


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


def test_shapes_share_a_decision_without_a_hip_kernel() -> None:
    class Double(Kernel):
        name = "double"

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda n: lambda out, x: torch.add(x, x, out=out)

    text = "x: f32[N]\n-> out: f32[N]"
    op = Op(unique("double"), text, kernels=(Double(),), coarse={"N": 4})
    for n in (5, 6, 7, 5):
        assert torch.equal(op.call(torch.ones(n), None), torch.full((n,), 2.0))
    with pytest.raises(AssertionError, match="a table's sizes come first"):
        Op(unique("double"), "a: int\n" + text, kernels=(Double(),), table="a N")


def test_a_decision_without_a_table_names_each_other_kernel_and_why() -> None:
    class Even(Kernel):
        name = "even"

        def unsupported_reason(self, c: Call) -> str | None:
            return "N is odd" if c.N % 2 else None

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda n: lambda out, x: torch.add(x, x, out=out)

    class All(Even):
        name = "all"

        def unsupported_reason(self, c: Call) -> str | None:
            return None

    op = Op(unique("even"), "x: f32[N]\n-> out: f32[N]", kernels=(Even(), All()))
    even, odd = op.route(op.call_of(N=4)), op.route(op.call_of(N=5))
    assert (even.backend, even.refused) == ("even", {"all": "even comes first"})
    assert (odd.backend, odd.refused) == ("all", {"even": "N is odd"})


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


# ---------------------------------------------------------------- several launches, scratch memory


def partial_sums(partial: torch.Tensor, x: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


def total(out: torch.Tensor, partial: torch.Tensor, groups: u32) -> None:
    """The kernel's parameters."""


class Sum(Kernel):
    name, module = "sum", MODULE

    def __init__(self, config: Path) -> None:
        self.compiler_config = config
        self.partial = compile_ops(MODULE, config=config)(partial_sums)
        self.total = compile_ops(MODULE, config=config)(total)

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(n: int) -> Run:
            groups = -(-n // 64)
            return run_steps(
                c.device,
                self.arguments,
                [
                    Step(self.partial, {}, 64, groups, {"n": n}),
                    Step(self.total, {}, 64, 1, {"groups": groups}),
                ],
                workspace={"partial": (groups, torch.float32), "unused": (7, torch.int64)},
            )

        return run_of


def test_launches_share_scratch_memory_that_is_kept(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_arenas", {})
    op = Op(unique("sum"), "x: f32[N]\n-> out: f32[1]", kernels=(Sum(config),))
    for n in (1, 64, 1000, 40_000, 3_000_000, 5):
        x = random(n)
        torch.testing.assert_close(op.call(x, None), x.sum()[None], rtol=1e-4, atol=1e-2)
    (arena,) = workspace._arenas.values()
    assert len(arena.buffers) == 2, "the first is enough until 3,000,000"
    x, out = random(1000), torch.empty(1)
    op.call(x, out)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda *_args, **_more: pytest.fail("allocates"))
        op.call(x, out.fill_(math.nan))
    torch.testing.assert_close(out, x.sum()[None], rtol=1e-4, atol=1e-2)


def test_scratch_memory_is_a_threads_and_a_streams_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_arenas", {})
    cpu = torch.device("cpu")
    scratch = Workspace(cpu, ((2, 5), torch.float32), (3, torch.int64), zeros=9)
    ours, repeated, theirs = scratch(), scratch(), []
    thread = threading.Thread(target=lambda: theirs.append(scratch()))
    thread.start()
    thread.join()
    assert ours is repeated and [t.shape for t in ours] == [(2, 5), (3,), (9,)]
    assert [t.dtype for t in ours] == [torch.float32, torch.int64, torch.int32]
    assert not set(addresses(theirs[0])) & set(addresses(ours)) and not ours[2].any()
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (*ours, *theirs[0]))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(start % 64 == 0 for start, _ in spans)
    assert addresses(Workspace(cpu, (1, torch.int8), zeros=1)()) == addresses(ours[::2]), "kept"
    assert {key[1] for key in workspace._arenas} == {0} and len(workspace._arenas) == 2


def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def test_scratch_memory_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By stream. A captured call has memory of its own, with zeros that the graph writes: those of
    a stream are zero only once something has run there."""
    monkeypatch.setattr(workspace, "_arenas", {})
    streams, capturing = [7], [False]
    monkeypatch.setattr(hip, "raw_stream", lambda _index: streams[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[-1])
    scratch = Workspace(torch.device("cpu"), (10, torch.float32), zeros=3)
    scratch._index = 0  # a GPU's, whose memory is the host's
    ours = scratch()
    assert scratch() is ours
    streams.append(8)
    assert not set(addresses(scratch())) & set(addresses(ours))
    streams.append(7)
    assert scratch() is ours
    capturing.append(True)
    first, second = scratch(), scratch()
    assert not set(addresses(first)) & {*addresses(second), *addresses(ours)}
    assert first[0].shape == (10,) and not first[1].any() and not second[1].any()
    capturing.append(False)
    assert scratch() is ours and len(workspace._arenas) == 2


def test_a_launch_that_fails_leaves_zeros() -> None:
    """Its successor would take them for workgroups that have arrived."""
    scratch = Workspace(torch.device("cpu"), (4, torch.float32), zeros=3)
    recorded_calls = []

    def launch(fails: bool, _parts: torch.Tensor, counts: torch.Tensor) -> None:
        recorded_calls.append(counts.tolist())
        if fails:
            counts.fill_(2)
            raise RuntimeError("half-way")

    run = workspace.with_workspace(launch, scratch)
    for fails in (False, True, False):
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            run(fails)  # type: ignore[arg-type]
    assert recorded_calls == [[0, 0, 0]] * 3


def test_large_scratch_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_arenas", {})
    scratch = Workspace(torch.device("cpu"), (2**28 + 1, torch.uint8), zeros=2)
    (large, zeros), (other, _) = scratch(), scratch()
    assert large.data_ptr() != other.data_ptr() and not zeros.any() and not workspace._arenas


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


# ---------------------------------------------------------------- a table of pointers


def gather(out: torch.Tensor, table: tensors(100)) -> None:  # type: ignore[valid-type]
    """The kernel's parameters."""


class Gather(Small):
    name = "gather"

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.op.bind(c.device, None, c.arch)
        launch = bound.prepare((64, 1, 1), self.arguments, sources={"table": "w"})
        return lambda *_sizes: launch((100, 1, 1))


def test_a_table_of_100_pointers(config: Path) -> None:
    op = Op(
        unique("gather"),
        """
        w: f32[N] x 100
        -> out: f32[100]
        """,
        kernels=(Gather(compile_ops(MODULE, config=config)(gather)),),
    )
    weights: list[weakref.ref[torch.Tensor]] = []
    for seed in range(3):
        w = tuple(random(64, seed=100 * seed + i) for i in range(100))
        weights += [weakref.ref(row) for row in w]
        expected = torch.stack([row.sum() for row in w])
        for form in (w, list(w)):
            torch.testing.assert_close(op.call(form, None), expected, rtol=1e-4, atol=1e-4)
    if launcher.native() is not None:
        assert op.plans.hits >= 4, "the same sizes, other tensors"
    del w, form
    gc.collect()
    assert not any(ref() is not None for ref in weights), "a plan keeps no weight alive"
    w = tuple(random(64, seed=i) for i in range(100))
    wrong = (*w[:99], random(65))
    for args, message in (
        (w[:99], "w must be 100 tensors, got 99"),
        (w[0], "w must be a tuple of tensors, got Tensor"),
        (wrong, r"w\[99\] must be a \[N=64\] tensor, got \[65\]"),
        ((*w[:99], w[0].double()), r"w\[99\] must be float32"),
        ((*w[:99], random(128)[::2]), r"w\[99\] must be contiguous"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                op.call(args, None)
    out = torch.empty(4096)
    shared = (*w[:99], out[:64])
    with pytest.raises(ValueError, match=r"out must not overlap w\[99\]"):
        op.call(shared, out[:100])
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, (list(w),))


def test_a_launch_explains_a_wrong_table(config: Path) -> None:
    bound = compile_ops(MODULE, config=config)(gather).bind("cpu")
    for table, message in (((random(64),) * 99, "100 tensors"), (random(64), "table")):
        with pytest.raises(ValueError, match=message):
            bound.launch((100, 1, 1), (64, 1, 1), (random(100), table))


# ---------------------------------------------------------------- weights in another layout


def scale_by(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


class ScaleBy(Small):
    name = "scale_by"

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return {"REVERSED": int(c.w_layout == "reversed")}

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.op.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((64, 1, 1), self.arguments)
        return lambda n: launch((-(-n // 64), 1, 1), n=n)


def test_weights_in_another_layout_are_a_type(config: Path) -> None:
    """Told apart by their type, never guessed; the layout is a value of the declaration."""
    op = Op(
        unique("scale_by"),
        """
        x: f32[N]
        w: f32[N]
        w_layout: raw|reversed
        -> out: f32[N]
        """,
        kernels=(ScaleBy(compile_ops(MODULE, config=config)(scale_by)),),
    )

    def public(x: torch.Tensor, w: torch.Tensor | Shuffled) -> Any:
        return op_call(op, x, *unwrap(w), None)

    x, w = random(70), random(70, seed=1)
    packed = shuffled(w.flip(0), "reversed", layouts=("reversed",))
    for _ in range(2):
        for given in (w, packed, packed.to("cpu")):
            assert torch.equal(public(x, given), x * w)
    compiled = torch.compile(lambda x: public(x, packed) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * w + 1)
    with pytest.raises(ValueError, match=r"w must be a \[N=70\] tensor, got Shuffled"):
        op.call(x, packed, "raw", None)
    with pytest.raises(ValueError, match="w_layout must be raw or reversed, got '16x16'"):
        public(x, Shuffled(w, "16x16"))
    with pytest.raises(ValueError, match="layout must be one of reversed, got '8x8'"):
        shuffled(w, "8x8", layouts=("reversed",))
    assert packed.shape == w.shape and packed.device == w.device and packed.dtype == w.dtype
    assert "reversed" in repr(packed)


# ---------------------------------------------------------------- the notation


def test_the_notation() -> None:
    d = Declaration.parse(
        """
        x: e4m3|u8[M, K] @16
        s: e8m0[M^128, K/32] strided
        rows: R >= 0
        flag: bool
        dtype: bf16|f16
        w: f32[*R]?
        ids: any?
        -> out: dtype[M, 16]
        """
    )
    assert d.sizes == ("M", "K", "R") and [a.name for a in d.passed] == ["out"]
    assert Declaration.parse("x: f32[M]\n-> y: f32[M] new").passed == ()
    assert d.patterns == ("M,K", "M^128,K/32", "R", "", "", "*R", "?", "M,16")
    assert [a.name for a in d.values] == ["rows", "flag", "dtype"] and d.written == (7,)
    assert Declaration.parse("x: fp4[M, K/2]\n-> y: f32[M]").sizes == ("M", "K")
    two = Declaration.parse("a: f32[N]\nx: f32[*M, K]\nw: f32[*N, K]\n-> y: f32[*N, K]")
    assert two.leader(two.results[0]).name == "w", "not x, nor the a that is of N without a star"
    starred = Declaration.parse("x: f32[*M, K]\n-> y: f32[*M]\n-> n: i32[1]")
    assert starred.sizes == ("M", "K") and starred.patterns == ()
    for wrong in (
        "x",
        "x: f33[M]",
        "x: f32[M+1]",
        "x: f32[M] @",
        "x: a b",
        "x: f32[K^32]",
        "x: f32[M]\n-> y: f32[M] new\n-> z: f32[M]",
    ):
        with pytest.raises(ValueError):
            Declaration.parse(wrong)


def test_a_mistake_in_the_notation_is_named() -> None:
    told = {
        "x: bf17[M]\n-> y: f32[M]": r"op typo: x: 'bf17' is no dtype \(near: bf16\): expected any",
        "x: bf16|f33[M]\n-> y: f32[M]": r"op typo: x: 'f33' is no dtype",
        "x: f32[M+1]\n-> y: f32[M]": r"op typo: 'M\+1' is no extent: expected N, N/32",
        "x: f32[M]\n-> y: float": r"op typo: '-> y: float': a result must be a tensor",
        "x: f32[K^32]\n-> z: f32[K]": r"op typo: 'x: f32\[K\^32\]': K stands alone",
        "x: a b\n-> y: f32[M]": r"op typo: x: 'a b' is no argument",
    }
    for text, message in told.items():
        with pytest.raises(ValueError, match=message):
            Op("typo", text, kernels=())
    with pytest.raises(ValueError, match="op typo: coarse: 'N' is no size of it"):
        Op("typo", "x: f32[M]\n-> y: f32[M]", kernels=(), coarse={"N": 1})
    assert "typo" not in ops()


def test_the_way_out_is_that_of_the_check() -> None:
    """A wrong dtype is converted and a wrong shape reshaped, also with leading dimensions."""
    op = Op(unique("way"), "x: bf16[*M, K]\ny: f32[*M]\n-> out: bf16[*M, K]", kernels=())
    x, y = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(2)
    for args, way in (
        ((x.float(), y), "x must be bfloat16, got [2, 4] float32 on cpu; convert it first"),
        ((x[0, 0], y), "x must be a [..., K] tensor, got [] bfloat16 on cpu; reshape it"),
        ((None, y), "x must be a [..., K] tensor, got NoneType None; pass a torch.Tensor"),
        ((x, torch.ones(3)), "y must be of M = 2 elements, got [3]; reshape it"),
    ):
        with pytest.raises(ValueError, match=re.escape(way)):
            op.call(*args, None)


def test_describe_is_what_messages_say() -> None:
    with pytest.raises(ValueError, match=r"f: dtype must be bfloat16, got torch\.float32; convert"):
        guards.check_dtype("f", "dtype", torch.float32, (torch.bfloat16,))
    assert guards.describe(random(2)) == "[2] float32 on cpu" and rfops.__version__


def test_methods_by_their_old_names() -> None:
    """An op outside of rfops may say `refuses`; what it inherits is found by both names."""

    class Old(Kernel):
        name = "old"

        def refuses(self, c: Call) -> str | None:
            return super().refuses(c) or ("N is odd" if c.N % 2 else None)  # type: ignore[misc]

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda n: lambda out, x: torch.add(x, x, out=out)

    class New(Old):
        def unsupported_reason(self, c: Call) -> str | None:
            return "never"

    class OldOp(Op):
        def refuses(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
            return ("x", "of 4 at least", f"{sizes[0]}", "pad it") if sizes[0] < 4 else None

    op = OldOp(unique("old"), "x: f32[N]\n-> out: f32[N]", kernels=(Old(),))
    assert torch.equal(op.call(torch.ones(4), None), torch.full((4,), 2.0))
    with pytest.raises(ValueError, match="old: N is odd"):
        op.call(torch.ones(5), None)
    with pytest.raises(ValueError, match="x must be of 4 at least, got 2; pad it"):
        op.call(torch.ones(2), None)
    assert New().refuses(op.call_of(N=4)) == "never"  # type: ignore[attr-defined]
    assert op.forms(op.call_of(N=4)) == [([4], torch.float32)]  # type: ignore[attr-defined]
