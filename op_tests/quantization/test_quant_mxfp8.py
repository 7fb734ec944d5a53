"""quant_mxfp8 against a scalar implementation of its definition, in plain Python floats; its
kernels against each other bit by bit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import rfops
from rfops import cli
from rfops.gemm.mxfp8 import gemm_mxfp8
from rfops.jit import settings
from rfops.quantization.mxfp8 import (
    BLOCK,
    E8M0,
    OP,
    ROUNDING,
    dequant_mxfp8,
    quant_mxfp8,
    quant_mxfp8_ref,
)
from support.quant_problems import E4M3, assert_same, by, every_16_bits, ties_of_e4m3, wild

MODES = sorted(ROUNDING)


def scale_exponent(amax: float, mode: str) -> int:
    """e of the module's table, from frexp's mantissa instead of float bits."""
    if amax == 0.0:
        return -127
    fraction, power = math.frexp(amax)  # amax = fraction * 2^power, 0.5 <= fraction < 1
    mantissa, power = 2 * fraction, power - 1
    bump = {
        "up": mantissa > 1.75,
        "floor": False,
        "even": mantissa >= 1.75,
        "ceil": mantissa > 1.0,
    }[mode]
    return max(power + bump - 8, -127)


def nearest_code(value: float) -> int:
    """Round to nearest, ties to the even code, saturated; the sign in bit 7."""
    magnitude = min(abs(value), E4M3[-1])
    code = min(range(127), key=lambda c: (abs(E4M3[c] - magnitude), c % 2))
    return code | (0x80 if math.copysign(1.0, value) < 0 else 0)


def assert_matches_definition(x: torch.Tensor, mode: str) -> None:
    payload, scale = quant_mxfp8(x, mode)
    assert payload.dtype == torch.float8_e4m3fn and payload.shape == x.shape
    assert scale.dtype == E8M0 and scale.shape == (*x.shape[:-1], x.shape[-1] // BLOCK)
    codes = payload.view(torch.uint8).reshape(-1, BLOCK).tolist()
    scales = scale.view(torch.uint8).reshape(-1).tolist()
    for i, block in enumerate(x.to(torch.float32).reshape(-1, BLOCK).tolist()):
        e = scale_exponent(max(map(abs, block)), mode)
        assert scales[i] == e + 127, f"block {i}: scale byte {scales[i]}, expected {e + 127}"
        expected = [nearest_code(math.ldexp(v, -e)) for v in block]
        mismatches = [j for j in range(BLOCK) if codes[i][j] != expected[j]]
        assert not mismatches, (
            f"block {i} at {mismatches}: {[(block[j], codes[i][j]) for j in mismatches]}"
        )


@pytest.mark.parametrize("mode", MODES)
def test_random_blocks_of_all_magnitudes(mode: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2 * BLOCK, generator=generator)
    x = x * torch.logspace(-37, 38, 40).unsqueeze(1).clamp(max=6e37)
    assert_matches_definition(x, mode)


@pytest.mark.parametrize("mode", MODES)
def test_thresholds_of_the_scale(mode: str) -> None:
    """amax at, just below and just above each mantissa where a mode changes its mind."""
    points = []
    for power in (-126, -119, -118, -20, 0, 8, 127):
        for mantissa in (1.0, 1.5, 1.75, 1.9375):
            centre = torch.tensor(math.ldexp(mantissa, power))
            for toward in (0.0, math.inf):
                points.append(torch.nextafter(centre, torch.tensor(toward)))
            points.append(centre)
    amax = torch.stack(points).unsqueeze(1)
    x = amax * torch.linspace(-1.0, 1.0, BLOCK)
    x[:, 0] = -amax[:, 0]
    assert_matches_definition(x, mode)


@pytest.mark.parametrize("mode", MODES)
def test_denormals_and_zeros(mode: str) -> None:
    x = torch.zeros(4, BLOCK)
    x[1] = torch.linspace(0, 1, BLOCK) * 2.0**-127  # all denormal
    x[2] = 2.0**-149  # the least there is
    x[3, ::2] = -0.0
    assert_matches_definition(x, mode)
    payload, scale = quant_mxfp8(x, mode)
    assert scale.view(torch.uint8)[0].item() == 0
    assert not payload.view(torch.uint8)[0].any()


def test_payloads_of_scale_one_survive() -> None:
    """Each finite e4m3 code in a block whose amax is 448 quantises to itself, with scale 1."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]
    blocks = torch.full((-(-len(codes) // (BLOCK - 1)), BLOCK), 0x7E, dtype=torch.uint8)
    body = torch.zeros(blocks.shape[0] * (BLOCK - 1), dtype=torch.uint8)
    body[: len(codes)] = codes
    blocks[:, 1:] = body.reshape(-1, BLOCK - 1)
    values = blocks.view(torch.float8_e4m3fn).to(torch.float32)
    payload, scale = quant_mxfp8(values)
    assert (scale.view(torch.uint8) == 127).all()
    assert torch.equal(payload.view(torch.uint8), blocks)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_not_finite_makes_its_block_nan(mode: str, bad: float) -> None:
    x = torch.ones(2, 3 * BLOCK)
    x[1, BLOCK + 5] = bad
    payload, scale = quant_mxfp8(x, mode)
    byte = scale.view(torch.uint8)
    assert byte[1, 1].item() == 255 and (byte == 255).sum() == 1
    values = dequant_mxfp8(payload, scale)
    assert values[1, BLOCK : 2 * BLOCK].isnan().all() and values.isnan().sum() == BLOCK
    assert (payload.view(torch.uint8)[1, BLOCK : 2 * BLOCK] & 0x7F == 0x7F).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_error_bound_of_the_default(dtype: torch.dtype) -> None:
    """Half a unit in the last of 3 mantissa bits; half the least payload below 2^-6."""
    x = torch.randn(64, 8 * BLOCK, generator=torch.Generator().manual_seed(2)).to(dtype)
    payload, scale = quant_mxfp8(x)
    values = dequant_mxfp8(payload, scale, torch.float64)
    exact = x.to(torch.float64)
    step = 2.0 ** (scale.view(torch.uint8).to(torch.float64) - 127)
    least = step.repeat_interleave(BLOCK, dim=-1) * 2.0**-10
    excess = (values - exact).abs() - torch.maximum(exact.abs() * 2.0**-4, least)
    worst = excess.argmax().item()
    assert excess.max() <= 0, f"{exact.flatten()[worst]} became {values.flatten()[worst]}"


# ---------------------------------------------------------------- kernels


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.mark.thin(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_16_bit_values(dtype: torch.dtype, mode: str, arch: str) -> None:
    x = every_16_bits(dtype)
    expected = by(OP, "torch", x, mode)
    assert_same(by(OP, "hip", x, mode), expected, x)
    few = x[::11].contiguous()
    assert_same(by(OP, "triton", few, mode), [t[::11] for t in expected], few)


@pytest.mark.parametrize("backend", ["hip", "triton"])
def test_all_ties_of_the_payload(backend: str, arch: str) -> None:
    x = ties_of_e4m3()
    for mode in MODES:
        assert_same(by(OP, backend, x, mode), by(OP, "torch", x, mode), x)


@pytest.mark.thin(4)
@pytest.mark.parametrize("backend", ["hip", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(32,), (37, 96), (3, 5, 128), (260, 32)])
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype, backend: str, arch: str) -> None:
    """Under the checks, which find nothing: one block to more than a workgroup, ragged; infinities
    and NaN, each in its block."""
    x = wild(shape, dtype)
    with rfops.vgpu.check() as c:
        actual = by(OP, backend, x, "up")
    assert not c.findings, "\n".join(map(str, c.findings))
    assert actual[0].shape == shape and actual[1].shape == (*shape[:-1], shape[-1] // BLOCK)
    assert_same(actual, by(OP, "torch", x, "up"), x)


def strided() -> Iterator[tuple[str, str, torch.Tensor]]:
    x = wild((20, 256), torch.bfloat16)
    yield "rows in steps", "hip", x[:, :64]
    yield "one row many times", "hip", x[3:4].expand(7, 256)
    yield "columns", "triton", wild((20, 64), torch.bfloat16).T.contiguous().T
    yield "not aligned", "triton", x[:, 4:68]
    yield "three dimensions", "torch", x.view(5, 4, 256)[:, :, :64]


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
    expected = by(OP, "torch", x, "up")
    assert_same(by(OP, backend, far, "up"), expected, x)


@pytest.mark.requires_gfx950
def test_strides() -> None:
    for name, backend, x in strided():
        c, _ = OP.check((x, "even"))
        assert OP.route(c).backend == backend, name
        expected = by(OP, "torch", x.contiguous(), "even")
        assert_same(quant_mxfp8(x, "even"), expected, x.contiguous())


@pytest.mark.requires_gfx950
def test_moves_each_byte_once() -> None:
    x = torch.ones(64, 2048, dtype=torch.bfloat16)
    with rfops.vgpu.profile() as p:
        quant_mxfp8(x)
    (launch,) = p.launches
    assert launch.global_read["bytes"] == x.nbytes
    assert launch.global_write["bytes"] == x.numel() * 33 // 32
    assert launch.scratch_bytes_per_lane == launch.lds_conflict_cycles == 0


def test_any_strides_and_empty() -> None:
    x = torch.randn(96, 40, generator=torch.Generator().manual_seed(3)).T  # [40, 96], K strided
    for actual, expected in zip(quant_mxfp8(x), quant_mxfp8(x.contiguous()), strict=True):
        assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))
        assert actual.is_contiguous()
    payload, scale = quant_mxfp8(torch.empty(0, 64))
    assert payload.shape == (0, 64) and scale.shape == (0, 2)


def test_dequant_is_exact_at_the_extremes() -> None:
    codes = torch.tensor([0x01, 0x7E, 0xFE, 0x00], dtype=torch.uint8).repeat(8)
    payload = codes.repeat(3).view(torch.float8_e4m3fn)
    scale = torch.tensor([0, 254, 255], dtype=torch.uint8)
    values = dequant_mxfp8(payload, scale, torch.float64).reshape(3, BLOCK)
    assert values[0, 0].item() == 2.0**-136 and values[1, 1].item() == 448 * 2.0**127
    assert values[1, 2].item() == -448 * 2.0**127 and values[2].isnan().all()


@pytest.mark.parametrize(
    ("x", "rounding", "message"),
    [
        (torch.ones(32), "nearest", r"rounding must be up, floor, even or ceil, got 'nearest'"),
        (torch.ones(2, 33), "up", r"K must be a multiple of 32, got K=33; pad x with zeros"),
        (torch.ones(()), "up", r"x must be a \[\.\.\., K\] tensor, got \[\] float32"),
        (torch.ones(32, dtype=torch.int32), "up", r"x must be bfloat16 or .*, got \[32\] int32"),
        (torch.ones(64, dtype=torch.uint8), "up", r"x must be bfloat16 or .*, got \[64\] uint8"),
        ([1.0] * 32, "up", r"x must be a \[\.\.\., K\] tensor, got list"),
    ],
)
def test_refusals(x: torch.Tensor, rounding: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"quant_mxfp8: .*{message}"):
        quant_mxfp8(x, rounding)
    if isinstance(x, torch.Tensor):
        with pytest.raises(ValueError, match=f"quant_mxfp8: .*{message}"):
            torch.ops.rfops.quant_mxfp8(x, rounding)


# ---------------------------------------------------------------- torch


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_by_torchs_default_backend(dynamic: bool) -> None:
    """Inductor has no C++ type for e8m0, so that on the CPU it cannot generate this itself."""
    compiled = torch.compile(
        lambda x, w, w_scale: gemm_mxfp8(*_ordered(quant_mxfp8(x), (w, w_scale))),
        fullgraph=True,
        dynamic=dynamic,
    )
    pair = quant_mxfp8(torch.randn(24, 64, generator=torch.Generator().manual_seed(4)))
    for rows in (2, 3):
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))
        assert torch.equal(compiled(x, *pair), gemm_mxfp8(*_ordered(quant_mxfp8(x), pair)))
    alone = torch.compile(quant_mxfp8, fullgraph=True, dynamic=dynamic)
    for actual, expected in zip(alone(x, "even"), quant_mxfp8(x, "even"), strict=True):
        assert actual.dtype == expected.dtype and torch.equal(_bytes(actual), _bytes(expected))


