"""The headers that GEMM kernels stand on, csrc/include/rfops/: a small kernel each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.jit import compile_ops, u32
from rfops.quantization.shuffle import shuffle_weight

CONFIG = Path(__file__).parent / "device_library" / "config.json"
CPU = torch.device("cpu")
Tensor = torch.Tensor


@compile_ops("device_library", config=CONFIG)
def load_tile_by(out: Tensor, operand: Tensor, rows: u32, k: u32, step: u32, kind: u32) -> None: ...


@compile_ops("device_library", config=CONFIG)
def promote_tiles(
    out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, k: u32
) -> None: ...


@compile_ops("device_library", config=CONFIG)
def place_blocks(out: Tensor, m_tiles: u32, n_tiles: u32) -> None: ...


@compile_ops("device_library", config=CONFIG)
def reduce_parts(out: Tensor, parts: Tensor, workspace: Tensor, counts: Tensor) -> None: ...


@compile_ops("device_library", config=CONFIG)
def store_rows(out: Tensor, m: u32, n: u32) -> None: ...


@compile_ops("device_library", config=CONFIG)
def store_tile_pairs(out: Tensor, m: u32, n: u32) -> None: ...


@compile_ops("device_library", config=CONFIG)
def store_each_row(out: Tensor, rows: Tensor, n: u32) -> None: ...


@compile_ops("device_library", config=CONFIG)
def sum_waves(out: Tensor, parts: Tensor, waves: u32) -> None: ...


@compile_ops("device_library", config=CONFIG)
def multiply_tile(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    m: u32,
    n: u32,
    k: u32,
    chunk: u32,
) -> None: ...


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def launch(kernel: Any, groups: tuple[int, int], threads: int, *args: Any, out: str = "f32") -> Any:
    """Under the checks, which must find nothing; the launch's counters."""
    bound = kernel.bind(CPU, {"OUT": out})
    with rfops.vgpu.check() as c, rfops.vgpu.profile() as p:
        bound.launch((*groups, 1), (threads, 1, 1), args)
    assert not c.findings, "\n".join(map(str, c.findings))
    return p.launches[0]


# ---------------------------------------------------------------- loader.h, lds_tile.h, columns.h


KINDS = ("rows", "shuffled", "direct", "columns", "columns64", "direct_columns", "direct_columns64")
LOADERS = [
    (arch, kind)
    for arch in ("gfx942", "gfx950")
    for kind in KINDS
    if arch == "gfx950" or not kind.startswith("direct")
]


