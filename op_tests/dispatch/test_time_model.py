"""Predicted times: what a model's file says, what a fit finds, and how calls choose by it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rfops.cli import model_fit, model_timings, tune_model, why
from rfops.dispatch import cost, time_model
from rfops.dispatch.heuristic import coarse, coarse_middle
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import grid
from rfops.dispatch.time_model import Constants, TimedKernel
from rfops.jit import ConfigError
from rfops.jit.launch import launcher

E4M3 = torch.float8_e4m3fn
MODELED = sorted(name for name, op in ops().items() if op.time_model)
NAME = "gemm_a8w8_blockscale"
SIZES = [(1, 576, 7168), (33, 2112, 7168), (33, 4608, 7168), (71, 2112, 7168), (500, 4608, 7168)]
MORE = (17, 512, 128), (4096, 7168, 2048)
FP4 = "gemm_afp4wfp4", "gemm_a16wfp4", "gemm_a8wfp4"
CALLS = {name: grid("M N K", [*SIZES, *MORE]) for name in (NAME, *FP4)} | {
    "fused_moe_fp8": grid("D I E K", [(7168, 256, 256, 8), (4096, 14336, 8, 2)], M=(1, 60, 300)),
    "mla_decode": grid("B S H", [(1, 4096, 16), (4, 32768, 128), (60, 2**16, 128)]),
}
SHUFFLED = {"w_layout": "16x16", "w_scale_layout": "32x8"}
PAIRS = [(name, given) for name, calls in CALLS.items() for given in calls]


def model_of(name: str) -> tuple[Op, Any]:
    op = ops()[name]
    return op, model_fit.model_of(op)


# ---------------------------------------------------------------- the fit


@pytest.mark.parametrize("seed", range(5))
def test_least_squares_of_non_negative_constants(seed: int) -> None:
    """The conditions of Kuhn and Tucker: no constant is negative, none that is 0 would gain by
    growing, and of the others the gradient is 0."""
    rng = np.random.default_rng(seed)
    rows, values = rng.normal(size=(40, 8)), rng.normal(size=40)
    x = model_fit.non_negative(rows, values)
    gradient = rows.T @ (values - rows @ x)
    assert (x >= 0).all() and 0 < (x > 0).sum() < 8
    assert np.abs(gradient[x > 0]).max() < 1e-8 and gradient[x == 0].max() < 1e-8


def test_a_quadratic_form_is_found_again() -> None:
    rng = np.random.default_rng(0)
    logs = np.column_stack([np.ones(4000), rng.uniform(0, 12, size=(4000, 3))])
    form = np.triu(rng.normal(size=(4, 4)) / 100)
    left = np.einsum("vi,ij,vj->v", logs, form, logs)
    found, low, high = model_fit.quadratic(logs, left, np.ones(4000))
    assert np.abs(np.einsum("vi,ij,vj->v", logs, found, logs) - left).max() < 0.01
    assert (found == np.triu(found)).all() and low[0] == high[0] == 1
    assert (low <= logs.min(0)).all() and (high >= logs.max(0)).all()
    forms = [model_fit.quadratic(logs, left, np.ones(4000), ridge)[0] for ridge in (1.0, 1e3, 1e9)]
    sizes = [np.linalg.norm(np.einsum("vi,ij,vj->v", logs, form, logs)) for form in forms]
    assert sizes[0] > sizes[1] > 100 * sizes[2], sizes  # drawn to none


@pytest.mark.parametrize("name", CALLS)
def test_constants_are_found_again(name: str) -> None:
    """Times that a model itself makes, of random constants for each family: the fit predicts them
    within 2 %, also of calls that it has not seen."""
    op, model = model_of(name)
    rng, truth = random.Random(3), dict[tuple[str, str], Any]()
    samples = []
    for given in tune_model.calls(op, 60, seed=3):
        c = op.call_of("gfx950", **given)
        variants = tune_model.pool(op, c, 40, rng)
        one = model_fit.sample_of(op, model_timings.timed(c, [(*v, 1.0) for v in variants]))
        for family in one.families:
            if family not in truth:
                truth[family] = np.array([rng.uniform(0.5, 2) for _ in model.terms])
        us = np.array([t @ truth[f] for f, t in zip(one.families, one.terms, strict=True)])
        samples.append(one._replace(us=us))
    fitted = model_fit.fit(model, samples[:45])
    ratios = [model_fit.ratio(fitted, sample) for sample in samples[45:]]
    assert model_fit.Regret.from_ratios(ratios).median < 1.02, ratios


# ---------------------------------------------------------------- the file


def constants_of(model: Any, seed: int = 0) -> Constants:
    rng = np.random.default_rng(seed)
    size = len(model.logs)
    linear = rng.uniform(0, 3, len(model.terms)) * (rng.random(len(model.terms)) < 0.5)
    return Constants(linear, np.triu(rng.normal(size=(size, size))), np.zeros(size), np.ones(size))


def rows_of(model: Any, constants: Constants, kernel: str, family: str = "") -> list[list[Any]]:
    cells = ["gfx950", 256, kernel, family, *time_model.text_of(model, constants)]
    return [[*cells, "estimated", "a test"]]


def test_a_row_reads_as_it_was_written(tmp_path: Path) -> None:
    _, model = model_of(NAME)
    wanted, file = constants_of(model), tmp_path / f"{model.name}.csv"
    time_model.replace_rows(file, "gfx950", 256, rows_of(model, wanted, "staged"))
    got = time_model.read(file, model)["gfx950", 256]["staged", ""]
    for one, other in zip(got, wanted, strict=True):
        assert np.abs(one - other).max() < 1e-4


def test_a_chip_s_rows_are_replaced_and_others_stay(tmp_path: Path) -> None:
    _, model = model_of(NAME)
    file = tmp_path / f"{model.name}.csv"
    (row,) = rows_of(model, constants_of(model), "staged", "1x1")
    time_model.replace_rows(file, "gfx950", 80, [["gfx950", 80, *row[2:]]])
    time_model.replace_rows(file, "gfx950", 256, [row])
    time_model.replace_rows(file, "gfx950", 256, rows_of(model, constants_of(model, 1), "stream"))
    rows = time_model.read(file, model)
    assert {chip: [*found] for chip, found in rows.items()} == {
        ("gfx950", 80): [("staged", "1x1")],
        ("gfx950", 256): [("stream", "")],
    }


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (1, "many"),
        (4, "launch=fast"),
        (4, "no_such_term=1"),
        (4, "launch"),
        (5, "M*nothing=1"),
        (5, "M=1:x"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, cell: int, value: str) -> None:
    _, model = model_of(NAME)
    file = tmp_path / f"{model.name}.csv"
    (row,) = rows_of(model, constants_of(model), "staged")
    row[cell] = value
    time_model.replace_rows(file, "gfx950", 256, [row])
    with pytest.raises(ConfigError, match=f"{model.name}.csv: not a table"):
        time_model.read(file, model)


def test_a_user_s_constants_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that makes the stream free, and tiles dear."""
    op, model = model_of(NAME)
    c = op.call_of("gfx950", M=64, N=24576, K=4096)
    nominal = model.nominal()
    rows = [
        *rows_of(model, nominal._replace(linear=nominal.linear * 1e-3), "stream"),
        *rows_of(model, nominal, "staged"),
    ]
    time_model.replace_rows(tmp_path / f"{model.name}.csv", "gfx950", 256, rows)
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    mine = type(model)(NAME)
    mine.kernels = model.kernels
    assert next(iter(mine.rank(c))) == "stream"


