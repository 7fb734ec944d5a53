"""moe_topk_align: the choice of grouped_topk bit by bit, and the layout of moe_align_block_size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops import grouped_topk
from rfops.moe.align_block_size import moe_align_block_size_ref
from rfops.moe.topk_align import OP, RoutedRows, moe_topk_align, moe_topk_align_ref

ARCHS = ("gfx942", "gfx950")
BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture(params=ARCHS)
def device(request: pytest.FixtureRequest) -> torch.device:
    device: torch.device = request.getfixturevalue(request.param)
    return device


def random_logits(m: int, e: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Of few values, so that many are equal."""
    generator = torch.Generator().manual_seed(1009 * m + e)
    return torch.randint(-8, 9, (m, e), generator=generator).to(dtype) / 4


def half_local(experts: int) -> torch.Tensor:
    """An expert map: odd experts are local, in order; even ones are elsewhere."""
    local = torch.arange(experts, dtype=torch.int32) // 2
    return local.masked_fill(torch.arange(experts) % 2 == 0, -1)


def assert_equal(actual: RoutedRows, expected: RoutedRows) -> None:
    for name, ours, theirs in zip(RoutedRows._fields, actual, expected, strict=True):
        ours, theirs = ours.cpu(), theirs.cpu()
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
        wrong = (ours != theirs).nonzero()
        assert not len(wrong), (
            f"{name}: {len(wrong)} of {ours.numel()} differ, first at {wrong[0].tolist()}: got "
            f"{ours[tuple(wrong[0])]}, expected {theirs[tuple(wrong[0])]}"
        )


def check(
    logits: torch.Tensor,
    k: int,
    block: int,
    device: torch.device,
    expert_map: torch.Tensor | None = None,
    pad: bool = False,
    ignore: bool = False,
    **choice: Any,
) -> None:
    """The op, and each kernel that takes the call into poisoned memory, twice."""
    there = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in choice.items()}
    experts = logits.shape[1]
    rounds = there.pop("round_scores", False)
    if rounds:
        bias = choice.pop("bias", None)
        weights, ids, *_ = moe_topk_align_ref(logits, bias, None, block, k, **choice)
    else:
        options = {"renormalize": False, "score": "softmax", **there}
        weights, ids = grouped_topk(logits.to(device), k, **options)
    layout = moe_align_block_size_ref(ids.cpu(), block, experts, expert_map, pad, ignore)
    expected = RoutedRows(weights, ids, *layout)
    local = None if expert_map is None else expert_map.to(device)
    arguments = {"expert_map": local, "pad_sorted_ids": pad, "ignore_invalid_experts": ignore}
    if rounds:
        arguments["round_scores"] = True
    x = logits.to(device)
    actual = moe_topk_align(x, k, block, **there, **arguments)
    if not rounds:
        assert_equal(actual, expected)
    bias = there.get("bias")
    names = ("num_groups", "topk_groups", "renormalize", "score", "scale")
    usual = {
        "num_groups": 1,
        "topk_groups": 1,
        "renormalize": False,
        "score": "softmax",
        "scale": 1.0,
    }
    values = [{**usual, **there}[name] for name in names]
    c = OP.check((x, bias, local, block, k, *values, rounds, pad, ignore))[0]
    for name, kernel in OP.kernels.items():
        if name == "torch" or kernel.unsupported_reason(c) is not None:
            continue
        run = OP.prepare(name, c)
        for _ in range(2):
            results = [torch.full(t.shape, -7, dtype=t.dtype, device=device) for t in expected]
            run(RoutedRows(*results), x, bias, local)
            assert_equal(RoutedRows(*results), actual)


