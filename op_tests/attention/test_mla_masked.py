"""mla_decode: NaN and inf in tokens that some queries do not see stay out of their results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rfops import mla_decode
from rfops.attention.mla_decode_flow import MIN_TOKENS, FlowConfig
from rfops.attention.mla_decode_shared import MIN_TOKENS as MIN_TOKENS_SHARED
from rfops.attention.mla_decode_shared import SharedConfig, SharedFp8Config
from rfops.attention.mla_decode_triton import MlaTritonConfig
from support.mla_problems import Problem, assert_correct, exact, problem, run

CONFIGS: dict[str, Any] = {
    "torch": [None],
    "triton": [MlaTritonConfig(32, 1, 32), MlaTritonConfig(16, 4)],
    "flow": [FlowConfig(1, MIN_TOKENS), FlowConfig(7, MIN_TOKENS)],
    "shared": [SharedConfig(1, MIN_TOKENS_SHARED), SharedConfig(5, MIN_TOKENS_SHARED)],
    "shared_fp8": [SharedFp8Config(1, MIN_TOKENS_SHARED), SharedFp8Config(5, MIN_TOKENS_SHARED)],
}
KERNELS = [
    ("gfx950", "torch"),
    ("gfx950", "triton"),
    ("gfx942", "flow"),
    ("gfx950", "flow"),
    ("gfx942", "shared"),
    ("gfx950", "shared"),
    ("gfx950", "shared_fp8"),
]


@pytest.fixture(params=KERNELS, ids="-".join)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param[0])
    arch, name = request.param
    return arch, name


def poisoned(p: Problem, tokens: list[int], values: dict[int, float]) -> Problem:
    """These elements in these tokens of every sequence, from its end."""
    other = p.with_(kv=p.kv.clone())
    for b, length in enumerate(p.lens):
        for back in tokens:
            if back <= length:
                pages, positions = p.rows(b)
                row = p.kv[pages[length - back], positions[length - back], 0].float()
                for element, value in values.items():
                    row[element] = value
                other.set_row(b, length - back, row)
    return other


def assert_same(kernel: tuple[str, str], p: Problem, config: Any) -> None:
    """NaN in just the heads that float64 has it in, and there in all of a head; the others right.
    (A P of FP8 has three bits of a mantissa.)"""
    out, lse = run(kernel[1], p, config)
    expected, wanted_lse = exact(p)
    is_nan = expected.isnan().any(-1)
    for label, result in (
        ("any", out.isnan().any(-1)),
        ("all", out.isnan().all(-1)),
        ("lse", lse.isnan()),
    ):
        wrong = (result != is_nan).nonzero().tolist()
        assert not wrong, f"{label}: rows and heads {wrong[:4]} of {p.lens}"
    assert is_nan.any() and not is_nan.all()
    error = (out.double() - expected).norm(dim=-1)[~is_nan]
    bound = expected.norm(dim=-1)[~is_nan] * (2**-4 if kernel[1] == "shared_fp8" else 4e-3)
    assert (error <= bound).all(), f"off by {(error / bound.clamp(min=1e-30)).max():.1f} bounds"
    apart = (lse.double() - wanted_lse)[~is_nan & wanted_lse.isfinite()].abs()
    assert apart.max() <= (0.1 if kernel[1] == "shared_fp8" else 1e-3)


def shape(kernel: tuple[str, str], **form: Any) -> Problem:
    """The newest tokens in a tile's middle, at its end, at the next one's begin; few tokens."""
    heads = 33 if kernel[1].startswith("shared") else 6
    if kernel[1] == "shared_fp8":
        form |= {"fp8": True, "q_fp8": True}
    return problem([40, 3, 64, 66, 200], heads, arch=kernel[0], **form)


@pytest.mark.parametrize(("back", "which"), [(1, 0), (3, 0), (1, 1), (2, 1)])
def test_nan_in_a_new_token(kernel: tuple[str, str], back: int, which: int) -> None:
    """The newest token is seen by the last query alone, the one before by two."""
    p = poisoned(shape(kernel, qo_len=4), [back], {5: math.nan})
    assert_same(kernel, p, CONFIGS[kernel[1]][-1 - which if len(CONFIGS[kernel[1]]) > 1 else 0])


@pytest.mark.thin(3)
@pytest.mark.parametrize("form", [{"fp8": True}, {"page": 16, "table": True}], ids=str)
def test_forms_of_a_cache(kernel: tuple[str, str], form: dict[str, Any]) -> None:
    """At both ends of a value, and in the key alone."""
    for element in (0, 511, 575):
        p = poisoned(shape(kernel, qo_len=2, **form), [1], {element: math.nan})
        assert_same(kernel, p, CONFIGS[kernel[1]][-1])


def test_inf_in_a_new_token(kernel: tuple[str, str]) -> None:
    """Of both signs: then scores are NaN. FP8 has none."""
    if kernel[1] == "shared_fp8":
        return
    p = poisoned(shape(kernel, qo_len=2), [1], {3: math.inf, 4: -math.inf, 5: math.nan})
    assert_same(kernel, p, CONFIGS[kernel[1]][-1])


def test_nan_in_a_query(kernel: tuple[str, str]) -> None:
    """It is its own alone: tokens of finite values count for all others."""
    if kernel[1] == "shared_fp8":
        return
    p = shape(kernel, qo_len=4)
    q = p.q.clone()
    q[::4] = math.nan  # the first query of each sequence: the new tokens are masked for it
    assert_same(kernel, p.with_(q=q), CONFIGS[kernel[1]][-1])


@pytest.mark.parametrize("page", [63, 31, 1, 128, 256])
def test_page_sizes(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of single calls by the route, NaN behind each sequence's end."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    p = problem([300, 5, page], 4, page=page, qo_len=2)
    lse = torch.full(p.q.shape[:2], math.nan)
    actual = mla_decode(
        p.q, p.kv, p.kv_indptr, p.kv_indices, p.sm_scale, qo_len=2, kv_lens=p.kv_lens, lse=lse
    )
    assert_correct((actual, lse), p)
