"""rfops inside engines that serve: each callee as they call it, by rfops and by the original."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import rfops
from rfops.cli import doctor
from rfops.jit import ConfigError
from rfops.moe.choosing import choose
from rfops.plugins import around, callees, sglang, vllm
from rfops.plugins.around import Callee

pytestmark = pytest.mark.requires_gfx950
BF16, F32, I32, FP8 = torch.bfloat16, torch.float32, torch.int32, torch.float8_e4m3fn
Made = tuple[tuple[Any, ...], dict[str, Any], Callable[[Any], None]]
BY_TARGET = {callee.target: callee for callee in (*callees.AITER, *callees.VLLM)}


def nan(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full(shape, float("nan")).to(dtype)


def close(got: torch.Tensor, expected: torch.Tensor, within: float = 2e-2) -> None:
    error = (got.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert error <= within, f"{error} of the greatest value"  # a call that went wrong, not rounding


# ---------------------------------------------------------------- calls as theirs


def mla() -> Made:
    """_rocm_aiter_mla_decode_fwd_impl: eight by position, the rest by name."""
    lens, heads = [5, 0, 33], 16
    q, kv = torch.randn(3, heads, 576).to(BF16), torch.randn(64, 1, 576).to(BF16)
    ends = torch.tensor([0, 5, 5, 38], dtype=I32)
    pages = torch.randperm(64)[:38].to(I32)
    o = nan(3, heads, 512)
    expected = rfops.mla_decode_ref(q, kv.view(-1, 1, 1, 576), ends, pages, 0.04)
    scratch = torch.zeros(8, dtype=I32)
    words = {
        "sm_scale": 0.04, "logit_cap": 0.0, "q_scale": None, "kv_scale": None, "causal": True,
        "work_meta_data": scratch, "work_indptr": scratch, "work_info_set": scratch,
        "reduce_indptr": scratch, "reduce_final_map": scratch, "reduce_partial_map": scratch,
    }  # fmt: skip
    args = (q, kv.view(-1, 1, 1, 576), o, torch.arange(4, dtype=I32), ends, pages,
            torch.ones(3, dtype=I32), 1)  # fmt: skip
    assert len(lens) == 3
    return args, words, lambda _: close(o, expected)


def decode_attention() -> Made:
    """TritonMLAImpl.forward_mqa."""
    q, kv = torch.randn(2, 16, 576).to(BF16), torch.randn(6, 16, 1, 576).to(BF16)
    table, lens = torch.tensor([[3, 1, 0], [4, 5, 2]], dtype=I32), torch.tensor([20, 48], dtype=I32)
    o, lse = nan(2, 16, 512), nan(2, 16, dtype=F32)
    expected = rfops.mla_decode_ref(q, kv, None, table, 0.04, kv_lens=lens)
    one = torch.ones(1)
    args = (q, kv, kv[..., :512], o, lse, table, lens, torch.empty(2, 16, 4, 513), 4, 0.04, 16)

    def check(_: Any) -> None:
        close(o, expected)
        assert lse.isfinite().all()

    return args, {"k_scale": one, "v_scale": one, "is_mla": True}, check


def moe() -> Made:
    """_rocm_aiter_fused_moe_impl."""
    x, w1 = torch.randn(8, 64).to(BF16), (torch.randn(4, 64, 64) / 8).to(BF16)
    w2 = (torch.randn(4, 64, 32) / 6).to(BF16)
    weights, ids = choose(torch.randn(8, 4), None, 2, renormalize=True)
    expected = rfops.fused_moe_ref(x, w1, w2, weights, ids)
    words = dict.fromkeys(("num_local_tokens", "dtype", "bias1", "bias2"))
    words |= {"hidden_pad": 0, "intermediate_pad": 0, "moe_sorting_dispatch_policy": 0,
              "swiglu_limit": 0.0}  # fmt: skip
    args = (x, w1, w2, weights, ids.to(I32), None, 0, 0, False, None, None, None, None)
    return args, words, lambda out: close(out, expected)


def _quantised(
    quantise: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> list[torch.Tensor]:
    """w1, w1_scale, w2, w2_scale of four experts of D = 256, I = 256."""
    made = []
    for shape in ((512, 256), (256, 256)):
        each = [quantise(torch.randn(*shape) / 16) for _ in range(4)]
        made += [torch.stack([one[0] for one in each]), torch.stack([one[1] for one in each])]
    return made


def test_quantised_experts_engage(engines: list[str]) -> None:
    """By quant_type, as vLLM passes it: FP8 with scales of blocks; MXFP4, with shuffled ones."""
    vllm.register()
    fused_moe = function_of("aiter.fused_moe.fused_moe")
    x = torch.randn(8, 256).to(BF16)
    weights, ids = choose(torch.randn(8, 4), None, 2)
    ids = ids.to(I32)
    w1, s1, w2, s2 = _quantised(lambda w: rfops.quant_fp8_blockscale(w, (128, 128)))
    got = fused_moe(x, w1, w2, weights, ids, None, 0, 5, False, s1, s2, None, None)
    scales = {"w1_scale": s1, "w2_scale": s2}
    assert torch.equal(
        got, rfops.fused_moe(x, w1, w2, weights, ids, quant="fp8_blockscale", **scales)
    )
    w1, s1, w2, s2 = _quantised(rfops.quant_mxfp4)
    shuffled = [rfops.shuffle_scale(s.flatten(0, 1)).data for s in (s1, s2)]
    got = fused_moe(x, w1, w2, weights, ids, None, 0, 3, False, *shuffled, None, None)
    scales = {"w1_scale": s1, "w2_scale": s2}
    assert not engines, BY_TARGET["aiter.fused_moe.fused_moe"].left
    assert torch.equal(got, rfops.fused_moe(x, w1, w2, weights, ids, quant="mxfp4", **scales))
    assert not engines and BY_TARGET["aiter.fused_moe.fused_moe"].engaged == 2


def _routing(*more: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(6, 16), nan(6, 4, dtype=F32), torch.full((6, 4), -7, dtype=I32)


def softmax() -> Made:
    logits, weights, ids = _routing()
    expected = rfops.topk_softmax_ref(logits, 4, True)[0]
    return (
        (weights, ids, torch.empty_like(ids), logits, True, 0, ""),
        {},
        lambda _: close(weights, expected),
    )


def gating() -> Made:
    logits, weights, ids = _routing()
    expected = rfops.topk_softmax_ref(logits, 4, True)[0]
    words = {"correction_bias": None, "need_renorm": True, "routed_scaling_factor": 1.0,
             "score_func": "softmax", "num_shared_experts": 0}  # fmt: skip
    return (weights, ids, logits), words, lambda _: close(weights, expected)


def fused_topk() -> Made:
    logits, weights, ids = _routing()
    expected = rfops.topk_softmax_ref(logits, 4, True)[0]
    words = {"topk_ids": ids, "topk_weights": weights}
    return (torch.randn(6, 8), logits, 4, True), words, lambda out: close(out[0], expected)


def biased() -> Made:
    logits, weights, ids = _routing()
    bias = torch.randn(16)
    expected = rfops.grouped_topk_ref(
        logits, bias, 4, num_groups=4, topk_groups=2, renormalize=True, scale=2.5
    )[0]
    args = (logits, bias, weights, ids, 4, 2, True, 2.5)
    return args, {}, lambda _: close(weights, expected)


def grouped() -> Made:
    logits, weights, ids = _routing()
    expected = rfops.grouped_topk_ref(
        logits, None, 4, num_groups=4, topk_groups=2, score="softmax"
    )[0]
    return (logits, weights, ids, 4, 2, True, True, 1.0), {}, lambda _: close(weights, expected)


def align() -> Made:
    ids = torch.randint(8, (5, 2), dtype=I32)
    expected = rfops.moe_align_block_size(ids, 16, 8)

    def check(out: Any) -> None:
        used = int(expected[2])
        assert torch.equal(out[0][:used], expected[0][:used]) and torch.equal(out[2], expected[2])

    return (ids, 16, 8), {"expert_map": None}, check


def _fp8() -> tuple[torch.Tensor, ...]:
    x, x_scale = rfops.quant_fp8_blockscale(torch.randn(3, 256))
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(128, 256), (128, 128))
    return x, w, x_scale, w_scale


def fp8() -> Made:
    args = _fp8()
    expected = rfops.gemm_a8w8_blockscale_ref(*args)
    return args, {"dtype": BF16}, lambda out: close(out, expected)


def fp8_shuffled() -> Made:
    x, w, x_scale, w_scale = _fp8()
    expected = rfops.gemm_a8w8_blockscale_ref(x, w, x_scale, w_scale)
    args = (x, rfops.shuffle_weight(w).data, x_scale.T.contiguous().T, w_scale)
    return args, {"dtype": BF16}, lambda out: close(out, expected)


def _fp4() -> tuple[torch.Tensor, ...]:
    x, x_scale = rfops.quant_mxfp4(torch.randn(64, 512))
    w, w_scale = rfops.quant_mxfp4(torch.randn(64, 512))
    return x, w, x_scale, w_scale


def a4w4() -> Made:
    x, w, x_scale, w_scale = _fp4()
    expected = rfops.gemm_afp4wfp4_ref(x, w, x_scale, w_scale)
    args = (x, rfops.shuffle_weight(w).data, rfops.shuffle_scale(x_scale).data,
            rfops.shuffle_scale(w_scale).data)  # fmt: skip
    return args, {"dtype": BF16, "bpreshuffle": True}, lambda out: close(out, expected)


def afp4() -> Made:
    x, w, x_scale, w_scale = _fp4()
    expected, y = rfops.gemm_afp4wfp4_ref(x, w, x_scale, w_scale), nan(64, 64)
    scale = w_scale.view(torch.uint8).T.contiguous().T
    return (x, w, x_scale.view(torch.uint8), scale, BF16, y), {}, lambda _: close(y, expected)


def afp4_shuffled() -> Made:
    x, w, x_scale, w_scale = _fp4()
    expected, y = rfops.gemm_afp4wfp4_ref(x, w, x_scale, w_scale), nan(64, 64)
    w2 = rfops.shuffle_weight(w).data.view(torch.uint8).view(4, -1)
    scales = [rfops.shuffle_scale(s).data.view(torch.uint8)[:64] for s in (x_scale, w_scale)]
    xs, ws = (s.view(2, -1) for s in scales)
    return (x.view(torch.uint8), w2, xs, ws, BF16, y), {}, lambda _: close(y, expected)


def quant() -> Made:
    x = torch.randn(4, 128).to(BF16)
    expected = rfops.quant_mxfp4(x)[0].view(torch.uint8)

    def check(out: Any) -> None:
        assert torch.equal(out[0].view(torch.uint8), expected)

    return (x,), {}, check


class QuantType:
    """aiter's word, as far as get_hip_quant is asked."""

    name = "per_1x128"


