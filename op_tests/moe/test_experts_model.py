"""The time model of a mixture's experts: the tiles that it expects, and the calls that it is fitted
to."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from rfops import vgpu
from rfops.cli import tune_model
from rfops.cli.model_fit import model_of
from rfops.dispatch.checks import flat
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Problem, call_on
from rfops.moe import layers
from rfops.moe.moe_op import LIST_TOKENS
from rfops.moe.terms import row_tiles

DRAWS = 200


@pytest.mark.parametrize(
    ("tokens", "k", "routed", "shared", "height"),
    [
        (1, 8, 256, 0, 64),
        (7, 8, 128, 1, 32),
        (60, 8, 128, 0, 64),
        (400, 2, 8, 0, 64),
        (1000, 8, 256, 1, 16),
        (3000, 2, 8, 2, 128),
    ],
)
def test_expected_tiles_are_the_mean_of_random_choices(
    tokens: int, k: int, routed: int, shared: int, height: int
) -> None:
    """Each token chooses k different experts, all sets alike: within four standard errors, and 2 %
    for what the normal distribution is off."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(DRAWS):
        ids = torch.rand(tokens, routed, generator=generator).argsort(1)[:, :k]
        rows = torch.bincount(ids.flatten(), minlength=routed)
        found.append(float((-(-rows // height)).sum()) + shared * -(-tokens // height))
    sums = torch.tensor(found, dtype=torch.float64)
    bound = 4 * float(sums.std()) / DRAWS**0.5 + 0.02 * float(sums.mean())
    got = row_tiles(tokens, k, routed, shared, height)
    assert abs(got - float(sums.mean())) <= bound, (got, float(sums.mean()), bound)


def test_all_experts_chosen_by_all_tokens() -> None:
    assert row_tiles(100, 8, 8, 1, 64) == 9 * 2
    assert row_tiles(3, 1, 0, 2, 16) == 2


def test_layers_are_divisible_and_of_few_and_many_tokens() -> None:
    rng = random.Random(0)
    calls = [layers.draw(rng, 128) for _ in range(300)]
    assert all(c["D"] % 128 == c["I"] % 128 == 0 < c["I"] for c in calls)
    assert {c["E"] - c["R"] for c in calls} == {0, 1}
    assert min(c["M"] for c in calls) <= 2 and max(c["M"] for c in calls) > layers.FEW_TOKENS[1]
    # GPT-OSS's 2880 is a multiple of 64, not of 128.
    assert all(c["D"] != 2880 for c in calls)
    assert any(layers.draw(rng, 32)["D"] == 2880 for _ in range(300))


@pytest.mark.parametrize("tokens", [LIST_TOKENS, LIST_TOKENS + 1])
def test_times_are_taken_with_all_lists(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products' rows follow from lists that several workgroups write: all must have run.
    Without them 400 tokens of 64 experts took 32.3 us for 34.8 (estimated, MI300X)."""
    asked: list[bool] = []
    timing = vgpu.timing

    def recorded(**options: Any) -> AbstractContextManager[Any]:
        asked.append(options["results"])
        return timing(**options)

    monkeypatch.setattr(vgpu, "timing", recorded)
    op = ops()["fused_moe_fp8"]
    c = call_on(op, {"M": tokens, "D": 128, "I": 128, "E": 4, "K": 2}, torch.device("cpu"))
    variants = tune_model.pool(op, c, 10, random.Random(0))
    times = list(tune_model.times_of(op, c, variants))
    assert [t[:2] for t in times] == variants and all(t[2] > 0 for t in times)
    assert asked == [tokens > LIST_TOKENS] * len(variants)


@pytest.mark.parametrize(
    "name", ["fused_moe", "fused_moe_tables", "fused_moe_fp8", "fused_moe_mxfp4", "fused_moe_mxfp8"]
)
def test_experts_that_are_timed_alone_have_choices_and_no_weights(name: str) -> None:
    """Weights of hundreds of experts are not quantised to be timed."""
    op = ops()[name]
    given: Mapping[str, int] = {"M": 9, "D": 512, "I": 512, "E": 16, "K": 4}
    problem = Problem(op, call_on(op, given, torch.device("cpu")), is_light=True)
    inputs = problem.call.inputs
    ids = inputs["topk_ids"]
    weights = ("gate", "up", "down") if name == "fused_moe_tables" else ("w1", "w2")
    for _, w in flat({argument: inputs[argument] for argument in weights}):
        assert not w.view(torch.uint8).any()
    assert all(len(set(row)) == 4 and 0 <= min(row) <= max(row) < 16 for row in ids.tolist())


@pytest.mark.parametrize("name", ["fused_moe_mxfp4", "fused_moe_mxfp8"])
def test_mx_variants_that_are_ranked_fit(name: str) -> None:
    """The space of a layer is that of one token: beyond it the model must exclude what its tokens
    leave no LDS for."""
    op = ops()[name]
    kernel: Any = op.kernels["hip"]
    model, rng, excluded = model_of(op), random.Random(0), 0
    for m in (1, 17, 100, 333, 1000, 4000):
        c = op.call_of(**{**op.draw(rng), "M": m})
        table = kernel.space(c)
        us = model.predict([kernel], [table], c)[1]
        for variant, predicted in zip(table, us, strict=True):
            if predicted < float("inf"):
                assert kernel.unsupported_config_reason(c, variant) is None, (str(c), variant)
            else:
                excluded += 1
                assert kernel.unsupported_config_reason(c, variant) is not None, (str(c), variant)
    assert excluded


@pytest.mark.parametrize("name", ["fused_moe_mxfp4", "fused_moe_mxfp8"])
def test_calls_of_about_as_many_tokens_share_a_choice_that_fits(name: str) -> None:
    op = ops()[name]
    kernel: Any = op.kernels["hip"]
    layer = {"D": 7168, "I": 512, "E": 33, "K": 8, "R": 32, "w_layout": "16x16"}
    made = {m: kernel.default(op.call_of(**layer, scale_layout="32x8", M=m)) for m in range(1, 700)}
    for m, config in made.items():
        c = op.call_of(**layer, scale_layout="32x8", M=m)
        assert kernel.unsupported_config_reason(c, config) is None, (m, config)
    assert len({made[m] for m in range(257, 273)}) == 1 < len(set(made.values()))
