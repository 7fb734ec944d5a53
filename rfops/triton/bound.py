"""A Triton kernel bound to a device and its constants, for plans that launch it again and again.

Triton looks at every argument of every launch to find its compiled kernel. Here the compiled kernel
is kept for arguments like the last ones, and Triton's launcher called at once (a call of
batched_gemm_a16w8_blockscale: 34 us before, 16 so, on an H200's host). Kernels of other plans are
found too, by what Triton specialises: a shape that is new costs Triton's search once for all like
it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import launch

_ALIGN = 16  # what Triton's compiled kernels tell pointers and integers apart by
_SMALL = 2**31  # bytes of a storage, on AMD; from there integers have 64 bits

_Number = int | None
# What is compiled: by kernel, device, constants, options, and what is specialised of arguments.
_compiled: dict[tuple[object, ...], Any] = {}
_MOST = 4096


class BoundTriton:
    """`<module>.<name>`; its parameters are tensors, then numbers, then constants."""

    def __init__(
        self,
        module: str,
        name: str,
        device: torch.device,
        constants: Sequence[object],
        warps: int = 4,
        stages: int = 1,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._place = module, name
        self._device = device
        self._constants = tuple(constants)
        # Unset, fp fusion warns in Triton 3.9 and changes in 3.10.
        usual = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        self._options = usual | dict(options or {})
        self._kind = (*self._place, device, self._constants, *self._options.items())
        self._jit: Any = None
        self._driver: Any = None
        self._known: dict[tuple[object, ...], Any] = {}
        self._by_size = torch.version.hip is not None

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: Sequence[torch.Tensor | None],
        numbers: tuple[_Number, ...],
    ) -> None:
        """Launch on the current stream. Tensors of one position have one dtype. Raises what Triton
        raises."""
        key = (numbers, *[t is not None and t.data_ptr() % _ALIGN == 0 for t in tensors])
        if self._by_size:
            key += tuple([t is not None and _is_small(t) for t in tensors])
        compiled = self._known.get(key)
        if compiled is None or not self._is_current():
            self._launch_first(grid, tensors, numbers, key)
        else:
            compiled[grid](*tensors, *numbers, *self._constants)

    def _launch_first(
        self,
        grid: tuple[int, int, int],
        tensors: Sequence[torch.Tensor | None],
        numbers: tuple[_Number, ...],
        key: tuple[object, ...],
    ) -> None:
        if self._jit is None:
            module, name = self._place
            self._jit = getattr(importlib.import_module(module), name)
            self._driver = importlib.import_module("triton.runtime").driver
        full = (*self._kind, *key[1:], *map(_dtype, tensors), *map(_specialised, numbers))
        compiled = _compiled.get(full) if self._is_current() else None
        if compiled is not None:
            compiled[grid](*tensors, *numbers, *self._constants)
        else:
            with launch.on(self._device):
                compiled = self._jit[grid](*tensors, *numbers, *self._constants, **self._options)
            if self._device.type == "cpu":
                return  # the virtual GPU's architecture may change, and it is slow
            _remember(_compiled, full, compiled)
        _remember(self._known, key, compiled)

    def _is_current(self) -> bool:
        """Whether a launch goes to the device without further ado."""
        return (
            self._device.type == "cuda"
            and torch.cuda.current_device() == self._device.index
            and type(self._driver._active).__name__ != "VirtualDriver"
        )


def _remember(table: dict[tuple[object, ...], Any], key: tuple[object, ...], value: Any) -> None:
    if len(table) >= _MOST:
        table.clear()
    table[key] = value


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() < _SMALL


def _dtype(tensor: torch.Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _specialised(number: _Number) -> object:
    """What a compiled kernel may know of an integer, whether this one does or not."""
    if number is None or number == 1:
        return number
    return number % _ALIGN == 0, number.bit_length() // 32
