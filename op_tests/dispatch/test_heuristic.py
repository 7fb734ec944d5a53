"""Candidates of experts, and what `rfops build` prepares."""

from __future__ import annotations

from rfops.dispatch.heuristic import prebuilt
from rfops.dispatch.op import ops
from support.calls import default_config, grouped_call


def test_candidates_of_experts_begin_with_the_default() -> None:
    c = grouped_call(4, 1536, 6144, 128, 4, 4)
    for name in ("moe", "triton"):
        kernel = ops()["grouped_gemm_mxfp8"].kernels[name]
        candidates = list(kernel.candidates(c))
        assert candidates[0] == kernel.default(c)
        assert len(set(candidates)) > 3 if name == "triton" else len(set(candidates)) > 20


def test_prebuilt_variants_are_those_of_the_first_shapes() -> None:
    result = prebuilt("gemm_mxfp8", "gemv", M=(1, 2, 17))("gfx950")
    layers = ((2304, 6144), (6144, 2048), (1536, 6144), (6144, 1536))
    expected = [default_config("gemv", m, n, k).defines(m) for n, k in layers for m in (1, 2)]
    assert [dict(pairs) for pairs in dict.fromkeys(tuple(d.items()) for d in expected)] == result
