"""Wrappers stay where they were put, and what is not wrapped is named."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from rfops import compat
from rfops.cli import doctor
from rfops.plugins import around, sglang, symbols, targets, vllm
from support.plugin_calls import BY_TARGET

pytestmark = pytest.mark.requires_gfx950
MLA = "aiter.mla.mla_decode_fwd"
TRITON = "aiter.ops.triton.gemm_a8w8_blockscale.gemm_a8w8_blockscale"
# As aiter gives out modules by their former names: a finder, and a table.
ALIASES = """
import importlib, sys
from types import SimpleNamespace
_TABLE = {"gemm_a8w8_blockscale": "gemm.basic.gemm_a8w8_blockscale"}
def _find_spec(fullname, path, target=None):
    name = fullname.rpartition(".")[2]
    if fullname == "aiter.ops.triton." + name and name in _TABLE:
        new = "aiter.ops.triton." + _TABLE[name]
        sys.modules[fullname] = importlib.import_module(new)
        return importlib.util.find_spec(new)
    return None
sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_spec))
"""
FILES = {
    "aiter/__init__.py": "from .ops.topk import *\ntry:\n    from .gone import *\n"
                         "except ImportError: pass\n",
    "aiter/ops/__init__.py": "",
    "aiter/ops/topk.py": "def topk_gating(*a): return 1\ndef grouped_topk(*a): return 2\n",
    "aiter/mla.py": "def mla_decode_fwd(*args, **kwargs): return 'original'\n",
    "aiter/ops/triton/__init__.py": ALIASES,
    "aiter/ops/triton/gemm/__init__.py": "",
    "aiter/ops/triton/gemm/basic/__init__.py": "",
    "aiter/ops/triton/gemm/basic/gemm_a8w8_blockscale.py":
        "def gemm_a8w8_blockscale(*args): return 'original'\n",
    "vllm/__init__.py": "",
    "vllm/copies.py": "from aiter.mla import mla_decode_fwd as taken\n",
}  # fmt: skip


@pytest.fixture
def on_disk(engines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Packages of two engines that can be imported, in place of the stubs."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("aiter", "vllm"):
            monkeypatch.delitem(sys.modules, name)
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    symbols._tree.cache_clear()
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in ("aiter", "vllm"):
            sys.modules.pop(name)


def is_wrapped(function: Any, target: str) -> bool:
    return getattr(function, "rfops", None) is BY_TARGET[target]


def test_a_module_that_is_imported_later_and_again(on_disk: Path) -> None:
    vllm.register()
    module = importlib.import_module("aiter.mla")
    assert is_wrapped(module.mla_decode_fwd, MLA)
    assert module.__loader__.get_source("aiter.mla").startswith("def mla_decode_fwd")
    first = module.mla_decode_fwd
    importlib.reload(module)
    assert is_wrapped(module.mla_decode_fwd, MLA) and module.mla_decode_fwd is not first
    del sys.modules["aiter.mla"]
    assert is_wrapped(importlib.import_module("aiter.mla").mla_decode_fwd, MLA)


def test_a_module_that_was_imported_before_with_its_copies(on_disk: Path) -> None:
    copies = importlib.import_module("vllm.copies")
    mla = importlib.import_module("aiter.mla")
    vllm.register()
    assert is_wrapped(mla.mla_decode_fwd, MLA) and copies.taken is mla.mla_decode_fwd
    importlib.reload(mla)
    assert is_wrapped(mla.mla_decode_fwd, MLA)


def test_a_module_by_a_former_name(on_disk: Path) -> None:
    """The import loads the file twice, under the name that it has now."""
    vllm.register()
    from aiter.ops.triton.gemm_a8w8_blockscale import gemm_a8w8_blockscale as first
    from aiter.ops.triton.gemm_a8w8_blockscale import gemm_a8w8_blockscale as second

    assert is_wrapped(first, TRITON) and is_wrapped(second, TRITON)
    assert not [line for line in around.summary() if TRITON in line]


def test_what_moved_is_named(on_disk: Path) -> None:
    (on_disk / "aiter" / "mla.py").write_text("def mla_decode_forward(): ...\n")
    vllm.register()
    importlib.import_module("aiter.mla")
    importlib.import_module("aiter.ops.triton")
    lines = around.summary()
    assert f"{MLA} is not wrapped: aiter.mla has no mla_decode_fwd" in lines
    moe = "aiter.fused_moe.fused_moe is not wrapped: there is no module aiter.fused_moe"
    assert moe in lines
    assert "aiter.topk_softmax is not wrapped: aiter has no topk_softmax" in lines
    assert not [line for line in lines if "topk_gating" in line or TRITON in line]


def test_what_another_took_the_place_of_is_named(on_disk: Path) -> None:
    vllm.register()
    mla = importlib.import_module("aiter.mla")
    assert not [line for line in around.summary() if line.startswith(MLA)]
    mla.mla_decode_fwd = lambda *_args: None
    assert f"{MLA} is not wrapped: it was replaced after rfops" in around.summary()


def test_doctor_names_what_is_not_in_the_source(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "0.33.0" if name == "vllm" else "")
    monkeypatch.setattr(doctor, "_torch_version", lambda: "2.13.0+rocm7.0")
    record = doctor._engines()["vllm"]
    missing = record["missing"]
    assert "aiter.topk_softmax: aiter has no topk_softmax" in missing
    assert "aiter.fused_moe.fused_moe: there is no module aiter.fused_moe" in missing
    for target in (MLA, TRITON, "aiter.ops.topk.topk_gating", "aiter.grouped_topk"):
        assert not [line for line in missing if line.startswith(target + ":")]
    text = doctor._engine_text("vllm", record)
    assert "\n  not found in its source: aiter.topk_softmax: aiter has no topk_softmax" in text
    assert "aiter" not in sys.modules


def test_a_stub_without_a_spec(engines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        monkeypatch.setattr(sys.modules[name], "__spec__", None)
    vllm.register()
    assert is_wrapped(sys.modules["aiter"].topk_softmax, "aiter.topk_softmax")
    assert targets.is_there("aiter") and not targets.is_there("nothing_of_that_name")
    assert around.unwrapped_reason(BY_TARGET["aiter.topk_softmax"]) == ""
    assert doctor._engines()["vllm"]["aiter"]


def test_sglangs_registry_and_a_reload(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry wraps once: a module that was there before is the registry's, a load after it
    is ours, and a function is wrapped once."""
    hooks: list[tuple[str, Any]] = []
    registry = SimpleNamespace(
        _hooks={}, register=lambda target, hook, _kind: hooks.append((target, hook))
    )
    module = ModuleType("sglang.srt.plugins.hook_registry")
    module.HookRegistry = registry  # type: ignore[attr-defined]
    module.HookType = SimpleNamespace(AROUND=1)  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    mla = importlib.import_module("aiter.mla")
    previous = mla.mla_decode_fwd
    monkeypatch.setattr(BY_TARGET[MLA], "function", None)
    sglang.register()
    # found before the registry, which replaces a function wherever it is, has wrapped it there too
    assert BY_TARGET[MLA].function is compat.mla_decode_fwd
    assert mla.mla_decode_fwd is previous  # so that the registry finds its copies
    assert {MLA, "aiter.ops.shuffle.shuffle_weight"} <= {target for target, _ in hooks}
    importlib.reload(mla)
    callee = BY_TARGET[MLA]
    assert is_wrapped(mla.mla_decode_fwd, MLA)
    args = (torch.zeros(1),)
    assert callee.call(mla.mla_decode_fwd, *args) == "original"
    assert sum(callee.left.values()) == 1


