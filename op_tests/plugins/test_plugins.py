"""rfops inside engines that serve: each callee as they call it, by rfops and by the original."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops import compat
from rfops.cli import doctor
from rfops.dispatch.op import ops
from rfops.jit import ConfigError
from rfops.moe.kernels.topk.choosing import choose
from rfops.plugins import around, callees, targets, vllm, wrapper
from rfops.plugins.around import Callee
from support.plugin_calls import (
    BF16,
    BY_TARGET,
    CALLS,
    I32,
    called,
    function_of,
    mla,
    quantised,
    shuffled,
    softmax,
)
from support.process import python

pytestmark = pytest.mark.requires_gfx950


def test_mla_is_asked_for_ragged_queries() -> None:
    """One sequence of 2^16 queries by 2^24 tokens is more than HIP kernels share out; 2^16
    sequences of one query each are not."""
    q = torch.empty(2**16, 128, 576, dtype=BF16, device="meta")
    kv = torch.empty(2**24, 1, 1, 576, dtype=BF16, device="meta")
    for batch, longest, is_hip in ((1, 2**16, False), (2**16, 1, True)):
        bounds = torch.empty(batch + 1, dtype=I32, device="meta")
        _, name, given = callees.mla_route(q, kv, bounds, longest)
        call = ops()[name].call_of(**given)
        assert (call.B, call.ends, call.qo_len) == (batch, batch + 1, longest)
        assert ops()[name].route(call).is_hip == is_hip


def test_each_callee_has_a_call() -> None:
    assert set(CALLS) == set(BY_TARGET)


def test_targets_are_the_callees() -> None:
    assert [callee.target for callee in callees.AITER] == [*targets.AITER]
    assert [callee.target for callee in callees.VLLM] == [*targets.VLLM]
    assert {callee.group for callee in (*callees.AITER, *callees.VLLM)} == set(targets.GROUPS)


def test_quantised_experts_engage(engines: list[str]) -> None:
    """By quant_type, as vLLM passes it: FP8 with scales of blocks; MXFP4, with shuffled ones."""
    vllm.register()
    fused_moe = function_of("aiter.fused_moe.fused_moe")
    x = torch.randn(8, 256).to(BF16)
    weights, ids = choose(torch.randn(8, 4), None, 2)
    ids = ids.to(I32)
    w1, s1, w2, s2 = quantised(lambda w: rfops.quant_fp8_blockscale(w, (128, 128)))
    actual = fused_moe(
        x, shuffled(w1), shuffled(w2), weights, ids, None, 0, 5, False, s1, s2, None, None
    )
    scales = {"w1_scale": s1, "w2_scale": s2}
    assert torch.equal(
        actual, rfops.fused_moe(x, w1, w2, weights, ids, quant="fp8_blockscale", **scales)
    )
    w1, s1, w2, s2 = quantised(rfops.quant_mxfp4)
    scales = [rfops.shuffle_scale(s.flatten(0, 1)).data for s in (s1, s2)]
    w1.is_shuffled = w2.is_shuffled = False  # as SGLang marks what it does not shuffle
    actual = fused_moe(x, w1, w2, weights, ids, None, 0, 3, False, *scales, None, None)
    scales = {"w1_scale": s1, "w2_scale": s2, "rounding": "up"}  # as aiter rounds activations
    assert not engines, BY_TARGET["aiter.fused_moe.fused_moe"].left
    assert torch.equal(actual, rfops.fused_moe(x, w1, w2, weights, ids, quant="mxfp4", **scales))
    assert not engines and BY_TARGET["aiter.fused_moe.fused_moe"].engaged == 2


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
    actual, words = called(target)(*args, **kwargs, quant_dtype_a=7)
    assert all(a is b for a, b in zip(actual, args, strict=True))
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
    assert any("logit_cap" in reason for reason in callee.left)


def test_an_error_of_the_engine_is_said_and_left_to_the_original(
    engines: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @functools.wraps(compat.topk_softmax)
    def fails(*_args: Any, **_kwargs: Any) -> None:
        raise rfops.LockTimeout("not built")

    callee = BY_TARGET["aiter.topk_softmax"]
    monkeypatch.setattr(callee, "function", fails)
    wrapper._warn.cache_clear()
    monkeypatch.setattr(rfops.jit.log.get(), "propagate", True)
    vllm.register()
    args, kwargs, _ = softmax()
    for _ in range(3):
        function_of("aiter.topk_softmax")(*args, **kwargs)
    assert engines == ["aiter.topk_softmax"] * 3 and dict(callee.left) == {"not built": 3}
    assert len([r for r in caplog.records if "goes to the original: not built" in r.message]) == 1


def test_other_quantisers_are_the_originals(engines: list[str]) -> None:
    previous = function_of("aiter.get_hip_quant")
    vllm.register()

    class Other:
        name = "per_Token"

    assert function_of("aiter.get_hip_quant")(Other) is previous(Other)


def test_register_is_done_once(engines: list[str]) -> None:
    vllm.register()
    first = function_of("aiter.topk_softmax")
    vllm.register()
    assert function_of("aiter.topk_softmax") is first


def test_groups(engines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    previous = {target: function_of(target) for target in CALLS}
    monkeypatch.setenv("RFOPS_PLUGIN", "off")
    vllm.register()
    assert all(function_of(target) is previous[target] for target in CALLS)
    monkeypatch.setenv("RFOPS_PLUGIN", "mla, fp8")
    vllm.register()
    for target, callee in BY_TARGET.items():
        assert (function_of(target) is not previous[target]) == (callee.group in ("mla", "fp8"))
    monkeypatch.setenv("RFOPS_PLUGIN", "mla,moo")
    message = "RFOPS_PLUGIN=mla,moo: expected off, or some of mla,moe,topk,fp8,mxfp4,rows"
    with pytest.raises(ConfigError, match=message):
        vllm.register()


def test_another_torch_than_rocms(engines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    previous = function_of("aiter.topk_softmax")
    monkeypatch.setattr(vllm, "is_rocm", lambda: False)
    vllm.register()
    assert function_of("aiter.topk_softmax") is previous


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
    wrapped(*args, **kwargs)
    for key in callee.answers:
        callee.answers[key] = "not taken"

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
    completed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    took, *remaining = completed.stdout.splitlines()
    assert remaining == ["False []", "False"]
    figure(f"plugins of vLLM and SGLang on top of torch: {float(took):.0f} ms")


# ---------------------------------------------------------------- rfops doctor


def test_doctor_says_what_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RFOPS_PLUGIN", raising=False)
    monkeypatch.setattr(doctor, "_version", lambda name: "")
    assert doctor._engines()["vllm"] == {
        "version": "",
        "aiter": False,
        "wraps": [],
        "why": "not installed",
        "missing": [],
    }
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


DOCTOR_OF_VLLM = """
import sys
from rfops.cli import doctor
doctor._version = lambda name: "1.0"
doctor._torch_version = lambda: "2.13.0+rocm7.0"
assert doctor._engines()["vllm"]["wraps"]
assert "torch" not in sys.modules
"""


def test_doctor_of_installed_engines_leaves_torch_out() -> None:
    subprocess.run([sys.executable, "-c", DOCTOR_OF_VLLM], check=True)


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
    completed = python(code, check=True)
    (line,) = (line for line in completed.stderr.splitlines() if "aiter.topk_softmax" in line)
    assert line.startswith("rfops: aiter.topk_softmax: 1 calls by rfops; 1 by the original: ")
