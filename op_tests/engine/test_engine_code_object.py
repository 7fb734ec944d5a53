"""The reader of code objects: clang's own text as oracle, bundles, and damage of every kind."""

from __future__ import annotations

import random
import resource
import struct
from pathlib import Path

import pytest
from msgspec import msgpack

from rfops.jit.arch import waves_per_simd
from rfops.jit.cache import code_object
from rfops.jit.cache.code_object import Argument, CodeObjectError, read_metadata, unbundle
from support.engine_project import Child, Project


@pytest.fixture
def elf(project: Project) -> bytes:
    return project.op().build("gfx950").file.read_bytes()


def test_arguments_and_target(elf: bytes) -> None:
    metadata = read_metadata(elf)
    assert metadata.target.endswith("gfx950") and metadata.arch == "gfx950"
    assert list(metadata.kernels) == ["axpy"]
    assert metadata.kernels["axpy"].args == [
        Argument(0, 8, "global_buffer"),
        Argument(8, 8, "global_buffer"),
        Argument(16, 4, "by_value"),
        Argument(20, 4, "by_value"),
    ]


HIDDEN = """
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __device__ __attribute__((device))
struct Big { double values[5]; };
extern "C" __global__ void big(char a, Big b, int* __restrict__ out) {
  __shared__ int tile[256];
  const int i = __builtin_amdgcn_workitem_id_x();
  tile[i] = a + b.values[i % 5];
  __builtin_amdgcn_s_barrier();
  out[i] = tile[i ^ 1] + __builtin_amdgcn_workgroup_size_x();
}
extern "C" __global__ void second(long x, short y, float* out) { *out = x + y; }
"""


def test_against_the_assembler_text(project: Project) -> None:
    """Every number of every argument and resource; hidden arguments are left out."""
    source = project.source
    source.write_text(HIDDEN)
    artifact = project.op().build("gfx942")
    text = (artifact.folder / "module.hsaco.s").read_text()
    text = text[text.index(".amdgpu_metadata") :]
    assert "hidden_group_size_x" in text, "the test needs hidden arguments"
    kernels = read_metadata(artifact.file.read_bytes()).kernels
    assert list(kernels) == ["big", "second"]
    for block in text.split("\n  - .agpr_count:")[1:]:
        values = parse_block(".agpr_count:" + block)
        kernel = kernels[values[".name"][-1]]
        for name, key in code_object.RESOURCES.items():
            assert kernel.resources[name] == int(values[key][-1]), name
        explicit = [k for k in values[".value_kind"] if not k.startswith("hidden_")]
        offsets, sizes = map(int, values[".offset"]), map(int, values[".size"])
        assert kernel.args == list(map(Argument, offsets, sizes, explicit))


