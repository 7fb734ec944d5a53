"""The launches of a call, ready but for the addresses of its tensors."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch

# ---------------------------------------------------------------- launching


class Plan:
    """What a call of these sizes launches. An argument is a number, None, or a tensor by its name:
    "x", "x+64" from its byte 64 on, "gate[:64]" the table of 64 that a tuple's addresses begin."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        kernels: Mapping[str, Any],
        function_of: Callable[[str], Any],
        device: torch.device,
    ) -> None:
        self.device = device
        self.result = plan.get("result")
        self.scratch = {  # kernels leave zeros where they found them
            name: torch.zeros(size, dtype=torch.uint8, device=device)
            for name, size in plan["scratch"].items()
        }
        self.steps = [
            self.step(function_of(name), kernels[name]["arguments"], *step_args)
            for name, *step_args in plan["launches"]
        ]

    def step(self, function: Any, layout: str, grid: Any, block: Any, args: Any) -> Any:
        arg_words: list[Any] = []
        tensor_slots: list[tuple[int, str, int]] = []  # of tensors that each call brings
        for arg in args:
            table = isinstance(arg, str) and re.fullmatch(r"(\w+)\[:(\d+)\]", arg)
            if table:
                tensor_slots.append((len(arg_words), table[1], -1))
                arg_words += [0] * int(table[2])
            elif isinstance(arg, str):
                name, _, offset = arg.partition("+")
                if name in self.scratch:
                    arg_words.append(self.scratch[name].data_ptr() + int(offset or 0))
                else:
                    tensor_slots.append((len(arg_words), name, int(offset or 0)))
                    arg_words.append(0)
            else:
                arg_words.append(arg or 0)
        packer = struct.Struct("<" + layout)
        memory = ctypes.create_string_buffer(packer.size)
        return function, grid, block, packer.pack_into, memory, arg_words, tensor_slots

    def run(self, tensors: dict[str, Any]) -> torch.Tensor:
        if self.result is not None:
            shape, dtype = self.result
            dtype = getattr(torch, dtype)
            tensors["out"] = torch.empty(shape, dtype=dtype, device=self.device)
        for function, grid, block, pack, memory, arg_words, tensor_slots in self.steps:
            for word_idx, name, offset in tensor_slots:
                if offset >= 0:
                    arg_words[word_idx] = tensors[name].data_ptr() + offset
                else:
                    for index, tensor in enumerate(tensors[name]):
                        arg_words[word_idx + index] = tensor.data_ptr()
            pack(memory, 0, *arg_words)
            function(grid, block, memory)
        out: torch.Tensor = tensors["out"]
        return out


_PLANS: dict[Any, Plan] = {}


def plan_of(
    sizes: Any,
    tensors: dict[str, Any],
    plans: Mapping[Any, Any],
    kernels: Mapping[str, Any],
    function_of: Callable[[str], Any],
) -> Plan:
    """Made at the first call of its sizes on a device."""
    device = next(t for t in tensors.values() if isinstance(t, torch.Tensor)).device
    cached = _PLANS.get((sizes, device))
    if cached is not None:
        return cached
    if sizes not in plans:
        known_sizes = ", ".join(map(str, plans))
        raise ValueError(
            f"no plan for the sizes {sizes}, only for {known_sizes}; "
            "`rfops submit --case` makes an entry with others"
        )
    _check_strides(tensors, plans[sizes]["strides"])
    plan = _PLANS[sizes, device] = Plan(plans[sizes], kernels, function_of, device)
    return plan


def _check_strides(tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Tensors that lie otherwise would give wrong results in silence."""
    for name, strides in expected.items():
        value = tensors[name]
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            if tensor.stride() != strides:
                raise ValueError(f"{name}: strides {tensor.stride()}, made for {strides}")
