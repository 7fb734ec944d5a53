"""Times of a case's kernels, out of the entry's reach: what its call has launched is run again in
a clean process, on inputs that the entry had not seen when it made the record. A time counts if
that gives the right result: then the launches are what computes it, and nothing else is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from rfops.challenge.channel import Ended, Late, Record, Region, Replayed, Untrue
from rfops.challenge.sandbox import Sandbox, environment
from rfops.challenge.transport import bytes_of, new_storage, tensor_of
from rfops.jit import vgpu_library_folder

_PROGRAM = Path(__file__).with_name("replay.py")
_ATTEMPTS = 8  # an address was taken in 1 of 500 processes
# A kernel that broke out of the simulator could give itself a time, but none below these: the
# model's launch overhead is 2 us (floor_profiler), and 8 TB/s are MI355X's HBM.
LEAST_US = 1.99
MOST_BYTES_PER_US = 8e6


_NO_RESULT = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)


class NotTimed(Exception):
    """Why there is no time, in words."""


class Claim(NamedTuple):
    """What a call says that it has launched; the blobs are code objects, then writes."""

    record: Record
    blobs: list[bytearray]
    results: list[Region]
    kind: str


def dtype_of(region: Region) -> torch.dtype:
    """Raises Untrue."""
    dtype = getattr(torch, region.dtype, None)
    if not isinstance(dtype, torch.dtype) or dtype in _NO_RESULT or dtype.is_complex:
        raise Untrue(f"a tensor of {region.dtype!r}")
    return dtype


def span_of(region: Region) -> int:
    """Return the bytes between the region's first element and the end of its last. Raises Untrue
    for a region whose shape and strides differ in length."""
    if len(region.shape) != len(region.stride):
        raise Untrue(f"a tensor of shape {region.shape}, strides {region.stride}")
    if 0 in region.shape:
        return 0
    last_elem = sum((n - 1) * s for n, s in zip(region.shape, region.stride, strict=True))
    return (last_elem + 1) * dtype_of(region).itemsize


def replay(
    claim: Claim, inputs: Sequence[memoryview], arch: str, memory: int, seconds: float, walls: bool
) -> tuple[list[float], Any]:
    """Run the launches of `claim` on `inputs` in a new walled process; return the estimated us of
    each and the result. Raises NotTimed."""
    order = _order(claim, inputs, memory)
    for _ in range(_ATTEMPTS):
        process = Sandbox(
            [sys.executable, "-I", "-S", str(_PROGRAM), "{channel}"],
            environment(arch),
            memory,
            walls=walls,
        )
        process.channel.deadline = time.monotonic() + seconds
        try:
            process.channel.send(order, [*_codes(claim), *inputs, *_writes(claim)])
            reply = process.channel.receive(Replayed)
            if reply.collides:
                continue
            if reply.error:
                raise NotTimed(f"its launches do not run without its process: {reply.error}")
            if len(reply.us) != len(claim.record.launches):
                raise NotTimed("its launches ran otherwise")
            storages = []
            for _, size in order["outputs"]:
                storages.append(new_storage(size))
                process.channel.read_into(bytes_of(storages[-1]))
            return reply.us, _result(claim, storages)
        except Late:
            raise NotTimed(f"its launches took longer than {seconds:g} s") from None
        except (Ended, Untrue):
            reason = process.end().reason or "they ended the process that ran them"
            raise NotTimed(f"its launches do not run without its process: {reason}") from None
        finally:
            process.end()
    raise NotTimed("no process has its addresses free")


def _codes(claim: Claim) -> list[bytearray]:
    return claim.blobs[: len(claim.record.codes)]


def _writes(claim: Claim) -> list[bytearray]:
    return claim.blobs[len(claim.record.codes) :]


def _order(claim: Claim, inputs: Sequence[memoryview], memory: int) -> dict[str, Any]:
    record = claim.record
    if len(record.inputs) != len(inputs):
        raise NotTimed("its record is of other inputs")
    outputs = [(region.address, span_of(region)) for region in claim.results]
    if sum(size for _, size in outputs) > memory:
        raise NotTimed("its results lie too far apart")
    launches = [
        {**msgspec.to_builtins(launch), "args": launch.args.hex()} for launch in record.launches
    ]
    return {
        "library": str(vgpu_library_folder() / "libamdhip64.so"),
        "codes": record.codes,
        "inputs": [(a, view.nbytes) for a, view in zip(record.inputs, inputs, strict=True)],
        "writes": [msgspec.to_builtins(write) for write in record.writes],
        "outputs": outputs,
        "launches": launches,
    }


def _result(claim: Claim, storages: Sequence[torch.UntypedStorage]) -> Any:
    tensors = []
    for region, storage in zip(claim.results, storages, strict=True):
        tensors.append(tensor_of(storage, dtype_of(region), region.shape, region.stride))
    return tensors[0] if claim.kind == "tensor" and len(tensors) == 1 else tuple(tensors)


def check_least(us: Sequence[float], result: Any) -> None:
    """Check that the times are possible: at least LEAST_US per launch, and at most
    MOST_BYTES_PER_US for the result. Raises NotTimed."""
    tensors = [result] if isinstance(result, torch.Tensor) else list(result)
    size = sum(t.numel() * t.itemsize for t in tensors)
    min_us = max(len(us) * LEAST_US, size / MOST_BYTES_PER_US)
    if not min_us <= sum(us) < float("inf"):
        raise NotTimed(f"{sum(us):.2f} us for {len(us)} launches, the least is {min_us:.2f} us")