def group_quant() -> Made:
    """What get_hip_quant makes, called as vLLM calls it."""
    x = torch.randn(5, 256).to(BF16)
    payload, scale = rfops.quant_fp8_blockscale(x)

    def check(out: Any) -> None:
        assert torch.equal(out[0].view(torch.uint8), payload.view(torch.uint8))
        assert out[1].shape == (5, 2) and out[1].is_contiguous()
        assert torch.equal(out[1].view(2, 5).T, scale)

    return (x,), {"quant_dtype": FP8, "transpose_scale": True}, check


CALLS = {
    "aiter.get_hip_quant": group_quant,
    "aiter.mla.mla_decode_fwd": mla,
    "aiter.fused_moe.fused_moe": moe,
    "aiter.topk_softmax": softmax,
    "aiter.ops.topk.topk_gating": gating,
    "aiter.fused_moe.fused_topk": fused_topk,
    "aiter.biased_grouped_topk": biased,
    "aiter.grouped_topk": grouped,
    "aiter.gemm_a8w8_blockscale": fp8,
    "aiter.gemm_a8w8_blockscale_bpreshuffle": fp8_shuffled,
    "aiter.ops.triton.gemm_a8w8_blockscale.gemm_a8w8_blockscale": fp8,
    "aiter.gemm_a4w4": a4w4,
    "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4": afp4,
    "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle": afp4_shuffled,
    "aiter.ops.triton.quant.dynamic_mxfp4_quant": quant,
    "vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd": decode_attention,
    "vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size": align,
}


