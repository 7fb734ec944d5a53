"""A Triton kernel bound to a device and its constants, for plans that launch it again and again.

Triton looks at every argument of every launch to find its compiled kernel. A plan's numbers and
types never change, so that only what a pointer says of itself is left to look at: the compiled
kernel is kept, and Triton's launcher called at once (a call of batched_gemm_a16w8_blockscale: 34 us
before, 16 so, on an H200's host).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from . import launch

_ALIGN = 16  # bytes that Triton's compiled kernels tell pointers apart by
_SMALL = 2**31  # bytes of a storage, likewise, on AMD


class BoundKernel:
    """`rfops.triton.<module>.<name>`; its parameters are tensors, then numbers, then constants."""

    def __init__(
        self,
        module: str,
        name: str,
        device: torch.device,
        constants: Sequence[object],
        warps: int,
        stages: int = 1,
    ) -> None:
        self._place = module, name
        self._device = device
        self._constants = tuple(constants)
        # Unset, fp fusion warns in Triton 3.9 and changes in 3.10.
        self._options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        self._jit: Any = None
        self._driver: Any = None
        self._compiled: dict[tuple[int, ...], Any] = {}
        self._by_size = torch.version.hip is not None

    def __call__(
        self, grid: tuple[int, int, int], tensors: Sequence[torch.Tensor], numbers: Sequence[int]
    ) -> None:
        """Launch on the current stream. `numbers` that Triton specialises must not change between
        calls. Raises what Triton raises."""
        if self._jit is not None and self._is_current():
            compiled = self._compiled.get(self._key(tensors))
            if compiled is not None:
                compiled[grid](*tensors, *numbers, *self._constants)
                return
        if self._jit is None:
            module, name = self._place
            self._jit = getattr(importlib.import_module(f"rfops.triton.{module}"), name)
            self._driver = importlib.import_module("triton.runtime").driver
        with launch.on(self._device):
            compiled = self._jit[grid](*tensors, *numbers, *self._constants, **self._options)
        if self._device.type != "cpu":  # the virtual GPU's architecture may change, and it is slow
            self._compiled[self._key(tensors)] = compiled

    def _is_current(self) -> bool:
        """Whether a launch goes to the device without further ado."""
        return (
            self._device.type == "cuda"
            and torch.cuda.current_device() == self._device.index
            and type(self._driver._active).__name__ != "VirtualDriver"
        )

    def _key(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        key = tuple([tensor.data_ptr() % _ALIGN == 0 for tensor in tensors])
        if self._by_size:
            sizes = [tensor.untyped_storage().nbytes() < _SMALL for tensor in tensors]
            return (*key, *sizes)
        return key