def test_constants_of_a_family_then_of_its_kernel_then_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = model_of(NAME)
    own, whole = constants_of(model, 1), constants_of(model, 2)
    rows = [*rows_of(model, own, "staged", "1x2"), *rows_of(model, whole, "staged")]
    time_model.replace_rows(tmp_path / f"{model.name}.csv", "gfx950", 256, rows)
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    mine = type(model)(NAME)
    found = mine.constants("gfx950", 200, "staged", "1x2")
    assert np.allclose(found.linear, own.linear, atol=1e-4)
    assert np.allclose(found.quadratic, whole.quadratic, atol=1e-4), "the kernel's correction"
    assert np.allclose(
        mine.constants("gfx950", 256, "staged", "4x4").linear, whole.linear, atol=1e-4
    )
    for arch, kernel in (("gfx906", "staged"), ("gfx950", "other")):
        assert (mine.constants(arch, 256, kernel, "").linear == mine.nominal().linear).all()


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(("name", "given"), PAIRS)
def test_the_default_is_the_quickest_that_is_predicted(name: str, given: dict[str, int]) -> None:
    op, model = model_of(name)
    c = op.call_of("gfx950", **given)
    ranked = model.rank(c)
    assert [choice.us for choice in ranked.values()] == sorted(r.us for r in ranked.values())
    assert [kernel for kernel in op.order(c) if kernel in ranked] == list(ranked)
    for kernel in model.kernels:
        table = kernel.space(c)
        if table is None:
            assert kernel.name not in ranked
            continue
        us = model.predict([kernel], [table], model.like(c))[1]
        if kernel.is_hip and model.like(c).sizes == c.sizes:
            assert us.min() == pytest.approx(ranked[kernel.name].us)
            assert kernel.default(c) == table.candidates[int(us.argmin())]
        assert kernel.unsupported_reason(c) or not kernel.unsupported_config_reason(
            c, kernel.default(c)
        )