@pytest.mark.parametrize("rows", [128, 116, 16])
@pytest.mark.parametrize(("arch", "kind"), LOADERS, indirect=["arch"])
def test_loaders(kind: str, rows: int, arch: str) -> None:
    """Lane l of an operand holds 16 bytes of row l % 16 from k = 16 (l / 16), and 64 on; rows that
    are not there are zeros. Neither write nor read has a bank conflict."""
    most = 64 if kind.endswith("64") else 128
    rows = min(rows // 16 * 16 if kind == "shuffled" else rows, most)
    generator = torch.Generator().manual_seed(rows)
    operand = torch.randint(0, 256, (rows, 384), generator=generator, dtype=torch.uint8)
    given = operand
    if kind == "shuffled":
        given = shuffle_weight(operand).data
    elif "columns" in kind:
        given = operand.T.contiguous()
    out = torch.full((most // 16, 64, 32), 0xA5, dtype=torch.uint8)
    number = KINDS.index(kind)
    record = launch(load_tile_by, (1, 1), 256, out, given, rows, 384, 2, number)
    step = torch.zeros(most, 128, dtype=torch.uint8)
    step[:rows] = operand[:, 256:]
    # [tile, row, half, group of 16 bytes] in the order tile, group, row, half
    expected = step.view(-1, 16, 2, 4, 16).permute(0, 3, 1, 2, 4).reshape(-1, 64, 32)
    actual = _without_others(out, rows) if "columns" in kind else out
    assert torch.equal(actual, expected)
    assert record.lds_conflict_cycles == 0


def _without_others(out: Tensor, rows: int) -> Tensor:
    """Of a column-major operand, rows that are not there may be anything."""
    lanes = out.view(-1, 4, 16, 32).clone()
    row = torch.arange(len(lanes))[:, None] * 16 + torch.arange(16)
    lanes.permute(0, 2, 1, 3)[row >= rows] = 0
    return lanes.view(-1, 64, 32)


# ---------------------------------------------------------------- matrix.h, promote.h, scales.h


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_promotion(blocks: int, arch: str) -> None:
    generator = torch.Generator().manual_seed(blocks)
    k = 128 * blocks
    x, w = (torch.randn(n, k, generator=generator).to(fp8_of(arch)) for n in (16, 64))
    x_scale, w_scale = (torch.randn(n, blocks, generator=generator) for n in (16, 1))
    out = torch.full((16, 64), float("nan"))
    launch(promote_tiles, (1, 1), 64, out, x, w, x_scale, w_scale, k)
    expected = rfops.gemm_a8w8_blockscale_ref(x, w, x_scale, w_scale, torch.float64)
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()


# ---------------------------------------------------------------- block_map.h


@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 3), (9, 7)])
def test_blocks(m: int, n: int, arch: str) -> None:
    """Each part of each tile has one workgroup; those of an XCD are neighbours."""
    count = m * n * 3
    out = torch.full((count, 3), 99, dtype=torch.int32)
    launch(place_blocks, (count, 1), 64, out, m, n)
    positions = [tuple(row) for row in out.tolist()]
    assert set(positions) == {(a, b, c) for a in range(m) for b in range(n) for c in range(3)}
    if count > 64:
        for xcd in range(8):
            own = positions[xcd::8]
            assert len({position[:2] for position in own}) <= len(own) // 3 + 2, (
                "siblings are together"
            )
            assert len({position[0] // 4 for position in own}) <= 2, (
                "a group of four along M, or two"
            )


# ---------------------------------------------------------------- split_reduce.h


def test_the_last_workgroup_adds_up(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the parts, whoever is last; counts are left zero."""
    parts = torch.randn(7, 3, 100, 4, generator=torch.Generator().manual_seed(0))
    parts[:, 1] *= 1e6  # another order gives other bits
    counts = torch.zeros(7, dtype=torch.int32)
    for schedule in ("hardware", "random:1", "random:2", "random:3"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        out, workspace = (torch.full(size, float("nan")) for size in ((7, 100, 4), parts.shape))
        launch(reduce_parts, (21, 1), 64, out, parts, workspace, counts)
        assert torch.equal(out, parts[:, 0] + parts[:, 1] + parts[:, 2])
        assert not counts.any()


# ---------------------------------------------------------------- epilogue.h


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(16, 32), (17, 36), (3, 33), (20, 1)])
@pytest.mark.parametrize("offset", [0, 1])
def test_stores(m: int, n: int, offset: int, dtype: torch.dtype, arch: str) -> None:
    """Whole rows, ragged ones and those at odd addresses; nothing beside them is written."""
    memory = torch.full((m * n + offset + 64,), -1.0, dtype=dtype)
    out = memory[offset : offset + m * n].view(m, n)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    launch(store_rows, (-(-n // 16), -(-m // 16)), 64, out, m, n, out=name)
    expected = torch.arange(m)[:, None] * 1000.0 + torch.arange(n)
    assert torch.equal(out, expected.to(dtype))
    assert (memory[:offset] == -1).all() and (memory[offset + m * n :] == -1).all()


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(32, 64), (37, 72), (5, 68), (20, 1)])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_stores_of_tile_pairs(
    m: int, n: int, offset: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: rows for which pairs, single tiles and single elements are stored. Whole pairs take
    half as many stores as tiles of 16 bits."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    memory = torch.full((m * n + offset + 128,), -1.0, dtype=dtype)
    out = memory[offset : offset + m * n].view(m, n)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    record = launch(store_tile_pairs, (-(-n // 64), -(-m // 32)), 64, out, m, n, out=name)
    expected = (torch.arange(m)[:, None] * 1000.0 + torch.arange(n)).to(dtype)
    worst = int((out != expected).flatten().int().argmax())
    assert torch.equal(out, expected), f"element {worst}: {out.flatten()[worst]}"
    assert (memory[:offset] == -1).all() and (memory[offset + m * n :] == -1).all()
    if (n, offset) == (64, 0):
        tiles = record.waves * 2 * 4
        stores = sum(
            count for op, count in record.instructions.items() if op.startswith("buffer_store")
        )
        assert stores == (tiles if dtype == torch.float32 else tiles // 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("n", "offset"), [(32, 0), (33, 0), (36, 1), (1, 0)])
def test_stores_of_scattered_rows(n: int, offset: int, dtype: torch.dtype, arch: str) -> None:
    """Two of four rows, the last one first; nothing else is written."""
    memory = torch.full((4 * n + offset + 64,), -1.0, dtype=dtype)
    out = memory[offset : offset + 4 * n].view(4, n)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    rows = torch.tensor([3, 1], dtype=torch.int32)
    launch(store_each_row, (1, 2), 64, out, rows, n, out=name)
    expected = torch.full((4, n), -1.0)
    expected[1::2] = torch.tensor([[1000.0], [3000.0]]) + torch.arange(n)
    assert torch.equal(out, expected.to(dtype))
    assert (memory[:offset] == -1).all() and (memory[offset + 4 * n :] == -1).all()


# ---------------------------------------------------------------- wave_sums.h


@pytest.mark.parametrize("waves", [1, 3, 8])
def test_waves_add_up_in_their_order(waves: int, arch: str) -> None:
    """Fewer waves than tiles, and more; without bank conflicts."""
    parts = torch.randn(waves, 5, 64, 4, generator=torch.Generator().manual_seed(waves))
    parts[waves // 2] *= 1e6  # another order gives other bits
    out = torch.full((5, 64, 4), float("nan"))
    record = launch(sum_waves, (1, 1), 64 * waves, out, parts, waves)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert torch.equal(out, total)
    assert record.lds_conflict_cycles == 0


# ---------------------------------------------------------------- mx_chunk.h


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("m", [1, 5, 8])
@pytest.mark.parametrize(
    ("rows", "chunk", "k"),
    [
        (16, 128, 512),
        (16, 128, 96),
        (16, 128, 160),
        (8, 128, 256),
        (8, 128, 32),
        (8, 128, 416),
        (16, 256, 768),
        (8, 256, 512),
        (8, 256, 768),
    ],
)
def test_chunks(rows: int, chunk: int, k: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K ends in each quarter of an MFMA and, folded, in each chunk; rows of x that are not there
    and what lies beyond K, NaN, count as zeros."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    generator = torch.Generator().manual_seed(k)
    result = [rfops.quant_mxfp8(torch.randn(n, k, generator=generator)) for n in (m, rows)]
    (x, x_scale), (w, w_scale) = result

    def before_nan(tensor: Tensor) -> Tensor:
        room = torch.full((tensor.numel() + 1024,), 255, dtype=torch.uint8)
        own = room[: tensor.numel()].view(tensor.shape)
        return own.copy_(tensor.view(torch.uint8))

    out = torch.full((m, rows), float("nan"))
    tensors = map(before_nan, (x, w, x_scale, w_scale))
    launch(multiply_tile, (1, 1), 64, out, *tensors, m, rows, k, chunk)
    expected = rfops.gemm_mxfp8_ref(x, w, x_scale, w_scale, torch.float64)
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()
