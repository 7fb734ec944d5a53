"""A call in any form: by position or by name, with the callee's defaults and neutral values; what
is refused, what fails, and what is remembered of it."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops import compat
from rfops.moe.kernels.topk.choosing import choose
from rfops.plugins import binding, layouts, wrapper
from rfops.plugins.wrapper import Callee
from support.aiter_signatures import AITER, original_of
from support.plugin_calls import BF16, BY_TARGET, CALLS, F32, I32, nan

pytestmark = pytest.mark.requires_gfx950
TARGETS = [target for target in CALLS if target != "aiter.get_hip_quant"]


def own_name(callee: Callee) -> str:
    """The drop-in's, in rfops.compat."""
    return callee.drop_in.__name__


@pytest.fixture
def noted(engines: list[str]) -> list[dict[str, Any]]:
    """What originals with a recorded signature got; engines resets the callees."""
    return []


def stand_in(target: str, noted: list[dict[str, Any]]) -> Callable[..., Any]:
    return original_of(own_name(BY_TARGET[target]), lambda words: noted.append(words) or "original")


# ---------------------------------------------------------------- positions and names


@pytest.mark.parametrize("has_signature", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_any_mix_of_positions_and_names(
    target: str, has_signature: bool, noted: list[dict[str, Any]]
) -> None:
    """Each number of arguments by position, the others by name, in reverse."""
    torch.manual_seed(0)
    callee = BY_TARGET[target]
    original = (
        stand_in(target, noted) if has_signature else lambda *_args, **_kwargs: noted.append({})
    )
    names = [p.name for p in inspect.signature(callee.drop_in).parameters.values()]
    wrapped = callee.wrap(original)
    counts = {0, 1, len(CALLS[target]()[0])}
    for count in sorted(counts):
        args, kwargs, check = CALLS[target]()
        if has_signature:  # vLLM passes topk_gating an argument of a newer aiter
            known = inspect.signature(original).parameters
            kwargs = {name: value for name, value in kwargs.items() if name in known}
        by_name = dict(zip(names[count:], args[count:], strict=False))
        words = dict(reversed(list({**by_name, **kwargs}.items())))
        check(wrapped(*args[:count], **words))
    assert not noted and callee.engaged == len(counts), callee.left


def test_as_sglang_calls_mla(noted: list[dict[str, Any]]) -> None:
    """aiter_backend.py of 0.5.23: three tensors by position, and intra_batch_mode."""
    callee = BY_TARGET["aiter.mla.mla_decode_fwd"]
    wrapped = callee.wrap(stand_in("aiter.mla.mla_decode_fwd", noted))
    for intra in (True, False):
        args, kwargs, check = CALLS["aiter.mla.mla_decode_fwd"]()
        names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_lens", "max_seqlen_q")
        words = dict(zip(names, args[3:], strict=True))
        check(wrapped(*args[:3], **words, **kwargs, intra_batch_mode=intra, num_kv_splits=16)[0])
    assert callee.engaged == 2 and not noted


MLA_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "one rank": ({"cp_world_size": 1, "cp_rank": 0, "g_kv_indptr": None}, ""),
    "ranks": ({"cp_world_size": 2}, "cp_world_size must be 1 or None, got 2"),
    "a rank": ({"cp_rank": 1}, "cp_rank must be 0 or None, got 1"),
    "global": (
        {"g_kv_indptr": torch.zeros(4, dtype=I32)},
        "g_kv_indptr must be None, got [4] int32",
    ),
    "cap": ({"logit_cap": 30.0}, "mla_decode_fwd: logit_cap must be"),
}


@pytest.mark.parametrize("case", MLA_CHANGES)
def test_arguments_with_a_neutral_value(case: str, noted: list[dict[str, Any]]) -> None:
    callee = BY_TARGET["aiter.mla.mla_decode_fwd"]
    wrapped = callee.wrap(stand_in("aiter.mla.mla_decode_fwd", noted))
    changes, message = MLA_CHANGES[case]
    for _ in range(2):
        args, kwargs, check = CALLS["aiter.mla.mla_decode_fwd"]()
        result = wrapped(*args, **{**kwargs, **changes})
        if not message:
            check(result)
    assert callee.engaged == (0 if message else 2)
    assert [reason.startswith(message) for reason in callee.left] == [True] * bool(message), (
        callee.left
    )
    for words in noted:
        assert all(words[name] is value for name, value in changes.items())