@pytest.mark.parametrize("name", MODELED)
def test_candidates_begin_with_the_default_and_name_none_twice(name: str) -> None:
    op, model = model_of(name)
    for given in tune_model.calls(op, 4, seed=5):
        c = op.call_of("gfx950", **given)
        for kernel in model.kernels:
            if kernel.is_hip and kernel.Config and kernel.unsupported_reason(c) is None:
                found = list(kernel.candidates(c))
                assert found[0] == kernel.default(c) and len(found) == len(set(found))
                table = kernel.space(c)
                is_alone = table is None or len(table.candidates) == 1
                assert len(found) > 1 or is_alone, "nothing to choose"


@pytest.mark.parametrize("name", MODELED)
def test_every_family_that_calls_meet_has_constants(name: str) -> None:
    """Of each kernel a row without a family, whose constants one that was not timed takes."""
    op, model = model_of(name)
    for arch, cu_num in (("gfx942", 304), ("gfx950", 256)):
        kernels = {k.name for k in model.kernels if takes_any(op, k, arch)}
        rows = model.table(arch, cu_num)
        assert kernels <= {kernel for kernel, family in rows if not family}, arch


def takes_any(op: Op, kernel: TimedKernel, arch: str) -> bool:
    calls = (op.call_of(arch, **given) for given in tune_model.calls(op, 20, seed=1))
    return any(kernel.space(c) is not None for c in calls)


@pytest.mark.parametrize("name", MODELED)
def test_what_is_timed_has_the_best_of_each_kernel_and_nothing_excluded(name: str) -> None:
    op, model = model_of(name)
    for given in tune_model.calls(op, 4, seed=7):
        c = op.call_of("gfx950", **given)
        taken = set(tune_model.pool(op, c, 20, random.Random(0)))
        for kernel in model.kernels:
            table = kernel.space(c)
            if table is not None and kernel.unsupported_reason(c) is None:
                us = dict(zip(table, model.predict([kernel], [table], c)[1], strict=True))
                mine = [config for name, config in taken if name == kernel.name]
                assert min(us, key=lambda config: us[config]) in mine
                assert all(us[config] < np.inf for config in mine)


@pytest.mark.parametrize("count", [1, 8])
def test_no_more_variants_are_timed_than_are_asked_for(count: int) -> None:
    """But the best of each kernel, which are more than a small count."""
    op, model = model_of(NAME)
    for given in tune_model.calls(op, 6, seed=11):
        variants = tune_model.pool(op, op.call_of("gfx950", **given), count, random.Random(0))
        assert len(variants) <= max(count, 2 * len(model.kernels)), (given, len(variants))


