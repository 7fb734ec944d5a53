"""Scratch memory of ops of several launches, kept from call to call.

    workspace = Workspace(device, ((splits, m, n), torch.float32), zeros=groups)  # once a plan
    partials, counts = workspace()  # in each call: no allocation after the first of its size

Memory belongs to a device, a stream and a host thread, so that calls which may interleave never
share it; an op some of whose launches are another op's, with its own workspace, is `outer`. Buffers
grow by factors of two and are never given back. What a call finds in one is what the last one left;
`zeros` are int32 that every launch must leave zero, as it found them.

A call that is captured into a graph takes all of it from torch's allocator, so from the graph's own
pool, with its zeros written by a node of the graph: graphs may then run in any order and beside one
another. So does a workspace of more than 256 MiB, which is not worth keeping.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from rfops.jit.launch import hip

from .kernel import Run

_ALIGN = 256  # bytes
_PAGE = 4096  # bytes: timing mode sees where in a page a tensor begins
_MOST_KEPT = 256 << 20  # bytes
Views = tuple[torch.Tensor, ...]


@dataclass
class _Arena:
    """What is kept for a device, a stream and a thread; the last of each list is the largest."""

    buffers: list[torch.Tensor] = field(default_factory=list)
    zeros: list[torch.Tensor] = field(default_factory=list)


_arenas: dict[tuple[torch.device, bool, int, int], _Arena] = {}


class Workspace:
    """The tensors of one plan: `layouts`, each a shape and a dtype, and so many zeros if any."""

    def __init__(
        self,
        device: torch.device,
        *layouts: tuple[int | tuple[int, ...], torch.dtype],
        zeros: int = 0,
        outer: bool = False,
    ) -> None:
        self.device, self.zeros, self.outer = device, zeros, outer
        self.tensor_slices, self.bytes = [], 0
        for sizes, dtype in layouts:
            shape = sizes if isinstance(sizes, tuple) else (sizes,)
            size = math.prod(shape) * dtype.itemsize
            self.tensor_slices.append((shape, dtype, slice(self.bytes, self.bytes + size)))
            self.bytes += -(-size // _ALIGN) * _ALIGN
        self._index = None if device.type == "cpu" else device.index or 0
        self._is_large = self.bytes > _MOST_KEPT
        self._views_of: dict[tuple[int, int], Views] = {}  # buffers live as long as the process

    def __call__(self) -> Views:
        if self._is_large:
            return self._new()
        stream = 0
        if self._index is not None:
            if torch.cuda.is_current_stream_capturing():
                return self._new()
            stream = hip.raw_stream(self._index)
        key = stream, threading.get_ident()
        return self._views_of.get(key) or self._find(key)

    def _new(self) -> Views:
        zeros = torch.zeros(self.zeros, dtype=torch.int32, device=self.device)
        return self._views(self._buffer(self.bytes), zeros)

    def _find(self, key: tuple[int, int]) -> Views:
        arena = _arenas.setdefault((self.device, self.outer, *key), _Arena())
        if not arena.buffers or arena.buffers[-1].numel() < self.bytes:
            length = max(1 << 16, _power(self.bytes))
            arena.buffers.append(self._buffer(length))
        if not arena.zeros or arena.zeros[-1].numel() < self.zeros:
            length = max(1 << 12, _power(self.zeros))
            arena.zeros.append(self._buffer(4 * length, torch.zeros).view(torch.int32))
        views = self._views_of[key] = self._views(arena.buffers[-1], arena.zeros[-1])
        return views

    def _buffer(
        self, length: int, allocate: Callable[..., torch.Tensor] = torch.empty
    ) -> torch.Tensor:
        """Where a GPU's allocator would place it, on the CPU too."""
        if self._index is not None:
            return allocate(length, dtype=torch.uint8, device=self.device)
        buffer = allocate(length + _PAGE, dtype=torch.uint8)
        begin = -buffer.data_ptr() % _PAGE
        return buffer[begin : begin + length]

    def _views(self, buffer: torch.Tensor, zeros: torch.Tensor) -> Views:
        views = [
            buffer[byte_range].view(dtype).view(shape)
            for shape, dtype, byte_range in self.tensor_slices
        ]
        return (*views, zeros[: self.zeros]) if self.zeros else tuple(views)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length() if size else 0


def clear() -> None:
    """Zeros as they are to be, after launches that did not run to their end."""
    for arena in _arenas.values():
        for zeros in arena.zeros:
            zeros.zero_()


# The last tensors of a launch that splits K or KV over workgroups: partials and arrival counters.
SPLIT = ("workspace", "counts")


def with_partials(launch: Run, device: torch.device, num_floats: int, counters: int) -> Run:
    """Return the launch with a workspace; it is prepared with (*arguments, *SPLIT), has
    `num_floats` fp32 of partials and `counters` arrival counters, zero before and after it."""
    return with_workspace(launch, Workspace(device, (num_floats, torch.float32), zeros=counters))


def with_workspace(launch: Run, workspace: Workspace) -> Run:
    """A launch of a kernel whose last tensors are those of a workspace. One that fails half-way, as
    the virtual GPU's may, leaves zeros all the same: its successors would be wrong in silence."""

    def run(*args: torch.Tensor) -> None:
        views = workspace()
        try:
            launch(*args, *views)
        except BaseException:
            if workspace.zeros:
                views[-1].zero_()
            raise

    return run
