"""In the entry's process: take a case's inputs, call `custom_kernel`, send what it returned.

The evaluator judges: nothing that an entry changes here makes a wrong result right, and no time is
taken here but of a GPU of torch's. Run as `python -m rfops.challenge.child SOCKET`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import math
import os
import socket
import statistics
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import torch

from rfops.challenge import inline, problem
from rfops.challenge.channel import Channel, Ended, Findings, Ready, Region, Reply
from rfops.challenge.data import copy_values, tensors_of, to_device
from rfops.challenge.folder import HARNESS, problem_of
from rfops.challenge.problem import Problem
from rfops.challenge.recorder import Recorder
from rfops.challenge.transport import bytes_of, new_storage, unpacked
from rfops.compat.aiter.modules import Served
from rfops.dispatch.registration import transparent
from rfops.jit import settings, vgpu_library_folder

_REPEATS = 20
_FLUSHED = 1 << 30  # bytes, four times what MI300X's last cache holds


def main(number: int) -> None:
    """Do what the evaluator orders, until it hangs up."""
    channel = Channel(socket.socket(fileno=number))
    os.set_inheritable(number, False)
    job = channel.order()
    entry = None
    try:
        entry = _Entry(job)
        channel.send(Ready())
    except BaseException as error:  # SystemExit too: an entry may call exit()
        channel.send(Ready(_error_text(error)))
    with contextlib.suppress(Ended):
        while True:
            order = channel.order()
            if "nonce" not in order:
                data = _findings()
                channel.send(Findings(len(data)), [data])
            elif entry is not None:
                reply, blobs = entry.answer(order, _storages(channel, order["sizes"]))
                channel.send(reply, blobs)


def _storages(channel: Channel, sizes: list[int]) -> list[torch.UntypedStorage]:
    """Receive a case's memory into new storages of `sizes` bytes."""
    storages = [new_storage(size) for size in sizes]
    for storage in storages:
        channel.read_into(bytes_of(storage))
    return storages


def _findings() -> bytes:
    """Return what the virtual GPU's checks have written in this process, as lines of JSON."""
    folder = settings.path("RFOPS_VGPU_REPORT") or Path()
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.jsonl")))


class _Entry:
    """The loaded entry, and the input tensors as its last call left them."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._on_gpu = bool(job["on_gpu"])
        self._data: Any = None
        self._data_storages: list[torch.UntypedStorage] = []  # of the data
        root = job["root"]
        if root is None:
            problem_ = problem(job["problem"])
            _put_harness(problem_)
        else:
            problem_ = problem_of(Path(root), settings.text("RFOPS_VGPU_ARCH"))
        self._cold = problem_.cold
        self._shuffled = problem_.shuffled
        self._recorder: Any = contextlib.nullcontext()
        if not self._on_gpu:
            inline.activate()
            hsa = inline.HSA if inline.uses_hsa(job["text"]) else None
            self._recorder = Recorder(vgpu_library_folder() / "libamdhip64.so", hsa)
        with self._recorder:
            self._kernel = _entry(job["name"], job["text"])

    def answer(
        self, order: dict[str, Any], storages: list[torch.UntypedStorage]
    ) -> tuple[Reply, list[Any]]:
        """Make one call and return the reply with the blobs that follow it. The inputs are written
        into the tensors of the call before (`in_place` of the order), or have memory of their own:
        `storages`. An exception of the entry becomes the reply's error."""
        reply = Reply(order["nonce"])
        blobs: list[Any] = []
        fresh = unpacked(order["skeleton"].encode("latin-1"), storages)
        try:
            if order["in_place"]:
                copy_values(self._data, to_device(fresh, "cuda") if self._on_gpu else fresh)
            else:
                self._data = to_device(fresh, "cuda") if self._on_gpu else fresh
                self._data_storages = storages
            for index in self._shuffled:
                self._data[index].is_shuffled = True
            result = self._call(reply, blobs)
            if self._on_gpu and order["timed"]:
                reply.us, result = self._measured(fresh)
            reply.kind = "tensor" if isinstance(result, torch.Tensor) else type(result).__name__
            results = [_sendable(t, order["max_bytes"]) for t in tensors_of(result)]
        except BaseException as error:
            return Reply(order["nonce"], error=_error_text(error)), []
        reply.results = [_region(t) for t in tensors_of(result)]
        return reply, [bytes_of(t.untyped_storage()) for t in results] + blobs

    def _call(self, reply: Reply, blobs: list[Any]) -> Any:
        """Call the entry and return its result. On the virtual GPU the record of its launches goes
        to `reply`, and the record's memory to `blobs`."""
        if self._on_gpu:
            return self._kernel(self._data)
        self._recorder.begin(self._data_storages)
        with self._recorder, transparent():  # an importable aiter's ops are rfops'
            result = self._kernel(self._data)
        reply.record, recorded = self._recorder.end()
        blobs += recorded
        reply.computed = dict(self._recorder.computed)
        reply.unrelated_ops = dict(self._recorder.unrelated_ops)
        return result

    def _measured(self, fresh: Any) -> tuple[float, Any]:
        """Return the median time in us of calls on a GPU, each with the values of `fresh`, and
        what the last returned. An earlier call has done what the entry builds or tunes once."""
        times: list[float] = []
        result: Any = None
        for _ in range(_REPEATS):
            copy_values(self._data, fresh)
            if self._cold:
                torch.empty(_FLUSHED, dtype=torch.uint8, device="cuda").zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            result = self._kernel(self._data)
            stop.record()
            stop.synchronize()
            times.append(1e3 * start.elapsed_time(stop))
        return statistics.median(times), result


