"""From a problem's data to an op's arguments, for `rfops submit`: a row a problem.

`arguments` and `result` are copied into the entry: they take nothing of rfops.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rfops.dispatch.layout import Shuffled
from rfops.dispatch.op import Op


@dataclass(frozen=True)
class Row:
    """How a problem is solved by an op."""

    arguments: Callable[[Any], tuple[Any, dict[str, Any]]]  # of data: sizes, and tensors by name
    result: Callable[[Any, torch.Tensor], Any]  # of data and the op's: what is returned
    module: str  # that declares the op, as OP
    call: Callable[[dict[str, Any], Any], object]  # of the tensors and data: calls the op
    helpers: tuple[Callable[..., Any], ...] = ()  # of `arguments`

    @property
    def op(self) -> Op:
        op: Op = importlib.import_module(self.module).OP
        return op


def is_out(data: Any, out: torch.Tensor) -> Any:
    """Return the entry's result: `out` itself."""
    return out


# ---------------------------------------------------------------- amd-fp8-mm


def fp8_mm(data: Any) -> tuple[Any, dict[str, Any]]:
    x, w, x_scale, w_scale, out = data
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale, "out": out}
    return (x.shape[0], w.shape[0], x.shape[1]), tensors


def _call_fp8_mm(t: dict[str, Any], _data: Any) -> object:
    from rfops import gemm_a8w8_blockscale

    return gemm_a8w8_blockscale(t["x"], t["w"], t["x_scale"], t["w_scale"], out=t["out"])


# ---------------------------------------------------------------- amd-mixture-of-experts


