"""In which order the elements of an expert weight are stored.

aiter's shuffle_weight marks its result, `is_shuffled`, and a copy of its bytes into a parameter
loses the mark. The plugins watch that function and keep a fingerprint of all bytes of each result,
by which the copy is known again. It is compared once per weight, and again after a write to it or
another shuffle; a write through `.data` alone changes what the engine's own kernels read, too. A
weight with neither a mark nor such a fingerprint has an unknown order: a raw and a shuffled weight
have the same shape and dtype, so the original is called.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

RAW, SHUFFLED, OTHER_LAYOUT = "raw", "16x16", "other"
MOST_RECORDS = 1 << 16
_BLOCK_WORDS = 1 << 16  # of 8 bytes, in a block of a fingerprint
_BLOCKS_PER_SUM = 64  # blocks, 32 MiB
Fingerprint = tuple[Any, ...]
_RECORDS: dict[Fingerprint, str] = {}  # by fingerprint, the order
_LAYOUT_RECORDS: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Any, ...], str | None]] = {}


def mark(weight: Any) -> str | None:
    """Return the order that the engine's mark `is_shuffled` names, None without the mark."""
    is_shuffled = getattr(weight, "is_shuffled", None)
    if is_shuffled is None:
        return None
    return SHUFFLED if is_shuffled else RAW


def find_layout(weight: Any) -> str | None:
    """Return the order of a weight's elements by its mark, otherwise by its fingerprint; None where
    neither is known."""
    marked_layout = mark(weight)
    if marked_layout is not None or not _RECORDS or not isinstance(weight, torch.Tensor):
        return marked_layout
    record = _LAYOUT_RECORDS.get(id(weight))
    if record is not None and record[0]() is weight and record[1] == _state(weight):
        return record[2]
    return _establish(weight)


def _state(weight: torch.Tensor) -> tuple[Any, ...]:
    """Return facts that change when the weight is written or gets another storage. Inference
    tensors have no version."""
    version = None if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.shape, weight.stride()


def _establish(weight: torch.Tensor) -> str | None:
    if is_compiling() or _is_capturing(weight) or not weight.is_contiguous():
        return None
    order = _RECORDS.get(fingerprint(weight))
    number = id(weight)
    dies = weakref.ref(weight, lambda _: _LAYOUT_RECORDS.pop(number, None))
    _LAYOUT_RECORDS[number] = dies, _state(weight), order
    return order


def _is_capturing(weight: torch.Tensor) -> bool:
    """Whether a stream is recorded into a graph, which no copy to the host may interrupt."""
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()


def note(weight: torch.Tensor, order: str) -> None:
    """Record what a shuffle function returned."""
    if is_compiling() or _is_capturing(weight) or not weight.is_contiguous():
        return
    while len(_RECORDS) >= MOST_RECORDS:
        _RECORDS.pop(next(iter(_RECORDS)))
    _LAYOUT_RECORDS.clear()  # the result may be written through .data, which changes no version
    _RECORDS[fingerprint(weight)] = order


# ---------------------------------------------------------------- fingerprints


@torch.no_grad()
def fingerprint(weight: torch.Tensor) -> Fingerprint:
    """Shape, element size and two hashes of all bytes, each a sum of words times fixed random
    numbers modulo 2^64: words that change places change it."""
    data = weight.detach().view(torch.uint8).flatten()
    num_whole = data.numel() - data.numel() % (8 * _BLOCK_WORDS)
    padded_tail = torch.nn.functional.pad(
        data[num_whole:], (0, num_whole + 8 * _BLOCK_WORDS - data.numel())
    )
    high_multiplier, low_multiplier = _multipliers(weight.device)
    block_sums = []
    for block in (*_blocks(data[:num_whole]), *_blocks(padded_tail)):
        low = block ^ (block >> 29)  # without it, two changes of a word's top bit would cancel
        block_sums.append(
            torch.stack([(block * high_multiplier).sum(1), (low * low_multiplier).sum(1)])
        )
    return tuple(weight.shape), weight.element_size(), *_fold(torch.cat(block_sums, 1).tolist())


def _blocks(data: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(data.view(torch.int64).view(-1, _BLOCK_WORDS).split(_BLOCKS_PER_SUM))


def _fold(block_sums: list[list[int]]) -> tuple[int, ...]:
    """The blocks' sums in their order, as one number for each hash."""
    folded = []
    for of_blocks in block_sums:
        value = 0
        for block in of_blocks:
            value = (value * 0x9E3779B97F4A7C15 + block) % (1 << 64)
        folded.append(value)
    return tuple(folded)


@functools.lru_cache(maxsize=8)
def _multipliers(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(34)
    multipliers = torch.randint(-(2**63), 2**63 - 1, (2, _BLOCK_WORDS), generator=generator) | 1
    high, low = multipliers.to(device)
    return high, low


# ---------------------------------------------------------------- the functions that shuffle


class Shuffle:
    """aiter's shuffle_weight, which is always the original: its results are noted."""

    target, group = "aiter.ops.shuffle.shuffle_weight", "moe"
    aliases: tuple[str, ...] = ()
    is_registered, is_hooked, missing = False, False, ""

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the engine's shuffle and record the layout of its result."""
        shuffled = original(*args, **kwargs)
        if getattr(original, "rfops", None) is not self and not is_compiling():
            self._note(original, shuffled, args, kwargs)
        return shuffled

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the engine's shuffle function wrapped so that layouts are recorded."""

        @functools.wraps(original)
        def shuffle(*args: Any, **kwargs: Any) -> Any:
            return self.call(original, *args, **kwargs)

        shuffle.rfops = self  # type: ignore[attr-defined]
        return shuffle

    def _note(self, original: Any, shuffled: Any, args: Any, kwargs: Any) -> None:
        if not isinstance(shuffled, torch.Tensor) or shuffled.dim() != 3:  # no expert weights
            return
        try:
            note(shuffled, _order(original, args, kwargs))
        except (RuntimeError, TypeError, ValueError):  # weights stay unknown: the original's
            return


def _order(original: Any, args: Any, kwargs: Any) -> str:
    """16x16 where nothing but its defaults, or a layout of (16, 16), is asked for."""
    arguments = dict(inspect.signature(original).bind(*args, **kwargs).arguments)
    layout = arguments.pop("layout", (16, 16))
    options = list(arguments.items())[1:]  # after the weight
    flags = {name: value for name, value in options if name != "gate_up"}
    is_plain = tuple(layout) == (16, 16) and not any(flags.values())
    return SHUFFLED if is_plain else OTHER_LAYOUT


SHUFFLE = Shuffle()
