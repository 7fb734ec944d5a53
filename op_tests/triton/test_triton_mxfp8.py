"""The Triton kernels of MX-FP8, dense and grouped, against float64, in which they are exact.

On an NVIDIA GPU they run there, elsewhere on gfx950 and gfx942, real or virtual; at full size in
test_triton_mxfp8_gpu.py. Most problems are N = 37, K = 160: each other size may compile another
variant, which is what takes the time here.
"""

from __future__ import annotations

import importlib.util
import math
import mmap

import pytest
import torch

from rfops.gemm.kernels.mxfp8.triton import TritonGemm
from rfops.moe.kernels.grouped.triton import TritonGrouped
from rfops.triton import launch
from rfops.triton.tiles import TritonConfig
from support.calls import default_config, dense_call, grouped_call, prepare, prepare_grouped
from support.devices import ARCHS, device_of
from support.triton_mxfp8_cases import (
    NAN_CODE,
    NVIDIA,
    Side,
    assert_border,
    assert_close,
    assert_grouped,
    dense,
    grouped,
    random_side,
    route,
)

TARGETS = ("cuda",) if NVIDIA else ARCHS
BLOCKS = TritonConfig("blocks", 16, 32, 128, warps=2)
MAP_NORESERVE = 0x4000  # Linux; Python's mmap names it from 3.13 on


@pytest.fixture(params=TARGETS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda")
    return device_of(request.param, monkeypatch)


# ---------------------------------------------------------------- dense


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 37, 160), (13, 130, 96), (33, 5, 288), (70, 67, 160)]
)
def test_tails(m: int, n: int, k: int, device: torch.device) -> None:
    """Of every dimension, with rows apart and NaN beyond every edge."""
    x, w = random_side((m, k), device, 1), random_side((n, k), device, 2)
    out = dense(x, w)
    assert_close(out, x, w)
    assert_border(out)


