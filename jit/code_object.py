"""What a code object says of itself: target, kernels, their arguments and resources.

The AMDGPU metadata is a msgpack document in an ELF note (type 32, owner "AMDGPU"). Both are read
here in a page, so that no ELF or msgpack package is needed.
"""

from __future__ import annotations

import struct
from typing import Any

from . import arch
from .errors import RfopsError

_BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_NT_AMDGPU_METADATA = 32
_SHT_NOTE = 7
_E_MACHINE_AMDGPU = 0xE0


class CodeObjectError(RfopsError):
    """The bytes are no AMDGPU code object, or a damaged one."""


def unbundle(data: bytes, arch: str) -> bytes:
    """The raw ELF for `arch`: the input itself, or an entry of a clang offload bundle.

    Raises CodeObjectError.
    """
    if not data.startswith(_BUNDLE_MAGIC):
        return data
    try:
        return _bundled(data, arch)
    except struct.error as error:
        raise CodeObjectError(f"a bundle that is cut short: {error}") from error


def _bundled(data: bytes, arch: str) -> bytes:
    count, at = struct.unpack_from("<Q", data, 24)[0], 32
    seen = []
    for _ in range(min(count, 64)):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        triple = data[at + 24 : at + 24 + length].decode(errors="replace")
        at += 24 + length
        seen.append(triple)
        if size and triple.split("--")[-1].split(":")[0] == arch:
            return data[offset : offset + size]
    raise CodeObjectError(f"bundle has no entry for {arch}; it has {', '.join(seen)}")


# EF_AMDGPU_MACH, the low byte of e_flags.
_MACHINES = {row.elf_machine: name for name, row in arch.ROWS.items() if row.elf_machine}


def arch_of(elf: bytes) -> str:
    """The architecture that a code object is for; empty for another one's and for a bundle."""
    if elf[:4] != b"\x7fELF" or len(elf) < 52:
        return ""
    return _MACHINES.get(struct.unpack_from("<I", elf, 48)[0] & 0xFF, "")


def _sections(elf: bytes) -> list[tuple[int, int, int]]:
    """(type, offset, size) of each section."""
    if elf[:4] != b"\x7fELF" or elf[4] != 2 or elf[5] != 1:
        raise CodeObjectError("not a 64-bit little-endian ELF file")
    if struct.unpack_from("<H", elf, 18)[0] != _E_MACHINE_AMDGPU:
        raise CodeObjectError("an ELF file, but not for an AMD GPU")
    table = struct.unpack_from("<Q", elf, 40)[0]
    entry, count = struct.unpack_from("<HH", elf, 58)
    found = []
    for i in range(count):
        kind = struct.unpack_from("<I", elf, table + i * entry + 4)[0]
        offset, size = struct.unpack_from("<QQ", elf, table + i * entry + 24)
        found.append((kind, offset, size))
    return found


def _metadata_note(elf: bytes) -> bytes:
    for kind, at, size in _sections(elf):
        end = at + size
        while kind == _SHT_NOTE and at + 12 <= end:
            name_size, data_size, note = struct.unpack_from("<III", elf, at)
            start = at + 12 + (name_size + 3 & ~3)
            if note == _NT_AMDGPU_METADATA and elf[at + 12 : at + 18] == b"AMDGPU":
                return elf[start : start + data_size]
            at = start + (data_size + 3 & ~3)
    raise CodeObjectError("no AMDGPU metadata note")


_FIXED = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_SIZED = {
    0xC4: (">B", "bin"), 0xC5: (">H", "bin"), 0xC6: (">I", "bin"),
    0xD9: (">B", "str"), 0xDA: (">H", "str"), 0xDB: (">I", "str"),
    0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip


class _MsgPack:
    """The part of msgpack that LLVM writes: maps, arrays, texts, binaries, numbers, bool, nil."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def _take(self, fmt: str) -> Any:
        value = struct.unpack_from(fmt, self.data, self.at)[0]
        self.at += struct.calcsize(fmt)
        return value

    def _body(self, kind: str, size: int) -> Any:
        if kind == "list":
            return [self.value() for _ in range(size)]
        if kind == "map":
            return {self.value(): self.value() for _ in range(size)}
        piece = self.data[self.at : self.at + size]
        if len(piece) != size:
            raise CodeObjectError("metadata note is cut short")
        self.at += size
        return piece.decode() if kind == "str" else piece

    def value(self) -> Any:
        tag = self._take(">B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag < 0xC0:
            kind, bits = ("map", 15) if tag < 0x90 else ("list", 15) if tag < 0xA0 else ("str", 31)
            return self._body(kind, tag & bits)
        if tag in _FIXED:
            return self._take(_FIXED[tag])
        if tag in _SIZED:
            fmt, kind = _SIZED[tag]
            return self._body(kind, self._take(fmt))
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        raise CodeObjectError(f"metadata note: msgpack tag {tag:#x} is not known")


_DAMAGE = (
    struct.error,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    ValueError,
    OverflowError,
    RecursionError,
)
RESOURCES = {
    "vgpr": ".vgpr_count",  # all registers of a lane, AGPRs included
    "agpr": ".agpr_count",
    "sgpr": ".sgpr_count",
    "lds": ".group_segment_fixed_size",
    "scratch": ".private_segment_fixed_size",
    "vgpr_spills": ".vgpr_spill_count",
    "sgpr_spills": ".sgpr_spill_count",
    "kernarg": ".kernarg_segment_size",
    "max_workgroup": ".max_flat_workgroup_size",
}


def read_metadata(elf: bytes) -> dict[str, Any]:
    """{"target": ..., "kernels": {name: {"args": [...], "resources": {...}}}}.

    Raises CodeObjectError; hidden arguments are left out, as the runtime fills them.
    """
    try:
        document = _MsgPack(_metadata_note(elf)).value()
        kernels = {}
        for kernel in document["amdhsa.kernels"]:
            args = [
                {"offset": a[".offset"], "size": a[".size"], "kind": a[".value_kind"]}
                for a in kernel.get(".args", ())
                if not a[".value_kind"].startswith("hidden_")
            ]
            resources = {name: kernel.get(key, 0) for name, key in RESOURCES.items()}
            kernels[kernel[".name"]] = {"args": args, "resources": resources}
        return {"target": document.get("amdhsa.target", ""), "kernels": kernels}
    except _DAMAGE as error:
        raise CodeObjectError(f"damaged code object: {error!r}") from error


def waves_per_simd(vgpr: int) -> int:
    """Waves that the register file of a SIMD holds: 512 registers a lane, granules of 8, at most 8.

    LDS and the workgroup's size can lower it further; they depend on the launch.
    """
    return min(8, 512 // max(8, vgpr + 7 & ~7))
