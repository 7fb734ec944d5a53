"""gemm_mxfp8 by every route: any M, dtype, architecture and size has a result; torch.ops and
opcheck; graph capture; what a warm call costs."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch import routing
from rfops.dispatch.dynamic_plan import DynamicShapePlan
from rfops.dispatch.kernel import Call
from rfops.gemm import mxfp8 as op_module
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig
from rfops.gemm.mxfp8 import OP, gemm_mxfp8, gemm_mxfp8_ref, run_torch
from rfops.jit import Plans
from rfops.jit.launch import hip, launcher
from rfops.triton import launch
from support.calls import default_config, dense_call, prepare
from support.mxfp8_problems import Problem, assert_correct, one_block, random_problem, valid
from support.tables import Write

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def kernels_of(call: Callable[[], object]) -> set[str]:
    with rfops.vgpu.profile() as profile:
        call()
    return {launch.kernel for launch in profile.launches}


@pytest.fixture(autouse=True)
def _new_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "missing", lambda: "Triton is not installed")


# ---------------------------------------------------------------- results


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("m", [17, 33, 100])
def test_untuned_m_above_16(m: int, gfx950: torch.device) -> None:
    problem = random_problem(m, 40, 288).to(gfx950)
    assert_correct(gemm_mxfp8(*problem.args), problem)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(("m", "n", "k"), [(17, 768, 6144), (40, 6144, 768)])
def test_tabled_m_above_16(m: int, n: int, k: int, gfx950: torch.device) -> None:
    """Rows at 32 and 64 make HIP take them."""
    problem = random_problem(m, n, k).to(gfx950)
    actual = gemm_mxfp8(*problem.args)
    assert_correct(actual, problem)
    if gfx950.type == "cpu":
        assert "mxfp8_mfma" in kernels_of(lambda: gemm_mxfp8(*problem.args))


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [2, 6, 20])
def test_every_dtype(m: int, dtype: torch.dtype, gfx950: torch.device) -> None:
    problem = random_problem(m, 37, 160).to(gfx950)
    actual = gemm_mxfp8(*problem.args, dtype=dtype)
    assert actual.dtype == dtype
    assert_correct(actual, problem)
    out = torch.full((m, 37), math.nan, dtype=dtype, device=gfx950)
    assert gemm_mxfp8(*problem.args, dtype=dtype, out=out) is out
    assert torch.equal(out, actual)


@pytest.mark.requires_gfx942
@pytest.mark.parametrize("m", [1, 30])
def test_gfx942(m: int, gfx942: torch.device) -> None:
    problem = random_problem(m, 40, 288).to(gfx942)
    assert_correct(gemm_mxfp8(*problem.args), problem)


def test_an_architecture_of_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tensors on another virtual GPU go another way."""
    problem = random_problem(2, 40, 96)
    names = {}
    for arch in ("gfx950", "gfx942", "gfx950"):
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
        names[arch] = kernels_of(lambda: gemm_mxfp8(*problem.args))
    assert len(names["gfx950"]) == 1 and names["gfx950"] < {"mxfp8_gemv", "mxfp8_mfma"}
    assert not names["gfx942"] & {"mxfp8_gemv", "mxfp8_mfma"} and names["gfx942"]


@pytest.mark.parametrize("backend", ["gemv", "mfma", "triton"])
@pytest.mark.requires_gfx950
def test_config_picks_the_backend(backend: str, gfx950: torch.device) -> None:
    """Where the route would take another one."""
    m = 8 if backend == "gemv" else 3
    problem = random_problem(m, 40, 256).to(gfx950)
    config = default_config(backend, m, 40, 256, "gfx950")
    assert_correct(gemm_mxfp8(*problem.args, config=config), problem)
    if gfx950.type == "cpu":
        names = kernels_of(lambda: gemm_mxfp8(*problem.args, config=config))
        expected = f"mxfp8_{backend}" if backend != "triton" else "gemm_kernel"
        assert expected in names


# ---------------------------------------------------------------- torch's route