@pytest.mark.parametrize("k", [32, 1056])
def test_k(k: int, device: torch.device) -> None:
    x, w = random_side((3, k), device, 3, pad=0), random_side((41, k), device, 4, pad=0)
    assert_close(dense(x, w), x, w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_of_out(dtype: torch.dtype, device: torch.device) -> None:
    """float16 overflows to infinity where its range ends."""
    x, w = random_side((5, 160), device, 5), random_side((37, 160), device, 6)
    assert_close(dense(x, w, dtype=dtype), x, w)


def test_splits_add_in_a_fixed_order(device: torch.device) -> None:
    """Three splits of unequal length; equal bits in every run."""
    method = default_config("triton", 9, 50, 928, launch.arch_of(device)).method
    config = TritonConfig(method, 16, 32, 128, warps=2, splits=3)
    x, w = random_side((9, 928), device, 7), random_side((50, 928), device, 8)
    first = dense(x, w, config)
    assert_close(first, x, w)
    for _ in range(2):
        assert torch.equal(first.view(torch.int16), dense(x, w, config).view(torch.int16))


def test_program_order(device: torch.device) -> None:
    """7 rows of tiles in groups of 3: each tile once."""
    config = TritonConfig("blocks", 16, 16, 32, group_m=3, warps=1)
    x, w = random_side((100, 64), device, 9), random_side((40, 64), device, 10)
    assert_close(dense(x, w, config), x, w)


def test_empty(device: torch.device) -> None:
    for m, n in ((0, 8), (8, 0)):
        x, w = random_side((m, 64), device, 11, 0), random_side((n, 64), device, 12, 0)
        assert dense(x, w, out=torch.empty(m, n, device=device)).shape == (m, n)


# ---------------------------------------------------------------- NaN, extremes


@pytest.mark.thin(3)
@pytest.mark.parametrize("m", [4, 70])
@pytest.mark.parametrize("where", ["x", "w", "x_scale", "w_scale"])
def test_nan_stays_in_its_row(where: str, m: int, device: torch.device) -> None:
    """A NaN code, or the NaN scale 255, in the last, partial step; zeros do not hide it."""
    x, w = random_side((m, 160), device, 13), random_side((37, 160), device, 14)
    x.payload[2, 128:], w.payload[2, 128:] = 0, 0
    side = x if where.startswith("x") else w
    if where.endswith("scale"):
        side.scale[2, 4] = 255
    else:
        side.payload[2, 159] = NAN_CODE
    out = dense(x, w)
    assert_close(out, x, w)
    expected = [m, 37] if where.startswith("w") else [37, m]
    assert out.isnan().sum().item() == expected[0]


EXTREMES = [
    (0, 254, 0x38, 0x38, 32.0),  # 2^-127 * 2^127
    (254, 0, 0x7E, 0x7E, 32 * 448.0 * 448.0),
    (254, 0, 0x01, 0xFE, -32 * 448.0 * 2.0**-9),
    (254, 254, 0x38, 0xB8, -math.inf),
    (254, 254, 0x00, 0x7E, 0.0),  # a zero that no infinity may meet
    (0, 0, 0x7E, 0x7E, 0.0),
    (254, 1, 0x00, 0x7E, 0.0),
    (240, 16, 0x7E, 0x01, 32 * 448 * 2.0**-7),
]


@pytest.mark.thin(5)
@pytest.mark.parametrize(("m", "config"), [(2, None), (70, None), (2, BLOCKS)])
def test_extreme_scales(m: int, config: TritonConfig | None, device: torch.device) -> None:
    """A row of w for each case, in the first block; the other blocks are zeros."""
    x = Side(*(torch.zeros(m, size, dtype=torch.uint8, device=device) for size in (160, 5)))
    w = Side(*(torch.zeros(37, size, dtype=torch.uint8, device=device) for size in (160, 5)))
    x.scale += 127
    w.scale += 127
    for row, (x_byte, w_byte, x_code, w_code, expected) in enumerate(EXTREMES):
        x.payload[0, :32], x.scale[0, 0] = x_code, x_byte
        w.payload[row, :32], w.scale[row, 0] = w_code, w_byte
        out = dense(x, w, config)
        assert out[0, row].item() == expected, (x_byte, w_byte, x_code, w_code)
        assert (out[1:] == 0).all()


# ---------------------------------------------------------------- beyond 2 GiB


def sparse(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Bytes of which only what is touched takes memory (on a GPU: all)."""
    if device.type != "cpu":
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)


def apart(values: torch.Tensor, distance: int) -> torch.Tensor:
    """The same values with `distance` bytes from one first index to the next."""
    buffer = sparse(values.shape[0] * distance, values.device)
    strides = (distance, *values[0].contiguous().stride())
    return torch.as_strided(buffer, values.shape, strides).copy_(values)


@pytest.mark.thin(3)
@pytest.mark.parametrize("distance", [2**26, 2**28])
def test_rows_far_apart(distance: int, device: torch.device) -> None:
    """Rows of x and w beyond 2 and 4 GiB: across tiles, and (2^28) inside one tile."""
    x, w = random_side((37, 96), device, 15), random_side((70, 96), device, 16)
    config = TritonConfig("blocks", 16, 32, 32, warps=1)
    far_x = Side(apart(x.payload, distance), x.scale)
    assert_close(dense(far_x, w, config), x, w)
    far_w = Side(w.payload, w.scale)
    far_w.payload = (
        apart(w.payload, distance) if distance == 2**26 else apart(w.payload[:20], distance)
    )
    w = Side(w.payload[: len(far_w.payload)], w.scale[: len(far_w.payload)])
    far_w.scale = w.scale
    assert_close(dense(x, far_w, config), x, w)


# ---------------------------------------------------------------- grouped


RAGGED = [2, 0, 2, 2, 5, 2, 0, 2] + [2] * 14 + [-1, 6, 6]  # experts 1, 3, 4 are empty


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("block_m", "a_div", "weighted", "config"),
    [(16, 5, False, None), (64, 1, True, None), (5, 1, False, None), (40, 5, True, BLOCKS)],
)
def test_ragged(
    block_m: int, a_div: int, weighted: bool, config: TritonConfig | None, device: torch.device
) -> None:
    """Blocks of any size, also of several tiles; an expert that is not here (-1), and one beyond
    E = 6."""
    count = len(RAGGED)
    a = random_side((count // a_div, 160), device, 17)
    w = random_side((6, 37, 160), device, 18)
    weights = torch.linspace(-2, 2, count, device=device) if weighted else None
    out = grouped(a, w, route(RAGGED, block_m), a_div, weights, config)
    assert_grouped(out, a, w, RAGGED, a_div, weights)


def test_one_expert_of_257_takes_all(device: torch.device) -> None:
    experts = [256] * 35
    a, w = random_side((35, 160), device, 19), random_side((257, 37, 160), device, 20)
    assert_grouped(grouped(a, w, route(experts, 16), 1, None), a, w, experts, 1, None)


def test_rows_in_no_block_are_not_written(device: torch.device) -> None:
    a, w = random_side((20, 160), device, 21), random_side((2, 37, 160), device, 22)
    routing = route([0] * 20, 16)
    routing.num_padded[0] = 16
    out = grouped(a, w, routing, 1, None)
    assert out[16:].isnan().all() and not out[:16].isnan().any()


def test_experts_beyond_4_gib(device: torch.device) -> None:
    """The last expert's weights begin beyond 2^32 bytes."""
    experts = [0, 16, 7, 16, 8]
    a, w = random_side((5, 160), device, 23), random_side((17, 37, 160), device, 24, pad=0)
    far = Side(apart(w.payload, 2**28), w.scale)
    assert_grouped(grouped(a, far, route(experts, 16), 1, None), a, w, experts, 1, None)


# ---------------------------------------------------------------- refusals


def test_refusals() -> None:
    def unsupported_reason(*sizes: int, arch: str) -> str | None:
        return TritonGemm().unsupported_reason(dense_call(*sizes, arch=arch))

    assert unsupported_reason(1, 8, 64, arch="gfx950") is None
    assert unsupported_reason(1, 8, 64, arch="sm_100") is None
    assert "K=40 is not a positive multiple of 32" in unsupported_reason(1, 8, 40, arch="gfx950")
    assert "no tiles for gfx90a" in unsupported_reason(1, 8, 64, arch="gfx90a")
    assert "no tiles for sm_80" in unsupported_reason(1, 8, 64, arch="sm_80")
    assert "at most" in unsupported_reason(2**31, 8, 64, arch="gfx950")
    assert "K=0" in str(TritonGrouped().unsupported_reason(grouped_call(1, 8, 0, 1, 1, 1)))


def test_prepare_refuses_too() -> None:
    device = torch.device(TARGETS[0] if NVIDIA else "cpu")
    with pytest.raises(ValueError, match=r"gemm_mxfp8: triton does not take .* K=40 is not"):
        prepare("triton", device, 1, 8, 40)
    with pytest.raises(ValueError, match=r"grouped_gemm_mxfp8: triton does not take .* K=40 is"):
        prepare_grouped("triton", device, 1, 8, 40, 2, 1, 1)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"block_n": 24}, "block_n must be a power of two, got 24"),
        ({"block_m": 4}, "at least 8 and 16"),
        ({"method": "magic"}, "method must be one of .*, got magic"),
        ({"method": "scaled", "block_k": 64}, "at least 128 with method scaled, got 64"),
        ({"splits": 99}, "splits must be 1 to 16, got 99"),
    ],
)
def test_configs_refused(values: dict[str, object], text: str) -> None:
    good = {"method": "blocks", "block_m": 16, "block_n": 16, "block_k": 64}
    with pytest.raises(ValueError, match=text):
        TritonConfig(**(good | values))


def test_configs_of_another_op_or_arch_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda") if NVIDIA else device_of("gfx942", monkeypatch)
    scaled = TritonConfig("scaled", 16, 16, 128)
    with pytest.raises(ValueError, match=r"method scaled is for gfx950, not .*: take blocks"):
        prepare("triton", device, 1, 8, 64, scaled)
    with pytest.raises(ValueError, match="expand and splits are for the dense product alone"):
        expand = TritonConfig("expand", 16, 16, 32)
        prepare_grouped("triton", device, 1, 8, 64, 2, 1, 1, config=expand)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    launch.missing.cache_clear()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else find(name)
    )
    try:
        reason = TritonGemm().unsupported_reason(dense_call(1, 8, 64))
        assert reason is not None and reason.startswith("triton is not installed (pip install")
        assert TritonGrouped().unsupported_reason(grouped_call(1, 8, 64, 1, 1, 1)) == reason
    finally:
        launch.missing.cache_clear()
