"""The time of one row: its code object launched on the virtual GPU, as in the published test."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rfops import vgpu
from rfops.cli.timing import gemm, moe, own, simple
from rfops.cli.timing.launches import Launch, New, Skip, Tile, tile_of
from rfops.cli.timing.rows import Row
from rfops.jit.launch import hip

FAMILIES: Mapping[str, Callable[[Row, Tile, New], Launch]] = {
    "gemm_a4w4_blockscale": gemm.a4w4,
    "gemm_a8w8_blockscale_bpreshuffle": gemm.a8w8_blockscale,
    "gemm_a8w8_bpreshuffle": gemm.a8w8_per_token,
    "gemm_bf16": gemm.bf16,
    "fmoe_one_stage": moe.one_stage,
    "fmoe_stage1": moe.stage_1,
}
IMPOSSIBLE = 2.0  # so much longer than published at the highest clock: the row is damaged
HIGHEST_GHZ = {"gfx942": 2.1, "gfx950": 2.4}  # data sheets; never the model's, which rows try


def predict(checkout: Path | None, row: Row) -> dict[str, Any]:
    """Predicted microseconds, their band and what bounds them. Raises Skip."""
    if row.op == own.OP:
        return own.predicted(row)
    with memory() as new:
        try:
            if row.op == simple.OP:
                return timed(row, simple.launch(row, new), simple.code(row.gpu))
            return timed(row, *prebuilt(checkout, row, new))
        except KeyError as error:
            raise Skip(f"the shape has no {error}") from error


def prebuilt(checkout: Path | None, row: Row, new: New) -> tuple[Launch, bytes]:
    """Of a row of aiter's. Raises Skip and KeyError."""
    pack = FAMILIES.get(row.op)
    if pack is None:
        raise Skip(f"op {row.op}: its arguments are not known; known: {', '.join(FAMILIES)}")
    if checkout is None:
        raise Skip("no checkout of aiter is named: --aiter DIR")
    file = checkout / row.co
    if not file.is_file():
        raise Skip(f"the checkout has no {row.co}")
    return pack(row, tile_of(checkout, row), new), file.read_bytes()


@contextmanager
def memory() -> Iterator[New]:
    """Device memory that lives as long as the block: pages of it that nobody touches cost none."""
    library = ctypes.CDLL(str(vgpu.library_path()))
    allocations: list[c_void_p] = []

    def new(size_or_data: int | np.ndarray) -> int:
        size = size_or_data if isinstance(size_or_data, int) else size_or_data.nbytes
        address = c_void_p()
        if library.hipMalloc(byref(address), c_size_t(size)):
            raise Skip(f"no memory for a buffer of {size} bytes")
        allocations.append(address)
        if not isinstance(size_or_data, int):
            ctypes.memmove(address, size_or_data.ctypes.data, size)
        return address.value or 0

    try:
        yield new
    finally:
        for address in allocations:
            library.hipFree(address)


def timed(row: Row, launch: Launch, code: bytes) -> dict[str, Any]:
    """One launch under the model. Raises HipError and UnsupportedArch."""
    runtime = hip.runtime(torch.device("cpu"))
    runtime.select_arch(row.gpu)
    module, function = runtime.load(code, row.kernel, row.gpu)
    start = functools.partial(_start, runtime, function, launch)
    try:
        estimate = modelled(start, row.gpu_model, launch.cold, launch.kind, launch.waits)[-1]
    finally:
        runtime.call("hipModuleUnload", module)
    matrix_us = estimate.pop("matrix_clk") / HIGHEST_GHZ[row.gpu] / 1e3
    if matrix_us > IMPOSSIBLE * row.us:
        raise Skip(
            f"its matrix instructions alone take {matrix_us:.0f} us at "
            f"{HIGHEST_GHZ[row.gpu]} GHz, {row.us:g} are published"
        )
    extra_us = launch.extra_us
    estimate |= {
        name: estimate[name] + extra_us for name in ("us", "low", "high") if name in estimate
    }
    if not math.isfinite(estimate["us"]):
        raise Skip(f"the model gives {estimate['us']} us")
    return estimate | {"grid": launch.grid, "cleared_us": extra_us}


def modelled(
    start: Callable[[], object], gpu_model: str, cold: bool, kind: str, results: bool = True
) -> list[dict[str, Any]]:
    """What the model says of each launch of `start`. Without `results` only those workgroups run
    that it samples."""
    with vgpu.timing(part=gpu_model, cold=cold, kind=kind, results=results, detail=False) as t:
        start()
    names = ("us", "low", "high", "clock_ghz", "bound")
    return [
        {name: getattr(launch_, name) for name in names}
        | {
            "matrix_clk": 1e3
            * launch_.clock_ghz
            * launch_.busy["mfma"]
            * (launch_.us - launch_.floor_us)
        }
        for launch_ in t.launches
    ]


def _start(runtime: hip.Hip, function: c_void_p, launch: Launch) -> None:
    data = launch.kernargs
    buffer, size = ctypes.create_string_buffer(data, len(data)), c_size_t(len(data))
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    shape = [c_uint(n) for n in (*launch.grid, *launch.block)]
    runtime.call("hipModuleLaunchKernel", function, *shape, 0, None, None, extra)
    runtime.call("hipDeviceSynchronize")