DEEPSEEK: dict[str, Any] = {
    "num_groups": 8,
    "topk_groups": 4,
    "renormalize": True,
    "score": "sigmoid",
    "scale": 2.5,
    "bias": torch.linspace(-0.2, 0.3, 256)[torch.randperm(256)],
}
CASES: dict[str, tuple[torch.Tensor, int, int, dict[str, Any]]] = {
    "one": (random_logits(1, 256), 8, 16, DEEPSEEK),
    "a workgroup": (random_logits(8, 256, BF16), 8, 16, DEEPSEEK),
    "several": (random_logits(9, 256), 8, 16, DEEPSEEK),
    "64": (random_logits(64, 256, BF16), 8, 64, DEEPSEEK),
    "most rows": (random_logits(64, 65), 16, 5, {"score": "sqrtsoftplus"}),
    "more rows": (random_logits(103, 65), 10, 16, {"renormalize": True}),
    "most experts": (random_logits(11, 1024), 16, 1, {"num_groups": 16, "topk_groups": 8}),
    "few experts": (random_logits(200, 5), 3, 4, {}),
    "one expert": (random_logits(70, 1), 1, 1, {"score": "sigmoid"}),
    "uneven groups": (random_logits(13, 60), 4, 1000, {"num_groups": 3, "topk_groups": 2}),
    # 3 groups have lanes for 2,048 experts, 9 for 1,024.
    "lanes for more experts": (random_logits(3, 777), 3, 16, {"num_groups": 3, "topk_groups": 3}),
    "lanes of 9 groups": (random_logits(3, 585), 4, 16, {"num_groups": 9, "topk_groups": 5}),
    "strided": (random_logits(40, 72).T[8:48:2, 1:33], 4, 16, {}),
    "no rows": (random_logits(0, 8), 2, 16, {}),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", CASES)
def test_is_the_choice_and_the_layout(case: str, device: torch.device) -> None:
    logits, k, block, choice = CASES[case]
    check(logits, k, block, device, pad=case == "few experts", **choice)


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("m", [3, 33])
def test_maps(m: int, ignore: bool, device: torch.device) -> None:
    """Half of the experts are here; and a map with two experts of the same number."""
    check(random_logits(m, 96), 8, 16, device, half_local(96), ignore=ignore, renormalize=True)
    many_to_one = torch.arange(96, dtype=torch.int32) % 3 - (torch.arange(96) % 5 == 0).int() * 9
    check(random_logits(m, 96), 8, 4, device, many_to_one, ignore=ignore)


def test_rounded_scores(device: torch.device) -> None:
    """Every kernel as the op, which is as the reference."""
    logits = random_logits(21, 64, BF16)
    check(logits, 4, 16, device, round_scores=True, score="sigmoid")
    actual = moe_topk_align(logits.to(device), 4, 16, score="sigmoid", round_scores=True)
    expected = moe_topk_align_ref(logits, None, None, 16, 4, score="sigmoid", round_scores=True)
    torch.testing.assert_close(actual.weights.cpu(), expected.weights, rtol=2**-8, atol=0)
    assert_equal(actual._replace(weights=expected.weights), expected)


def test_torch_route(device: torch.device) -> None:
    logits, bias = random_logits(20, 24), torch.linspace(-1, 1, 24)
    values = (1, 1, True, "sigmoid", 1.5, False, False, True)
    expected = moe_topk_align_ref(logits, bias, half_local(24), 16, 4, *values[:-2], *values[-2:])
    there = [t.to(device) for t in (logits, bias, half_local(24))]
    c = OP.check((*there, 16, 4, *values))[0]
    results = RoutedRows(*[torch.full_like(t, -7).to(device) for t in expected])
    OP.prepare("torch", c)(results, *there)
    assert_equal(results, expected)


def test_ids_exist_for_any_logits(device: torch.device) -> None:
    logits = random_logits(17, 32)
    logits[0], logits[1, 3], logits[2], logits[3, ::2] = torch.nan, torch.inf, -torch.inf, torch.nan
    check(logits, 4, 16, device)


def test_checking_mode_is_silent(device: torch.device) -> None:
    logits, bias = random_logits(12, 256).to(device), DEEPSEEK["bias"].to(device)
    with rfops.vgpu.check() as checked:
        moe_topk_align(logits, 8, 16, **{**DEEPSEEK, "bias": bias})
    assert not checked.findings, "\n".join(map(str, checked.findings))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 9}, "top_k must be at most 8"),
        ({"num_groups": 3}, "num_groups must be a divisor of E=8"),
        ({"num_groups": 2, "topk_groups": 3}, "topk_groups must be at most num_groups=2"),
        ({"block_size": 0}, "block_size must be"),
        ({"block_size": 2**28}, "logits must be small enough for"),
        ({"bias": torch.zeros(7)}, "bias must be"),
        ({"expert_map": torch.zeros(7, dtype=torch.int32)}, "expert_map must be"),
        ({"score": "tanh"}, "score must be"),
    ],
    ids=str,
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^moe_topk_align: {message}"):
        moe_topk_align(random_logits(4, 8), **{"top_k": 2, "block_size": 4, **arguments})
