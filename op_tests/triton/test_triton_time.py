"""What Triton measures on the virtual GPU: timing mode's time of the launches, and nothing of the
host's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
from triton.testing import do_bench as imported_early  # before any activation
from triton.testing import do_bench_cudagraph as graph_imported_early

import rfops.vgpu
from rfops.vgpu import timed
from support import vgpu_triton_kernels as kernels

ROWS, COLUMNS = 512, 512


@pytest.fixture(params=rfops.vgpu.ARCHS, autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    rfops.vgpu.activate_triton(request.param)
    yield request.param
    rfops.vgpu.deactivate_triton()


def timing() -> bool:
    """Whether anybody has launches timed now."""
    return bool(timed.mode(rfops.vgpu.library_path())._blocks)


# Where in a page a tensor lies is part of the model: the same ones each time.
X, OUT = torch.arange(1000.0), torch.empty(1000)
MATRIX, SUMS = torch.ones(ROWS, COLUMNS), torch.empty(ROWS)


def add(n: int = 300, block: int = 64) -> None:
    x, out = X[:n], OUT[:n].fill_(torch.nan)
    kernels.add[(triton.cdiv(n, block),)](x, x, out, n, BLOCK=block)
    assert torch.equal(out, 2 * x)


def copy_rows(rows: int, passes: int = 1) -> None:
    x, out = MATRIX, SUMS.fill_(torch.nan)
    grid = (triton.cdiv(ROWS, rows),)
    kernels.sum_rows[grid](x, out, ROWS, ROWS=rows, PASSES=passes, C=COLUMNS)
    assert torch.equal(out, torch.full((ROWS,), float(passes * COLUMNS)))


def estimated_ms(fn: Callable[[], Any], **options: Any) -> float:
    """What timing mode says of the launches of one call."""
    with rfops.vgpu.timing(**options) as t:
        fn()
    return sum(launch.us for launch in t.launches) / 1e3


def event() -> Any:
    return triton.runtime.driver.active.get_device_interface().Event(enable_timing=True)


# ---------------------------------------------------------------------------------- do_bench


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "bench",
    [
        triton.testing.do_bench,
        triton.testing.do_bench_cudagraph,
        imported_early,
        graph_imported_early,
    ],
)
def test_do_bench_is_the_estimate(bench: Callable[..., float]) -> None:
    """From cold caches, as do_bench clears them; in a graph from warm ones."""
    graph = "graph" in bench.__name__
    options = {"cold": False, "kind": "graph"} if graph else {}
    ms = bench(add)
    assert ms == pytest.approx(estimated_ms(add, **options), abs=1e-9)
    assert ms < estimated_ms(add) if graph else ms > estimated_ms(add, cold=False)
    assert bench(lambda: copy_rows(8, passes=30)) > 2 * bench(lambda: copy_rows(1))
    assert not timing()


def test_only_the_launches_take_time() -> None:
    """Several of them, torch's work between them, and a host that is slow for once."""

    def fn(pause: float = 0) -> None:
        add(300)
        time.sleep(pause)
        torch.randn(64, 64) @ torch.randn(64, 64)
        add(1000, block=256)
        add(300)

    ms = triton.testing.do_bench(fn)
    assert ms == triton.testing.do_bench(lambda: fn(pause=0.02))
    small, large = (
        triton.testing.do_bench(lambda n=n, b=b: add(n, b)) for n, b in [(300, 64), (1000, 256)]
    )
    assert ms == pytest.approx(2 * small + large, abs=1e-8)


def test_a_call_without_launches_takes_no_time() -> None:
    x = torch.ones(1)
    assert triton.testing.do_bench(lambda: x.add(x)) == 0
    assert triton.testing.do_bench(lambda: kernels.add[(0,)](x, x, x, 0, BLOCK=64)) == 0
    assert triton.testing.do_bench_cudagraph(lambda: None) == 0


def test_do_bench_calls_twice_and_resets_gradients() -> None:
    weights, calls = torch.ones(3, requires_grad=True), []
    fn = lambda: (calls.append(timing()), (weights * 2).sum().backward())  # noqa: E731
    triton.testing.do_bench(fn, warmup=1000, rep=1000, grad_to_none=[weights])
    assert calls == [False, True]
    assert weights.grad is not None
    assert weights.grad.tolist() == [2, 2, 2]


def test_results_of_do_bench() -> None:
    ms = triton.testing.do_bench(add)
    for mode in ("mean", "median", "min", "max"):
        assert triton.testing.do_bench(add, return_mode=mode) == ms
    assert triton.testing.do_bench(add, return_mode="all") == [ms]
    assert triton.testing.do_bench(add, quantiles=[0.5, 0.2, 0.8]) == [ms] * 3
    assert triton.testing.do_bench(add, quantiles=[0.5]) == ms
    with pytest.raises(ValueError, match=r"return_mode must be one of mean, .* got 'best'"):
        triton.testing.do_bench(add, return_mode="best")


def test_within_a_profile() -> None:
    """A profile() around it sees the launches of both calls, one inside of it those of its own."""
    inner = []

    def fn() -> None:
        with rfops.vgpu.profile() as p:
            add()
        inner.append(len(p.launches))
        add()

    with rfops.vgpu.profile() as outer:
        ms = triton.testing.do_bench(fn)
        assert timing()
    assert inner == [1, 1]
    assert [launch.kernel for launch in outer.launches] == ["add"] * 4
    assert ms == pytest.approx(sum(r.estimate().us for r in outer.launches) / 2e3, abs=1e-8)


