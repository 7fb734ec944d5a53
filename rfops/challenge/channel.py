"""What the evaluator and a walled process say to each other, over one socket.

A message is a head, of a length that is checked, and blobs whose sizes the head has. The walled
side is not trusted: each of its heads is decoded into a type of this file, no blob is read that is
larger than what is asked for, and one deadline covers all of a message, however it comes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

MAX_HEAD = 64 << 20  # bytes: a record of 10^5 launches
# Before a head's length: what an entry writes to file descriptors at random is no message's start,
# where two stray bytes would make a length of megabytes that never come.
START = b"rfops\0m1"
_HEAD = struct.Struct(f"<{len(START)}sQ")
_CHUNK = 1 << 20
_ADDRESS_END = 1 << 47  # addresses of a process are below it

Count = Annotated[int, msgspec.Meta(ge=0, lt=_ADDRESS_END)]
Dim = Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
Dim3 = tuple[Dim, Dim, Dim]
Sizes = Annotated[list[Count], msgspec.Meta(max_length=32)]  # of a tensor
Counts = Annotated[dict[str, Count], msgspec.Meta(max_length=1000)]


class Untrue(Exception):
    """What came is no message, or not of what was asked for; the text says why, of whom."""


class Late(Exception):
    """The deadline has passed."""


class Ended(Exception):
    """The other side is gone."""


# ---------------------------------------------------------------- what a walled process says


class Region(msgspec.Struct):
    """A tensor as it lies in the process that has it."""

    dtype: str
    shape: Sizes
    stride: Sizes
    address: Count


class Launch(msgspec.Struct):
    code: Count  # number of its code object
    kernel: str
    grid: Dim3
    block: Dim3
    lds: Count
    args: bytes


class Write(msgspec.Struct):
    """What the host has written before a launch; a blob of no bytes stands for zeros."""

    launch: Count
    address: Count
    size: Count
    blob: Count


class Record(msgspec.Struct):
    """The launches of a call, and the memory that they found beside the case's inputs."""

    launches: list[Launch]
    codes: list[Count]  # bytes each
    inputs: list[Count]  # addresses, as many as the case has storages
    writes: list[Write]
    flaw: str = ""  # why it is not whole


class Ready(msgspec.Struct, tag=True):
    """The entry is loaded, or why it is not."""

    error: str = ""


class Reply(msgspec.Struct, tag=True):
    """What a call returned: `results` are followed by their bytes, contiguous."""

    nonce: int
    error: str = ""
    kind: str = ""
    results: list[Region] = []
    us: float = 0.0  # on a GPU of torch's
    computed: Counts = {}  # torch's operators on the case's tensors, with how often
    unrelated_ops: Counts = {}  # those on tensors that have nothing of the case
    record: Record | None = None


class Findings(msgspec.Struct, tag=True):
    """What the virtual GPU's checks have left, as lines of JSON, in one blob."""

    size: Count


class Replayed(msgspec.Struct, tag=True):
    error: str = ""
    collides: bool = False  # an address is taken: another process has others
    us: list[float] = []  # each launch's


Message = Ready | Reply | Findings | Replayed
T = TypeVar("T", bound=msgspec.Struct)


# ---------------------------------------------------------------- the socket


class Channel:
    """One end. `expect` is a clock's reading, not a duration."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.deadline: float | None = None

    def close(self) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """Let the other side find the end of what it reads; what it still says is received."""
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_WR)

    def has_unread(self) -> bool:
        """Return whether something has come that nobody has received."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def send(self, head: Any, blobs: Sequence[Any] = ()) -> None:
        """Send a head, which JSON must be able to encode, and the bytes of `blobs`."""
        data = msgspec.json.encode(head)
        self._send(_HEAD.pack(START, len(data)) + data)
        for blob in blobs:
            self._send(blob)

    def receive(self, kind: type[T]) -> T:
        """Receive a head of type `kind`. Raises Untrue for another message, Late after the
        deadline, and Ended where the other side has closed."""
        size = self._size()
        if size > MAX_HEAD:
            raise Untrue(f"a message of {size} bytes")
        try:
            message = msgspec.json.decode(self.read(size), type=Message)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Untrue(str(error)) from error
        if not isinstance(message, kind):
            raise Untrue(f"{type(message).__name__} instead of {kind.__name__}")
        return message

    def order(self) -> Any:
        """Receive a head of the evaluator, in a walled process, which trusts it."""
        return msgspec.json.decode(self.read(self._size()))

    def _size(self) -> int:
        """Receive the start of a message and return the bytes of its head. Raises Untrue."""
        start, size = _HEAD.unpack(self.read(_HEAD.size))
        if start != START:
            raise Untrue("no message begins there")
        return int(size)

    def read(self, size: int) -> bytearray:
        data = bytearray(size)
        self.read_into(memoryview(data))
        return data

    def read_into(self, view: memoryview) -> None:
        """Fill `view` with received bytes."""
        view = view.cast("B")
        while view.nbytes:
            count = self._do(self._socket.recv_into, view[:_CHUNK])
            if count == 0:
                raise Ended
            view = view[count:]

    def _send(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view.nbytes:
            view = view[self._do(self._socket.send, view[:_CHUNK]) :]

    def _do(self, action: Any, view: memoryview) -> int:
        if self.deadline is not None:
            remaining = self.deadline - time.monotonic()
            if remaining <= 0:
                raise Late
            self._socket.settimeout(remaining)
        try:
            count: int = action(view)
        except TimeoutError:
            raise Late from None
        except (BrokenPipeError, ConnectionError):
            raise Ended from None
        return count
