"""An entry to amd-mla-decode: what a submission file would be."""

from typing import Any

import torch

import rfops

_angles: dict[tuple[int, torch.device], torch.Tensor] = {}


def custom_kernel(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    config, x, kv_cache = data
    cache = kv_cache.data
    key = cache.shape[1], cache.device
    if key not in _angles:
        _angles[key] = rfops.rope_angles(cache.shape[1], device=cache.device)
    y = rfops.mla_layer_decode(
        x, cache, kv_cache.seq_len, config.Q_proj_down_weight, config.Q_proj_up_weight,
        config.KV_proj_down_weight, config.KV_proj_up_weight, config.wo_weight, _angles[key],
    )  # fmt: skip
    return y, cache
