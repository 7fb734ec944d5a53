"""The reader of code objects: clang's own text as oracle, bundles, and damage of every kind."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from rfops.jit import code_object
from rfops.jit.code_object import CodeObjectError, read_metadata, unbundle, waves_per_simd
from support.engine_project import Project


@pytest.fixture
def elf(project: Project) -> bytes:
    return project.op().build("gfx950").file.read_bytes()


def test_arguments_and_target(elf: bytes) -> None:
    metadata = read_metadata(elf)
    assert metadata["target"].endswith("gfx950")
    assert list(metadata["kernels"]) == ["axpy"]
    expected = [(0, 8, "global_buffer"), (8, 8, "global_buffer"), (16, 4, "by_value"),
                (20, 4, "by_value")]  # fmt: skip
    args = metadata["kernels"]["axpy"]["args"]
    assert [(arg["offset"], arg["size"], arg["kind"]) for arg in args] == expected


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
    kernels = read_metadata(artifact.file.read_bytes())["kernels"]
    assert list(kernels) == ["big", "second"]
    for block in text.split("\n  - .agpr_count:")[1:]:
        values = parse_block(".agpr_count:" + block)
        kernel = kernels[values[".name"][-1]]
        for name, key in code_object.RESOURCES.items():
            assert kernel["resources"][name] == int(values[key][-1]), name
        explicit = [k for k in values[".value_kind"] if not k.startswith("hidden_")]
        assert [arg["kind"] for arg in kernel["args"]] == explicit
        count = len(explicit)
        assert [arg["offset"] for arg in kernel["args"]] == [
            int(v) for v in values[".offset"][:count]
        ]
        assert [arg["size"] for arg in kernel["args"]] == [int(v) for v in values[".size"][:count]]


def parse_block(block: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in block.splitlines():
        key, colon, value = line.strip().removeprefix("- ").partition(":")
        if colon and key.startswith("."):
            values.setdefault(key, []).append(value.strip())
    return values


# ---------------------------------------------------------------- msgpack


VALUES = [
    (b"\x07", 7), (b"\xff", -1), (b"\xe0", -32), (b"\xc0", None), (b"\xc2", False),
    (b"\xc3", True), (b"\xcc\xff", 255), (b"\xcd\x01\x00", 256), (b"\xce\x00\x01\x00\x00", 65536),
    (b"\xcf" + bytes(7) + b"\x09", 9), (b"\xd0\x80", -128), (b"\xd1\xff\x00", -256),
    (b"\xd2\xff\xff\x00\x00", -65536), (b"\xd3" + b"\xff" * 8, -1),
    (b"\xca\x3f\x80\x00\x00", 1.0), (b"\xcb\x3f\xf0" + bytes(6), 1.0), (b"\xa2ab", "ab"),
    (b"\xd9\x02ab", "ab"), (b"\xda\x00\x01c", "c"), (b"\xdb\x00\x00\x00\x01c", "c"),
    (b"\xc4\x01\x05", b"\x05"), (b"\xc5\x00\x01\x05", b"\x05"), (b"\x92\x01\x02", [1, 2]),
    (b"\xdc\x00\x01\x01", [1]), (b"\xdd\x00\x00\x00\x01\x01", [1]), (b"\x81\xa1a\x01", {"a": 1}),
    (b"\xde\x00\x01\xa1a\x01", {"a": 1}), (b"\xdf\x00\x00\x00\x01\xa1a\x01", {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "value"), VALUES, ids=[data.hex() for data, _ in VALUES])
def test_msgpack(data: bytes, value: object) -> None:
    assert code_object._MsgPack(data).value() == value


def test_msgpack_tags_that_nobody_writes() -> None:
    for tag in (0xC1, 0xC7, 0xD4):
        with pytest.raises(CodeObjectError, match=f"tag {tag:#x}"):
            code_object._MsgPack(bytes([tag, 0, 0, 0])).value()


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
    """Cut anywhere or with flipped bytes: a CodeObjectError or a dictionary, nothing else."""
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
            assert isinstance(read_metadata(unbundle(case, "gfx950")), dict)
        except CodeObjectError:
            refused += 1
    assert refused > 200


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