def test_on_a_gpu_variants_are_measured_with_cold_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what `rfops tune` measures rows with: a time, and why another variant has none."""
    op, _ = model_of(NAME)
    c = op.call_of("gfx950", M=64, N=512, K=512)
    c.device = torch.device("meta")
    sets = [object(), object()]

    def measure(given: Any, name: str, config: Any) -> cost.Cost:
        assert given is sets
        if config == "wrong":
            raise AssertionError("out: element 3 is 5, expected 4")
        return cost.Cost(7.5, "measured")

    monkeypatch.setattr(cost, "problems", lambda *_given: sets)
    monkeypatch.setattr(cost, "measure", measure)
    right, wrong = tune_model.times_of(op, c, [("staged", "right"), ("staged", "wrong")])
    assert (
        right == ("staged", "right", 7.5) and "staged wrong: does not run: out: element 3" in wrong
    )


def test_constants_that_are_given_decide_until_they_are_taken_back() -> None:
    op, model = model_of(NAME)
    c = op.call_of("gfx950", M=64, N=24576, K=4096)
    before, nominal = model.rank(c), model.nominal()
    free, dear = (nominal._replace(linear=nominal.linear * by) for by in (1e-3, 1e3))
    try:
        for quick in ("staged", "pingpong"):
            model.use({(k.name, ""): free if k.name == quick else dear for k in model.kernels})
            assert next(iter(model.rank(c))) == quick
    finally:
        model.use(None)
    assert model.rank(c) == before


@pytest.mark.parametrize("name", FP4[:2])
def test_a_kernel_whose_operands_are_prepared_says_what_that_costs(name: str) -> None:
    """Raw scales of w, and x of 16 bits or its raw scales: two launches before the kernel's own;
    where K is a multiple of 256 only that which quantises x, as both read raw scales, except where
    LDS of loop has no room for them."""
    op, model = model_of(name)
    quantise = 1 if name == "gemm_a16wfp4" else 0
    more = {} if quantise else {"x_scale_layout": "32x8"}
    for kernel, k, layouts, expected in (
        ("loop", 4096, {}, quantise),
        ("loop", 4128, {}, 2),
        ("loop", 4096, SHUFFLED | more, quantise),
        ("deep", 4096, {}, quantise),
        ("deep", 4096, SHUFFLED | more, quantise),
        ("deep", 4128, {}, 2),
    ):
        c = op.call_of("gfx950", M=200, N=4096, K=k, **layouts)
        kernels = [op.kernels[kernel]]
        space = kernels[0].space(c)
        v, _ = model.predict(kernels, [space], c)
        launches = model.work(v, c).terms[model.terms.index("launches")]
        has_room = [kernel != "loop" or config.has_room_for_raw for config in space]
        wanted = np.where(has_room, expected, 2 if not layouts else expected)
        assert np.all(launches == wanted), (kernel, k, layouts)


def test_kernels_of_mxfp4_do_not_change_at_a_number_of_rows() -> None:
    """M = 777 and 1,466 took 1.24 to 1.37 times as long by the loop, which all above 512 took."""
    op, _ = model_of("gemm_afp4wfp4")
    layouts = SHUFFLED | {"x_scale_layout": "32x8"}
    for m, n, k in ((777, 2112, 7168), (1466, 1792, 5120), (2275, 1152, 4096)):
        assert op.route(op.call_of("gfx950", M=m, N=n, K=k, **layouts)).backend == "deep"
    assert op.route(op.call_of("gfx950", M=8192, N=8192, K=8192, **layouts)).backend == "loop"


@pytest.mark.parametrize("kernel", ["stream", "tiles"])
def test_shuffled_weights_with_raw_scales_are_timed_as_raw(kernel: str) -> None:
    """Raw scales cost what raw weights do: 777 x 2048 x 5120 took `tiles`, predicted at 16.6 us, in
    22.8 us, where `deep` takes 18.9 us (estimated)."""
    op, _ = model_of("gemm_afp4wfp4")
    chosen = op.kernels[kernel]
    families = {
        (w, scale): chosen.family(
            None, op.call_of(M=4, N=32, K=256, w_layout=w, w_scale_layout=scale)
        )
        for w in ("raw", "16x16")
        for scale in ("raw", "32x8")
    }
    assert families.pop(("16x16", "32x8")) == "16x16" and set(families.values()) == {"raw"}
    mixed = op.call_of("gfx950", M=777, N=2048, K=5120, w_layout="16x16")
    assert op.route(mixed).backend == "deep"


def resized(op: Op, arch: str, count: int, seed: int) -> Iterator[Call]:
    """Calls of model layers, then of other sizes that change from call to call."""
    rng = random.Random(seed)
    drawn = [op.call_of(arch, **given) for given in tune_model.calls(op, 12, seed=seed)]
    yield from drawn
    for _ in range(count):
        c = rng.choice(drawn)
        if "M" in c.sizes:
            yield c.with_sizes(M=max(1, int(2 ** rng.uniform(0, 13))))
        else:
            pages = max(1, int(c.S * 2 ** rng.uniform(-2, 2)))
            yield c.with_sizes(S=pages, B=max(1, int(2 ** rng.uniform(0, 8))))


@pytest.mark.parametrize("name", MODELED)
def test_a_choice_is_that_of_each_term_by_itself(name: str) -> None:
    """Coefficients that met their constants before give the predictions of terms that are summed
    one by one, up to rounding, and the same choices, except between variants whose predictions
    differ by rounding alone; a layer's variants are those that its kernels name for the call."""
    op, model = model_of(name)
    for arch in ("gfx942", "gfx950"):
        for c in resized(op, arch, 100, seed=29):
            c = model.like(c)
            kernels, tables = model._spaces(c)
            ranked = model.rank(c)
            assert {kernel.name for kernel in kernels} == set(ranked)
            if not kernels:
                continue
            v, us = model.predict(kernels, tables, c)
            key = c.arch, c.cu_num, model.static(c), model.layer_key(c)
            predictor = model._predictor(key, c)
            assert predictor is not None and predictor.variants.members == v.members
            plain = time_model.plain_us(v, model.work(v, c))
            assert np.isclose(us, plain, rtol=1e-12, atol=0).all(), (str(c), us, plain)
            for kernel, span in v.kernel_spans:
                best, choice = span.start + int(plain[span].argmin()), ranked[kernel]
                is_same = v.members[best][1] == choice.config
                assert is_same or abs(choice.us - plain[best]) <= 1e-12 * plain[best], str(c)


