"""moe_router: experts identical to the challenge's reference, weights to its rounding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.moe.grouped_topk import grouped_topk_ref
from rfops.moe.router import OP, moe_router, moe_router_kernel, moe_router_ref

ARCHS = ("gfx942", "gfx950")
F16, BF16 = torch.float16, torch.bfloat16
PLAIN = (None, 1, 1, "softmax", 1.0)  # no bias, no groups


@pytest.fixture(params=ARCHS)
def device(request: pytest.FixtureRequest) -> torch.device:
    device: torch.device = request.getfixturevalue(request.param)
    return device


def random_rows(
    m: int, d: int, e: int, dtype: torch.dtype = F16, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the challenge draws them: logits of about 1."""
    generator = torch.Generator().manual_seed(1009 * m + 31 * d + e + 7919 * seed)
    x = torch.randn(m, d, generator=generator).to(dtype)
    return x, torch.randn(e, d, generator=generator).to(dtype) / math.sqrt(d)


def exact_rows(m: int, d: int, e: int, dtype: torch.dtype = F16) -> tuple[Any, Any]:
    """Small integers, whose sums are exact in any order and whose logits are often equal."""
    generator = torch.Generator().manual_seed(1009 * m + 31 * d + e)
    x = torch.randint(-1, 2, (m, d), generator=generator).to(dtype)
    return x, (torch.randint(-4, 5, (e, d), generator=generator) / 64).to(dtype)