def mixture_of_experts(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return the sizes and the named tensors of a call with this input."""
    x, weights, config = data
    names = [f"experts.{e}" for e in range(config["n_routed_experts"])]
    gate, up, down = (
        [weights[f"{name}.{matrix_idx}.weight"] for name in names] for matrix_idx in range(3)
    )
    num_shared = config["n_shared_experts"]  # as wide as so many experts: their columns, and rows
    gate += shared_of(weights["shared_experts.0.weight"], num_shared, 1)
    up += shared_of(weights["shared_experts.1.weight"], num_shared, 1)
    down += shared_of(weights["shared_experts.2.weight"], num_shared, 0)
    x = x.view(-1, x.shape[-1])
    sizes = (*x.shape, gate[0].shape[1], len(names), num_shared, config["n_experts_per_token"])
    tensors = {"x": x, "gate": gate, "up": up, "down": down, "router": weights["router.weight"]}
    return sizes, tensors


def shared_of(weight: torch.Tensor, num_experts: int, dim: int) -> list[torch.Tensor]:
    """Return `weight` cut along `dim` into one contiguous tensor per shared expert."""
    return [expert_weight.contiguous() for expert_weight in weight.chunk(num_experts, dim)]


def as_x(data: Any, out: torch.Tensor) -> Any:
    """Return the entry's result: `out` in the shape of x."""
    return out.view(data[0].shape)


def _call_mixture_of_experts(t: dict[str, Any], data: Any) -> object:
    from rfops import moe_layer

    config = data[2]
    weights = (t["gate"], t["up"]), t["down"]
    top_k, num_shared = config["n_experts_per_token"], config["n_shared_experts"]
    return moe_layer(t["x"], t["router"], *weights, top_k, num_shared=num_shared)


# ---------------------------------------------------------------- amd-mxfp4-mm


def mxfp4_mm(data: Any) -> tuple[Any, dict[str, Any]]:
    x, b, _, w, w_scale = data
    return (x.shape[0], b.shape[0], x.shape[1]), {"x": x, "w": w, "w_scale": w_scale}


def _call_mxfp4_mm(t: dict[str, Any], _data: Any) -> object:
    from rfops import gemm_a16wfp4

    return gemm_a16wfp4(t["x"], Shuffled(t["w"], "16x16"), Shuffled(t["w_scale"], "32x8"))


# ---------------------------------------------------------------- amd-mixed-mla


def mixed_mla(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return the sizes and the named tensors of a call with this input."""
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    kv = kv.view(-1, 1, 1, kv.shape[-1])  # pages of one token
    tensors = {
        "q": q,
        "kv": kv,
        "kv_indptr": kv_indptr,
        "kv_indices": order(kv.shape[0], kv.device),
        "kv_scale": kv_scale,
    }
    return (config["batch_size"], config["q_seq_len"], kv.shape[0]), tensors


@functools.cache
def order(tokens: int, device: torch.device) -> torch.Tensor:
    """Return the token numbers 0 .. tokens - 1 as int32, an identity page table."""
    return torch.arange(tokens, dtype=torch.int32, device=device)


def _call_mixed_mla(t: dict[str, Any], data: Any) -> object:
    from rfops import mla_decode

    config = data[4]
    return mla_decode(
        t["q"],
        t["kv"],
        t["kv_indptr"],
        t["kv_indices"],
        config["sm_scale"],
        qo_len=config["q_seq_len"],
        kv_scale=t["kv_scale"],
    )


# ---------------------------------------------------------------- amd-moe-mxfp4


def moe_mxfp4(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return the sizes and the named tensors of a call with this input."""
    x, _, _, _, _, w1, w2, w1_scale, w2_scale, topk_weights, topk_ids, _ = data
    padding = w2.shape[1] - x.shape[1]
    x = torch.nn.functional.pad(x, (0, padding)) if padding else x
    sizes = (*x.shape, w2.shape[2] * 2, w1.shape[0], topk_ids.shape[1])
    tensors = {
        "x": x,
        "w1": w1,
        "w2": w2,
        "w1_scale": w1_scale,
        "w2_scale": w2_scale,
        "topk_weights": topk_weights,
        "topk_ids": topk_ids,
    }
    return sizes, tensors


def without_padding(data: Any, out: torch.Tensor) -> Any:
    """Return the entry's result: `out` without the columns that pad D."""
    return out[:, : data[0].shape[1]]


def _call_moe_mxfp4(t: dict[str, Any], _data: Any) -> object:
    """Shared experts are among topk_ids, with weight 1."""
    from rfops import fused_moe

    w1, w2 = (Shuffled(t[name], "16x16") for name in ("w1", "w2"))
    w1_scale, w2_scale = (Shuffled(t[name], "32x8") for name in ("w1_scale", "w2_scale"))
    return fused_moe(
        t["x"],
        w1,
        w2,
        t["topk_weights"],
        t["topk_ids"],
        quant="mxfp4",
        w1_scale=w1_scale,
        w2_scale=w2_scale,
        rounding="even",
    )


# ---------------------------------------------------------------- amd-mla-decode


def mla_decode(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return the sizes and the named tensors of a call with this input."""
    config, x, kv_cache = data
    cache = kv_cache.data
    tensors = {
        "x": x,
        "cache": cache,
        "q_down": config.Q_proj_down_weight,
        "q_up": config.Q_proj_up_weight,
        "kv_down": config.KV_proj_down_weight,
        "kv_up": config.KV_proj_up_weight,
        "o": config.wo_weight,
        "angles": angles(cache.shape[1], cache.device),
    }
    return (x.shape[0], kv_cache.seq_len, x.shape[2], config.n_heads), tensors


@functools.cache
def angles(rows: int, device: torch.device) -> torch.Tensor:
    """Cosines and sines of each position, as the layer computes them: all in bfloat16."""
    frequency = 10000.0 ** (-torch.arange(32, dtype=torch.bfloat16, device=device) / 32)
    rotations = torch.arange(rows, device=device).to(torch.bfloat16)[:, None] * frequency
    return torch.cat((rotations.cos(), rotations.sin()), -1)


def with_cache(data: Any, out: torch.Tensor) -> Any:
    """Return the entry's result: `out` and the KV cache."""
    return out, data[2].data


def _call_mla_decode(t: dict[str, Any], data: Any) -> object:
    from rfops import mla_layer_decode

    names = ("q_down", "q_up", "kv_down", "kv_up", "o", "angles")
    return mla_layer_decode(t["x"], t["cache"], data[2].seq_len, *(t[name] for name in names))


ROWS = {
    "amd-fp8-mm": Row(fp8_mm, is_out, "rfops.gemm.a8w8_blockscale", _call_fp8_mm),
    "amd-mixture-of-experts": Row(
        mixture_of_experts,
        as_x,
        "rfops.moe.fused_moe_tables",
        _call_mixture_of_experts,
        (shared_of,),
    ),
    "amd-mxfp4-mm": Row(mxfp4_mm, is_out, "rfops.gemm.a16wfp4", _call_mxfp4_mm),
    "amd-mla-decode": Row(
        mla_decode, with_cache, "rfops.attention.mla_layer_decode", _call_mla_decode, (angles,)
    ),
    "amd-moe-mxfp4": Row(moe_mxfp4, without_padding, "rfops.moe.fused_moe_mxfp4", _call_moe_mxfp4),
    "amd-mixed-mla": Row(
        mixed_mla, is_out, "rfops.attention.mla_decode", _call_mixed_mla, (order,)
    ),
}
