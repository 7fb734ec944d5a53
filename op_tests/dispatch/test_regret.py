"""What a choice by predicted times costs, by the times in op_tests/choices that the constants were
fitted to, and in the sweep by fresh ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rfops.cli import model_fit, model_source, model_timings, tune_model
from rfops.cli.regret import regret_of
from rfops.dispatch.op import ops
from rfops.jit.arch import ARCH_SPECS
from support.devices import device_of

CHOICES = Path(__file__).parents[1] / "choices"
MODELED = sorted(name for name, op in ops().items() if op.time_model)
MEDIAN, P95, MOST, CALLS = 1.03, 1.12, 1.30, 40  # the aims
# Of the sweep: calls, and variants of each that are timed; all of FP8's, a tenth of the others'
# work, as ten chips at FP8's number would take CI half an hour. What their choices may cost.
FRESH, FRESH_OTHERS, FRESH_MEAN, FRESH_MOST = (6, 40), (4, 12), 1.12, 1.35


def chips() -> Iterator[tuple[str, str]]:
    for name in MODELED:
        text = model_timings.path_of(ops()[name], CHOICES).read_text(encoding="utf-8")
        yield from ((name, arch) for arch in ("gfx942", "gfx950") if f"\n{arch}," in text)


CHIPS = list(chips())


@cache
def samples(name: str, arch: str) -> list[model_fit.Sample]:
    op = ops()[name]
    file = model_timings.path_of(op, CHOICES)
    timed = model_timings.read(op, file, arch, ARCH_SPECS[arch].cus)
    return [model_fit.sample_of(op, one) for one in timed]


@pytest.mark.parametrize(("name", "arch"), CHIPS)
def test_regret_of_the_shipped_constants(name: str, arch: str) -> None:
    model = model_fit.model_of(ops()[name])
    fitted = dict(model.table(arch, ARCH_SPECS[arch].cus))
    found = samples(name, arch)
    ratios = [model_fit.ratio(fitted, sample) for sample in found]
    regret = model_fit.Regret.from_ratios(ratios)
    worst = max(range(len(ratios)), key=lambda at: ratios[at])
    assert len(found) >= CALLS
    assert regret.median <= MEDIAN and regret.p95 <= P95 and regret.maximum <= MOST, (regret, worst)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "arch"), CHIPS)
def test_regret_of_calls_that_were_left_out(name: str, arch: str) -> None:
    """A little above the bars, as a fold has fewer calls than the fit."""
    regret, _ = model_fit.best_of(model_fit.model_of(ops()[name]), samples(name, arch))
    assert regret.median <= MEDIAN and regret.p95 <= P95 + 0.05, regret
    assert regret.maximum <= MOST + 0.1, regret


@pytest.mark.parametrize(("name", "arch"), CHIPS)
def test_constants_are_of_these_kernels_and_this_timing_model(name: str, arch: str) -> None:
    op = ops()[name]
    model = model_fit.model_of(op)
    text = (CHOICES.parents[1] / "configs" / f"{model.name}.csv").read_text(encoding="utf-8")
    found = model_source.digests(op, model)
    for line in text.splitlines()[1:]:
        if line.startswith(f"{arch},"):
            kernel = line.split(",")[2]
            if kernel not in found:  # of another op that has these constants
                continue
            said = re.search(r"kernel (\w+), timing model (\w+)", line)
            assert said and said.groups() == (found[kernel], found[""]), (
                f"{kernel}'s sources or the timing model's changed since {model.name}.csv was "
                f"fitted: rfops tune {name} --model --out FOLDER on {arch}, or where times are as "
                f"they were: python op_tests/refit_choices.py {name} {arch}"
            )


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "arch"), CHIPS)
def test_regret_of_fresh_calls(name: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, device = ops()[name], device_of(arch, monkeypatch)
    count, variants = FRESH if name == "gemm_a8w8_blockscale" else FRESH_OTHERS
    calls = tune_model.calls(op, count, seed=20261127)
    found = [regret_of(op, given, device, variants) for given in calls]
    ratios = [one[0][2] / one[1][2] for one in found if one is not None]
    assert len(ratios) >= count - 1
    regret = model_fit.Regret.from_ratios(ratios)
    assert regret.mean <= FRESH_MEAN and regret.maximum <= FRESH_MOST, (regret, found)
