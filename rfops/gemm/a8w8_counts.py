"""Scratch memory of kernels whose workgroups share out K (csrc/include/rfops/split_reduce.h)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from rfops.dispatch.kernel import Run
from rfops.dispatch.workspace import Workspace
from rfops.jit.launch import hip

_counts: dict[tuple[torch.device, int, int], list[torch.Tensor]] = {}


def counts(device: torch.device, number: int) -> torch.Tensor:
    """At least so many int32 zeros, which every launch leaves zero: of a device, stream and thread
    of its own, and never given back, as a captured graph may hold them."""
    stream = 0 if device.type == "cpu" else hip.raw_stream(device.index or 0)
    kept = _counts.setdefault((device, stream, threading.get_ident()), [])
    if not kept or kept[-1].numel() < number:
        length = max(1 << 12, 1 << (number - 1).bit_length())
        kept.append(torch.zeros(length, dtype=torch.int32, device=device))
    return kept[-1]


def with_parts(launch: Callable[..., None], device: torch.device, tiles: int, words: int) -> Run:
    """A launch that also takes a workspace of `words` fp32 a tile, and a count a tile."""
    parts = Workspace(device, (tiles * words, torch.float32))

    def run(out: torch.Tensor, *inputs: torch.Tensor) -> None:
        launch(out, *inputs, *parts(), counts(device, tiles))

    return run