# ---------------------------------------------------------------- vLLM's experts out of tree


class Method:
    """UnquantizedFusedMoEMethod, as far as the plugin looks at it."""

    unquantized_backend = SimpleNamespace(name="TRITON")
    mk_can_overlap_shared_experts = False
    moe = SimpleNamespace(has_bias=False, swiglu_limit=None)

    def forward_native(
        self,
        layer: Any,
        x: Any,
        topk_weights: Any,
        topk_ids: Any,
        shared_experts: Any,
        shared_experts_input: Any,
    ) -> str:
        return "original"


EXPERTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "none": ({}, {}, ""),
    "shared, by the runner": ({}, {"shared_experts": object()}, ""),
    "shared, by the kernel": (
        {"mk_can_overlap_shared_experts": True},
        {"shared_experts": object()},
        "shared experts",
    ),
    "an overlap, and none": ({"mk_can_overlap_shared_experts": True}, {}, ""),
    "a limit of the layer": ({}, {"swiglu_limit": 7.0}, "a limit of the activation"),
    "a limit of the model": (
        {"moe": SimpleNamespace(has_bias=False, swiglu_limit=7.0)},
        {},
        "a limit of the activation",
    ),
    "bias": ({"moe": SimpleNamespace(has_bias=True, swiglu_limit=None)}, {}, "a bias"),
    "gelu": ({}, {"activation": "gelu"}, "activation gelu"),
    "other backend": (
        {"unquantized_backend": SimpleNamespace(name="AITER")},
        {},
        "weights in the order of another backend",
    ),
    "expert parallelism": ({}, {"expert_map": torch.zeros(4)}, "expert parallelism"),
}