def _sendable(tensor: torch.Tensor, max_bytes: int) -> torch.Tensor:
    """Return a contiguous copy that has its memory alone. Raises ValueError for a tensor of more
    than `max_bytes`, or without strides or memory."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ValueError(f"returned a tensor of layout {tensor.layout} on {tensor.device}")
    size = math.prod(tensor.shape) * tensor.itemsize
    if size > max_bytes:
        raise ValueError(f"returned a tensor of {size} bytes, at most {max_bytes} are taken")
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    copy.copy_(tensor.detach())
    return copy


def _region(tensor: torch.Tensor) -> Region:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Region(dtype, list(tensor.shape), list(tensor.stride()), tensor.data_ptr())


def _put_harness(problem_: Problem) -> None:
    """The harness's modules, for an entry to import."""
    for name in HARNESS:
        module = types.ModuleType(name)
        vars(module).update(_harness(problem_))
        sys.modules[name] = module


def _entry(name: str, text: str) -> Any:
    """The entry's custom_kernel."""
    file = Path(name).absolute()
    file.write_text(text, encoding="utf-8")  # Triton reads the source of its kernels
    sys.path.insert(0, str(file.parent))
    module = types.ModuleType("submission")
    module.__file__ = str(file)
    sys.modules["submission"] = module
    tree = ast.parse(text, str(file))
    if "rfops" in _imported(tree):
        raise ImportError(f"{file.name} imports rfops, which the competition's machine has not")
    if "aiter" in _imported(tree):
        _round_as_in_2026()
    exec(compile(tree, str(file), "exec"), vars(module))
    if not callable(getattr(module, "custom_kernel", None)):
        raise ValueError(f"{file.name}: expected a function custom_kernel(data)")
    return module.__dict__["custom_kernel"]


def _round_as_in_2026() -> None:
    """Let rfops, in aiter's place, round MXFP4 scales to even, as the competition's aiter did. The
    newer e404860 rounds up, by which a layer of experts differs by 13 % (relative L2). A real aiter
    is left as it is."""
    mx_types = importlib.import_module("aiter.utility.mx_types")
    if isinstance(mx_types, Served):
        mx_types.MX_DEFAULT_ROUND_MODE = mx_types.MxScaleRoundMode.Even


def _imported(tree: ast.AST) -> set[str]:
    """The packages that it names in its import statements."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    return modules


def _harness(problem_: Problem) -> dict[str, Any]:
    """What entries import of task, utils and reference: types for annotations, classes of data."""
    definitions = vars(sys.modules[problem_.generate.__module__])
    classes = {n: v for n, v in definitions.items() if isinstance(v, type) and n[0].isupper()}

    def seed(seed: int = 42) -> None:
        torch.manual_seed(seed)

    def refuse_comparison(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the evaluator compares: not part of an entry")

    def generated(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "generate_input: an entry that makes a case's inputs itself has its "
            "results before it is called"
        )

    return {
        **classes,
        "input_t": Any,
        "output_t": Any,
        "TestSpec": dict,
        "set_seed": seed,
        "make_match_reference": lambda *_, **__: refuse_comparison,
        "match_reference": refuse_comparison,
        "verbose_allclose": refuse_comparison,
        "generate_input": generated,
        "ref_kernel": problem_.reference,
    }


def _error_text(error: BaseException) -> str:
    frames = traceback.format_exception(error)
    return f"{type(error).__name__}: {error}\n{''.join(frames[-4:])}"[:4000]


if __name__ == "__main__":
    main(int(sys.argv[1]))
