"""Orders of weights and scales: against what they say of each byte, and there and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rfops.dispatch.declare import E8M0, FP4
from rfops.dispatch.layout import Shuffled, unwrap
from rfops.quantization.shuffle import (
    SCALE,
    WEIGHT,
    padded_scale,
    shuffle_scale,
    shuffle_weight,
    unshuffle_scale,
    unshuffle_weight,
)


def codes(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", sorted({torch.uint8, FP4, torch.float8_e4m3fn}, key=str))
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (48, 32), (32, 80)])
def test_weight(rows: int, columns: int, dtype: torch.dtype) -> None:
    """A wave that loads 16 bytes a lane finds row lane % 16 and 16-byte chunk lane / 16."""
    raw = codes(rows, columns)
    result = shuffle_weight(raw.view(dtype))
    data, layout = unwrap(result)
    assert layout == WEIGHT and data.dtype == dtype and data.shape == raw.shape
    flat = data.view(torch.uint8).flatten()
    for row in range(rows):
        for column in range(columns):
            chunk, lane = column // 16, row % 16
            offset = ((row // 16 * (columns // 16) + chunk) * 16 + lane) * 16 + column % 16
            assert flat[offset] == raw[row, column], (row, column)
    assert torch.equal(unshuffle_weight(result).view(torch.uint8), raw)
    assert unshuffle_weight(data).dtype == dtype


def test_weights_of_experts() -> None:
    raw = codes(3, 32, 64)
    result = shuffle_weight(raw)
    for expert in range(3):
        assert torch.equal(result.data[expert], shuffle_weight(raw[expert]).data)
    assert torch.equal(unshuffle_weight(result), raw)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits(dtype: torch.dtype) -> None:
    """The same bytes, as aiter's layout (16, 16) has them: 8 elements of 16 rows after another."""
    raw = codes(2, 32, 48).view(dtype)
    result = shuffle_weight(raw)
    assert result.dtype == dtype and result.shape == raw.shape == (2, 32, 24)
    tiles = raw.view(2, 2, 16, 3, 8).permute(0, 1, 3, 2, 4).reshape(2, 32, 24)
    assert torch.equal(result.data.view(torch.uint8), tiles.contiguous().view(torch.uint8))
    back = unshuffle_weight(result)
    assert torch.equal(back.view(torch.uint8), raw.view(torch.uint8))


@pytest.mark.parametrize("dtype", sorted({torch.uint8, E8M0}, key=str))
@pytest.mark.parametrize(("rows", "blocks"), [(256, 8), (1, 1), (40, 12), (257, 16), (300, 7)])
def test_scale(rows: int, blocks: int, dtype: torch.dtype) -> None:
    """A lane's dword: rows r and r + 16, then steps of 128 along K."""
    raw = codes(rows, blocks)
    result = shuffle_scale(raw.view(dtype))
    data, layout = unwrap(result)
    assert layout == SCALE and data.dtype == dtype
    assert tuple(data.shape) == padded_scale(rows, blocks)
    flat = data.view(torch.uint8).flatten()
    tiles = data.shape[1] // 8
    for row in range(rows):
        for block in range(blocks):
            lane = block % 4 * 16 + row % 16
            dword = (row // 32 * tiles + block // 8) * 64 + lane
            byte = block // 4 % 2 * 2 + row // 16 % 2
            assert flat[4 * dword + byte] == raw[row, block], (row, block)
    assert (flat == 127).sum() == (raw == 127).sum() + flat.numel() - raw.numel()
    assert torch.equal(unshuffle_scale(result, rows, blocks).view(torch.uint8), raw)
    assert torch.equal(unshuffle_scale(data, rows, blocks).view(torch.uint8), raw)


def test_scale_of_any_strides() -> None:
    raw = codes(12, 40).T
    assert torch.equal(shuffle_scale(raw).data, shuffle_scale(raw.contiguous()).data)


def test_under_torch_compile() -> None:
    """The type is no tensor, and a compiled function takes it."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = shuffle_weight(codes(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            data, layout = unwrap(self.w)
            return x + data.sum() if layout == WEIGHT else x

    layer, x = Layer(), torch.ones(3)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")  # C++ of others takes 15 s
    assert torch.equal(compiled(x), layer(x))
    assert not isinstance(layer.w, torch.Tensor)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shuffle_weight(codes(15, 16)), r"shuffle_weight: w must be a \[..., 16 n, 16 k\]"),
        (lambda: shuffle_weight(codes(16, 24)), r"shuffle_weight: .*got \[16, 24\] uint8"),
        (lambda: shuffle_weight(codes(16)), r"shuffle_weight: .*got \[16\] uint8"),
        (lambda: shuffle_weight(codes(16, 16), (32, 16)), r"layout \(16, 16\), got .*\(32, 16\)"),
        (lambda: shuffle_weight(codes(16, 16).int()), r"shuffle_weight: .*got \[16, 16\] int32"),
        (lambda: shuffle_weight(3), r"shuffle_weight: .*got int 3"),
        (lambda: shuffle_scale(codes(8)), r"shuffle_scale: scale must be a \[rows, K/32\] tensor"),
        (lambda: shuffle_scale(torch.ones(8, 8)), r"shuffle_scale: .*got \[8, 8\] float32"),
        (lambda: unshuffle_scale(codes(256, 8), 257, 8), r"must be a \[288 or more, 8\] tensor"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_shuffled_is_no_tensor() -> None:
    result = shuffle_weight(codes(16, 16))
    assert isinstance(result, Shuffled) and result.to("meta").device.type == "meta"
    assert repr(result) == "Shuffled([16, 16] torch.uint8 on cpu, 16x16)"
