"""Tiny models with random weights in the formats that engines load, and which tokens they may give.

    python op_tests/support/engine_models.py deepseek-fp8 FOLDER

Two layers of hidden size 256, so that a step takes the virtual GPU seconds. A folder has the
checkpoint; FOLDER/plain the same weights in fp32, dequantised, for transformers' own model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

import rfops

VOCABULARY = 1024
EXPERTS = 8
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_experts_per_tok": 4,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": 0,
    "max_position_embeddings": 2048,
    "dtype": torch.bfloat16,
}
WIDE = "gpt-oss-mxfp4-wide"  # whose window no sequence leaves
KINDS = ("deepseek", "deepseek-fp8", "qwen3-moe", "qwen3-moe-mxfp4", "gpt-oss-mxfp4", WIDE)
_OPTIONS: dict[str, dict[str, Any]] = {WIDE: {"window": 128}}  # of a kind's maker


def _deepseek() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **_SIZES,
            num_attention_heads=16,
            num_key_value_heads=16,
            n_shared_experts=1,
            n_routed_experts=EXPERTS,
            n_group=4,
            topk_group=2,
            q_lora_rank=256,
            kv_lora_rank=512,  # with the next, the sizes of the MLA kernels
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
            first_k_dense_replace=1,
            num_mtp_layers=0,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    )


def _qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_SIZES,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            num_experts=EXPERTS,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        )
    )


def _gpt_oss(window: int = 8) -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    # As of 2880, the model's own, a row is not whole tiles of 256; keys leave the window early.
    sizes = {**_SIZES, "hidden_size": 288, "intermediate_size": 160}
    del sizes["moe_intermediate_size"]
    return GptOssForCausalLM(
        GptOssConfig(
            **sizes,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            num_local_experts=EXPERTS,
            sliding_window=window,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 512,
            },
        )
    )


_STACKS = ("experts.gate_up_proj", "experts.down_proj")


def _randomise(model: Any) -> None:
    """Weights by which a layer neither fades nor grows, and logits some units apart; of GPT-OSS
    some gates beyond their limit."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(1, 0.2)
            elif "embed" in name:
                weight.normal_(0, 1)
            elif name.endswith(("bias", "sinks")):
                weight.normal_(0, 1)
            elif model.config.model_type == "gpt_oss" and name.endswith(_STACKS):  # [E, K, rows]
                weight.normal_(0, (6 if "gate" in name else 0.1) / weight.shape[1] ** 0.5)
            else:
                weight.normal_(0, (3 if "lm_head" in name else 1) / weight.shape[-1] ** 0.5)
        for name, values in model.named_buffers():
            if "correction" in name:
                values.normal_(0, 0.1)


