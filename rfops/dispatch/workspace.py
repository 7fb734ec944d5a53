"""Scratch memory of ops of several launches, kept from call to call.

    workspace = Workspace(device, (m * n, torch.float32), (groups, torch.int32))  # once a plan
    partial, counts = workspace()  # in each call: no allocation after the first of its size

A buffer belongs to a device, a stream and a host thread, so that calls which may interleave never
share one. Buffers grow by factors of two and are never given back: a captured graph may hold one.
What a call finds in it is what the last one left.
"""

from __future__ import annotations

import threading

import torch

from rfops.jit.launch import hip

_ALIGN = 256  # bytes
_buffers: dict[tuple[torch.device, int, int], list[torch.Tensor]] = {}


class Workspace:
    """The tensors of one plan, as views of the arena."""

    def __init__(self, device: torch.device, *parts: tuple[int, torch.dtype]) -> None:
        self.device, self.parts = device, parts
        sizes = [-(-count * dtype.itemsize // _ALIGN) * _ALIGN for count, dtype in parts]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.bytes = sum(sizes)
        self._views: dict[int, tuple[torch.Tensor, ...]] = {}

    def __call__(self) -> tuple[torch.Tensor, ...]:
        buffer = _buffer(self.device, self.bytes)
        views = self._views.get(id(buffer))  # buffers live as long as the process
        if views is None:
            views = self._views[id(buffer)] = tuple(
                buffer[start : start + count * dtype.itemsize].view(dtype)
                for start, (count, dtype) in zip(self._starts, self.parts, strict=True)
            )
        return views


def _buffer(device: torch.device, size: int) -> torch.Tensor:
    stream = 0 if device.type == "cpu" else hip.raw_stream(device.index or 0)
    key = device, stream, threading.get_ident()
    kept = _buffers.setdefault(key, [])
    if not kept or kept[-1].numel() < size:
        length = max(1 << 16, 1 << (size - 1).bit_length() if size else 0)
        kept.append(torch.empty(length, dtype=torch.uint8, device=device))
    return kept[-1]
