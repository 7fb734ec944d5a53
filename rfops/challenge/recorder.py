"""In the entry's process: what a call launches on the virtual GPU, and what torch computes beside.

The record is a claim that the entry could forge, and need not be believed: another process, which
the entry cannot reach, runs the recorded launches on inputs that the entry has not seen
(retime.py). What torch computes for the entry is named from here, and shows there: a launch that
copies a result which the host has made gives a wrong result on other inputs.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rfops.challenge.channel import Launch, Record, Write

_QUIET = {"detach", "alias", "set_", "_reshape_alias", "resize_", "lift_fresh", "_unsafe_view"}
_FILLS = {"zero_", "fill_"}  # whatever the memory held
_LARGE = 1 << 20  # bytes: what an empty tensor of this size holds is left out


class _Event(ctypes.Structure):
    """ObservedLaunch of csrc/vgpu/run/run.h."""

    _fields_ = (
        ("code", ctypes.c_void_p),
        ("code_bytes", ctypes.c_uint64),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("lds", ctypes.c_uint32),
        ("args_bytes", ctypes.c_uint32),
        ("args", ctypes.c_void_p),
    )


_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Event))
_WRITE_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


class _PointerInfo(ctypes.Structure):
    """hsa_amd_pointer_info_t."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("type", ctypes.c_int),
        ("base", ctypes.c_void_p),
        ("host_base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("user_data", ctypes.c_void_p),
        ("owner", ctypes.c_uint64),
        ("global_flags", ctypes.c_uint32),
        ("registered", ctypes.c_bool),
    )


_ALLOCATED = 1  # HSA_EXT_POINTER_TYPE_HSA


