"""A launch at the prompt: its kernel, listing, source lines, arguments, waves and memory."""

from __future__ import annotations

import bisect
import fnmatch
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rfops.cli.debug.arguments import Argument, arguments
from rfops.cli.debug.program import Connection
from rfops.cli.debug.values import LANES, words_of
from rfops.jit.paths import CSRC
from rfops.vgpu.timed_text import source_path

LDS_BASE = 0x7F00 << 48  # the shared aperture (csrc/vgpu/isa/wave.h)
SPECIAL = {"vcc": 106, "m0": 124, "exec": 126, "flat_scratch": 102, "xnack_mask": 104}
_SHORT = re.compile(r"(^|^\./|/\.stage-[^/]+/)(root|rfops)/")  # as the engine compiles


@dataclass(frozen=True)
class Line:
    """A line of a source file."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number}"

    def text(self) -> str:
        """Its text, empty if the file is not there."""
        return linecache.getline(self.file, self.number).rstrip()


def source_file(name: str, kernel: str) -> str:
    """The file of a debug line on this machine. The engine's code objects name no folder of the
    machine that compiled them (rfops.vgpu.timed_text.source_path)."""
    _, _, relative = name.partition("root/")
    if relative and (CSRC / relative).is_file():  # of rfops' own kernels: no op is imported
        return str(CSRC / relative)
    if not _SHORT.search(name):
        # Triton's cache may hold a kernel that was compiled from a copy of the script elsewhere.
        return (
            name if Path(name).is_file() or not Path(Path(name).name).is_file() else Path(name).name
        )
    return source_path(f"{name}:0", kernel).rpartition(":")[0]


def is_file(name: str, pattern: str) -> bool:
    """Whether the user's name, perhaps with some of its folders, is this file's."""
    pattern_parts = Path(pattern).parts
    return Path(name).parts[-len(pattern_parts) :] == pattern_parts


@dataclass(frozen=True)
class Instruction:
    """One of a listing. `offset` is in the code object's text; `lines` are its own source line and
    those of the calls around it that were inlined, the innermost first."""

    offset: int
    text: str
    lines: tuple[Line, ...]

    @property
    def line(self) -> Line | None:
        return self.lines[0] if self.lines else None


class Listing:
    """The instructions of a code object."""

    def __init__(self, rows: list[list[Any]], kernel: str) -> None:
        names = {name for row in rows for name in row[2::2]}
        paths = {name: source_file(name, kernel) for name in names}
        self.instructions = [
            Instruction(
                offset,
                text,
                tuple(
                    Line(paths[file], number)
                    for file, number in zip(lines[::2], lines[1::2], strict=True)
                ),
            )
            for offset, text, *lines in rows
        ]
        self._offsets = [inst.offset for inst in self.instructions]

    def index(self, offset: int) -> int | None:
        """The position of the instruction that begins there."""
        position = bisect.bisect_left(self._offsets, offset)
        is_boundary = position < len(self._offsets) and self._offsets[position] == offset
        return position if is_boundary else None

    def instruction_at(self, offset: int) -> Instruction | None:
        position = self.index(offset)
        return None if position is None else self.instructions[position]

    def boundary(self, offset: int) -> int:
        """The offset of the instruction that this one lies in."""
        return self._offsets[max(0, bisect.bisect_right(self._offsets, offset) - 1)]

    def instructions_around(self, offset: int, num_before: int, count: int) -> list[Instruction]:
        position = bisect.bisect_left(self._offsets, offset)
        return self.instructions[max(0, position - num_before) :][:count]

    @cached_property
    def files(self) -> list[str]:
        return list(dict.fromkeys(line.file for i in self.instructions for line in i.lines))

    def find_line(self, file: str, number: int) -> Instruction | None:
        """The first instruction of a line, or of the next line that has one. The line of a call
        has those that were inlined."""
        offsets = [
            (line.number, i.offset, i)
            for i in self.instructions
            for line in i.lines
            if line.number >= number and is_file(line.file, file)
        ]
        return min(offsets, key=lambda row: row[:2])[2] if offsets else None


def _short_name(kernel: str, demangled: str) -> str:
    """The name without parameters, also where the host's library cannot read the mangled name, as
    that of _Float16."""
    match = re.match(r"_Z(\d+)", kernel)
    if demangled == kernel and match is not None:
        return kernel[match.end() :][: int(match[1])]
    return demangled.partition("(")[0] or kernel


_listings: dict[int, Listing] = {}  # by code object


class Launch:
    """A launch that has been announced and has not ended."""

    def __init__(self, connection: Connection, event: Mapping[str, Any]) -> None:
        self.connection, self.event = connection, event
        self.kernel: str = event["kernel"]
        self.arch: str = event["arch"]
        self.name = _short_name(self.kernel, event["demangled"])
        self.entry_breakpoints: list[Any] = []  # to be told of at its first instruction

    def is_named(self, pattern: str) -> bool:
        """Whether a name or a pattern with * and ? is the kernel's."""
        names = (self.kernel, self.event["demangled"], self.name)
        return any(fnmatch.fnmatchcase(name, pattern) for name in names)

    @property
    def listing(self) -> Listing:
        code = self.event["code"]
        if code not in _listings:
            _listings[code] = Listing(self.connection.ask("listing"), self.kernel)
        return _listings[code]

    def in_text(self, address: int) -> int:
        """The offset in the text of an address or an offset."""
        begin: int = self.event["address"]
        is_in_text = begin <= address < begin + self.event["text_bytes"]
        return address - begin if is_in_text else address

    @cached_property
    def args(self) -> list[Argument]:
        """The kernel's own arguments, by the names of its source where that can be read."""
        return arguments(self.event, self.name, self.listing.files)

    def arg(self, name: str) -> Argument | None:
        return next((a for a in self.args if name in (a.name, f"arg{a.index}")), None)

    # ------------------------------------------------------------------------ waves

    def waves(self) -> list[dict[str, Any]]:
        """The waves of the stopped workgroup."""
        rows: list[dict[str, Any]] = self.connection.ask("waves")
        return rows

    def scalars(self, wave: int) -> tuple[list[int], dict[str, int]]:
        """s0 to s127 as encoded, and scc, mode."""
        answer = self.connection.ask(f"scalars {wave}")
        return words_of(answer.pop("words")), answer

    def vectors(self, wave: int, first_reg: int, count: int) -> list[list[int]]:
        """A list of 64 lanes for each of `count` registers; AGPRs begin at 256."""
        words = words_of(self.connection.ask(f"vectors {wave} {first_reg} {count}")["words"])
        return [words[begin : begin + LANES] for begin in range(0, len(words), LANES)]

    def memory(self, address: int, count: int) -> bytes:
        """Bytes of global memory or, from LDS_BASE on, of the workgroup's LDS."""
        return bytes.fromhex(self.connection.ask(f"read {address} {count}")["bytes"])

    def allocation(self, address: int) -> tuple[int, int] | None:
        """Begin and size of the hipMalloc block that holds an address."""
        answer = self.connection.ask(f"allocation {address}")
        return (answer["base"], answer["size"]) if answer else None

    def symbol(self, address: int) -> str:
        """An address by the argument that points to it: `out+0x10`."""
        if LDS_BASE <= address < LDS_BASE + (1 << 32):
            return f"lds+{address - LDS_BASE:#x}"
        pointers = [a for a in self.args if a.is_pointer and a.value]
        bases = [(a.value, a.name) for a in pointers if a.value is not None and a.value <= address]
        if bases:
            base, name = max(bases)
            if address - base < 1 << 32:
                return f"{name}+{address - base:#x}"
        return f"{address:#x}"