def bests(name: str, calls: list[Call]) -> list[Any]:
    """What new decisions find: the best variant of each kernel."""
    _, model = model_of(name)
    model.use(None)
    ranked = [model.rank(c) for c in calls]
    return [[(*choice[:2], choice.us) for choice in one.values()] for one in ranked]


@pytest.mark.parametrize("name", MODELED)
def test_the_native_launcher_ranks_as_numpy_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same variants; times that differ by the last bits of 2^correction alone."""
    op, _ = model_of(name)
    calls = [
        op.call_of(arch, **given)
        for arch in ("gfx942", "gfx950")
        for given in tune_model.calls(op, 12, seed=4)
    ]
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    native = bests(name, calls)
    monkeypatch.setattr(launcher, "_native", None)
    for one, other in zip(native, bests(name, calls), strict=True):
        assert [choice[:2] for choice in one] == [choice[:2] for choice in other]
        assert [us for *_, us in one] == pytest.approx([us for *_, us in other], rel=1e-14)


def test_of_equal_times_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tiles that are each other's mirror images, whose times differ by a rounding that numpy and
    the launcher make at different ones."""
    name, layouts = "gemm_afp4wfp4", {"w_layout": "16x16", "w_scale_layout": "32x8"}
    c = ops()[name].call_of("gfx950", M=2372, N=18560, K=64, dtype=torch.float32, **layouts)
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    native = bests(name, [c])
    monkeypatch.setattr(launcher, "_native", None)
    assert [choice[:2] for choice in native[0]] == [choice[:2] for choice in bests(name, [c])[0]]


ROWS, BOUNDS = np.ones((2 + 1 + 1 + 1, 3)), (np.full((1, 3), -1.0), np.full((1, 3), 4.0))
RANKED = ROWS, np.ones((5, 3)), *BOUNDS, None, 3, 2, 0.38, (("a", 0), ("b", 2))


def ranked(**others: Any) -> Any:
    """By the native function, of two factors, a log of 1, and weights of 1 but for `others`."""
    names = "rows weights low high excluded variants factors most parts".split()
    native = launcher.native() or (launcher.build() and launcher.native())
    return native.rank(*(dict(zip(names, RANKED, strict=True)) | others).values())