def _ordered(x: tuple[torch.Tensor, ...], w: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return x[0], w[0], x[1], w[1]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def test_opcheck() -> None:
    """Its float8 results included: none of these compares values of float8."""
    x = torch.randn(3, 64)
    torch.library.opcheck(torch.ops.rfops.quant_mxfp8.default, (x, "up"))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.rfops.quant_mxfp8.default, (x.requires_grad_(), "up"), test_utils=tests
    )


def test_it_is_an_op_as_the_others_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = OP.plans.new_table()
    monkeypatch.setattr(OP, "plans", plans)
    for shape in ((64,), (2, 64), (1, 2, 64), (2, 64)):
        payload, scale = quant_mxfp8(torch.ones(shape))
        assert payload.shape == shape and scale.shape == (*shape[:-1], 2)
        assert (payload.float() == 256).all() and (_bytes(scale) == 119).all()
    assert (plans.hits, plans.misses) == (1, 3), "[1, 2, 64] has no plan of [2, 64]"
    like = torch.ops.rfops.quant_mxfp8(torch.empty(3, 64, device="meta"), "up")
    assert [t.shape for t in like] == [(3, 64), (3, 2)] and like[1].dtype == E8M0
    supports = quant_mxfp8.supports  # type: ignore[attr-defined]
    assert supports(arch="gfx942") and not supports(arch="gfx942", shape=(4, 33))
    profiled = f"M=4 K=64 on {settings.text('RFOPS_VGPU_ARCH')}, "
    for words, said in (
        ("why quant_mxfp8 --m 4 --k 64", "hip"),
        ("profile quant_mxfp8 --m 4 --k 64 --rounding ceil", profiled),
        ("bench quant_mxfp8 --shape 3 64 rounding=even x_dtype=bf16", "m=3 k=64"),
        ("build quant_mxfp8 --arch gfx950", "quant_mxfp8"),
        ("ls", "quant_mxfp8"),
    ):
        assert cli.main(words.split()) == 0 and said in capsys.readouterr().out
    assert cli.main("why quant_mxfp8 --m 4 --k 33".split()) == 1
    assert "K must be a multiple of 32, got K=33" in capsys.readouterr().err


@pytest.mark.parametrize("mode", MODES)
def test_the_reference_of_bench_is_the_definition(mode: str) -> None:
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(6)).bfloat16()
    x[0], x[1, 3], x[2, :32] = x[0] * 2.0**-126, math.inf, 0
    values, scale = quant_mxfp8_ref(x, mode)
    payload, expected = quant_mxfp8(x, mode)
    assert torch.equal(_bytes(scale), _bytes(expected))
    torch.testing.assert_close(
        values.to(payload.dtype).float(), payload.float(), rtol=0, atol=0, equal_nan=True
    )


def test_bench_tells_a_wrong_payload(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OP, "reference", lambda x, _word: quant_mxfp8_ref(x, "floor"))
    assert cli.main("bench quant_mxfp8 --shape 3 64".split()) == 1
    assert "quant_mxfp8 m=3 k=64: hip is WRONG" in capsys.readouterr().err


def test_results_are_no_views() -> None:
    """A warm call looks closer at views: see jit/launch/modes.py."""
    assert not any(tensor._is_view() for tensor in quant_mxfp8(torch.randn(2, 3, 64)))
