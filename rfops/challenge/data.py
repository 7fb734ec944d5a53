"""What a call takes and returns: tensors in tuples, mappings, modules and objects."""

from __future__ import annotations

import copy
from typing import Any

import torch


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a call's result: the result itself, or the tensors of a tuple or
    list."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [t for t in result if isinstance(t, torch.Tensor)]
    return []


def to_device(data: Any, device: str) -> Any:
    """Return a copy of `data` whose tensors are on `device`."""
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, torch.nn.Module):
        return copy.deepcopy(data).to(device)
    if isinstance(data, (tuple, list)):
        return type(data)(to_device(element, device) for element in data)
    if isinstance(data, dict):
        return {name: to_device(value, device) for name, value in data.items()}
    clone = copy.copy(data)
    for name, value in vars(data).items() if hasattr(data, "__dict__") else ():
        setattr(clone, name, to_device(value, device))
    return clone


def copy_values(data: Any, source: Any) -> Any:
    """Write the values of `source` into the tensors of `data`, which has the same structure, and
    return `data`. The addresses stay, so that what an entry kept by address or shape is stale."""
    if isinstance(data, torch.Tensor):
        data.copy_(source)
    elif isinstance(data, (tuple, list)):
        for old, new in zip(data, source, strict=True):
            copy_values(old, new)
    elif isinstance(data, dict):
        for name in data:
            copy_values(data[name], source[name])
    elif hasattr(data, "__dict__"):
        if isinstance(data, torch.nn.Module):
            copy_values(dict(data.named_buffers()), dict(source.named_buffers()))
        for name, value in vars(data).items():
            if isinstance(value, torch.Tensor):
                copy_values(value, vars(source)[name])
            elif isinstance(value, int) and not isinstance(data, type):
                setattr(data, name, vars(source)[name])
    return data
