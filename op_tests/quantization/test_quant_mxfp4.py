"""quant_mxfp4: HIP and Triton against torch bit by bit, all against a scalar implementation of the
definition in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops import cli
from rfops.dispatch.declare import E8M0, FP4
from rfops.jit import compile_ops, settings
from rfops.quantization.mxfp4 import (
    BLOCK,
    OP,
    ROUNDING,
    dequant_mxfp4,
    fp4_values,
    quant_mxfp4,
    quant_mxfp4_ref,
)
from support.quant_problems import assert_same, by, bytes_of, every_16_bits, wild

MODES = sorted(ROUNDING)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1, by code
CPU = torch.device("cpu")


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def scale_byte(amax: float, mode: str) -> int:
    """The module's table, from frexp's mantissa instead of float bits."""
    if not math.isfinite(amax):
        return 255
    if amax == 0.0:
        return 0
    fraction, power = math.frexp(amax)  # amax = fraction * 2^power, 0.5 <= fraction < 1
    mantissa, power = 2 * fraction, power - 1
    bump = {"even": mantissa >= 1.75, "up": mantissa > 1.5, "down": False}[mode]
    return max(power + bump - 2, -127) + 127


def nearest_code(value: float) -> int:
    """To nearest, ties to the even code, saturated; the sign in bit 3."""
    magnitude = min(abs(value), VALUES[-1])
    code = min(range(8), key=lambda c: (abs(VALUES[c] - magnitude), c % 2))
    return code | (8 if math.copysign(1.0, value) < 0 else 0)


def definition(x: torch.Tensor, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    payload, scale = [], []
    for block in x.to(torch.float32).reshape(-1, BLOCK).tolist():
        is_finite = all(map(math.isfinite, block))
        byte = scale_byte(max(map(abs, block)) if is_finite else math.nan, mode)
        codes = [nearest_code(math.ldexp(v, 127 - byte)) if is_finite else 0 for v in block]
        payload += [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]
        scale.append(byte)
    shape = (*x.shape[:-1], x.shape[-1] // 2), (*x.shape[:-1], x.shape[-1] // BLOCK)
    result = (torch.tensor(v, dtype=torch.uint8) for v in (payload, scale))
    first, second = (t.view(s) for t, s in zip(result, shape, strict=True))
    return first, second


def thresholds() -> torch.Tensor:
    """fp32 blocks with amax at, just below and just above each mantissa where a mode changes its
    mind, at powers from the denormals to the top; in them all ties of the payload and what lies
    beside them."""
    points = []
    for power in (-149, -130, -127, -126, -125, -124, -20, 0, 8, 125, 126, 127):
        for mantissa in (1.0, 1.5, 1.75, 1.9375, 2.0 - 2.0**-23):
            centre = torch.tensor(math.ldexp(mantissa, power), dtype=torch.float32)
            points += [torch.nextafter(centre, torch.tensor(to)) for to in (0.0, math.inf)]
            points.append(centre)
    amax = torch.stack(points).unsqueeze(1)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]) / 8
    beside = [torch.nextafter(ties, torch.tensor(to)) for to in (0.0, 1.0)]
    power = torch.ldexp(torch.ones_like(amax), torch.frexp(amax)[1])  # no mantissa: ties are ties
    part = (power * torch.cat((ties, *beside))).clamp(max=amax)
    x = torch.cat((amax, -amax, part, amax * torch.linspace(-1, 1, 9)), 1)
    assert x.shape[1] == BLOCK
    return x


@pytest.mark.thin(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_all_16_bit_values(dtype: torch.dtype, mode: str, arch: str) -> None:
    x = every_16_bits(dtype)
    torch_bits = by(OP, "torch", x, mode, torch.uint8)
    assert_same(by(OP, "hip", x, mode, torch.uint8), torch_bits, x)
    assert_same(quant_mxfp4_ref(x, mode), torch_bits, x)
    some = slice(0, None, 37)
    assert_same([t[some] for t in torch_bits], definition(x[some], mode), x[some])
    few = x[::11].contiguous()
    assert_same(by(OP, "triton", few, mode, torch.uint8), [t[::11] for t in torch_bits], few)


@pytest.mark.parametrize("mode", MODES)
def test_thresholds_in_fp32(mode: str, arch: str) -> None:
    x = thresholds()
    expected = definition(x, mode)
    assert_same(by(OP, "torch", x, mode, torch.uint8), expected, x)
    assert_same(by(OP, "hip", x, mode, torch.uint8), expected, x)
    assert_same(by(OP, "triton", x, mode, torch.uint8), expected, x)
    assert_same(quant_mxfp4_ref(x, mode), expected, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(32,), (1, 64), (37, 96), (3, 5, 128), (260, 32)])
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype, arch: str) -> None:
    """Under the checks, which find nothing: one block to more than a workgroup, ragged."""
    x = wild(shape, dtype)
    with rfops.vgpu.check() as c:
        actual = quant_mxfp4(x)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert actual[0].shape == (*shape[:-1], shape[-1] // 2) and actual[0].dtype == torch.uint8
    assert actual[1].shape == (*shape[:-1], shape[-1] // BLOCK) and actual[1].dtype == E8M0
    assert_same(actual, definition(x, "even"), x)


def strided() -> Iterator[tuple[str, str, torch.Tensor]]:
    x = wild((20, 256), torch.bfloat16)
    yield "rows in steps", "hip", x[:, :64]
    yield "every second row", "hip", x[::2]
    yield "one row many times", "hip", x[3:4].expand(7, 256)
    yield "columns", "triton", wild((20, 64), torch.bfloat16).T.contiguous().T
    yield "not aligned", "triton", x[:, 4:68]
    yield "three dimensions", "torch", x.view(5, 4, 256)[:, :, :64]
    yield "contiguous in three", "hip", x.view(5, 4, 256)[1:]


@pytest.mark.sweep
@pytest.mark.requires_gfx950
@pytest.mark.parametrize("backend", ["hip", "triton"])
def test_rows_beyond_4_gib(backend: str) -> None:
    x = wild((5, 64), torch.bfloat16)
    memory = torch.empty(
        2**31 + 2**29 + 64, dtype=torch.bfloat16
    )  # of which rows alone are touched
    far = memory.as_strided((5, 64), (2**29 + 2**27, 1)).copy_(x)
    assert far[-1].data_ptr() - far.data_ptr() > 2**32
    expected = by(OP, "torch", x, "up", torch.uint8)
    assert_same(by(OP, backend, far, "up", torch.uint8), expected, x)


@pytest.mark.requires_gfx950
def test_strides() -> None:
    for name, backend, x in strided():
        c, _ = OP.check((x, "up", torch.uint8))
        assert OP.route(c).backend == backend, name
        assert_same(quant_mxfp4(x, "up"), definition(x.contiguous(), "up"), x.contiguous())


def test_the_codes_by_hand(arch: str) -> None:
    """Signs of zero, order of nibbles, saturation below 1.75, scale 1."""
    x = torch.zeros(BLOCK)
    x[:12] = torch.tensor([-0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0, -0.25, 0.26, 6.99, -5.0])
    payload, scale = quant_mxfp4(x)
    assert payload[:6].tolist() == [0x18, 0x3A, 0xD4, 0x76, 0x18, 0xE7]
    assert not payload[6:].any() and bytes_of(scale).tolist() == [127]
    assert bytes_of(quant_mxfp4(x, "up")[1]).tolist() == [128]
    assert bytes_of(quant_mxfp4(x, "down")[1]).tolist() == [127]
    assert fp4_values(payload)[:4].tolist() == [-0.0, 0.5, -1.0, 1.5]
    assert math.copysign(1, fp4_values(payload)[0].item()) == -1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_not_finite_makes_its_block_nan(bad: float, mode: str, arch: str) -> None:
    x = torch.ones(2, 3 * BLOCK)
    x[1, BLOCK + 5] = bad
    payload, scale = quant_mxfp4(x, mode)
    assert (bytes_of(scale) == 255).nonzero().tolist() == [[1, 1]]
    values = dequant_mxfp4(payload, scale)
    assert values[1, BLOCK : 2 * BLOCK].isnan().all() and values.isnan().sum() == BLOCK


@pytest.mark.parametrize("mode", MODES)
def test_error_bounds(mode: str) -> None:
    """Half a step of e2m1: a quarter of the magnitude down to 1, then a quarter of the scale; and
    what saturates: up to 7 (even) or 8 (down) becomes 6."""
    x = torch.randn(64, 8 * BLOCK, generator=torch.Generator().manual_seed(2))
    payload, scale = by(OP, "torch", x, mode, torch.uint8)
    step = 2.0 ** (bytes_of(scale).double() - 127).repeat_interleave(BLOCK, dim=-1)
    off = (dequant_mxfp4(payload, scale, torch.float64) - x).abs()
    most = {"even": 1.0, "up": 0.0, "down": 2.0}[mode] * step
    bound = torch.maximum(x.abs().double() / 4, step / 4)
    is_top = x.abs() > 6 * step
    assert (off <= torch.where(is_top, most, bound)).all()
    assert is_top.any() == (mode != "up")


def test_dequant_is_exact_at_the_extremes() -> None:
    payload = torch.tensor([0x71, 0xF0], dtype=torch.uint8).repeat(8).repeat(3)
    values = dequant_mxfp4(payload, torch.tensor([0, 254, 255], dtype=torch.uint8), torch.float64)
    values = values.view(3, BLOCK)
    assert values[0, 0].item() == 2.0**-128 and values[1, 1].item() == 6 * 2.0**127
    assert values[1, 3].item() == -6 * 2.0**127 and values[2].isnan().all()


@pytest.mark.skipif(FP4 is torch.uint8, reason="this torch has no float4_e2m1fn_x2")
def test_torchs_own_fp4() -> None:
    x = wild((4, 64), torch.bfloat16)
    for _ in range(2):  # the second by its plan
        payload, scale = quant_mxfp4(x, dtype=FP4)
        assert payload.dtype == FP4 and payload.shape == (4, 32)
        assert_same((payload, scale), definition(x, "even"), x)
    assert torch.equal(
        dequant_mxfp4(payload, scale).nan_to_num(7), dequant_mxfp4(*quant_mxfp4(x)).nan_to_num(7)
    )


def test_empty() -> None:
    payload, scale = quant_mxfp4(torch.empty(0, 64))
    assert payload.shape == (0, 32) and scale.shape == (0, 2)
    payload, scale = quant_mxfp4(torch.empty(3, 0))
    assert payload.shape == (3, 0) and scale.shape == (3, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(32), "ceil"), "rounding must be even, up or down, got 'ceil'"),
        ((torch.ones(2, 48),), "K must be a multiple of 32, got K=48; pad x with zeros"),
        ((torch.ones(2, 33),), "K must be a multiple of 32, got K=33; pad x with zeros"),
        ((torch.ones(()),), r"x must be a \[\.\.\., K\] tensor, got \[\] float32"),
        ((torch.ones(32, dtype=torch.int32),), r"x must be bfloat16 or .*, got \[32\] int32"),
        ((torch.ones(32), "up", torch.int8), "dtype must be uint8"),
        (([1.0] * 32,), r"x must be a \[\.\.\., K\] tensor, got list"),
    ],
)
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^quant_mxfp4: {message}"):
        quant_mxfp4(*args)


# ---------------------------------------------------------------- as an op


def test_it_is_an_op_as_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    like = torch.ops.rfops.quant_mxfp4(torch.empty(3, 64, device="meta"), "up", torch.uint8)
    assert [t.shape for t in like] == [(3, 32), (3, 2)] and like[1].dtype == E8M0
    supports = quant_mxfp4.supports  # type: ignore[attr-defined]
    assert supports(arch="gfx942") and supports(arch="gfx950", backend="hip")
    assert not supports(arch="gfx942", shape=(4, 33))
    profiled = f"M=4 K=64 on {settings.text('RFOPS_VGPU_ARCH')}, "
    for words, said in (
        ("why quant_mxfp4 --m 4 --k 64", "hip"),
        ("profile quant_mxfp4 --m 4 --k 64 --rounding down", profiled),
        ("bench quant_mxfp4 --shape 3 64 rounding=even x_dtype=bf16", "m=3 k=64"),
    ):
        assert cli.main(words.split()) == 0 and said in capsys.readouterr().out
    assert cli.main("why quant_mxfp4 --m 4 --k 48".split()) == 1
    assert "K must be a multiple of 32, got K=48" in capsys.readouterr().err


def test_opcheck() -> None:
    x = torch.randn(3, 64)
    torch.library.opcheck(torch.ops.rfops.quant_mxfp4.default, (x, "up", torch.uint8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    compiled = torch.compile(lambda x: quant_mxfp4(x)[0], fullgraph=True, dynamic=dynamic)
    for rows in (2, 3):
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))
        assert torch.equal(compiled(x), quant_mxfp4(x)[0])


def test_vmap() -> None:
    x = wild((4, 3, 64), torch.bfloat16)
    actual = torch.func.vmap(lambda one: quant_mxfp4(one, "up"))(x)
    assert_same(actual, quant_mxfp4(x, "up"), x)


def test_bench_tells_a_wrong_scale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OP, "reference", lambda x, _word, d: quant_mxfp4_ref(x, "up", d))
    assert cli.main("bench quant_mxfp4 --shape 64 128".split()) == 1
    assert "quant_mxfp4 m=64 k=128: hip is WRONG" in capsys.readouterr().err


# ---------------------------------------------------------------- in a GEMM's load


BLOCK_CONFIG = Path(__file__).parent / "mxfp4_block" / "config.json"


@compile_ops("mxfp4_block", config=BLOCK_CONFIG)
def mxfp4_block(payload: torch.Tensor, scale: torch.Tensor, x: torch.Tensor) -> None: ...


@pytest.mark.thin(7)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_a_lane(dtype: torch.dtype, mode: str, arch: str) -> None:
    """The device function of GEMMs: the same bits where the block is finite, and NaN's scale."""
    words = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
    x = wild((64, BLOCK), dtype)
    payload, scale = torch.zeros(64, 16, dtype=torch.uint8), torch.zeros(64, dtype=torch.int32)
    defines = {"IN": words[dtype], "ROUNDING": mode.capitalize()}
    bound = mxfp4_block.bind(CPU, defines)
    with rfops.vgpu.check() as c, rfops.vgpu.profile() as p:
        bound.launch((1, 1, 1), (64, 1, 1), (payload, scale, x))
    assert not c.findings, "\n".join(map(str, c.findings))
    expected = definition(x, mode)
    is_nan = expected[1] == 255
    payload = payload.masked_fill(is_nan, 0)
    assert is_nan.any() and not is_nan.all()
    assert_same((payload, scale.to(torch.uint8)[:, None]), expected, x)
    if (arch, mode) == ("gfx950", "even") and dtype == torch.bfloat16:
        # 54 a 16 x 128 tile, which is a wave's; 8 for addresses and constants
        assert p.launches[0].classes["valu"] <= 54 + 8, p.launches[0]