@pytest.mark.parametrize("value", [False, None, True])
def test_experts_of_a_newer_aiter(value: Any, engines: list[str]) -> None:
    callee, recorded_calls = BY_TARGET["aiter.fused_moe.fused_moe"], []

    def original(*args: Any, no_combine: bool = False, output: Any = None, **kwargs: Any) -> Any:
        recorded_calls.append(no_combine)

    args, kwargs, check = CALLS["aiter.fused_moe.fused_moe"]()
    result = callee.wrap(original)(*args, **kwargs, no_combine=value, output=None)
    if value:
        assert recorded_calls == [True] and list(callee.left) == [
            "no_combine must be False or None, got True"
        ]
    else:
        check(result)
        assert not recorded_calls


def test_tables_of_int64_and_longer_than_the_batch(noted: list[dict[str, Any]]) -> None:
    callee = BY_TARGET["aiter.mla.mla_decode_fwd"]
    wrapped = callee.wrap(stand_in("aiter.mla.mla_decode_fwd", noted))
    args, kwargs, check = CALLS["aiter.mla.mla_decode_fwd"]()
    q, kv, o, qo, ends, pages, lens, length = args
    wide = torch.cat([ends, torch.full((5,), -1, dtype=I32)]).long()
    more = torch.cat([lens, torch.full((5,), 77, dtype=I32)]).long()
    check(wrapped(q, kv, o, qo.long(), wide, pages.long(), more, length, **kwargs))
    callee = BY_TARGET["vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd"]
    args, kwargs, check = CALLS[callee.target]()
    args = (*args[:5], args[5].long(), args[6].long(), *args[7:])
    check(callee.wrap(stand_in(callee.target, noted))(*args, **kwargs))
    assert not noted and callee.engaged == 1


def test_lse_in_the_dtype_of_q(noted: list[dict[str, Any]]) -> None:
    """triton_mla.py of vLLM 0.33 makes it so."""
    callee = BY_TARGET["vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd"]
    wrapped = callee.wrap(stand_in(callee.target, noted))
    args, kwargs, check = CALLS[callee.target]()
    wrapped(*args, **kwargs)
    lse = nan(2, 16)
    args = (*args[:4], lse, *args[5:])
    wrapped(*args, **kwargs)
    check(None)
    assert callee.engaged == 2 and lse.isfinite().all()
    rows, cache, table, lens = args[0], args[1], args[5], args[6]
    expected = torch.empty(2, 16)
    rfops.mla_decode(rows, cache, None, table, 0.04, kv_lens=lens, lse=expected)
    assert torch.equal(lse, expected.to(BF16))


def test_the_originals_defaults_are_taken(engines: list[str]) -> None:
    """An aiter whose default differs from the drop-in's: of before sqrtsoftplus, and after."""
    callee = BY_TARGET["aiter.ops.topk.topk_gating"]
    args, _, check = CALLS[callee.target]()
    left: list[str] = []

    def older(
        topk_weights: Any,
        topk_indices: Any,
        gating_output: Any,
        correction_bias: Any = None,
        need_renorm: bool = True,
        routed_scaling_factor: float = 1.0,
        score_func: str = "softmax",
    ) -> None:
        left.append("older")

    check(callee.wrap(older)(*args))
    assert callee.engaged == 1 and not left
    newer = original_of("topk_gating", lambda words: left.append(words["score_func"]))
    weights, _ids, logits = args
    callee.wrap(newer)(*args)
    assert callee.engaged == 2 and not left
    expected, _ = choose(logits, None, 4, renormalize=True, score="sqrtsoftplus")
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=0)