@pytest.mark.parametrize("chunk", [1 << 22, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_route(
    dtype: torch.dtype, chunk: int, no_triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel at all runs. Also in pieces along M, N and K, the last ones short."""
    monkeypatch.setattr(op_module, "_CHUNK", chunk)
    monkeypatch.setattr(op_module, "_CHUNK_K", chunk // 8)
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    problem = random_problem(21, 37, 480)
    problem.w_scale[5, 3], problem.x_scale[7, 14] = 255, 255
    assert_correct(gemm_mxfp8(*problem.args, dtype=dtype), problem)
    assert kernels_of(lambda: gemm_mxfp8(*problem.args, dtype=dtype)) == set()


@pytest.mark.parametrize(
    ("x_byte", "w_byte", "expected"),
    [(254, 0, 32.0), (254, 254, math.inf), (0, 0, 0.0), (255, 127, math.nan)],
)
def test_torch_route_extremes(x_byte: int, w_byte: int, expected: float) -> None:
    problem = one_block(x_byte, w_byte)
    out = torch.empty(2, 3, dtype=torch.bfloat16)
    run_torch(out, *problem.args)
    torch.testing.assert_close(out[0, 0].item(), expected, equal_nan=True)
    torch.testing.assert_close(out, gemm_mxfp8_ref(*problem.args), equal_nan=True)


@pytest.mark.requires_gfx950
@pytest.mark.sweep
def test_beyond_2_gib(gfx950: torch.device) -> None:
    """Rows of w on both sides of 2^31 bytes; the mapping is real, its pages are mostly one zero."""
    k, n = 1 << 20, 2056
    problem = random_problem(1, 8, k)
    w = torch.zeros(n, k, dtype=torch.uint8)
    w_scale = torch.full((n, k // 32), 127, dtype=torch.uint8)
    rows = [0, 1, 2040, 2046, 2047, 2048, 2049, 2055]
    w[rows], w_scale[rows] = problem.w.view(torch.uint8), problem.w_scale
    large = Problem(problem.x, w.view(torch.float8_e4m3fn), problem.x_scale, w_scale).to(gfx950)
    assert w.numel() > 2**31
    actual = gemm_mxfp8(*large.args).cpu()
    assert_correct(actual[:, rows].contiguous(), problem)
    remaining = torch.ones(n, dtype=torch.bool)
    remaining[rows] = False
    assert (actual[:, remaining] == 0).all()


# ---------------------------------------------------------------- torch.ops, graphs


def as_bytes(problem: Problem) -> tuple[torch.Tensor, ...]:
    """torch has no allclose for float8, which opcheck wants."""
    return tuple(tensor.view(torch.uint8) for tensor in problem.args)


@pytest.mark.parametrize("m", [3, 20])
def test_opcheck(m: int) -> None:
    ops = torch.ops.rfops
    args = (*as_bytes(random_problem(m, 24, 96)), torch.bfloat16)
    config = GemvConfig(64, 1, 1, 1)
    texts = ["", "gemv " + rfops.dispatch.routing.config_text(config)] if m == 3 else [""]
    for text in texts:
        torch.library.opcheck(ops.gemm_mxfp8.default, (*args, text))
        out = torch.zeros(m, 24, dtype=torch.bfloat16)
        torch.library.opcheck(ops.gemm_mxfp8_out.default, (*args, text, out))
    schema = str(ops.gemm_mxfp8_out.default._schema)
    assert schema.count("!") == 1 and "Tensor(a!) out) -> ()" in schema


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("backend", ["gemv", "mfma", "triton"])
def test_compile_has_no_graph_break(backend: str) -> None:
    problem = random_problem(3, 24, 96)
    config = default_config(backend, 3, 24, 96, "gfx950")

    def layer(*args: torch.Tensor) -> torch.Tensor:
        return gemm_mxfp8(*args).float() + gemm_mxfp8(*args, dtype=torch.float32, config=None)

    def in_place(out: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        gemm_mxfp8(*args, out=out, config=config)
        return out * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*problem.args), layer(*problem.args))
    out = torch.full((3, 24), math.nan, dtype=torch.bfloat16)
    doubled = torch.compile(in_place, fullgraph=True, backend="aot_eager")(out, *problem.args)
    assert torch.equal(out, gemm_mxfp8(*problem.args, config=config))
    assert torch.equal(doubled, out * 2)


def test_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        args = [mode.from_tensor(tensor) for tensor in random_problem(3, 24, 96).args]
        actual = gemm_mxfp8(*args, dtype=torch.float16)
    assert actual.shape == (3, 24) and actual.dtype == torch.float16


def test_a_wrong_argument_is_refused_in_a_mode_too() -> None:
    """What the dispatcher cannot take has the guards' message."""
    with pytest.raises(ValueError, match=r"^gemm_mxfp8: x must be a \[M, K\] tensor, got list"):
        gemm_mxfp8(**valid(x=[1.0]))  # type: ignore[arg-type]


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("m", [1, 8, 20])
def test_graph_capture(m: int, gfx950: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a captured call replays with new contents. On the virtual GPU, which has no graphs,
    a warm call makes no HIP call but launches, thus none that allocates, loads or waits."""
    problem = random_problem(m, 40, 256).to(gfx950)
    out = torch.empty(m, 40, dtype=torch.bfloat16, device=gfx950)
    gemm_mxfp8(*problem.args, out=out)
    if gfx950.type == "cpu":
        monkeypatch.setattr(hip.Hip, "call", lambda _self, name, *_: pytest.fail(name))
        gemm_mxfp8(*problem.args, out=out.fill_(math.nan))
        assert_correct(out, problem)
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm_mxfp8(*problem.args, out=out)
    other = random_problem(m, 40, 256, seed=1)
    for tensor, value in zip(problem.args, other.args, strict=True):
        tensor.copy_(value)
    graph.replay()
    assert_correct(out, other)


# ---------------------------------------------------------------- shapes that change every call


@pytest.fixture
def native_plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    """Plans that know families."""
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    monkeypatch.setattr(OP, "plans", plans := OP.plans.new_table())
    return plans


def test_a_growing_sequence_is_right_and_checked_once(
    native_plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    check = OP.check
    monkeypatch.setattr(OP, "check", lambda args: checks.append(1) or check(args))
    shapes = [(m, 17, 96) for m in range(1, 17)]
    shapes += [(2, n, 64) for n in range(1, 40)] + [(7, 21, k) for k in range(32, 800, 32)]
    for m, n, k in shapes:
        problem = random_problem(m, n, k)
        out = torch.full((m, n), math.nan, dtype=torch.bfloat16)
        assert gemm_mxfp8(*problem.args, out=out) is out
        assert_correct(out, problem)
    assert len(checks) == 1 and len(native_plans) == len(set(shapes))


def _made(backend: str, c: Call, config: object) -> Callable[..., object]:
    return lambda *shape: (backend, c.M, config, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_familys_decisions_are_those_of_each_shape(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, overlay: Write
) -> None:
    """Also of sizes that share one, among them sizes with rows, and beyond what a kernel takes."""
    overlay({"m": 8, "n": 496, "k": 640, "kernel": "triton"}, {"m": 4, "n": 480})
    asked: list[object] = []
    for kernel in OP.kernels.values():
        result = functools.partial(_made, kernel.name)
        monkeypatch.setattr(kernel, "variant", result)
    family = DynamicShapePlan(OP, dense_call(1, 1, 32, dtype), None)
    router = family.router
    random = torch.Generator().manual_seed(1)
    rows = [(m, n, k) for m in range(1, 9) for n in (479, 480, 496, 497) for k in (608, 640)]
    pairs = torch.rand(400, 2, generator=random)
    drawn = [
        (1 + i % 20, int(2 ** (13 * a)), 32 * int(2 ** (8 * b)))
        for i, (a, b) in enumerate(pairs.tolist())
    ]
    huge = [(m, n, k) for m in (1, 8) for n in (2**16, 2**16 + 1) for k in (2**15 - 32, 2**15)]
    for m, n, k in [*rows, *drawn, *drawn, *huge, *huge]:
        kernel, _, config = OP.decide(dense_call(m, n, k, dtype), router, None)
        plan = ((kernel.name, m, config, (m, n, k)), dtype, torch.device("cpu"), m, n)
        assert family(m, n, k) == plan, (m, n, k)
        asked.append(kernel.name)
    assert {"gemv", "mfma"} - ({"gemv"} if dtype != torch.bfloat16 else set()) <= set(asked)


def test_refusals_of_a_familys_calls_are_those_of_the_first(native_plans: Plans) -> None:
    """What the guards refuse they still do when another shape has passed them."""
    good = random_problem(2, 24, 96)
    gemm_mxfp8(*good.args)
    x, w, x_scale, w_scale = good.args
    for args, message in (
        ((x[:, :64], w, x_scale, w_scale), "w must be"),
        ((x, w, x_scale[:, :2], w_scale), "x_scale must be a"),
        ((x, w[:16], x_scale, w_scale), "w_scale must be a"),
        ((x, w.T, x_scale, w_scale), "w must be"),
        ((x.float(), w, x_scale, w_scale), "x must be float8_e4m3fn"),
        ((x, w, x_scale, w_scale, torch.int8), "dtype must be"),
        ((x, w, x_scale, w_scale, torch.bfloat16, torch.empty(2, 25).bfloat16()), "out must be"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=f"gemm_mxfp8: {message}"):
                gemm_mxfp8(*args)
    assert len(native_plans) == 1


@pytest.mark.requires_gfx950
def test_misses_of_a_family_are_counted(native_plans: Plans, overlay: Write) -> None:
    overlay({"m": 1, "n": 480, "k": 640})
    previous = dict(routing.misses())
    for n in (21, 22, 22, 23):
        gemm_mxfp8(*random_problem(1, n, 96).args)
    more = {query: count - previous.get(query, 0) for query, count in routing.misses().items()}
    results = {dict(q.sizes)["n"]: count for q, count in more.items() if count}
    assert results == {21: 1, 22: 1, 23: 1}


# ---------------------------------------------------------------- the warm path


def test_warm_call_adds_little_to_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookup, the result's allocation, the launch: what is called is all that there is. (The native
    lookup goes unseen.)"""
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    problem = random_problem(1, 8, 64)
    calls: list[str] = []

    def launch(*_: object) -> None: ...

    for kernel in OP.kernels.values():
        monkeypatch.setattr(kernel, "variant", lambda *_: lambda *_sizes: launch)

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(function.__name__ if event == "c_call" else frame.f_code.co_name)

    args = problem.args
    for _ in range(2):
        gemm_mxfp8(*args)
    assert len(OP.plans) == 1
    sys.setprofile(note)
    gemm_mxfp8(*args)
    sys.setprofile(None)
    assert calls == ["gemm_mxfp8", "is_dynamo_compiling", "launch", "setprofile"]


@pytest.mark.requires_gfx950
def test_prepare_launches_what_the_op_does() -> None:
    """A backend by itself: what the tuner times."""
    problem = random_problem(2, 40, 96)
    out = torch.full((2, 40), math.nan, dtype=torch.bfloat16)
    prepare("gemv", torch.device("cpu"), 2, 40, 96)(out, *problem.args)
    assert torch.equal(out, gemm_mxfp8(*problem.args))
