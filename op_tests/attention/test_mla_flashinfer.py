"""flashinfer's plan and run, as SGLang and a user of its documentation call them."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

from rfops import compat
from support.mla_problems import BF16, Problem, assert_correct, problem

pytestmark = pytest.mark.requires_gfx950
Wrapper = compat.BatchMLAPagedAttentionWrapper
MESSAGE = "^BatchMLAPagedAttentionWrapper: "


def lists(p: Problem) -> list[Any]:
    bounds = torch.arange(len(p.lens) + 1, dtype=torch.int32) * p.qo_len
    return [bounds, p.kv_indptr, p.kv_indices, torch.tensor(p.lens, dtype=torch.int32)]


def dims(p: Problem) -> list[Any]:
    return [p.q.shape[1], 512, 64, p.kv.shape[1], p.causal, p.sm_scale, p.q.dtype, p.kv.dtype]


def halves(p: Problem) -> list[torch.Tensor]:
    kv = p.kv.squeeze(2)
    return [p.q[..., :512], p.q[..., 512:], kv[..., :512], kv[..., 512:]]


@pytest.mark.parametrize("form", [{"page": 1}, {"page": 16, "qo_len": 2}], ids=str)
def test_plan_and_run(form: dict[str, Any]) -> None:
    p = problem([33, 16, 100], 8, **form)
    wrapper = Wrapper(torch.empty(128), backend="fa2")
    wrapper.plan(*lists(p), *dims(p))
    out, lse = wrapper.run(*halves(p), return_lse=True)
    assert_correct((out, lse * math.log(2)), p)
    q = [part.clone() for part in halves(p)[:2]]  # as RoPE leaves them
    o, own = torch.full_like(out, math.nan), torch.full_like(lse, math.nan)
    actual = wrapper.run(*q, *halves(p)[2:], o, own, True, return_lse_base_on_e=True)
    assert actual[0] is o and actual[1] is own
    assert_correct((o, own), p)
    assert torch.equal(wrapper.run(*q, *halves(p)[2:]), out)


def test_buffers_of_a_graph() -> None:
    """They hold what the last plan said, where the first one put it."""
    p, other = problem([33, 16, 100], 8), problem([5, 64, 70], 8)
    sizes = (4, 4, 400, 3)
    buffers = [torch.zeros(size, dtype=torch.int32) for size in sizes]
    wrapper = Wrapper(torch.empty(128), True, *buffers)
    for item in (p, other):
        wrapper.plan(*lists(item), *dims(item))
        positions = [given.data_ptr() for given in wrapper._lists]
        assert positions == [buffer.data_ptr() for buffer in buffers[1:]]
        out, lse = wrapper.run(*halves(item), return_lse=True, return_lse_base_on_e=True)
        assert_correct((out, lse), item)


@pytest.mark.parametrize("graph", [False, True])
def test_ragged_queries(graph: bool) -> None:
    """Rows that differ, then as many for each by the same wrapper."""
    p, other = problem([33, 16, 100], 8, qo_lens=[1, 0, 3]), problem([5, 64, 70], 8, qo_len=2)
    buffers = [torch.zeros(n, dtype=torch.int32) for n in (4, 4, 400, 3)]
    wrapper = Wrapper(torch.empty(128), graph, *(buffers if graph else ()))
    for item in (p, other, p):
        given = lists(item)
        if item.qo_indptr is not None:
            given[0] = item.qo_indptr
        wrapper.plan(*given, *dims(item))
        o, lse = torch.full((*item.q.shape[:2], 512), math.nan, dtype=BF16), None
        lse = torch.full(item.q.shape[:2], math.nan)
        actual = wrapper.run(*halves(item), o, None, True, return_lse_base_on_e=True)
        lse[item.is_row] = actual[1][item.is_row]
        assert_correct((o, lse), item)
    none = Wrapper(torch.empty(1), True, None, *buffers[1:])
    with pytest.raises(ValueError, match="qo_indptr must be given to the constructor"):
        none.plan(p.qo_indptr, *lists(p)[1:], *dims(p))


P = problem([20, 3], 4)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (5, 256, r"head_dim_ckv, head_dim_kpe must be 512, 64, got \(256, 64\)"),
        (12, True, "use_profiler must be False"),
    ],
)
def test_plans_that_are_refused(offset: int, value: Any, message: str) -> None:
    args = [*lists(P), *dims(P), False]
    args[offset] = value
    with pytest.raises(ValueError, match=MESSAGE + message):
        Wrapper(torch.empty(1)).plan(*args)


def test_runs_that_are_refused() -> None:
    wrapper = Wrapper(torch.empty(1))
    with pytest.raises(ValueError, match=MESSAGE + "plan must be called before run"):
        wrapper.run(*halves(P))
    with pytest.raises(ValueError, match=MESSAGE + "kv_indptr, .* given with use_cuda_graph"):
        Wrapper(torch.empty(1), True)
    wrapper.plan(*lists(P), *dims(P))
    q_nope, q_pe, ckv, kpe = halves(P)
    for given, message in (
        ((q_nope, q_pe, ckv, kpe.clone()), r"ckv_cache, kpe_cache must be .* of one cache"),
        ((q_nope, q_pe, ckv.float(), kpe), "ckv_cache must be torch.bfloat16, as planned"),
        ((q_nope[:, :2], q_pe[:, :2], ckv, kpe), "q_nope must be of 4 heads, as planned, got 2"),
    ):
        with pytest.raises(ValueError, match=MESSAGE + message):
            wrapper.run(*given)
    with pytest.raises(ValueError, match=MESSAGE + "page_table must be None"):
        wrapper.run(*halves(P), page_table=torch.zeros(1))
    assert halves(P)[0].dtype == BF16


def test_signatures() -> None:
    """In flashinfer's order, at 00e3d68."""
    expected = {
        "__init__": "float_workspace_buffer use_cuda_graph qo_indptr kv_indptr kv_indices "
        "kv_len_arr backend",
        "plan": "qo_indptr kv_indptr kv_indices kv_len_arr num_heads head_dim_ckv head_dim_kpe "
        "page_size causal sm_scale q_data_type kv_data_type use_profiler",
        "run": "q_nope q_pe ckv_cache kpe_cache out lse return_lse profiler_buffer kv_len "
        "page_table return_lse_base_on_e",
    }
    for name, parameters in expected.items():
        results = list(inspect.signature(getattr(Wrapper, name)).parameters)
        assert results == ["self", *parameters.split()]
    assert "BatchMLAPagedAttentionWrapper" in compat.__all__
