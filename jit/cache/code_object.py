"""What a code object says of itself: target, kernels, their arguments and resources.

The AMDGPU metadata is a msgpack document in an ELF note (type 32, owner "AMDGPU"). pyelftools finds
the note, msgspec reads it, as records. Builds and imports read it, also of files that a stranger
made: sizes are looked at before pyelftools walks what is in them.
"""

from __future__ import annotations

import io
import struct

import msgspec

from ..errors import RfopsError
from .records import Record

_BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_NT_AMDGPU_METADATA = 32
_MOST_HEADERS = 200  # segments, sections; a code object has 10 and 20
_MOST_NOTES = 1 << 18  # bytes; a kernel of 20 arguments has 2 KB


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
    count, position = struct.unpack_from("<Q", data, 24)[0], 32
    triples = []
    for _ in range(min(count, 64)):
        offset, size, length = struct.unpack_from("<QQQ", data, position)
        triple = data[position + 24 : position + 24 + length].decode(errors="replace")
        position += 24 + length
        triples.append(triple)
        if size and triple.split("--")[-1].split(":")[0] == arch:
            return data[offset : offset + size]
    raise CodeObjectError(f"bundle has no entry for {arch}; it has {', '.join(triples)}")


def _metadata_note(elf: bytes) -> bytes:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.notes import iter_notes

    if elf[:6] != b"\x7fELF\x02\x01":
        raise CodeObjectError("not a 64-bit little-endian ELF file")
    file = ELFFile(io.BytesIO(elf))
    if file["e_machine"] != "EM_AMDGPU":
        raise CodeObjectError("an ELF file, but not for an AMD GPU")
    headers = file["e_phnum"] + file.num_sections()
    if headers > _MOST_HEADERS:
        raise CodeObjectError(f"{headers} segments and sections, of at most {_MOST_HEADERS}")
    for segment in list(file.iter_segments("PT_NOTE")):
        start, size = segment["p_offset"], segment["p_filesz"]
        if size > _MOST_NOTES:
            raise CodeObjectError(f"{size} bytes of notes, of at most {_MOST_NOTES}")
        file.stream = io.BytesIO(elf[: start + size])  # a note's name may declare any length
        for note in iter_notes(file, start, size):
            if note["n_name"] == "AMDGPU" and int(note["n_type"]) == _NT_AMDGPU_METADATA:
                return bytes(note["n_descdata"])
    raise CodeObjectError("no AMDGPU metadata note")


class Argument(Record, frozen=True):
    """Of a kernel, as meta.json has it."""

    offset: int
    size: int
    kind: str


class Kernel(Record, frozen=True):
    """What a kernel takes and uses; hidden arguments are left out, as the runtime fills them."""

    args: list[Argument]
    resources: dict[str, int]


class Metadata(Record, frozen=True):
    """What a code object says of itself."""

    target: str
    kernels: dict[str, Kernel]

    @property
    def arch(self) -> str:
        """The architecture of the target, without its features: "gfx950"."""
        return self.target.split("--")[-1].split(":")[0]


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


def read_metadata(elf: bytes) -> Metadata:
    """Raises CodeObjectError."""
    try:
        document = msgspec.msgpack.decode(_metadata_note(elf))
        kernels = {}
        for kernel in document["amdhsa.kernels"]:
            args = [
                {"offset": a[".offset"], "size": a[".size"], "kind": a[".value_kind"]}
                for a in kernel.get(".args", ())
                if not a[".value_kind"].startswith("hidden_")
            ]
            resources = {name: kernel.get(key, 0) for name, key in RESOURCES.items()}
            kernels[kernel[".name"]] = {"args": args, "resources": resources}
        target = document.get("amdhsa.target", "")
        return msgspec.convert({"target": target, "kernels": kernels}, Metadata)
    except CodeObjectError:
        raise
    except Exception as error:  # pyelftools meets damage with errors of many kinds
        raise CodeObjectError(f"damaged code object: {error!r:.500}") from error