class Recorder(TorchDispatchMode):
    """Entered around all that the entry does; `begin` and `end` around a call."""

    def __init__(self, hip: Path, hsa: str | None = None) -> None:
        """Of launches by HIP's interface, and with `hsa`, a library's name, by packets in queues
        of its HSA runtime."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._hip = ctypes.CDLL(str(hip))
        self._hsa = None if hsa is None else ctypes.CDLL(hsa)
        self._observer = _OBSERVER(self._on_launch)
        self._write_observer = _WRITE_OBSERVER(self._on_write)
        for library in filter(None, (self._hip, self._hsa)):
            library.rfops_vgpu_observe_launches.argtypes = [_OBSERVER]
            library.rfops_vgpu_observe_launches(self._observer)
            library.rfops_vgpu_observe_writes.argtypes = [_WRITE_OBSERVER]
            library.rfops_vgpu_observe_writes(self._write_observer)
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}  # storages, by address
        self._record: Record | None = None
        self._codes: dict[bytes, int] = {}
        self._blobs: list[bytes] = []
        self._written: dict[int, int] = {}  # bytes that the host has written, by address
        self._empty: set[int] = set()
        self._blocks: set[int] = set()  # addresses of the runtimes' memory that launches have named
        self._of_case: dict[int, int] = {}  # its inputs: bytes, by address
        self._derived: set[int] = set()  # of what was computed from them
        self.computed, self.unrelated_ops = Counter[str](), Counter[str]()

    # ------------------------------------------------------------ a call

    def begin(self, inputs: Sequence[torch.UntypedStorage]) -> None:
        """From now on launches are recorded; `inputs` are the case's memory."""
        self.computed.clear()
        self.unrelated_ops.clear()
        self._codes, self._blobs, self._empty, self._blocks = {}, [], set(), set()
        addresses = [storage.data_ptr() for storage in inputs]
        self._of_case = {storage.data_ptr(): storage.nbytes() for storage in inputs}
        self._storages = {a: k for a, k in self._storages.items() if not k[0].expired()}
        self._written = {a: size for a, (_, size) in self._storages.items()}
        self._derived &= set(self._storages)
        self._record = Record([], [], addresses, [])

    def end(self) -> tuple[Record, list[bytes]]:
        """The record, and its blobs: code objects, then writes."""
        record, self._record = self._record, None
        assert record is not None
        codes = list(self._codes)
        record.codes = [len(code) for code in codes]
        return record, [*codes, *self._blobs]

    # ------------------------------------------------------------ torch's operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            self._see(func, inputs, tree_leaves(result))
        return result

    def _see(self, func: Any, inputs: list[torch.Tensor], results: list[Any]) -> None:
        """Note the results' memory, and count the operator as one on the case's tensors or on
        unrelated ones."""
        name = func._schema.name.partition("::")[2]
        is_empty = "empty" in name
        is_derived = not is_empty and any(map(self._holds_case, inputs))
        for tensor in results:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._note(tensor, is_empty, is_derived)
        if name in _QUIET or is_empty:
            return
        if name in _FILLS:
            is_derived = inputs[0].untyped_storage().data_ptr() in self._of_case
        (self.computed if is_derived else self.unrelated_ops)[str(func)] += 1

    def _holds_case(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor has memory of the case's inputs, or was computed from them."""
        if tensor.layout != torch.strided:
            return True
        address = tensor.untyped_storage().data_ptr()
        return address in self._of_case or address in self._derived

    def _note(self, tensor: torch.Tensor, is_empty: bool, is_derived: bool) -> None:
        """Remember the storage of a result: what the host may have written, whether it is empty,
        and whether it was computed from the case's inputs."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self._of_case:
            return
        self._storages[address] = StorageWeakRef(storage), size
        self._written[address] = size
        (self._derived.add if is_derived else self._derived.discard)(address)
        if is_empty and size >= _LARGE:
            self._empty.add(address)
        else:
            self._empty.discard(address)

    # ------------------------------------------------------------ launches

    def _on_launch(self, pointer: Any) -> None:
        record = self._record
        if record is None:
            return
        try:
            event = pointer.contents
            code = ctypes.string_at(event.code, event.code_bytes)
            number = self._codes.setdefault(code, len(self._codes))
            args = ctypes.string_at(event.args, event.args_bytes)
            words = memoryview(args[: len(args) & ~7]).cast("Q").tolist()
            self._find_blocks(words)
            self._take_writes(record)
            grid, block = tuple(event.grid), tuple(event.block)
            kernel = event.kernel.decode()
            record.launches.append(Launch(number, kernel, grid, block, event.lds, args))
            self._derived |= self._storages.keys() & set(words)  # it may write there
        except Exception as error:  # which C++ could not be told
            record.flaw = f"{type(error).__name__}: {error}"

    def _on_write(self, address: int, size: int) -> None:
        """A copy or fill by a call of the runtime. What it has written is read at the next launch;
        host memory that no kernel is known to reach is left out."""
        record = self._record
        if record is None:
            return
        try:
            base, block_size = self._block_of(address)
            if base and base not in self._blocks:
                self._blocks.add(base)
                self._written[base] = block_size
            elif base or self._is_seen(address):
                self._written[address] = max(size, self._written.get(address, 0))
                self._empty.discard(address)
        except Exception as error:  # which C++ could not be told
            record.flaw = f"{type(error).__name__}: {error}"

    def _is_seen(self, address: int) -> bool:
        """Return whether `address` is in a storage of torch that the recorder knows."""
        storages = [*self._of_case.items(), *((a, size) for a, (_, size) in self._storages.items())]
        return any(begin <= address < begin + size for begin, size in storages)

    def _find_blocks(self, words: Sequence[int]) -> None:
        """Memory of hipMalloc's, or of the HSA runtime's, that an argument names. What it held when
        the call's first launch named it counts, and what the runtime's copies and fills write
        there later: other contents are launches' results."""
        for word in words:
            if word in self._storages or word in self._of_case or not word:
                continue
            base, size = self._block_of(word)
            if base and base not in self._blocks:
                self._blocks.add(base)
                self._written[base] = size

    def _block_of(self, word: int) -> tuple[int, int]:
        """Return the address and the bytes of the runtimes' block that `word` points into, or
        zeros."""
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        find = self._hip.hipMemGetAddressRange
        if find(ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(word)) == 0:
            return base.value or 0, size.value
        if self._hsa is None:
            return 0, 0
        info = _PointerInfo(ctypes.sizeof(_PointerInfo))
        find = self._hsa.hsa_amd_pointer_info
        find(ctypes.c_void_p(word), ctypes.byref(info), None, None, None)
        return (info.base or 0, info.bytes) if info.type == _ALLOCATED else (0, 0)

    def _take_writes(self, record: Record) -> None:
        """Record what the host has written since the last launch, with the bytes there."""
        for address, size in self._written.items():
            empty = address in self._empty
            blob = b"" if empty else ctypes.string_at(address, size)
            if not blob.strip(b"\0"):
                blob = b""
            record.writes.append(Write(len(record.launches), address, size, len(blob)))
            if blob:
                self._blobs.append(blob)
        self._written.clear()