def test_of_equal_predictions_the_first_is_taken_and_what_is_excluded_is_not() -> None:
    us = pytest.approx(2 * 2**0.38)  # 1 + 1 for the factors; a correction of 3 is taken as 0.38
    assert ranked() == [(us, "a", 0), (us, "b", 2)]
    mask = np.array([True, False, True])
    assert ranked(excluded=mask) == [(us, "a", 1), (np.inf, "b", 2)]
    slow = np.ones((5, 3))
    slow[0, 0], slow[0, 1] = 9.0, 8.0
    slower = pytest.approx(9 * 2**0.38)
    assert ranked(weights=slow) == [(us, "b", 2), (slower, "a", 1)]
    without = {"rows": ROWS[:2], "weights": ROWS[:2], "low": BOUNDS[0][:0], "high": BOUNDS[0][:0]}
    assert ranked(**without) == [(2.0, "a", 0), (2.0, "b", 2)]


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_rounding_decides_no_choice(wrong: int) -> None:
    weights = np.ones((5, 3))
    weights[0, wrong] += 2**-50
    assert [index for *_, index in ranked(weights=weights)] in ([0, 2], [2, 0])
    assert time_model.quickest(weights[0]) == 0
    span: Any = SimpleNamespace(kernel_spans=[("a", slice(0, 3))])
    assert time_model._best_of(span, weights[0]) == [(weights[0, 0], "a", 0)]
    assert time_model.quickest(np.array([1 + 1e-9, 1])) == 1
    for us in (math.inf, math.nan, -1.0, 0.0):
        assert time_model.quickest(np.array([us, us])) == 0
        assert [index for *_, index in ranked(weights=np.full((5, 3), us))] == [0, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": np.ones((4, 3))}, "rows must have 15 elements of 8 bytes, got 12 of 8"),
        ({"weights": np.ones((5, 3), dtype=np.float32)}, "weights must have 15 elements of 8"),
        ({"low": np.ones((2, 3))}, "rows must have 24 elements"),
        ({"high": np.ones((2, 3))}, "high must have 3 elements"),
        ({"excluded": np.zeros(2, dtype=bool)}, "excluded must have 3 elements of 1 bytes"),
        ({"variants": 2}, "rows must have 10 elements"),
        ({"factors": 3}, "rows must have 18 elements"),
        ({"parts": (("a", 0), ("b", 3))}, "must begin at growing indices of variants"),
        ({"parts": (("a", 1), ("b", 1))}, "must begin at growing indices of variants"),
        ({"parts": (("a",),)}, "pairs of a kernel and an index"),
    ],
)
def test_a_ranking_of_other_sizes_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranked(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"rows": ROWS.T}, {"rows": 1.0}, {"variants": -1}, {"most": "a"}, {"parts": []}]
)
def test_a_ranking_of_other_things_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        ranked(**wrong)


def test_calls_with_angles_have_a_ranking_of_their_own() -> None:
    """The kernel that takes FP8 without angles alone is in no ranking of calls with them, whichever
    come first."""
    op, model = model_of("mla_decode")
    given = {"B": 4, "S": 32768, "H": 128, "q_dtype": E4M3, "kv_dtype": E4M3}
    plain, turned = (op.call_of("gfx950", **given, angles=a) for a in (False, True))
    for order in ((plain, turned), (turned, plain)):
        model.use(None)
        for c in order:
            assert ("shared_fp8" in model.rank(c)) == (c is plain)


@pytest.mark.parametrize("name", MODELED)
def test_a_prediction_does_not_depend_on_the_calls_before_it(name: str) -> None:
    """Calls of one layer, of several and the first again: as where each is the first."""
    op, model = model_of(name)
    calls = [op.call_of("gfx950", **given) for given in tune_model.calls(op, 3, seed=11)]
    size = "M" if "M" in calls[0].sizes else "S"
    calls += [c.with_sizes(**{size: 2 * c.sizes[size]}) for c in calls]
    calls += calls[:2]
    in_order, alone = list[Any](), list[Any]()
    for found, is_alone in ((in_order, False), (alone, True)):
        model.use(None)
        for c in calls:
            if is_alone:
                model.use(None)
            model._ranked.clear()
            found.append(model.explain(c))
    assert repr(in_order) == repr(alone)


