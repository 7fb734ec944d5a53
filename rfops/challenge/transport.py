"""A case's data as a skeleton and storages: tensors that share memory share it on the other side,
with their strides. The skeleton is a pickle, which the entry's process reads and the evaluator
writes; nothing is unpickled the other way round."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Packed(NamedTuple):
    skeleton: bytes
    storages: list[memoryview]

    @property
    def sizes(self) -> list[int]:
        return [view.nbytes for view in self.storages]


def bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """Its memory."""
    flat: Any = torch.empty(0, dtype=torch.uint8).set_(storage)
    return memoryview(flat.numpy())


def tensor_of(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    shape: Sequence[int],
    stride: Sequence[int] | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """A tensor in this memory, contiguous without strides. Raises RuntimeError if it is larger."""
    if stride is None:
        stride = torch.empty(shape, dtype=dtype, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, offset, tuple(shape), tuple(stride))


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.storages: dict[int, torch.UntypedStorage] = {}
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        storage = obj.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self._numbers))
        self.storages[number] = storage
        return number, obj.dtype, obj.storage_offset(), tuple(obj.shape), obj.stride()


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, storages: Sequence[torch.UntypedStorage]) -> None:
        super().__init__(stream)
        self._storages = storages

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, dtype, offset, shape, stride = pid
        return tensor_of(self._storages[number], dtype, shape, stride, offset)


def packed(data: Any) -> Packed:
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(data)
    return Packed(stream.getvalue(), [bytes_of(s) for s in pickler.storages.values()])


def unpacked(skeleton: bytes, storages: Sequence[torch.UntypedStorage]) -> Any:
    return _Unpickler(io.BytesIO(skeleton), storages).load()


def new_storage(size: int) -> torch.UntypedStorage:
    """Memory as torch gives it to a tensor."""
    return torch.empty(size, dtype=torch.uint8).untyped_storage()