def test_within_a_timing(arch: str) -> None:
    """do_bench says how: cold, a profiler's time. Where: the block around it."""
    part = "MI308X" if arch == "gfx942" else "MI350X"
    with rfops.vgpu.timing(part, cold=False, kind="event") as t:
        ms = triton.testing.do_bench(add)
    assert [(r.part, r.cold, r.kind) for r in t.launches] == [
        (part, 0, "event"),
        (part, 1, "profiler"),
    ]
    assert ms == pytest.approx(t.launches[1].us / 1e3, abs=1e-9)
    assert "pcs" in t.launches[0].figures and not timing()


def test_do_bench_takes_no_longer_than_two_calls() -> None:
    """However short the kernel is, and whatever is asked for."""
    with rfops.vgpu.profile() as p:
        triton.testing.do_bench(add, warmup=10_000, rep=10_000)
    assert len(p.launches) == 2


def test_an_error_ends_the_timing() -> None:
    calls = []

    def fn() -> None:
        calls.append(0)
        if len(calls) == 2:
            raise KeyError("of the second call")

    with pytest.raises(KeyError):
        triton.testing.do_bench(fn)
    assert not timing()


# ---------------------------------------------------------------------------------- events


def test_events_measure_what_lies_between() -> None:
    one = triton.testing.do_bench(add)
    a, b, c = event(), event(), event()
    add()  # before the first record: not timed
    assert not timing()
    a.record()
    add()
    b.record()
    add()
    add()
    c.record()
    c.synchronize()
    assert a.query()
    assert a.elapsed_time(b) == one
    assert b.elapsed_time(c) == pytest.approx(2 * one, abs=1e-12)
    assert a.elapsed_time(c) == pytest.approx(3 * one, abs=1e-12)
    a.record()
    assert c.elapsed_time(a) == 0
    del a, b
    assert timing()
    del c
    assert not timing()


def test_events_that_cannot_tell() -> None:
    device = triton.runtime.driver.active.get_device_interface()
    untimed, recorded = device.Event(), event()
    untimed.record()
    assert not timing()
    recorded.record()
    for start, end in [(untimed, recorded), (recorded, untimed), (event(), recorded)]:
        with pytest.raises(RuntimeError, match="enable_timing=True and recorded"):
            start.elapsed_time(end)


# ---------------------------------------------------------------------------------- autotune


CONFIGS = {
    "one program": triton.Config({"ROWS": ROWS, "PASSES": 1}, num_warps=1),
    "reads again": triton.Config({"ROWS": 4, "PASSES": 40}, num_warps=1),
    "spread": triton.Config({"ROWS": 4, "PASSES": 1}, num_warps=1),
    "few programs": triton.Config({"ROWS": 64, "PASSES": 1}, num_warps=1),
}


def slow_on_the_host(config: triton.Config) -> triton.Config:
    """The one that should win takes longest to simulate."""
    pause = 0.05 if config is CONFIGS["spread"] else 0
    return triton.Config(config.kwargs, num_warps=1, pre_hook=lambda _arguments: time.sleep(pause))


def tune(configs: list[triton.Config], **options: Any) -> tuple[dict[str, Any], list[Any]]:
    tuner = triton.autotune(configs=configs, key=["rows"], **options)(kernels.sum_rows)
    x, out = MATRIX, SUMS.fill_(torch.nan)
    tuner[lambda meta: (triton.cdiv(ROWS, meta["ROWS"]),)](x, out, ROWS, C=COLUMNS)
    best = tuner.best_config.kwargs
    assert torch.equal(out, torch.full((ROWS,), float(COLUMNS * best["PASSES"])))
    return best, list(tuner.configs_timings.values())


def test_autotune_takes_what_the_model_likes() -> None:
    configs = list(CONFIGS.values())
    best, times = tune(configs)
    assert best == CONFIGS["spread"].kwargs
    measured = {name: ms[0] for name, ms in zip(CONFIGS, times, strict=True)}
    for name, config in CONFIGS.items():
        rows, passes = config.kwargs["ROWS"], config.kwargs["PASSES"]
        run = lambda r=rows, p=passes: kernels.sum_rows[(triton.cdiv(ROWS, r),)](  # noqa: E731
            MATRIX, SUMS, ROWS, ROWS=r, PASSES=p, C=COLUMNS, num_warps=1
        )
        assert measured[name] == pytest.approx(estimated_ms(run), abs=1e-9), name
    for name in set(CONFIGS) - {"spread"}:
        assert measured[name] > 1.2 * measured["spread"], measured
    repeated, same = tune([slow_on_the_host(config) for config in reversed(configs)])
    assert repeated == best
    assert same == times[::-1]


@pytest.mark.filterwarnings("ignore:warmup, rep, and use_cuda_graph:DeprecationWarning")
@pytest.mark.parametrize("options", [{"use_cuda_graph": True}, {"warmup": 5, "rep": 9}, {"rep": 2}])
def test_autotune_in_its_older_forms(options: dict[str, Any]) -> None:
    best, times = tune(list(CONFIGS.values()), **options)
    assert best == CONFIGS["spread"].kwargs
    assert all(0 < ms < 1 for three in times for ms in three)


def test_autotune_by_architecture(arch: str) -> None:
    """Each has its own choice: the tuner made on the other is not asked again."""
    x, out = torch.arange(3000.0), torch.full((3000,), float("nan"))
    best = []
    for this in (arch, *rfops.vgpu.ARCHS, arch):
        rfops.vgpu.activate_triton(this)
        with rfops.vgpu.profile() as p:
            kernels.add_tuned[lambda meta: (triton.cdiv(3000, meta["BLOCK"]),)](x, x, out, 3000)
        best.append((this, kernels.add_tuned.best_config, len(p.launches)))
        assert torch.equal(out, 2 * x)
        assert {launch.arch for launch in p.launches} == {this}
    assert best[-1][1] is best[0][1]
    assert best[-1][2] == 1