def test_calls_of_one_coarse_step_get_one_variant() -> None:
    """M of 257 to 288 is a step; tiles end where it does."""
    op, _ = model_of(NAME)
    configs = {
        op.kernels["staged"].default(op.call_of("gfx950", M=m, N=2112, K=7168))
        for m in range(257, 289)
    }
    assert len(configs) == 1


@pytest.mark.parametrize("step", [1, 16])
def test_the_middle_of_a_coarse_step_is_one_of_its_sizes(step: int) -> None:
    sizes_of = dict[int, list[int]]()
    for size in range(1, 3000):
        sizes_of.setdefault(coarse(size, step), []).append(size)
    for end, sizes in sizes_of.items():
        middles = {coarse_middle(size, step) for size in sizes}
        assert len(middles) == 1 and sizes[0] <= min(middles) <= end, (end, middles)


@pytest.mark.parametrize("batch", [239, 247])
def test_mla_s_workers_take_whole_sequences_where_these_are_nearly_as_many(batch: int) -> None:
    """Of 247 sequences of 186 tokens shared out among 256 workers, which take parts of two, the
    call takes 16.9 us, and 12.7 with a worker for each (estimated). Calls of 241 to 256 sequences
    shared a decision, that of 256."""
    op, _ = model_of("mla_decode")
    values = {"q_dtype": torch.bfloat16, "kv_dtype": torch.float8_e4m3fn}
    c = op.call_of("gfx950", B=batch, H=16, S=186 * batch, **values)
    config = op.kernels["flow"].default(c)
    assert config.even or config.least >= 186, config


def test_why_says_the_terms_of_the_choice_and_of_the_next() -> None:
    op, model = model_of(NAME)
    c = op.call_of("gfx950", M=71, N=2112, K=7168)
    (first, terms), (second, _) = model.explain(c)
    factor = terms.pop("correction")
    assert sum(terms.values()) * factor == pytest.approx(first.us) and first.us <= second.us
    lines = [line.split() for line in why.text(op, c).splitlines()]
    said = {line[0]: line for line in lines}
    assert said["predicted"][1:3] == [f"{first.us:.2f}", "us"] and "launch" in " ".join(
        said["predicted"]
    )
    assert said["next"][1:3] == [f"{second.us:.2f}", "us"]


def test_a_split_is_chosen_where_tiles_are_few() -> None:
    """M = 71, 2112 x 7168 was 3.0 times as slow as with 6 splits (2 x 33 tiles, 256 CUs)."""
    op, _ = model_of(NAME)
    for arch in ("gfx942", "gfx950"):
        config = op.kernels["staged"].default(op.call_of(arch, M=71, N=2112, K=7168))
        assert config.split >= 3, (arch, config)


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("name", MODELED)
def test_calls_are_drawn_by_seed_and_valid(name: str) -> None:
    op = ops()[name]
    first, again = (tune_model.calls(op, 30, seed=9) for _ in range(2))
    assert first == again != tune_model.calls(op, 30, seed=10)
    texts = [model_timings.call_text(given) for given in first]
    assert len(set(texts)) == 30
    for given, text in zip(first, texts, strict=True):
        assert model_timings.given_of(text) == given
        op.check_sizes(op.call_of("gfx950", **given))


def test_rows_of_times_read_as_they_were_written(tmp_path: Path) -> None:
    op, _ = model_of(NAME)
    given = {"M": 133, "N": 2560, "K": 5120}
    c = op.call_of("gfx950", **given)
    variants = tune_model.pool(op, c, 30, random.Random(0))
    assert {kernel for kernel, _ in variants} >= {"staged"} and len(variants) == len(set(variants))
    times = [(*v, float(us)) for v, us in zip(variants, itertools.count(3), strict=False)]
    file = tmp_path / f"{NAME}_timings.csv"
    text = model_timings.call_text(given)
    model_timings.write(file, model_timings.rows_of("gfx950", 256, text, times, "estimated"))
    (got,) = model_timings.read(op, file, "gfx950", 256)
    assert dict(zip(got.variants, got.us, strict=True)) == {(k, v): us for k, v, us in times}
    assert model_timings.read(op, file, "gfx942") == []
    file.write_text(file.read_text().replace("M=133", "M=x"))
    with pytest.raises(ConfigError, match=r"not a file of .*'s times"):
        model_timings.read(op, file)