def parse_block(block: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in block.splitlines():
        key, colon, value = line.strip().removeprefix("- ").partition(":")
        if colon and key.startswith("."):
            values.setdefault(key, []).append(value.strip())
    return values


# ---------------------------------------------------------------- bundles, damage


def bundle(*entries: tuple[str, bytes]) -> bytes:
    """As clang-offload-bundler lays one out."""
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    size = len(head) + sum(24 + len(triple) for triple, _ in entries)
    data, body = b"", b""
    for triple, content in entries:
        data += struct.pack("<QQQ", size + len(body), len(content), len(triple)) + triple.encode()
        body += content
    return head + data + body


def test_unbundle() -> None:
    host = ("host-x86_64-unknown-linux-gnu-", b"")
    data = bundle(
        host,
        ("hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-", b"first"),
        ("hipv4-amdgcn-amd-amdhsa--gfx950", b"second"),
    )
    assert unbundle(data, "gfx942") == b"first" and unbundle(data, "gfx950") == b"second"
    assert unbundle(b"raw", "gfx950") == b"raw"
    with pytest.raises(CodeObjectError, match="no entry for gfx950; it has host-x86_64"):
        unbundle(bundle(host), "gfx950")


def test_files_of_other_kinds(tmp_path: Path) -> None:
    for data, message in (
        (b"", "not a 64-bit"),
        (b"\x7fELF\x01\x01" + bytes(60), "not a 64-bit"),
        (Path("/proc/self/exe").read_bytes(), "not for an AMD GPU"),
    ):
        with pytest.raises(CodeObjectError, match=message):
            read_metadata(data)


def test_damage_is_a_clear_error(elf: bytes) -> None:
    """Cut anywhere or with flipped bytes: a CodeObjectError or its metadata, nothing else."""
    rng = random.Random(0)
    refused = 0
    cases = [elf[: rng.randrange(len(elf))] for _ in range(200)]
    for _ in range(800):
        damaged = bytearray(elf)
        for _ in range(rng.choice((1, 4, 64))):
            damaged[rng.randrange(len(elf))] = rng.randrange(256)
        cases.append(bytes(damaged))
    cases += [unbundled(elf, rng) for _ in range(100)]
    for case in cases:
        try:
            assert read_metadata(unbundle(case, "gfx950")).kernels is not None
        except CodeObjectError:
            refused += 1
    assert refused > 200


# ---------------------------------------------------------------- made to be bad


HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
PT_NOTE = 4


def note(data: bytes, name: bytes = b"AMDGPU\0\0", kind: int = 32, name_size: int = 0) -> bytes:
    return struct.pack("<III", name_size or 7, len(data), kind) + name + data


def with_notes(
    notes: bytes, phnum: int = 1, size: int = 0, shnum: int = 0, shoff: int = 0, kind: int = PT_NOTE
) -> bytes:
    """An ELF file for an AMD GPU whose every segment is these notes."""
    start = HEADER.size + phnum * SEGMENT.size
    segment = SEGMENT.pack(kind, 4, start, 0, 0, size or len(notes), 0, 4)
    ident = b"\x7fELF\x02\x01\x01\x40".ljust(16, b"\0")
    head = HEADER.pack(ident, 3, 0xE0, 1, 0, 64, shoff, 0x4F, 64, 56, phnum, 64, shnum, 0)
    return head + phnum * segment + notes


RIGHT = {
    "amdhsa.kernels": [
        {".name": "k", ".args": [{".offset": 0, ".size": 8, ".value_kind": "global_buffer"}]}
    ],
    "amdhsa.target": "amdgcn-amd-amdhsa--gfx950",
}


def test_what_the_bad_ones_are_made_of() -> None:
    metadata = read_metadata(with_notes(note(msgpack.encode(RIGHT))))
    assert metadata.kernels["k"].args == [Argument(0, 8, "global_buffer")]
    assert metadata.kernels["k"].resources["vgpr"] == 0


BAD_NOTES = {
    "lists of lists": b"\x91" * 100_000,
    "lists that declare much": b"\xdd\xff\xff\xff\xff" * 10_000,
    "maps that declare much": b"\xdf\x7f\xff\xff\xff" * 10_000,
    "a text that declares much": b"\xdb\xff\xff\xff\xff",
    "a list for a map": msgpack.encode([RIGHT]),
    "no kernels": msgpack.encode({}),
    "kernels of no kind": msgpack.encode({"amdhsa.kernels": 3}),
    "a kernel without a name": msgpack.encode({"amdhsa.kernels": [{}]}),
    "a text for a size": msgpack.encode(
        {"amdhsa.kernels": [{".name": "k", ".vgpr_count": "many"}]}
    ),
    "an argument of no kind": msgpack.encode(
        {"amdhsa.kernels": [{".name": "k", ".args": [{".offset": 0, ".size": 8}]}]}
    ),
    "a tag that nobody writes": b"\xc1",
    "nothing": b"",
}
BAD_FILES = {
    "many segments": with_notes(b"", phnum=65535),
    "many sections": with_notes(b"", shnum=65535, shoff=64),
    "2**60 sections": with_notes(b"\xff" * 64, shnum=0, shoff=64 + 56, kind=2)[:-32]
    + struct.pack("<QQQQ", 1 << 60, 0, 0, 0),
    "segments that look through sections": with_notes(
        struct.pack("<64x") * 99, phnum=100, shnum=99, shoff=64 + 100 * 56, kind=2
    ),
    "notes beyond the end": with_notes(b"", size=1 << 62),
    "more notes than a file has": with_notes(bytes(1 << 20)),
    "a name without an end": with_notes(note(b"", b"x" * 4000, name_size=1 << 31)),
    "many small notes": with_notes(note(b"", bytes(8), kind=1) * 10_000),
    "properties without an end": with_notes(note(bytes(8) * 20_000, b"GNU\0", 5, 4)),
}


@pytest.mark.parametrize("name", [*BAD_NOTES, *BAD_FILES])
def test_one_that_was_made_to_be_bad(name: str) -> None:
    """A CodeObjectError, soon, and in little memory."""
    data = BAD_FILES[name] if name in BAD_FILES else with_notes(note(BAD_NOTES[name]))

    def limited() -> str:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
        with pytest.raises(CodeObjectError) as caught:
            read_metadata(data)
        return str(caught.value)

    text = Child.run(limited).result()
    assert isinstance(text, str) and len(text) < 1000, text


def test_a_bundle_cut_anywhere(elf: bytes) -> None:
    whole = bundle(("hipv4-amdgcn-amd-amdhsa--gfx950", elf))
    start = whole.index(b"\x7fELF")
    for size in range(24, start):
        with pytest.raises(CodeObjectError, match=r"cut short|no entry for gfx950|not a 64-bit"):
            read_metadata(unbundle(whole[:size], "gfx950"))


def unbundled(elf: bytes, rng: random.Random) -> bytes:
    data = bytearray(bundle(("hipv4-amdgcn-amd-amdhsa--gfx950", elf)))
    data[24 + rng.randrange(60)] = rng.randrange(256)
    return bytes(data[: rng.randrange(20, len(data))])


@pytest.mark.parametrize(
    ("vgpr", "waves"), [(0, 8), (64, 8), (65, 7), (72, 7), (128, 4), (129, 3), (256, 2), (512, 1)]
)
def test_waves(vgpr: int, waves: int) -> None:
    assert waves_per_simd(vgpr) == waves