def _quantise_blocks(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """DeepSeek's own format: e4m3 with a scale of 128 x 128 of every projection."""
    quantised = {}
    for name, weight in weights.items():
        if name.endswith("proj.weight") or "proj_with_mqa.weight" in name or "_a_proj" in name:
            payload, scale = rfops.quant_fp8_blockscale(
                weight.clone(), (128, 128), dtype=torch.float8_e4m3fn
            )
            quantised |= {name: payload, f"{name}_scale_inv": scale}
        else:
            quantised[name] = weight
    return quantised


def _quantise_experts(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Quark's MXFP4 of the experts alone."""
    quantised = {}
    for name, weight in weights.items():
        if ".experts." in name:
            payload, scale = rfops.quant_mxfp4(weight.clone())
            quantised |= {name: payload, f"{name}_scale": scale.view(torch.uint8)}
        else:
            quantised[name] = weight
    return quantised


def _quantise_stacks(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """GPT-OSS's MXFP4: an expert's rows in blocks of 32 with a scale for each."""
    quantised = {}
    for name, weight in weights.items():
        if name.endswith(_STACKS):
            payload, scale = rfops.quant_mxfp4(weight.mT.flatten(0, 1).contiguous())
            shape = len(weight), weight.shape[2], weight.shape[1] // 32
            quantised[f"{name}_blocks"] = payload.view(*shape, 16)
            quantised[f"{name}_scales"] = scale.view(torch.uint8).reshape(shape)
        else:
            quantised[name] = weight
    return quantised


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _dequantise_mxfp4(payload: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((payload & 15, payload >> 4), -1).flatten(-2).long()
    values = _E2M1[codes & 7] * torch.where(codes > 7, -1, 1)
    return values * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)


def _dequantised(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    plain = {}
    for name, weight in weights.items():
        if name.endswith(("_scale_inv", "_scale", "_scales")):
            continue
        if name.endswith("_blocks"):
            stack = name.removesuffix("_blocks")
            values = _dequantise_mxfp4(weight.flatten(-2), weights[f"{stack}_scales"])
            plain[stack] = values.mT.contiguous()
            continue
        if weight.dtype is torch.uint8:
            plain[name] = _dequantise_mxfp4(weight, weights[f"{name}_scale"])
            continue
        scale = weights.get(f"{name}_scale_inv")
        if scale is not None:
            rows, columns = weight.shape
            element_scales = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[
                :, :columns
            ]
            plain[name] = weight.float() * element_scales
        else:
            plain[name] = weight.float()
    return plain


_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}


_MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
_QUARK = {
    "quant_method": "quark",
    "exclude": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
    "layer_quant_config": {},
    "layer_type_quant_config": {},
    "global_quant_config": {
        "weight": {**_MX, "is_dynamic": False},
        "input_tensors": {**_MX, "is_dynamic": True},
    },
    "export": {"kv_cache_group": [], "pack_method": "reorder"},
}
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
# What is done to the weights, and what the config says of it.
_FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "deepseek-fp8": (_quantise_blocks, _FP8),
    "qwen3-moe-mxfp4": (_quantise_experts, _QUARK),
    "gpt-oss-mxfp4": (_quantise_stacks, _MXFP4),
    WIDE: (_quantise_stacks, _MXFP4),
}


def make(kind: str, folder: Path) -> Path:
    """Write the model into the folder, once; return the folder. Raises ValueError."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if (folder / "plain" / "config.json").exists():
        return folder
    makers = {"qwen3": _qwen3_moe, "gpt": _gpt_oss, "deepseek": _deepseek}
    model = makers[kind.partition("-")[0]](**_OPTIONS.get(kind, {}))
    _randomise(model)
    model.bfloat16().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = "bfloat16"
    if kind.startswith("deepseek"):
        config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
    weights = load_file(folder / "model.safetensors")
    (folder / "plain").mkdir(exist_ok=True)
    if kind in _FORMATS:
        weights = _FORMATS[kind][0](weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    plain = {**config, "torch_dtype": "float32", "dtype": "float32"}
    save_file(
        _dequantised(weights),
        folder / "plain" / "model.safetensors",
        metadata={"format": "pt"},
    )
    if kind in _FORMATS:
        config["quantization_config"] = _FORMATS[kind][1]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "plain" / "config.json").write_text(json.dumps(plain, indent=1))
    return folder


# ---------------------------------------------------------------------------- the tokens it gives


# Engines have a router's logits and scores in bf16, torch's model in fp32: a score above 0.5 is
# up to 2^-9 off then, as by a logit 2^-7 off.
ROUTING = 2**-7
ROUTINGS = 64  # how many errors of the logits are tried


@dataclass(frozen=True)
class Miss:
    """A token that the reference would not take: by how much it prefers its own, and by how much
    two logits can change places there."""

    prompt: int
    position: int
    token: int
    expected: int
    gap: float
    bound: float

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt}, token {self.position}: {self.token}, expected {self.expected}, "
            f"whose logit is {self.gap:.4f} higher, bound {self.bound:.4f}"
        )


def prompts(lengths: tuple[int, ...] = (21, 5, 13)) -> list[list[int]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def _reference(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder / "plain",
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()


def _logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Of each token, from what stands before it: fp32 [tokens, vocabulary]."""
    return model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()


def _through_fp8(x: torch.Tensor) -> torch.Tensor:
    """x in e4m3 with a scale for 1 x 128, and back."""
    blocks = x.float().unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    rounded = (blocks / scale).to(torch.float8_e4m3fn).float() * scale
    return rounded.flatten(-2).to(x.dtype)


def _through_mxfp4(x: torch.Tensor) -> torch.Tensor:
    """x in MXFP4, and back."""
    payload, scale = rfops.quant_mxfp4(x)
    return _dequantise_mxfp4(payload, scale.view(torch.uint8)).to(x.dtype)


ROUNDINGS = {"fp8": _through_fp8, "mxfp4": _through_mxfp4}
_PRODUCTS = torch.nn.functional.linear, torch.Tensor.matmul, torch.matmul


class _RoundedInputs(TorchFunctionMode):
    """Each matrix product with weights has its input through a narrow format: of experts those of
    both their products."""

    def __init__(self, round_tensor: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._round_tensor = round_tensor

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _PRODUCTS:
            args = (self._round_tensor(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _round_inputs(module: Any, round_tensor: Callable[[torch.Tensor], torch.Tensor]) -> None:
    forward = module.forward

    def rounded(*args: Any, **kwargs: Any) -> Any:
        with _RoundedInputs(round_tensor):
            return forward(*args, **kwargs)

    module.forward = rounded


class _OtherRouting(TorchFunctionMode):
    """Routers whose logits are up to `ROUTING` off."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.linear and result.shape[-1] == EXPERTS:
            result += ROUTING * (2 * torch.rand(result.shape, generator=self._generator) - 1)
        return result


@torch.inference_mode()
def misses(
    folder: Path, prompts: list[list[int]], generated: list[list[int]], narrow: Mapping[str, str]
) -> tuple[list[Miss], list[Miss]]:
    """Tokens that are not the fp32 model's, which is fed the same tokens before each; and those
    that torch's own bf16 model would take instead on the same tokens, its layers whose names end in
    a key of `narrow` with inputs in the format that it says.

    The bound of a token is twice the largest error of that bf16 model at any token, or at this
    token of fp32 models whose routers err: where two experts are as good, roundings
    choose, and of torch's own products the processor chooses the roundings.
    """
    exact, rounded = _reference(folder, torch.float32), _reference(folder, torch.bfloat16)
    for name, module in rounded.named_modules():
        for format_ in {format_ for end, format_ in narrow.items() if name.endswith(end)}:
            _round_inputs(module, ROUNDINGS[format_])
    pairs = list(zip(prompts, generated, strict=True))
    logits = [_logits(exact, *pair) for pair in pairs]
    rounded_logits = [_logits(rounded, *pair) for pair in pairs]
    error = max(float((a - b).abs().max()) for a, b in zip(logits, rounded_logits, strict=True))
    misses_found: list[Miss] = []
    of_torch: list[Miss] = []
    for index, (prompt, tokens) in enumerate(pairs):
        bounds = 2 * _errors(exact, logits[index], prompt, tokens).clamp(min=error)
        misses_found += _differing(index, logits[index], tokens, bounds)
        of_torch += _differing(
            index, logits[index], rounded_logits[index].argmax(1).tolist(), bounds
        )
    return misses_found, of_torch


def _errors(model: Any, logits: torch.Tensor, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The largest error of a logit at each token, of models whose routers err."""
    with _OtherRouting():
        routed_logits = model(torch.tensor([prompt + tokens] * ROUTINGS)).logits[
            :, len(prompt) - 1 : -1
        ]
    return (routed_logits - logits).abs().amax((0, 2))


def _differing(
    prompt: int, logits: torch.Tensor, tokens: list[int], bounds: torch.Tensor
) -> list[Miss]:
    best = logits.argmax(1).tolist()
    return [
        Miss(
            prompt,
            position,
            token,
            best_token,
            float(row[best_token] - row[token]),
            float(bounds[position]),
        )
        for position, (row, token, best_token) in enumerate(zip(logits, tokens, best, strict=True))
        if token != best_token
    ]


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))