@pytest.mark.parametrize("case", EXPERTS)
def test_vllms_experts_without_quantisation(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import rfops
    from rfops.plugins import vllm_moe

    of_method, of_layer, reason = EXPERTS[case]
    monkeypatch.setattr(vllm_moe.MOE, "engaged", 0)
    vllm_moe.MOE.left.clear()
    vllm_moe.MOE.answers.clear()
    method = vllm_moe.method_over(Method)()
    for name, value in of_method.items():
        setattr(method, name, value)
    shared = of_layer.get("shared_experts")
    torch.manual_seed(0)
    layer = SimpleNamespace(
        w13_weight=torch.randn(4, 64, 64).bfloat16() / 8,
        w2_weight=torch.randn(4, 64, 32).bfloat16(),
        **{
            "activation": SimpleNamespace(value="silu"),
            "apply_router_weight_on_input": False,
            "expert_map": None,
            **of_layer,
        },
    )
    x = torch.randn(3, 64).bfloat16()
    weights, ids = rfops.topk_softmax(torch.randn(3, 4), 2, True)
    for words in ({"shared_experts": shared, "shared_experts_input": x}, {}):
        args = () if words else (shared, x)
        result = method.forward_native(layer, x, weights, ids, *args, **words)
        if reason:
            assert result == "original"
        else:
            expected = rfops.fused_moe(x, layer.w13_weight, layer.w2_weight, weights, ids)
            assert torch.equal(result, expected)
    assert vllm_moe.MOE.engaged == (0 if reason else 2)
    assert all(why.startswith(reason) for why in vllm_moe.MOE.left)


# ---------------------------------------------------------------- vLLM's quantised layers


class QuantisedMethod(Method):
    """Fp8MoEMethod and QuarkOCP_MX_MoEMethod, as far as the plugin looks at them."""

    block_quant, moe_block_shape = True, [128, 128]
    quant_config = SimpleNamespace(activation_scheme="dynamic")
    fp8_backend = SimpleNamespace(name="TRITON")
    mxfp4_backend = SimpleNamespace(name="EMULATION")
    ocp_mx_scheme = "w_mxfp4_a_mxfp4"

    apply = Method.forward_native


def _fp8_layer(w1: torch.Tensor, w2: torch.Tensor) -> dict[str, Any]:
    import rfops

    (p1, s1), (p2, s2) = (rfops.quant_fp8_blockscale(w.flatten(0, 1), (128, 128)) for w in (w1, w2))
    return {
        "w13_weight": p1.view(w1.shape),
        "w2_weight": p2.view(w2.shape),
        "w13_weight_scale_inv": s1.view(len(w1), -1, w1.shape[2] // 128),
        "w2_weight_scale_inv": s2.view(len(w2), -1, w2.shape[2] // 128),
    }


def _mxfp4_layer(w1: torch.Tensor, w2: torch.Tensor) -> dict[str, Any]:
    import rfops

    (p1, s1), (p2, s2) = (rfops.quant_mxfp4(w) for w in (w1, w2))
    scales = {"w13_weight_scale": s1.view(torch.uint8), "w2_weight_scale": s2.view(torch.uint8)}
    return {"w13_weight": p1, "w2_weight": p2, **scales}


QUANTISED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "fp8": (_fp8_layer, "fp8_blockscale", {}, ""),
    "fp8, other blocks": (_fp8_layer, "", {"moe_block_shape": [64, 128]}, "scales of another kind"),
    "fp8, a scale each": (_fp8_layer, "", {"block_quant": False}, "scales of another kind"),
    "fp8, static": (
        _fp8_layer,
        "",
        {"quant_config": SimpleNamespace(activation_scheme="static")},
        "activations quantised by static",
    ),
    "fp8, aiter": (_fp8_layer, "", {"fp8_backend": SimpleNamespace(name="AITER")}, "weights in"),
    "mxfp4": (_mxfp4_layer, "mxfp4", {}, ""),
    "mxfp4, bf16 inputs": (_mxfp4_layer, "", {"ocp_mx_scheme": "w_mxfp4"}, "formats w_mxfp4"),
    "mxfp4, aiter": (_mxfp4_layer, "", {"mxfp4_backend": SimpleNamespace(name="A")}, "weights in"),
}


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("case", QUANTISED)
def test_vllms_quantised_experts(case: str) -> None:
    import rfops
    from rfops.plugins import vllm_moe

    make, quant, of_method, reason = QUANTISED[case]
    callee = vllm_moe.FP8_MOE if case.startswith("fp8") else vllm_moe.MXFP4_MOE
    torch.manual_seed(0)
    w1, w2 = torch.randn(4, 256, 256).bfloat16() / 16, torch.randn(4, 256, 128).bfloat16() / 11
    of_layer = make(w1, w2)
    silu = SimpleNamespace(value="silu")
    flags = {"activation": silu, "apply_router_weight_on_input": False, "expert_map": None}
    layer, method = SimpleNamespace(**of_layer, **flags), QuantisedMethod()
    vars(method).update(of_method)
    x = torch.randn(3, 256).bfloat16()
    weights, ids = rfops.topk_softmax(torch.randn(3, 4), 2, True)
    callee.left.clear()
    result = callee.call(QuantisedMethod.apply, method, layer, x, weights, ids, None, x)
    if reason:
        assert result == "original" and reason in next(iter(callee.left))
        return
    w13, w2_, *scales = of_layer.values()
    words = {"quant": quant, "w1_scale": scales[0], "w2_scale": scales[1]}
    assert not callee.left
    assert torch.equal(result, rfops.fused_moe(x, w13, w2_, weights, ids, **words))


SWIGLU: dict[str, Any] = {
    "gemm1_alpha": 1.702,
    "gemm1_beta": 1.0,
    "gemm1_clamp_limit": 7.0,
    "ocp_mx_scheme": "w_mxfp4_a_mxfp4",
}
GPT_OSS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "interleaved": ({}, {}, ""),
    "packed": ({}, {"activation": SimpleNamespace(value="swigluoai_uninterleave")}, ""),
    "other numbers": ({"moe_quant_config": SWIGLU | {"gemm1_clamp_limit": 0.5}}, {}, ""),
    "without biases": ({}, {"w13_bias": None, "w2_bias": None}, ""),
    "no limit": ({"moe_quant_config": SWIGLU | {"gemm1_clamp_limit": None}}, {}, "swiglu without"),
    "bf16 inputs": (
        {"moe_quant_config": SWIGLU | {"ocp_mx_scheme": "w_mxfp4"}},
        {},
        "formats w_mxfp4",
    ),
    "another limit": ({}, {"swiglu_limit": 5.0}, "a limit of the activation"),
    "silu": ({}, {"activation": SimpleNamespace(value="silu")}, "activation"),
    "weighted inputs": ({}, {"apply_router_weight_on_input": True}, "router weights on the input"),
    "expert parallelism": ({}, {"expert_map": torch.zeros(4)}, "expert parallelism"),
    "triton": ({"mxfp4_backend": SimpleNamespace(name="TRITON")}, {}, "weights in the order"),
}


class MonolithicMethod:
    """vLLM's method of GPT-OSS's experts by Triton: what the plugin wraps of it, and replaces."""

    mxfp4_backend = SimpleNamespace(name="TRITON")
    moe = SimpleNamespace(has_bias=True)

    def __init__(self, **numbers: Any) -> None:
        self.moe_quant_config = SimpleNamespace(**SWIGLU | numbers)
        self.moe_kernel = SimpleNamespace(fused_experts=SimpleNamespace(topk=2, renormalize=True))

    def _setup_kernel(
        self, layer: Any, w13: Any, w2: Any, w13_scale: Any, w2_scale: Any, w13_bias: Any = None
    ) -> None:
        """As vLLM's, takes the weights away from the layer."""
        layer.w13_weight, layer.w2_weight, layer.w13_bias = "their w13", "their w2", w13_bias

    def apply_monolithic(
        self, layer: Any, x: Any, router_logits: Any, input_ids: Any = None
    ) -> Any:
        return "original"


MONOLITHIC: dict[str, tuple[str, dict[str, Any], str]] = {
    "bf16 rows": ("TRITON", {}, ""),
    "another limit": ("TRITON", {"swiglu_limit": 5.0}, "a limit of the activation"),
    "silu": ("TRITON", {"activation": SimpleNamespace(value="silu")}, "activation"),
    "expert parallelism": ("TRITON", {"expert_map": torch.zeros(4)}, "expert parallelism"),
    "marlin": ("MARLIN", {}, "experts by MARLIN"),
}


@pytest.mark.parametrize("case", MONOLITHIC)
def test_gpt_oss_experts_by_default(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stay in bf16; the weights are those that were loaded, whatever vLLM makes of them."""
    import rfops
    from rfops.plugins import vllm_gpt_oss

    backend, of_layer, reason = MONOLITHIC[case]
    monkeypatch.setattr(MonolithicMethod, "mxfp4_backend", SimpleNamespace(name=backend))
    monkeypatch.setattr(MonolithicMethod, "_setup_kernel", MonolithicMethod._setup_kernel)
    monkeypatch.setattr(MonolithicMethod, "apply_monolithic", MonolithicMethod.apply_monolithic)
    vllm_gpt_oss.wrap(SimpleNamespace(GptOssMxfp4MoEMethod=MonolithicMethod))
    torch.manual_seed(0)
    w1, w2 = torch.randn(4, 192, 160).bfloat16() / 4, torch.randn(4, 160, 96).bfloat16() / 11
    loaded, bias = _mxfp4_layer(w1, w2), torch.randn(4, 192)
    swiglu = SimpleNamespace(value="swigluoai")
    flags = {"activation": swiglu, "apply_router_weight_on_input": False, "expert_map": None}
    layer, method = SimpleNamespace(**flags | of_layer), MonolithicMethod()
    x, logits = torch.randn(3, 160).bfloat16(), torch.randn(3, 4).bfloat16()
    callee = vllm_gpt_oss.GPT_OSS_TRITON_MOE
    callee.left.clear()
    if not reason:
        assert method.apply_monolithic(layer, x, logits) == "original"
        assert list(callee.left) == ["weights that were loaded before rfops"]
    tensors = (loaded[f"{n}_{kind}"] for kind in ("weight", "weight_scale") for n in ("w13", "w2"))
    method._setup_kernel(layer, *tensors, w13_bias=bias)
    callee.left.clear()
    result = method.apply_monolithic(layer, x, logits)
    if reason:
        assert result == "original" and next(iter(callee.left)).startswith(reason)
        return
    assert not callee.left
    expected = rfops.fused_moe(
        x,
        loaded["w13_weight"],
        loaded["w2_weight"],
        *rfops.topk_softmax(logits, 2, True),
        quant="mxfp4_weights",
        w1_scale=loaded["w13_weight_scale"],
        w2_scale=loaded["w2_weight_scale"],
        activation="swiglu",
        interleaved=True,
        bias1=bias,
    )
    assert torch.equal(result, expected)


class SglangMethod:
    """SGLang's method of MXFP4 experts, where they go by aiter."""

    hidden_size, with_bias = 192, True
    runner = SimpleNamespace(runner_backend=SimpleNamespace(is_aiter=lambda: True, name="AITER"))

    def __init__(self, **of_config: Any) -> None:
        usual = {"activation": "silu", "gate_up_interleaved": True, "gemm1_beta": None}
        usual |= {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0, "routed_scaling_factor": None}
        usual |= {"apply_router_weight_on_input": False, "no_combine": False}
        self.moe_runner_config = SimpleNamespace(**usual | of_config)

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.orders += 1

    def apply(self, layer: Any, dispatch_output: Any) -> Any:
        return "original"


SGLANG_EXPERTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "bf16 rows": ({}, 1, ""),
    "no limit": ({"gemm1_clamp_limit": None}, 1, "another activation"),
    "SiTU": ({"activation": "situ"}, 1, "another activation"),
    "scaled": ({"routed_scaling_factor": 2.5}, 1, "results scaled by 2.5"),
    "not combined": ({"no_combine": True}, 1, "router weights on the input, or rows"),
    "expert parallelism": ({}, 2, "expert parallelism"),
}


@pytest.mark.parametrize("case", SGLANG_EXPERTS)
def test_gpt_oss_experts_of_sglang(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of padded sizes, as SGLang makes them. Its order of the weights is made where it computes:
    at once, or before the first call that is left to it."""
    import rfops
    from rfops.plugins import sglang_gpt_oss

    dispatcher = "sglang.srt.layers.moe.token_dispatcher"
    monkeypatch.setitem(sys.modules, dispatcher, SimpleNamespace(StandardCombineInput=dict))
    for name in ("process_weights_after_loading", "apply"):
        monkeypatch.setattr(SglangMethod, name, getattr(SglangMethod, name))
    of_config, ranks, reason = SGLANG_EXPERTS[case]
    module = SimpleNamespace(Mxfp4MoEMethod=SglangMethod)
    sglang_gpt_oss.wrap(module)
    wrapped = SglangMethod.apply
    sglang_gpt_oss.wrap(module)
    assert SglangMethod.apply is wrapped
    torch.manual_seed(0)
    w1, w2 = torch.randn(4, 192, 192).bfloat16() / 4, torch.randn(4, 192, 96).bfloat16() / 11
    biases = {"w13_weight_bias": torch.randn(4, 192), "w2_weight_bias": torch.randn(4, 192)}
    loaded = {name: tensor.data for name, tensor in _mxfp4_layer(w1, w2).items()} | biases
    layer = SimpleNamespace(**loaded, moe_ep_size=ranks, orders=0)
    method, x = SglangMethod(**of_config), torch.randn(3, 160).bfloat16()
    weights, ids = rfops.topk_softmax(torch.randn(3, 4), 2, True)
    topk = SimpleNamespace(topk_weights=weights, topk_ids=ids)
    call = SimpleNamespace(hidden_states=x, topk_output=topk)
    callee = sglang_gpt_oss.GPT_OSS_MOE
    callee.left.clear()
    method.process_weights_after_loading(layer)
    result = method.apply(layer, call)
    if reason:
        assert result == "original" and layer.orders == 1
        assert next(iter(callee.left)).startswith(reason)
        return
    assert not callee.left and layer.orders == 0
    expected = rfops.fused_moe(
        torch.nn.functional.pad(x, (0, 32)),
        loaded["w13_weight"],
        loaded["w2_weight"],
        weights,
        ids,
        quant="mxfp4_weights",
        w1_scale=loaded["w13_weight_scale"],
        w2_scale=loaded["w2_weight_scale"],
        activation="swiglu",
        interleaved=True,
        alpha=1.702,
        limit=7.0,
        beta=1.0,
        bias1=biases["w13_weight_bias"],
        bias2=biases["w2_weight_bias"],
    )
    assert torch.equal(result["hidden_states"], expected)
    assert method.apply(layer, SimpleNamespace(hidden_states=x)) == "original"  # of no top-k ids
    assert layer.orders == 1
    assert method.apply(layer, call) == "original" and layer.orders == 1
    assert list(callee.left) == [sglang_gpt_oss._IN_ORDER]


@pytest.mark.parametrize("case", GPT_OSS)
def test_gpt_oss_experts(case: str) -> None:
    """Sizes that are no multiple of a tile; each number is the method's own."""
    import rfops
    from rfops.plugins import vllm_moe

    of_method, of_layer, reason = GPT_OSS[case]
    torch.manual_seed(0)
    w1, w2 = torch.randn(4, 192, 160).bfloat16() / 4, torch.randn(4, 160, 96).bfloat16() / 11
    biases = {"w13_bias": torch.randn(4, 192).bfloat16(), "w2_bias": torch.randn(4, 160).bfloat16()}
    flags = {
        "activation": SimpleNamespace(value="swigluoai"),
        "apply_router_weight_on_input": False,
        "expert_map": None,
    }
    layer = SimpleNamespace(**{**_mxfp4_layer(w1, w2), **biases, **flags, **of_layer})
    method = QuantisedMethod()
    vars(method).update({"moe_quant_config": SWIGLU, **of_method})
    numbers = method.moe_quant_config = SimpleNamespace(**method.moe_quant_config)
    x = torch.randn(3, 160).bfloat16()
    weights, ids = rfops.topk_softmax(torch.randn(3, 4), 2, True)
    callee = vllm_moe.GPT_OSS_MOE
    callee.left.clear()
    result = callee.call(QuantisedMethod.apply, method, layer, x, weights, ids, None, x)
    if reason:
        assert result == "original" and next(iter(callee.left)).startswith(reason)
        return
    assert not callee.left
    expected = rfops.fused_moe(
        x,
        layer.w13_weight,
        layer.w2_weight,
        weights,
        ids,
        quant="mxfp4",
        w1_scale=layer.w13_weight_scale,
        w2_scale=layer.w2_weight_scale,
        activation="swiglu",
        interleaved=case != "packed",
        alpha=numbers.gemm1_alpha,
        beta=numbers.gemm1_beta,
        limit=numbers.gemm1_clamp_limit,
        bias1=layer.w13_bias,
        bias2=layer.w2_bias,
    )
    assert torch.equal(result, expected)


class Fp8Kernel:
    """vLLM's Triton kernel of FP8 linear layers: what the plugin wraps of it, and replaces."""

    weight_group_shape = 128, 128
    apply_input_quant = True
    config = SimpleNamespace(out_dtype=torch.bfloat16)

    def __init__(self, group_shape: tuple[int, int] = (1, 128)) -> None:
        self.quant_fp8 = SimpleNamespace(group_shape=group_shape, use_ue8m0=False)

    def _get_layer_params(self, layer: Any) -> Any:
        return layer

    def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> Any:
        return "original"

    def apply_weights(self, layer: Any, x: Any, bias: Any = None, **kwargs: Any) -> Any:
        return "original"


@pytest.fixture
def fp8_kernel(monkeypatch: pytest.MonkeyPatch) -> type[Fp8Kernel]:
    """The class, wrapped."""
    from rfops.plugins import vllm_fp8

    for name in ("apply_block_scaled_mm", "apply_weights"):
        monkeypatch.setattr(Fp8Kernel, name, vars(Fp8Kernel)[name])
    vllm_fp8.wrap(SimpleNamespace(TritonFp8BlockScaledMMKernel=Fp8Kernel))
    vllm_fp8.LINEAR.left.clear()
    return Fp8Kernel


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("block", [(128, 128), (64, 64)])
def test_vllms_fp8_linear_layers(
    block: tuple[int, int], fp8_kernel: type[Fp8Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    import rfops

    monkeypatch.setattr(fp8_kernel, "weight_group_shape", block)
    torch.manual_seed(0)
    x, x_scale = rfops.quant_fp8_blockscale(torch.randn(5, 256).bfloat16())
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(384, 256).bfloat16(), (128, 128))
    result = fp8_kernel().apply_block_scaled_mm(A=x, B=w, As=x_scale, Bs=w_scale)
    if block == (128, 128):
        assert torch.equal(result, rfops.gemm_a8w8_blockscale(x, w, x_scale, w_scale))
    else:
        assert result == "original"


# Rows and K, the quantiser's groups, a given scale, and why vLLM's own method runs.
FP8_LAYERS: dict[str, tuple[tuple[int, int], tuple[int, int], Any, str]] = {
    "few rows": ((5, 256), (1, 128), None, ""),
    "many rows": ((17, 256), (1, 128), None, ""),
    "long rows": ((5, 2688), (1, 128), None, ""),
    "a scale per token": ((5, 256), (1, -1), None, "rows quantised by (1, -1)"),
    "a given scale": ((5, 256), (1, 128), 1.0, "a scale of rows that is given"),
}


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("case", FP8_LAYERS)
def test_vllms_fp8_linear_layers_with_their_quantiser(
    case: str, fp8_kernel: type[Fp8Kernel]
) -> None:
    import rfops
    from rfops.plugins import vllm_fp8

    (m, k), group, scale, reason = FP8_LAYERS[case]
    torch.manual_seed(0)
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(384, k).bfloat16(), (128, 128))
    scales = {"input_scale": scale, "input_scale_ub": None, "block_scale": w_scale}
    layer = SimpleNamespace(weight=w, **scales)
    x, bias = torch.randn(1, m, k).bfloat16(), torch.randn(384).bfloat16()
    result = fp8_kernel(group).apply_weights(layer, x, bias)
    if reason:
        assert result == "original" and next(iter(vllm_fp8.LINEAR.left)).startswith(reason)
        return
    assert not vllm_fp8.LINEAR.left
    expected = rfops.linear_fp8_blockscale(x[0], w, w_scale) + bias
    assert torch.equal(result, expected[None])


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("is_shuffled", [True, False, None])
def test_sglangs_small_linear_layers(is_shuffled: bool | None) -> None:
    """Rows are quantised in the product's launch, whatever the shape; without the mark of its order
    a weight is SGLang's."""
    import rfops
    from rfops.plugins import sglang_fp8

    module = SimpleNamespace(try_smallm_fp8_bs_linear=lambda x, WQ, w_scale: "original")
    sglang_fp8.wrap(module)
    torch.manual_seed(0)
    x = torch.randn(5, 256).bfloat16()
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(384, 256).bfloat16(), (128, 128))
    weight = rfops.shuffle_weight(w).data if is_shuffled else w
    if is_shuffled is not None:
        weight.is_shuffled = is_shuffled
    result = module.try_smallm_fp8_bs_linear(x, weight, w_scale)
    if is_shuffled is None:
        assert result == "original"
    else:
        assert torch.equal(result, rfops.linear_fp8_blockscale(x, w, w_scale))