def test_each_callee_has_a_call() -> None:
    assert set(CALLS) == set(BY_TARGET)


# ---------------------------------------------------------------- engines that are not there


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Modules of aiter and vLLM with the callees, which note that the original was called."""
    noted: list[str] = []
    monkeypatch.setattr(vllm, "is_rocm", lambda: True)
    monkeypatch.setattr(sglang, "is_rocm", lambda: True)
    monkeypatch.setattr(around, "tell_at_exit", lambda: None)
    monkeypatch.delenv("RFOPS_PLUGIN", raising=False)

    def original(target: str) -> Callable[..., Any]:
        if target == "aiter.get_hip_quant":
            made = original("aiter.ops.quant.per_group_quant_hip")
            return lambda kind: made

        def function(*args: Any, **kwargs: Any) -> Any:
            noted.append(target)
            return args, kwargs

        return function

    for target, callee in BY_TARGET.items():
        module, _, name = target.rpartition(".")
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            if path not in sys.modules:
                made = ModuleType(path)
                made.__spec__ = importlib.machinery.ModuleSpec(path, None)
                monkeypatch.setitem(sys.modules, path, made)
        monkeypatch.setattr(sys.modules[module], name, original(target), raising=False)
        callee.engaged = 0
        callee.left.clear()
        callee.answers.clear()
    yield noted


def function_of(target: str) -> Callable[..., Any]:
    module, _, name = target.rpartition(".")
    found: Callable[..., Any] = getattr(sys.modules[module], name)
    return found


def called(target: str) -> Callable[..., Any]:
    """What is called with the arguments: the function, or what it makes."""
    function = function_of(target)
    made: Callable[..., Any] = function(QuantType) if "get_hip_quant" in target else function
    return made


@pytest.mark.parametrize("target", CALLS)
def test_a_call_engages(target: str, engines: list[str]) -> None:
    torch.manual_seed(0)
    vllm.register()
    args, kwargs, check = CALLS[target]()
    check(called(target)(*args, **kwargs))
    assert not engines and BY_TARGET[target].engaged == 1
    assert f"{target}: 1 calls by rfops" in around.summary()


@pytest.mark.parametrize("target", CALLS)
def test_what_is_not_known_goes_to_the_original_as_it_is(target: str, engines: list[str]) -> None:
    vllm.register()
    args, kwargs, _ = CALLS[target]()
    got, words = called(target)(*args, **kwargs, quant_dtype_a=7)
    assert all(a is b for a, b in zip(got, args, strict=True))
    assert words == {**kwargs, "quant_dtype_a": 7} and len(engines) == 1
    assert engines == [target] or target == "aiter.get_hip_quant"
    (line,) = (line for line in around.summary() if line.startswith(f"{target}: "))
    assert line.startswith(f"{target}: 0 calls by rfops; 1 by the original: ")
    assert "quant_dtype_a" in line


def test_what_rfops_has_no_kernel_for(engines: list[str]) -> None:
    vllm.register()
    args, kwargs, _ = mla()
    decode = function_of("aiter.mla.mla_decode_fwd")
    decode(*args, **{**kwargs, "logit_cap": 30.0})
    wide = torch.zeros(1, 300, 576, dtype=BF16)
    for _ in range(2):
        decode(wide, *args[1:], **kwargs)
    logits = torch.zeros(2, 8192)
    function_of("aiter.topk_softmax")(
        torch.zeros(2, 2), torch.zeros(2, 2, dtype=I32), None, logits, True
    )
    assert len(engines) == 4
    callee = BY_TARGET["aiter.mla.mla_decode_fwd"]
    assert callee.engaged == 0 and sum(callee.left.values()) == 3 and len(callee.left) == 2
    assert any("logit_cap" in why for why in callee.left)


def test_an_error_of_the_engine_is_said_and_left_to_the_original(
    engines: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: Any, **_kwargs: Any) -> None:
        raise rfops.LockTimeout("not built")

    callee = BY_TARGET["aiter.topk_softmax"]
    monkeypatch.setattr(callee, "own", fails)
    monkeypatch.setattr(rfops.jit.log.get(), "propagate", True)
    vllm.register()
    args, kwargs, _ = softmax()
    for _ in range(3):
        function_of("aiter.topk_softmax")(*args, **kwargs)
    assert engines == ["aiter.topk_softmax"] * 3 and dict(callee.left) == {"not built": 3}
    assert len([r for r in caplog.records if "goes to the original: not built" in r.message]) == 1


def test_other_quantisers_are_the_originals(engines: list[str]) -> None:
    before = function_of("aiter.get_hip_quant")
    vllm.register()

    class Other:
        name = "per_Token"

    assert function_of("aiter.get_hip_quant")(Other) is before(Other)


def test_register_is_done_once(engines: list[str]) -> None:
    vllm.register()
    first = function_of("aiter.topk_softmax")
    vllm.register()
    assert function_of("aiter.topk_softmax") is first


def test_groups(engines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = {target: function_of(target) for target in CALLS}
    monkeypatch.setenv("RFOPS_PLUGIN", "off")
    vllm.register()
    assert all(function_of(target) is before[target] for target in CALLS)
    monkeypatch.setenv("RFOPS_PLUGIN", "mla, fp8")
    vllm.register()
    for target, callee in BY_TARGET.items():
        assert (function_of(target) is not before[target]) == (callee.group in ("mla", "fp8"))
    monkeypatch.setenv("RFOPS_PLUGIN", "mla,moo")
    message = "RFOPS_PLUGIN=mla,moo: expected off, or some of mla,moe,topk,fp8,mxfp4"
    with pytest.raises(ConfigError, match=message):
        vllm.register()


def test_another_torch_than_rocms(engines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = function_of("aiter.topk_softmax")
    monkeypatch.setattr(vllm, "is_rocm", lambda: False)
    vllm.register()
    assert function_of("aiter.topk_softmax") is before


def test_modules_that_come_later_are_wrapped(
    engines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delitem(sys.modules, "aiter.mla")
    monkeypatch.setattr(sys.modules["aiter"], "__path__", [str(tmp_path)], raising=False)
    (tmp_path / "mla.py").write_text("def mla_decode_fwd(*args, **kwargs): return 'original'\n")
    vllm.register()
    assert "aiter.mla" not in sys.modules
    importlib.import_module("aiter.mla")
    args, kwargs, check = mla()
    check(function_of("aiter.mla.mla_decode_fwd")(*args, **kwargs))
    assert BY_TARGET["aiter.mla.mla_decode_fwd"].engaged == 1


# ---------------------------------------------------------------- its cost


@pytest.mark.parametrize("target", ["aiter.mla.mla_decode_fwd", "aiter.fused_moe.fused_moe"])
def test_cost_where_it_does_not_engage(
    target: str, engines: list[str], figure: Callable[[str], None]
) -> None:
    def original(*_args: Any, **_kwargs: Any) -> None:
        pass

    callee: Callee = BY_TARGET[target]
    args, kwargs, _ = CALLS[target]()
    wrapped = callee.wrap(original)
    callee.answers[callee.key(args, kwargs)] = "not taken"

    def least(function: Callable[..., Any]) -> float:
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(500):
                function(*args, **kwargs)
            times.append((time.perf_counter() - begin) / 500)
        return min(times) * 1e6

    figure(f"{target} left to the original: {least(wrapped) - least(original):.2f} us")
    assert callee.left["not taken"] == 10_000


def test_importing_a_plugin_is_cheap(figure: Callable[[str], None]) -> None:
    code = (
        "import sys, time, torch\n"
        "events = []\n"
        "sys.addaudithook(lambda name, _: events.append(name))\n"
        "begin = time.perf_counter()\n"
        "import rfops.plugins.vllm, rfops.plugins.sglang\n"
        "print(1e3 * (time.perf_counter() - begin))\n"
        "print(torch.cuda.is_initialized(), [e for e in events if 'Popen' in e or 'fork' in e])\n"
        "rfops.plugins.vllm.register()\n"
        "print('rfops.dispatch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    took, *rest = done.stdout.splitlines()
    assert rest == ["False []", "False"]
    figure(f"plugins of vLLM and SGLang on top of torch: {float(took):.0f} ms")


# ---------------------------------------------------------------- rfops doctor


def test_doctor_says_what_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RFOPS_PLUGIN", raising=False)
    monkeypatch.setattr(doctor, "_version", lambda name: "")
    assert doctor._engines()["vllm"] == {
        "version": "", "aiter": False, "wraps": [], "why": "not installed"
    }  # fmt: skip
    monkeypatch.setattr(doctor, "_version", lambda name: "0.33.0" if name == "vllm" else "")
    assert doctor._engines()["vllm"]["why"] == "torch is not ROCm's"
    monkeypatch.setattr(doctor, "_torch_version", lambda: "2.13.0+rocm7.0")
    record = doctor._engines()["vllm"]
    assert record["wraps"] == [*[c.target for c in callees.VLLM], "RFOPS_MLA"]
    assert record["why"] == "aiter is not installed"
    assert doctor._engine_text("vllm", record) == (
        "plugin of vllm 0.33.0: 3 callees wrapped (aiter is not installed); "
        "at exit it says how many engaged"
    )
    monkeypatch.setenv("RFOPS_PLUGIN", "off")
    record = doctor._engines()["vllm"]
    assert (record["wraps"], record["why"]) == ([], "RFOPS_PLUGIN=off")
    monkeypatch.setenv("RFOPS_PLUGIN", "all")
    assert doctor._engines()["vllm"]["why"].startswith("RFOPS_PLUGIN=all: expected off")


def test_the_summary_is_told_at_exit() -> None:
    code = (
        "import torch, rfops.plugins.vllm as plugin\n"
        "from rfops.plugins import around, callees\n"
        "around.tell_at_exit(); around.tell_at_exit()\n"
        "wrapped = callees.AITER[2].wrap(lambda *args: None)\n"
        "w, i = torch.empty(2, 2), torch.empty(2, 2, dtype=torch.int32)\n"
        "wrapped(w, i, None, torch.randn(2, 8), True)\n"
        "wrapped(w, i, None, torch.randn(2, 8), True, 0, '', 5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stderr.splitlines() if "aiter.topk_softmax" in line)
    assert line.startswith("rfops: aiter.topk_softmax: 1 calls by rfops; 1 by the original: ")
