"""The order of expert weights: by mark, by what aiter's shuffle_weight returned, or not known."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops.moe.kernels.topk.choosing import choose
from rfops.plugins import layouts, vllm
from support.plugin_calls import BF16, BY_TARGET, I32, close, function_of, quantised

pytestmark = pytest.mark.requires_gfx950
EXPERTS, K, D, WIDTH, M = 4, 2, 256, 256, 4
SHUFFLE = "aiter.ops.shuffle.shuffle_weight"


def shuffle_weight(
    x: torch.Tensor,
    layout: Any = (16, 16),
    use_int4: bool = False,
    is_guinterleave: bool = False,
    gate_up: bool = False,
    pad_k_to: int = 0,
) -> torch.Tensor:
    """With aiter's signature and mark."""
    result = x.flip(-1) if is_guinterleave else rfops.shuffle_weight(x).data
    result.is_shuffled = True  # type: ignore[attr-defined]
    return result


@pytest.fixture
def shuffle(engines: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.Tensor]:
    """The function where the plugin has wrapped it."""
    import sys
    from types import ModuleType

    module = ModuleType("aiter.ops.shuffle")
    module.shuffle_weight = shuffle_weight  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiter.ops.shuffle", module)
    vllm.register()
    return function_of(SHUFFLE)


def copied(weight: torch.Tensor, shuffled: torch.Tensor) -> torch.nn.Parameter:
    """As SGLang's copy_or_rebind_param: the bytes in the parameter that was there, and no mark."""
    parameter = torch.nn.Parameter(weight.clone(), requires_grad=False)
    parameter.data.copy_(shuffled.detach())
    return parameter


class Case:
    """Experts of a format, with the result that is right."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.x, logits = torch.randn(M, D).to(BF16), torch.randn(M, EXPERTS)
        self.weights, ids = choose(logits, None, K, renormalize=True)
        self.ids = ids.to(I32)
        options: dict[str, Any] = {}
        if kind == "bf16":
            self.w = [
                torch.randn(EXPERTS, n, k).to(BF16) / 16 for n, k in ((2 * WIDTH, D), (D, WIDTH))
            ]
            self.words: dict[str, Any] = {"quant_type": 0}
        else:
            is_fp8 = kind == "fp8"
            result = quantised(
                (lambda w: rfops.quant_fp8_blockscale(w, (128, 128)))
                if is_fp8
                else rfops.quant_mxfp4
            )
            self.w, scales = result[0::2], result[1::2]
            options = {
                "quant": "fp8_blockscale" if is_fp8 else "mxfp4",
                "w1_scale": scales[0],
                "w2_scale": scales[1],
            }
            if not is_fp8:
                options["rounding"] = "up"
                scales = [rfops.shuffle_scale(s.flatten(0, 1)).data for s in scales]
            self.words = {
                "quant_type": 5 if is_fp8 else 3,
                "w1_scale": scales[0],
                "w2_scale": scales[1],
            }
        self.wanted = rfops.fused_moe(self.x, *self.w, self.weights, self.ids, **options)

    def call(self, w1: torch.Tensor, w2: torch.Tensor) -> Any:
        return function_of("aiter.fused_moe.fused_moe")(
            hidden_states=self.x,
            w1=w1,
            w2=w2,
            topk_weight=self.weights,
            topk_ids=self.ids,
            activation=0,
            **self.words,
        )


@pytest.mark.parametrize("kind", ["bf16", "fp8", "mxfp4"])
def test_unmarked_weights(
    kind: str, shuffle: Callable[..., torch.Tensor], engines: list[str]
) -> None:
    """Raw, shuffled by another function, shuffled by the wrapped one; marked either way."""
    case, callee = Case(kind), BY_TARGET["aiter.fused_moe.fused_moe"]
    strange = [copied(w, shuffle_weight(w)) for w in case.w]
    for weights in (case.w, strange):
        case.call(*weights)
        assert engines.pop() == callee.target and callee.engaged == 0
    ours = [copied(w, shuffle(w)) for w in case.w]
    assert not any(hasattr(w, "is_shuffled") for w in ours)
    close(case.call(*ours), case.wanted)
    close(case.call(*ours), case.wanted)
    for w in strange:
        w.is_shuffled = True  # type: ignore[attr-defined]
    close(case.call(*strange), case.wanted)
    for w in case.w:
        w.is_shuffled = False  # type: ignore[attr-defined]
    close(case.call(*case.w), case.wanted)
    assert callee.engaged == 4 and not engines


def test_one_mark_of_two(shuffle: Callable[..., torch.Tensor], engines: list[str]) -> None:
    case, callee = Case("bf16"), BY_TARGET["aiter.fused_moe.fused_moe"]
    w1, w2 = (shuffle(w) for w in case.w)
    close(case.call(w1, copied(case.w[1], w2)), case.wanted)
    close(case.call(copied(case.w[0], w1), w2), case.wanted)
    assert callee.engaged == 2
    case.call(w1, case.w[1])
    assert engines == [callee.target]


def test_a_write_is_seen(shuffle: Callable[..., torch.Tensor], engines: list[str]) -> None:
    """SGLang loads new weights into the same parameters and shuffles them again."""
    case, callee = Case("bf16"), BY_TARGET["aiter.fused_moe.fused_moe"]
    ours = [copied(w, shuffle(w)) for w in case.w]
    close(case.call(*ours), case.wanted)
    for own, w in zip(ours, case.w, strict=True):
        own.copy_(w.flip(0))  # loaded, and not yet shuffled
    case.call(*ours)
    assert engines == [callee.target]
    for own, w in zip(ours, case.w, strict=True):
        own.data.copy_(shuffle(w.flip(0)))
    expected = rfops.fused_moe(case.x, *(w.flip(0) for w in case.w), case.weights, case.ids)
    close(case.call(*ours), expected)
    for own, w in zip(ours, case.w, strict=True):
        own.data.copy_(shuffle(w, is_guinterleave=True))  # by .data, which has no version
    case.call(*ours)
    ours[0].data = case.w[0].clone()  # other memory
    case.call(*ours)
    assert len(engines) == 3 and callee.engaged == 2


def test_another_order_is_not_taken(shuffle: Callable[..., torch.Tensor]) -> None:
    w = torch.randn(2, 32, 64).to(BF16)
    for words in (
        {"is_guinterleave": True},
        {"layout": (32, 16)},
        {"use_int4": True},
        {"pad_k_to": 64},
    ):
        layouts._RECORDS.clear()
        assert layouts.find_layout(copied(w, shuffle(w, **words))) == layouts.OTHER_LAYOUT
    layouts._RECORDS.clear()
    assert layouts.find_layout(copied(w, shuffle(w, (16, 16), gate_up=True))) == layouts.SHUFFLED


def test_a_fingerprint_is_of_all_bytes() -> None:
    """Also where a change keeps sums: two words swapped, two signs of one element's top bit."""
    w = torch.randn(3, 48, 272).to(BF16)
    first = layouts.fingerprint(w)
    assert layouts.fingerprint(w.clone()) == first
    flat = w.view(torch.int64).flatten()
    seen = {first}
    for change in range(40):
        a, b = (change * 7919) % flat.numel(), (change * 104729 + 13) % flat.numel()
        other = flat.clone()
        other[a], other[b] = flat[b], flat[a]
        seen.add(layouts.fingerprint(other.view(BF16).view(w.shape)))
        other = flat.clone()
        other[a] ^= -(2**63)
        other[b] ^= -(2**63)
        seen.add(layouts.fingerprint(other.view(BF16).view(w.shape)))
    assert len(seen) == 81
    assert layouts.fingerprint(w.view(3, 272, 48)) != first
    for shape in ((1, 16, 0), (0, 16, 32), (1, 1, 3)):  # less than a word
        assert layouts.fingerprint(torch.ones(shape, dtype=torch.uint8))