def test_what_the_original_does_not_take_is_its_own_error(noted: list[dict[str, Any]]) -> None:
    callee = BY_TARGET["aiter.topk_softmax"]
    wrapped = callee.wrap(stand_in(callee.target, noted))
    args, kwargs, _ = CALLS[callee.target]()
    with pytest.raises(TypeError, match="unexpected keyword argument 'strange'"):
        wrapped(*args, **kwargs, strange=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'need_renorm'"):
        wrapped(*args[:4])
    with pytest.raises(TypeError, match="takes from 5 to 7 positional arguments but 9"):
        wrapped(*args, 1, 2)
    with pytest.raises(TypeError, match="multiple values for argument 'topk_weights'"):
        wrapped(*args, topk_weights=args[0])
    assert callee.engaged == 0 and sum(callee.left.values()) == 4


def test_tritons_gemm_has_its_own_parameters(noted: list[dict[str, Any]]) -> None:
    """Its sixth is a result to write, which is isBpreshuffled of the other function."""
    target = "aiter.ops.triton.gemm_a8w8_blockscale.gemm_a8w8_blockscale"
    args, _, check = CALLS[target]()
    y = nan(3, 128)
    result = BY_TARGET[target].wrap(stand_in(target, noted))(
        *args, BF16, y, kernel_type="compute_bound"
    )
    assert result is y and not noted
    check(y)
    assert list(AITER["gemm_a8w8_blockscale_triton"][:4]) == list("x, w")


# ---------------------------------------------------------------- what is remembered


def test_a_refusal_is_of_its_call_alone(noted: list[dict[str, Any]]) -> None:
    """Of the same x and w, with scales that do not fit: refused, and the next is taken."""
    callee = BY_TARGET["aiter.gemm_a8w8_blockscale"]
    wrapped = callee.wrap(stand_in(callee.target, noted))
    (x, w, x_scale, w_scale), kwargs, check = CALLS[callee.target]()
    for _ in range(2):
        assert wrapped(x, w, x_scale[:, :1], w_scale, **kwargs) == "original"
        check(wrapped(x, w, x_scale, w_scale, **kwargs))
    assert callee.engaged == 2 and list(callee.left.values()) == [2]


def test_a_refused_value_is_of_its_call_alone(noted: list[dict[str, Any]]) -> None:
    callee = BY_TARGET["aiter.fused_moe.fused_moe"]
    wrapped = callee.wrap(stand_in(callee.target, noted))
    args, kwargs, check = CALLS[callee.target]()
    for value in (7.0, 0.0, 7.0, 0.0):
        result = wrapped(*args, **{**kwargs, "swiglu_limit": value})
        if not value:
            check(result)
    for scale in (torch.ones(1), None):
        result = wrapped(*args, **{**kwargs, "bias1": scale})
    check(result)
    assert callee.engaged == 3 and len(noted) == 3


def test_a_refused_call_is_not_tried_again(
    noted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    callee, tries = BY_TARGET["aiter.topk_softmax"], []

    @functools.wraps(compat.topk_softmax)
    def unsupported_reason(*_args: Any, **_kwargs: Any) -> None:
        tries.append(1)
        raise ValueError("topk_softmax: no")

    monkeypatch.setattr(callee, "function", unsupported_reason)
    wrapped = callee.wrap(stand_in(callee.target, noted))
    args, kwargs, _ = CALLS[callee.target]()
    for _ in range(3):
        assert wrapped(*args, **kwargs) == "original"
    assert len(tries) == 1 and dict(callee.left) == {"topk_softmax: no": 3}


@pytest.mark.thin(5)
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("target", CALLS)
def test_keys_keep_no_tensor_alive(target: str, is_refused: bool, engines: list[str]) -> None:
    callee = BY_TARGET[target]
    original: Callable[..., Any] = lambda *_args, **_kwargs: None  # noqa: E731
    wrapped = callee._wrap(original)
    args, kwargs, check = CALLS[target]()
    more = {"quant_dtype_a": torch.ones(3)} if is_refused else {}
    wrapped(*args, **kwargs, **more)
    key = callee.key(args, kwargs)
    refs = [
        weakref.ref(v)
        for v in (*args, *kwargs.values(), *more.values())
        if isinstance(v, torch.Tensor)
    ]
    del args, kwargs, more, check
    gc.collect()
    callee.answers.clear()  # not needed by a key; what the op's plans keep is tested in dispatch/
    alive = [ref() for ref in refs if ref() is not None]
    holders = [type(h).__name__ for t in alive for h in gc.get_referrers(t)]
    assert not _tensors_in(key)
    assert not [t for t in alive if any(h is callee.answers for h in gc.get_referrers(t))], holders


def _tensors_in(key: Any) -> list[Any]:
    parts = key if isinstance(key, tuple | list) else ()
    results = [part for part in parts if isinstance(part, torch.Tensor)]
    return results + [t for part in parts for t in _tensors_in(part)]


def test_a_function_that_is_made_for_each_call_is_not_kept(engines: list[str]) -> None:
    callee = BY_TARGET["aiter.topk_softmax"]
    for _ in range(3 * wrapper.MOST_ORIGINALS):
        callee.wrap(lambda *_args: None)
    gc.collect()
    assert len(callee._wrappers) <= wrapper.MOST_ORIGINALS
    assert (
        len([a for a in wrapper.WRAPPERS.values() if a.callee is callee]) <= wrapper.MOST_ORIGINALS
    )


# ---------------------------------------------------------------- what fails

FAILURES = {
    "index": IndexError("index 7 is out of range"),
    "attribute": AttributeError("no such thing"),
    "runtime": RuntimeError("shape mismatch"),
    "not implemented": NotImplementedError("no derivative"),
    "assertion": AssertionError(),
    "memory": torch.OutOfMemoryError("out of memory"),
    "engine": rfops.LockTimeout("not built"),
}
TRIES = {"memory": 3}  # others are not tried again


@pytest.mark.parametrize("case", FAILURES)
def test_an_error_inside_goes_to_the_original(
    case: str, noted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    callee, tries = BY_TARGET["aiter.topk_softmax"], []

    @functools.wraps(compat.topk_softmax)
    def fails(*_args: Any, **_kwargs: Any) -> None:
        tries.append(1)
        raise FAILURES[case]

    monkeypatch.setattr(callee, "function", fails)
    wrapped = callee.wrap(stand_in(callee.target, noted))
    args, kwargs, _ = CALLS[callee.target]()
    for _ in range(3):
        assert wrapped(*args, **kwargs) == "original"
    assert len(tries) == TRIES.get(case, 1) and sum(callee.left.values()) == len(noted) == 3


def test_an_error_of_the_original_is_raised(engines: list[str]) -> None:
    def original(*_args: Any, **_kwargs: Any) -> None:
        raise IndexError("theirs")

    wrapped = BY_TARGET["aiter.topk_softmax"].wrap(original)
    with pytest.raises(IndexError, match="theirs") as caught:
        wrapped("no", "tensors", None, 3, True)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("value", [object(), {"a": 1}, [1, 2], ("x", None), 3 + 1j, b"x"])
def test_values_of_any_kind_make_a_key(value: Any) -> None:
    assert hash(binding._fact(value)) == hash(binding._fact(value))
    assert layouts.mark(value) is None


# ---------------------------------------------------------------- torch.compile


def compiled(callee: Callee, call: Callable[..., Any], original: Any) -> Callable[..., Any]:
    wrapped = callee.wrap(original)
    torch._dynamo.reset()
    result: Callable[..., Any] = torch.compile(
        lambda *tensors: call(wrapped, *tensors), fullgraph=True, backend="aot_eager"
    )
    return result


def test_compiled_whole(engines: list[str]) -> None:
    """Taken and left, with a size that becomes open at the second value."""
    callee = BY_TARGET["aiter.gemm_a8w8_blockscale"]
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(256, 512), (128, 128))
    function = compiled(
        callee,
        lambda f, x, s: f(x, w, s, w_scale) + 0,
        original_of("gemm_a8w8_blockscale", lambda words: words["x_scale"].new_zeros(3)),
    )
    for m in (8, 5, 9):
        x, x_scale = rfops.quant_fp8_blockscale(torch.randn(m, 512))
        assert torch.equal(
            function(x, x_scale), compat.gemm_a8w8_blockscale(x, w, x_scale, w_scale)
        )
    assert callee.compiled == 2 and not callee.left  # a graph of 8, and one of any size
    left = compiled(
        callee,
        lambda f, x, s: f(x, w, s, w_scale, dtype=torch.int8) + 0,
        lambda *_args, **_kwargs: torch.zeros(3),
    )
    assert torch.equal(left(x, x_scale), torch.zeros(3)) and callee.left


def test_compiled_with_results_written_and_made(engines: list[str]) -> None:
    callee = BY_TARGET["aiter.fused_moe.fused_topk"]
    hidden, logits = torch.randn(5, 64).bfloat16(), torch.randn(5, 128)
    function = compiled(callee, lambda f, h, x: f(h, x, 8, True)[0] + 0, lambda *_args: None)
    assert torch.equal(function(hidden, logits), compat.fused_topk(hidden, logits, 8, True)[0])


def test_compiled_experts_know_their_mark(engines: list[str]) -> None:
    callee = BY_TARGET["aiter.fused_moe.fused_moe"]
    args, kwargs, check = CALLS[callee.target]()
    x, w1, w2, weights, ids = args[:5]
    call = lambda f, a, b, c: f(a, w1, w2, b, c, **kwargs) + 0  # noqa: E731
    check(compiled(callee, call, lambda *_args, **_kwargs: None)(x, weights, ids))
    del w1.is_shuffled
    zeros = compiled(callee, call, lambda *_args, **_kwargs: torch.zeros(2))
    assert torch.equal(zeros(x, weights, ids), torch.zeros(2))
    assert F32 and callee.compiled == 1