def challenge(x: torch.Tensor, w: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The challenge's reference: logits and softmax in fp16, top-k of these, ties to the lowest."""
    logits = (x.float() @ w.float().T).to(x.dtype)
    p = logits.softmax(-1)
    ids = p.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return p.gather(1, ids).float(), ids


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("m", "d", "e", "k", "dtype"),
    [
        (16, 256, 32, 4, F16),
        (1, 8, 1, 1, F16),
        (37, 520, 33, 5, BF16),
        (50, 1032, 4, 4, F16),
        (17, 264, 65, 8, BF16),
        (5, 512, 256, 8, BF16),
        (3, 264, 512, 16, F16),
        (9, 296, 300, 3, F16),
    ],
)
def test_exact_logits(
    m: int, d: int, e: int, k: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Bit by bit, with many equal experts; and so by the torch route."""
    x, w = exact_rows(m, d, e, dtype)
    expected, wanted_ids = challenge(x, w, k)
    x_there, w_there = x.to(device), w.to(device)
    c = OP.check((x_there, w_there, k, False, True, *PLAIN, None, None))[0]
    results = []
    for backend in ("products", "hip", "torch"):
        if OP.kernels[backend].unsupported_reason(c) is None:
            weights = torch.full((m, k), math.nan, device=device)
            ids = torch.full((m, k), -1, dtype=torch.int32, device=device)
            OP.prepare(backend, c)((weights, ids), x_there, w_there, None)
            results.append((weights, ids))
    assert len(results) == 3
    for weights, ids in (moe_router(x_there, w_there, k), *results):
        assert torch.equal(ids.cpu().long(), wanted_ids)
        assert torch.equal(weights.cpu(), expected)


def assert_same_choice(m: int, seed: int, device: torch.device) -> None:
    x, w = random_rows(m, 7168, 32, seed=seed)
    expected, wanted_ids = challenge(x, w, 4)
    weights, ids = (t.cpu() for t in moe_router(x.to(device), w.to(device), 4))
    # The reference's top-k is not sorted, so sets count.
    differ = (ids.long().sort(1).values != wanted_ids.sort(1).values).any(1)
    assert not differ.any(), f"tokens {differ.nonzero().flatten().tolist()} of seed {seed}"
    # A logit may be an ULP of fp16 off, 2^-8 from 4 to 8, which the largest are; so may its weight,
    # by e^(2^-8) and both roundings of 2^-11.
    sorted_pair = weights.sort(1).values, expected.sort(1).values
    assert ((sorted_pair[0] - sorted_pair[1]).abs() <= (2.0**-8 + 2.0**-9) * sorted_pair[1]).all()


def test_experts_are_the_challenges(device: torch.device) -> None:
    assert_same_choice(1024, 3, device)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_experts_are_the_challenges_for_8192_tokens(seed: int, device: torch.device) -> None:
    assert_same_choice(8192, seed, device)


# D, E and the arguments of models' routers: DeepSeek-V3, Kimi K2, DeepSeek-V4, Qwen3, and the most
# experts.
MODELS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "deepseek v3": (
        520,
        256,
        {"top_k": 8, "num_groups": 8, "topk_groups": 4, "score": "sigmoid", "scale": 2.5},
    ),
    "kimi k2": (264, 384, {"top_k": 8, "score": "sigmoid", "scale": 2.827}),
    "deepseek v4": (264, 384, {"top_k": 6, "score": "sqrtsoftplus", "scale": 1.5}),
    "qwen3": (264, 128, {"top_k": 8}),
    "1,024 experts": (264, 1024, {"top_k": 16, "num_groups": 16, "topk_groups": 8}),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("m", [1, 21])
@pytest.mark.parametrize("model", MODELS)
def test_routers_of_models(model: str, m: int, device: torch.device) -> None:
    """Logits are exact, so that experts are those of grouped_topk_ref; some equal others."""
    d, e, arguments = MODELS[model]
    x, w = exact_rows(m, d, e, BF16)
    arguments = {**arguments, "renormalize": True}
    if model not in ("qwen3", "1,024 experts"):
        arguments["bias"] = torch.linspace(-0.2, 0.3, e)[torch.randperm(e)]
    expected, wanted_ids = moe_router_ref(x, w, round_scores=False, **arguments)
    logits = (x.float() @ w.float().T).to(BF16)
    by_logits = grouped_topk_ref(logits, **{"bias": None, "score": "softmax", **arguments})
    assert torch.equal(by_logits[1], wanted_ids) and torch.equal(by_logits[0], expected)
    there = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    weights = torch.full((m, arguments["top_k"]), math.nan, device=device)
    _, ids = moe_router(x.to(device), w.to(device), round_scores=False, weights=weights, **there)
    assert torch.equal(ids.cpu(), wanted_ids)
    torch.testing.assert_close(weights.cpu(), expected, rtol=(2 * e + 32) * 2**-24, atol=0)


def test_scores_are_rounded_as_torch_does(device: torch.device) -> None:
    x, w = exact_rows(9, 264, 64, BF16)
    expected, wanted_ids = moe_router_ref(x, w, 4, score="sigmoid")
    weights, ids = moe_router(x.to(device), w.to(device), 4, score="sigmoid")
    assert torch.equal(ids.cpu(), wanted_ids)
    assert torch.equal(weights.cpu(), weights.cpu().to(BF16).float())
    torch.testing.assert_close(weights.cpu(), expected, rtol=2**-8, atol=0)


def test_which_kernel_runs() -> None:
    """One launch where few experts make the products a small part; scores that it lacks, or more
    experts, by the products."""

    def backend(**sizes: Any) -> str:
        return OP.route(OP.call_of(**{"M": 16, "D": 7168, "E": 256, "K": 8, **sizes})).backend

    assert backend() == backend(M=8192) == backend(E=1024) == "products"
    assert backend(M=8192, E=8) == "hip" and backend(M=16, E=8) == "products"
    assert backend(M=1025, E=8) == "hip" and backend(M=1024, E=8) == "products"
    assert backend(M=8192, E=8, score="sigmoid") == backend(M=8192, E=8, bias=True) == "products"
    assert backend(E=1040) == backend(D=7169) == "torch"


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
def test_options(rounds: bool, renormalize: bool, device: torch.device) -> None:
    x, w = exact_rows(40, 264, 40)
    expected, wanted_ids = moe_router_ref(x, w, 4, renormalize, rounds)
    weights, ids = moe_router(x.to(device), w.to(device), 4, renormalize, round_scores=rounds)
    assert torch.equal(ids.cpu(), wanted_ids)
    torch.testing.assert_close(weights.cpu(), expected, rtol=40 * 2**-24, atol=0)
    if renormalize:
        torch.testing.assert_close(weights.sum(1).cpu(), torch.ones(40), rtol=1e-6, atol=0)


def test_rows_far_apart_and_nan_beside_them(device: torch.device) -> None:
    """Rows of larger tensors, NaN between them and behind them; and of one, at any stride."""
    x, w = exact_rows(37, 264, 33)
    wide_x = torch.full((41, 512), math.nan, dtype=F16)
    wide_w = torch.full((35, 272), math.nan, dtype=F16)
    wide_x[:37, 8:272], wide_w[:33, :264] = x, w
    inside = wide_x[:37, 8:272], wide_w[:33, :264]
    expected, wanted_ids = challenge(x, w, 4)
    with rfops.vgpu.check() as checked:
        weights, ids = moe_router(*(t.to(device) for t in inside), 4)
    assert torch.equal(ids.cpu().long(), wanted_ids) and torch.equal(weights.cpu(), expected)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    turned = x.T.contiguous().T  # torch's route
    _, ids = moe_router(turned.to(device), w.to(device), 4)
    assert torch.equal(ids.cpu().long(), wanted_ids)


def test_a_row_of_nan_is_its_own_alone(device: torch.device) -> None:
    x, w = exact_rows(20, 264, 33)
    wanted_ids = challenge(x, w, 4)[1]
    x[5], x[17, 3] = math.nan, math.inf
    weights, ids = (t.cpu() for t in moe_router(x.to(device), w.to(device), 4))
    others = [i for i in range(20) if i not in (5, 17)]
    assert torch.equal(ids[others].long(), wanted_ids[others])
    assert ((ids >= 0) & (ids < 33)).all() and weights.isfinite().all()
    assert ids[5].tolist() == [0, 1, 2, 3] and len(set(ids[17].tolist())) == 4


def test_the_same_again_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = random_rows(20, 1024, 40)
    for arch in ARCHS:
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
        first = moe_router(x, w, 4, True)
        for schedule in ("random:1", "random:2"):
            monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
            assert all(map(torch.equal, moe_router(x, w, 4, True), first))


def test_other_sizes_of_a_family(device: torch.device) -> None:
    for m, e in ((1, 40), (16, 40), (17, 40), (33, 40), (5, 41)):
        x, w = exact_rows(m, 264, e)
        _, ids = moe_router(x.to(device), w.to(device), 4)
        assert torch.equal(ids.cpu().long(), challenge(x, w, 4)[1])


@pytest.mark.parametrize("arch", ARCHS)
def test_what_it_does(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of one launch: no scratch; x from memory once; LDS without conflicts."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    x, w = random_rows(64, 2048, 32)
    results = torch.empty(64, 4), torch.empty(64, 4, dtype=torch.int32)
    run = OP.prepare("hip", OP.check((x, w, 4, False, True, *PLAIN, *results))[0])
    with rfops.vgpu.profile() as p:
        run(results, x, w, None)
    (launch,) = p.launches
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    assert launch.lds_conflict_cycles == 0
    assert launch.global_read["bytes"] == x.nbytes + 4 * w.nbytes
    for e, k in ((128, 8), (256, 8), (512, 16)):
        c = OP.call_of(arch, M=4, D=64, E=e, K=k, x_dtype=F16)
        defines = OP.kernels["hip"].defines(c, None)
        resources = moe_router_kernel.bind(x.device, defines, arch).resources
        assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch"] == 0


def test_checker_finds_nothing(device: torch.device) -> None:
    with rfops.vgpu.check() as checked:
        for m, d, e in ((17, 264, 33), (3, 40, 270)):
            moe_router(*(t.to(device) for t in random_rows(m, d, e)), 3)
    assert not checked.findings, "\n".join(map(str, checked.findings))


def test_writes_its_results_alone(device: torch.device) -> None:
    x, w = (t.to(device) for t in exact_rows(19, 264, 33))
    memory = torch.full((19 * 5 + 64,), -7.0, device=device)
    whole = torch.full((19 * 5 + 64,), -7, dtype=torch.int32, device=device)
    weights, ids = (t[32 : 32 + 95].view(19, 5) for t in (memory, whole))
    moe_router(x, w, 5, weights=weights, ids=ids)
    assert torch.equal(ids.cpu().long(), challenge(x.cpu(), w.cpu(), 5)[1])
    for buffer in (memory, whole):
        assert (buffer[:32] == -7).all() and (buffer[-32:] == -7).all()


def test_empty_and_opcheck() -> None:
    x, w = exact_rows(4, 64, 8)
    assert moe_router(x[:0], w, 2)[1].shape == (0, 2)
    torch.library.opcheck(torch.ops.rfops.moe_router.default, (x, w, 2, False, True, *PLAIN))


ROWS, WEIGHT = torch.zeros(4, 64, dtype=F16), torch.zeros(8, 64, dtype=F16)
REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "fp32": ((ROWS.float(), WEIGHT, 2), "x must be bfloat16 or float16, got .*; convert it"),
    "two dtypes": ((ROWS, WEIGHT.bfloat16(), 2), "router_weight must be torch.float16 as x is"),
    "another K": ((ROWS, WEIGHT[:, :32], 2), r"router_weight must be a \[E, D=64\] tensor"),
    "more than E": (
        (ROWS, WEIGHT, 9),
        "top_k must be at most 8, the experts that may be chosen, got 9",
    ),
    "a bias of another size": (
        (ROWS, WEIGHT, 2, False, {"bias": torch.zeros(7)}),
        r"bias must be a \[E=8\] tensor",
    ),
    "groups": ((ROWS, WEIGHT, 2, False, {"num_groups": 3}), "num_groups must be a divisor of E=8"),
    "best groups": (
        (ROWS, WEIGHT, 2, False, {"num_groups": 2, "topk_groups": 3}),
        "topk_groups must be at most num_groups=2",
    ),
    "another score": ((ROWS, WEIGHT, 2, False, {"score": "relu"}), "score must be"),
    "no experts": ((ROWS, WEIGHT[:0], 1), "E must be positive"),
    "top_k of 0": ((ROWS, WEIGHT, 0), "top_k must be an int from 1"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    args, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^moe_router: {message}"):
        moe_router(*args[:4], **(args[4] if len(args) > 4 else {}))


def test_supports() -> None:
    assert moe_router.supports(arch="gfx942", dtype=F16)  # type: ignore[attr-defined]
    assert not moe_router.supports(arch="gfx950", dtype=torch.float32)  # type: ignore[attr-defined]