def test_weights_are_not_kept_and_are_looked_at_once(
    shuffle: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = torch.randn(2, 32, 64).to(BF16)
    own, looks = copied(w, shuffle(w)), []
    real = layouts.fingerprint
    monkeypatch.setattr(layouts, "fingerprint", lambda t: looks.append(1) or real(t))
    for _ in range(3):
        assert layouts.find_layout(own) == layouts.SHUFFLED
    assert len(looks) == 1 and len(layouts._LAYOUT_RECORDS) == 1
    del own
    gc.collect()
    assert not layouts._LAYOUT_RECORDS
    with torch.inference_mode():
        inner = w.clone()
        assert layouts.find_layout(inner) is None and layouts.find_layout(inner) is None
    assert len(looks) == 2
    assert inspect.signature(shuffle) == inspect.signature(shuffle_weight)


def test_a_gemms_weight_with_a_mark_that_contradicts(engines: list[str]) -> None:
    """What a function's name or argument says of the order is the caller's word."""
    vllm.register()
    x, x_scale = rfops.quant_fp8_blockscale(torch.randn(3, 256))
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(128, 256), (128, 128))
    target = "aiter.gemm_a8w8_blockscale"
    gemm, callee = function_of(target), BY_TARGET[target]
    expected = rfops.gemm_a8w8_blockscale(x, w, x_scale, w_scale)
    own = rfops.shuffle_weight(w).data
    for weight, is_shuffled in ((w, False), (own, True)):
        assert torch.equal(gemm(x, weight, x_scale, w_scale, isBpreshuffled=is_shuffled), expected)
        weight.is_shuffled = is_shuffled
        assert torch.equal(gemm(x, weight, x_scale, w_scale, isBpreshuffled=is_shuffled), expected)
        gemm(x, weight, x_scale, w_scale, isBpreshuffled=not is_shuffled)
    assert callee.engaged == 4 and engines == [target] * 2
    assert all("marked is_shuffled=" in reason for reason in callee.left)
