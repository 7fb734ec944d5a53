"""Whether torch has to see an op: a mode or a transform is active in this thread, or a gradient is
wanted.

A call that went past torch's dispatcher then would be missing in what the mode records, traces,
fakes, transforms or differentiates.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

# Each is true while something of its kind is active.
MODES = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._are_functorch_transforms_active,
)
_LEVEL = "_current_level"  # in forward_ad: below 0 outside of forward-mode differentiation


def are_active() -> bool:
    """Of any kind. 0.2 us."""
    dispatch, function, transform = MODES
    return bool(dispatch() or function() or transform())


def wants_gradient(args: tuple[Any, ...]) -> bool:
    """Whether torch records a gradient of one of the tensors among them. 0.4 us."""
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        return True
    return getattr(forward_ad, _LEVEL, -1) >= 0 and any(map(has_tangent, args))


def has_tangent(arg: object) -> bool:
    """Whether it is a dual tensor of forward-mode differentiation; it looks like any other."""
    if not isinstance(arg, torch.Tensor):
        return False
    return forward_ad.unpack_dual(arg).tangent is not None


def gradients() -> tuple[Any, ...]:
    """The same for the native tables: what to ask, and where to see that nothing need be asked."""
    names = vars(forward_ad)
    attribute = torch._C.TensorBase.requires_grad
    return torch.is_grad_enabled, attribute, names, _LEVEL, *_metadata()


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Whatever the caller has switched on: no mode of theirs sees what is done here."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def _metadata() -> tuple[int, int]:
    """Byte offsets: in a Tensor of its TensorImpl's address, in that of the address of autograd's
    metadata, null where it has none: the one word that tells tensors with and without apart.
    (0, 0), and all tensors are asked, where no word or several do."""
    make_ones = functools.partial(torch.ones, device="cpu")
    with _unseen(), torch.inference_mode(False), torch.enable_grad():
        leaf = make_ones(2, requires_grad=True)
        with_metadata = leaf, leaf + 1, torch.nn.Parameter(make_ones(2, 3))
        without_metadata = make_ones(2), make_ones(2, 3), make_ones(2, dtype=torch.int32)
        words_with, words_without = [
            [_read_words(t._cdata, 8) for t in tensors]
            for tensors in (with_metadata, without_metadata)
        ]
        impl_address = leaf._cdata
    tensor_words = _read_words(id(leaf), torch.Tensor.__basicsize__ // 8)
    impls = [index for index, value in enumerate(tensor_words) if value == impl_address]
    indices = [
        i
        for i in range(8)
        if all(w[i] for w in words_with) and not any(w[i] for w in words_without)
    ]
    return (8 * impls[0], 8 * indices[0]) if len(impls) == len(indices) == 1 else (0, 0)


def negative_bit() -> tuple[int, int]:
    """The byte offset of the dispatch keys in a TensorImpl, and the bit of them that tells torch's
    lazy negation (torch._neg_view); (0, 0) if that cannot be found, and every tensor is asked."""
    get_keys = torch._C._dispatch_keys
    with _unseen(), torch.inference_mode(False), torch.no_grad():
        tensors = torch.ones(2, device="cpu"), torch.ones(2, 3, dtype=torch.int32, device="cpu")
        pairs = [(tensor, torch._neg_view(tensor)) for tensor in tensors]
        keys = [(t, get_keys(t).raw_repr()) for pair in pairs for t in pair]
        indices = [
            i for i in range(24) if all(_read_words(t._cdata, 24)[i] == key for t, key in keys)
        ]
        bits = {
            get_keys(tensor).raw_repr() ^ get_keys(negated).raw_repr() for tensor, negated in pairs
        }
    bit = bits.pop()
    is_sure = len(indices) == 1 and not bits and bit.bit_count() == 1
    return (8 * indices[0], bit) if is_sure else (0, 0)


def _read_words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))
