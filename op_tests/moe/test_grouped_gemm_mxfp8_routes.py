"""grouped_gemm_mxfp8 by every route: the kernel that a call gets, each refusal, torch.ops, opcheck,
torch.compile."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rfops.cli.model_fit import model_of
from rfops.dispatch.dynamic_plan import DynamicShapePlan
from rfops.dispatch.kernel import Call
from rfops.jit import Plans
from rfops.jit.launch import launcher
from rfops.moe import grouped_gemm_mxfp8 as op_module
from rfops.moe.grouped_gemm_mxfp8 import OP, grouped_gemm_mxfp8
from rfops.moe.kernels.grouped.hip import MoeConfig
from support.calls import grouped_call, grouped_route
from support.grouped_problems import (
    BF16,
    F32,
    ROUTINGS,
    Problem,
    assert_correct,
    by_hand,
    problem_of,
    run,
    spread,
)
from support.tables import Write

pytestmark = pytest.mark.requires_gfx950


# ---------------------------------------------------------------- shapes that change every call


@pytest.fixture
def native_plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    """Plans that know families."""
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    monkeypatch.setattr(OP, "plans", plans := OP.plans.new_table())
    return plans


@pytest.mark.parametrize("gemm", [1, 2])
def test_a_growing_batch_is_right_and_checked_once(
    gemm: int, native_plans: Plans, gfx950: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    check = OP.check
    monkeypatch.setattr(OP, "check", lambda args: checks.append(1) or check(args))
    shapes = [(tokens, 24, 256) for tokens in range(1, 9)] + [(2, n, 96) for n in range(1, 20)]
    for tokens, n, k in shapes:
        problem = problem_of(spread(tokens, 2, 4), 4, n, k, gemm=gemm, block_m=4)
        assert_correct(run(problem, gfx950), problem)
    assert len(checks) == 1 and len(native_plans) == len(shapes)


def _made(backend: str, _call: Call, config: object) -> Callable[..., object]:
    return lambda *sizes: (backend, config, sizes)


@pytest.mark.parametrize(("a_div", "weighted"), [(4, False), (1, True)])
def test_a_familys_decisions_are_those_of_each_shape(
    a_div: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of sizes that share one, around the envelope and with rows."""
    for kernel in OP.kernels.values():
        monkeypatch.setattr(kernel, "variant", functools.partial(_made, kernel.name))
    family = DynamicShapePlan(OP, grouped_call(4, 48, 256, 8, 4, a_div, weighted), None)
    asked = set()
    rows_of = (1, 4, 7, 8, 9, 16, 17, 63, 64, 65, 200)
    n_of, k_of, e_of = (48, 1536, 2000, 2001, 6144), (96, 768, 6144, 8192), (8, 127, 128)
    drawn = itertools.product(rows_of, n_of, k_of, e_of)
    for rows, n, k, e in [*drawn, (4, 2**20, 2**24, 8), (4, 2**20, 2**24 + 32, 8)]:
        c = grouped_call(rows, n, k, e, 4, a_div, weighted, A=rows)
        kernel, _, config = OP.decide(c, family.router, None)
        blocks = -(-rows // 16) + e
        sizes = rows, n, k, e, rows, 16 * blocks, blocks
        expected = (kernel.name, config, sizes), BF16, torch.device("cpu"), rows, n
        for _ in range(2):
            assert family(*sizes) == expected, str(c)
        asked.add(kernel.name)
    assert "moe" in asked and len(asked) > 1


def test_refusals_of_a_familys_calls_are_those_of_the_first(
    native_plans: Plans, gfx950: torch.device
) -> None:
    """What the guards refuse they still do when another shape has passed them."""
    good = by_hand()
    run(good, gfx950)
    for changes, message in (
        ({"num_valid_tokens": 2 * good.a_q.shape[0] * good.a_div + 2}, "mul_weight_by must be of"),
        ({"expert_ids": good.expert_ids[:1]}, "expert_ids must be one for each"),
        ({"w_scale": good.w_scale[:, :, :1]}, "w_scale must be a"),
        ({"w": good.w[:1]}, "w_scale must be a"),
        ({"sorted_token_ids": good.sorted_token_ids.long()}, "sorted_token_ids must be int32"),
    ):
        wrong = dataclasses.replace(good, **changes)
        for _ in range(2):
            with pytest.raises(ValueError, match=f"grouped_gemm_mxfp8: {message}"):
                grouped_gemm_mxfp8(*wrong.to(gfx950).args())
    assert len(native_plans) == 1


# ---------------------------------------------------------------- routes


def test_the_triton_route(gfx950: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP.kernels["moe"], "unsupported_reason", lambda _: "the test wants Triton")
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    problem = problem_of(spread(20, 2, 4), 4, 32, 256, gemm=2)
    assert_correct(run(problem, gfx950), problem)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_torch_route(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    for name in ("moe", "triton"):
        monkeypatch.setattr(
            OP.kernels[name], "unsupported_reason", lambda _: "the test wants torch"
        )
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    monkeypatch.setattr(op_module, "_CHUNK", 2048)  # a part of N at a time
    for problem in (by_hand(), problem_of(ROUTINGS["some rows in no block"], 8, 20, 288, 5)):
        assert_correct(run(problem, torch.device("cpu")), problem)
    none = by_hand(expert_ids=torch.tensor([2, -1, 7, 0], dtype=torch.int32))
    assert_correct(run(none, torch.device("cpu")), none)


def test_a_row_is_for_the_block_m_that_its_config_takes(overlay: Write) -> None:
    """The table's key has no block_m: where the config does not fit it, the row does not hold."""
    row = {"m": 60, "n": 32, "k": 256, "kernel": "moe"}
    overlay({**row, "config": "tile_n=8 columns=1 steps=1 waves=1"}, op=OP.name)
    selected = grouped_route(60, 32, 256, 4, 4, 4, block_m=8)
    assert (selected.rule, selected.backend) == ("exact row", "moe")
    selected = grouped_route(60, 32, 256, 4, 4, 4, block_m=16)
    assert selected.rule == "envelope default"


@pytest.mark.parametrize(
    ("m", "n", "k", "e", "backend"),
    [(8, 112, 224, 8, "moe"), (88, 768, 5120, 160, "triton"), (1304, 640, 6144, 160, "triton")],
)
def test_the_kernel_predicted_to_be_quickest(m: int, n: int, k: int, e: int, backend: str) -> None:
    """Of sizes that no table has; in timing mode Triton takes 3 and 7 % less of the last two."""
    c = grouped_call(m, n, k, e, 8, 8)
    ranked = model_of(OP).rank(c)
    assert list(ranked) == sorted(ranked, key=lambda name: ranked[name].us)
    selected = grouped_route(m, n, k, e, 8, 8)
    assert (selected.rule, selected.backend) == ("envelope default", backend)


def test_other_architectures_do_without_hip() -> None:
    selected = grouped_route(4, 112, 224, 8, 2, 2, arch="gfx942")
    assert not selected.is_hip and "no kernel for gfx942" in selected.refused["moe"]


def test_supports() -> None:
    supports = grouped_gemm_mxfp8.supports  # type: ignore[attr-defined]
    assert supports(arch="gfx950", dtype=BF16, shape=(16, 1536, 6144, 128), backend="moe")
    assert not supports(arch="gfx942", backend="moe")
    assert not supports(arch="gfx950", backend="moe", block_m=129)
    assert supports(arch="sm_90", dtype=F32)
    assert not supports(arch="gfx950", dtype=torch.float64)
    assert not supports(arch="gfx950", shape=(16, 1536, 100, 128))
    with pytest.raises(ValueError, match="backend must be one of moe, triton, torch, got 'cublas'"):
        supports(arch="gfx950", backend="cublas")


# ---------------------------------------------------------------- refusals


def valid(**changes: Any) -> dict[str, Any]:
    """Arguments of a valid call: 2 tokens, top_k 2, E 3, N 4, K 64, blocks of 4; with changes."""
    p = problem_of(torch.tensor([[0, 1], [2, 1]], dtype=torch.int32), 3, 4, 64, block_m=4)
    names = [field.name for field in dataclasses.fields(p)][:10]
    args = {name: getattr(p, name) for name in names}
    return {**args, "out_dtype": BF16, "a_div": 2, **changes}


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a_q is a list": ({"a_q": [1.0]}, r"a_q must be a \[A, K\] tensor, got list"),
    "a_q is bf16": ({"a_q": torch.zeros(2, 64, dtype=BF16)}, "a_q must be float8_e4m3fn"),
    "w of 2 dimensions": ({"w": fp8(4, 64)}, r"w must be a \[E, N, K=64\] tensor, got \[4, 64\]"),
    "w of another fp8": (
        {"w": fp8(3, 4, 64).view(torch.uint8).view(torch.float8_e5m2)},
        "w must be float8_e4m3fn, .*quantise it with",
    ),
    "K differs": ({"w": fp8(3, 4, 96)}, r"w must be a \[E, N, K=64\] tensor"),
    "K not of 32": ({"a_q": fp8(2, 48), "w": fp8(3, 4, 48)}, "K must be a positive multiple of 32"),
    "a_scale of the wrong K": ({"a_scale": bytes_of(2, 4)}, r"a_scale must be a \[A=2, K/32=2\]"),
    "w_scale of the wrong E": (
        {"w_scale": bytes_of(2, 4, 2)},
        r"w_scale must be a \[E=3, N=4, K/32=2\] tensor, got \[2, 4, 2\]",
    ),
    "w_scale is fp32": ({"w_scale": torch.zeros(3, 4, 2)}, "w_scale must be uint8 or float8_e8m0"),
    "ids of int64": (
        {"sorted_token_ids": int32(12).long()},
        "sorted_token_ids must be int32, .*make the layout with rfops.moe_align_block_size",
    ),
    "too many ids": (
        {"sorted_token_ids": torch.empty(2**29, dtype=torch.int32)},  # never touched
        r"sorted_token_ids must be shorter than 536870912 .*got 536870912; split the rows",
    ),
    "expert_ids of 2 dimensions": ({"expert_ids": int32(3, 1)}, r"expert_ids must be a \[blocks\]"),
    "too few expert_ids": ({"expert_ids": int32(1)}, "expert_ids must be one for each of 4 blocks"),
    "num_tokens_post_padded of 2": (
        {"num_tokens_post_padded": int32(2)},
        r"num_tokens_post_padded must be a \[1\] tensor, got \[2\]",
    ),
    "num_valid_tokens negative": ({"num_valid_tokens": -1}, "num_valid_tokens must be an int from"),
    "num_valid_tokens a tensor": (
        {"num_valid_tokens": torch.tensor(4)},
        "num_valid_tokens must be an int from 0",
    ),
    "top_k of 0": ({"top_k": 0}, r"top_k must be an int from 1 to 2\^31 - 1, got 0"),
    "block_m of 0": ({"block_m": 0}, "block_m must be an int from 1"),
    "a_div of 0": ({"a_div": 0}, "a_div must be an int from 1"),
    "too few rows of a": (
        {"a_div": 1},
        "a_q must be of at least num_valid_tokens / a_div = 4 rows, got 2; pass a_div = top_k",
    ),
    "weights are bf16": (
        {"mul_weight_by": torch.ones(4, dtype=BF16)},
        "mul_weight_by must be float32, .*pass the routed weights in float32",
    ),
    "too few weights": (
        {"mul_weight_by": torch.ones(3)},
        r"mul_weight_by must be of num_valid_tokens = 4 elements, got \[3\]",
    ),
    "weights are a list": ({"mul_weight_by": [1.0]}, "mul_weight_by must be a tensor or None"),
    "topk_ids are a list": ({"topk_ids": [[0, 1]]}, "topk_ids must be a tensor or None, got list"),
    "out_dtype is int8": (
        {"out_dtype": torch.int8},
        "out_dtype must be bfloat16, float16 or float32",
    ),
    "a_q on another device": ({"w": fp8(3, 4, 64).to("meta")}, "w must be on cpu as a_q is"),
    "a_q not contiguous": ({"a_q": fp8(2, 128)[:, :64]}, "a_q must be contiguous"),
    "w transposed": ({"w": fp8(3, 64, 4).transpose(1, 2)}, "w must be contiguous"),
    "w_scale transposed": (
        {"w_scale": bytes_of(3, 2, 4).transpose(1, 2)},
        "w_scale must be contig",
    ),
    "ids not contiguous": ({"sorted_token_ids": int32(26)[::2]}, "sorted_token_ids must be contig"),
    "weights not contiguous": (
        {"mul_weight_by": torch.ones(8)[::2]},
        "mul_weight_by must be contig",
    ),
    "w at an odd address": (
        {"w": fp8(3 * 4 * 64 + 8).view(-1)[8:].view(3, 4, 64)},
        "w must be 16-byte aligned, got .*8 bytes beyond",
    ),
    "out of another shape": (
        {"out": torch.zeros(2, 4, dtype=BF16)},
        r"out must be a \[num_valid_tokens=4, N=4\] tensor, got \[2, 4\]",
    ),
    "out of another dtype": ({"out": torch.zeros(4, 4)}, "out must be bfloat16, .*float32"),
    "config of another op": (
        {"config": (1, 2)},
        r"config must be one of MoeConfig, TritonConfig, got \(1, 2\)",
    ),
    "config that does not fit": (
        {"config": MoeConfig(8, 1, 1, 1), "block_m": 9},
        "config must be of a kernel that takes M=4 N=4 K=64 .* on gfx950, .*at most 8 rows",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^grouped_gemm_mxfp8: {message}"):
        grouped_gemm_mxfp8(**valid(**changes))


def test_out_must_not_overlap_an_input() -> None:
    memory = torch.zeros(8192, dtype=torch.uint8)
    w = memory[: 3 * 4 * 64].view(torch.float8_e4m3fn).view(3, 4, 64)
    out = memory[256 : 256 + 32].view(BF16).view(4, 4)
    with pytest.raises(ValueError, match=r"out must not overlap w, .*pass another out"):
        grouped_gemm_mxfp8(**valid(w=w, out=out))


def test_a_cached_plan_still_checks_pointers() -> None:
    args = valid()
    grouped_gemm_mxfp8(**args)
    with pytest.raises(ValueError, match="a_q must be contiguous"):
        grouped_gemm_mxfp8(**{**args, "a_q": fp8(2, 128)[:, :64]})
    with pytest.raises(ValueError, match="w must be 16-byte aligned"):
        grouped_gemm_mxfp8(**{**args, "w": fp8(3 * 4 * 64 + 4)[4:].view(3, 4, 64)})


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP, "plans", Plans(3))
    for k in (32, 64, 96, 128, 160):
        empty = problem_of(spread(2, 2, 4), 4, 0, k)
        for _ in range(2):
            assert grouped_gemm_mxfp8(*empty.args()).shape == (4, 0)
    assert len(OP.plans) == 3


# ---------------------------------------------------------------- torch


def test_opcheck() -> None:
    """Payloads as bytes: torch has no allclose for float8, which opcheck wants."""
    problem = problem_of(spread(3, 2, 4), 4, 8, 64, block_m=4, gemm=2)
    a_q, a_scale, w, *others = problem.args()
    args = (a_q.view(torch.uint8), a_scale, w.view(torch.uint8), *others, None, "")
    torch.library.opcheck(torch.ops.rfops.grouped_gemm_mxfp8.default, args)
    out = torch.zeros(6, 8, dtype=BF16)
    torch.library.opcheck(torch.ops.rfops.grouped_gemm_mxfp8_out.default, (*args, out))


def test_compiles() -> None:
    """Traced as one op, into a given output too, with a config and a changing number of rows."""
    config = MoeConfig(16, 1, 1, 2)

    def twice(problem: Problem) -> torch.Tensor:
        out = torch.zeros(problem.num_valid_tokens, 8, dtype=F32)
        grouped_gemm_mxfp8(*problem.args(F32), out=out, config=config)
        return out + grouped_gemm_mxfp8(*problem.args(F32), config=config)

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
    for tokens in (2, 3, 5):
        problem = problem_of(spread(tokens, 2, 4), 4, 8, 64, block_m=4)
        assert torch.equal(compiled(problem), twice(problem))
