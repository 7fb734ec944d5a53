"""rope: HIP, Triton and torch against float64, in place within qkv; tables of angles; refusals."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch

import rfops
from rfops.attention.rope import OP, divisor_numbers, rope, rope_kernel, rope_ref
from rfops.attention.rotary import rope_cos_sin
from rfops.dispatch.compare import HALF_ULP, assert_within
from rfops.dispatch.problem import Problem

BF16 = torch.bfloat16


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def random(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def exact(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool = False,
    first: int = 0,
    inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated in float64 as a product of complex numbers, and the bound: two products and their sum
    in fp32 are off by three roundings of |x| |table| at most; the result is rounded once."""
    cos, sin = cos_sin[positions.flatten().long()].double().chunk(2, -1)
    table = torch.complex(cos, -sin if inverse else sin)[:, None]
    half = cos.shape[-1]
    part = x.double()[..., first : first + 2 * half]
    low, high = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    pairs = torch.complex(low, high)
    turned, sums = pairs * table, pairs.abs() * table.abs()
    out, bound = x.double().clone(), torch.zeros_like(x, dtype=torch.float64)
    stack = (lambda a, b: torch.stack((a, b), -1).flatten(-2)) if interleaved else None
    join = stack or (lambda a, b: torch.cat((a, b), -1))
    out[..., first : first + 2 * half] = join(turned.real, turned.imag)
    bound[..., first : first + 2 * half] = 3 * 2.0**-24 * join(sums, sums)
    return out, bound * (1 + HALF_ULP[x.dtype]) + out.abs() * HALF_ULP[x.dtype]


def check(actual: torch.Tensor, before: torch.Tensor, *args: Any, **values: Any) -> None:
    out, bound = exact(before, *args, **values)
    assert_within(actual.double(), out, bound)


def backend_of(*args: Any) -> str:
    return str(OP.route(OP.check(args)[0]).backend)


# tokens, heads, key heads, head size, rotated, first: DeepSeek's, Qwen's, GLM's half, odd pairs.
SHAPES = [
    (1, 16, 1, 64, 64, 0),
    (5, 8, 1, 128, 128, 0),
    (3, 4, 2, 128, 64, 0),
    (2, 3, 1, 192, 64, 128),
    (3, 2, 2, 72, 30, 2),
    (300, 2, 1, 64, 64, 0),
]


@pytest.mark.thin(2)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values(shape: tuple[int, ...], interleaved: bool, arch: str) -> None:
    tokens, heads, key_heads, dim, rotary, first = shape
    q, k = random(tokens, heads, dim), random(tokens, key_heads, dim, seed=1)
    old_q, old_k = q.clone(), k.clone()
    cos_sin = rope_cos_sin(400, rotary)
    positions = torch.randperm(400, generator=torch.Generator().manual_seed(1))[:tokens]
    with rfops.vgpu.check() as c:
        rope(positions, q, k, cos_sin, interleaved=interleaved, first=first)
    assert not c.findings, "\n".join(map(str, c.findings))
    check(q, old_q, positions, cos_sin, interleaved, first)
    check(k, old_k, positions, cos_sin, interleaved, first)
    again = old_q.clone()  # by its plan, without keys
    rope(positions, again, again[:, :0], cos_sin, interleaved=interleaved, first=first)
    assert torch.equal(again, q)
    args = (positions, q, k, cos_sin, None, interleaved, first, False)
    assert backend_of(*args) == "hip"


@pytest.mark.thin(3)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("angle", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_dtypes(dtype: torch.dtype, angle: torch.dtype, index: torch.dtype, arch: str) -> None:
    q, k, cos_sin = random(3, 2, 64, dtype=dtype), random(3, 1, 64, dtype=dtype), random(9, 64)
    cos_sin, positions, old = cos_sin.to(angle), torch.tensor([8, 0, 3], dtype=index), q.clone()
    rope(positions, q, k, cos_sin)
    check(q, old, positions, cos_sin)


@pytest.mark.parametrize("columns", [2, 16])
def test_a_unit_per_token(columns: int, arch: str) -> None:
    """One head of one unit and no keys: an index is its token."""
    q, cos_sin, positions = random(300, 1, columns), random(9, columns), torch.arange(300) % 9
    old = q.clone()
    rope(positions, q, q[:, :0], cos_sin)
    check(q, old, positions, cos_sin)


def test_division_by_a_multiplier() -> None:
    """Exact at both ends of each quotient, for all divisors of few bits and some of many."""
    draw = Random(0)
    for divisor in (*range(1, 500), *(draw.randrange(500, 1 << 31) for _ in range(500))):
        multiplier, shift = divisor_numbers(divisor).values()
        assert multiplier < 1 << 32
        last = ((1 << 31) - 1) // divisor
        for quotient in (0, 1, last - 1, last):
            for n in (quotient * divisor, min(quotient * divisor + divisor, 1 << 31) - 1):
                assert (2 * max(n, 0) * multiplier >> 32) >> shift == max(n, 0) // divisor, divisor


@pytest.mark.requires_gfx950
def test_inverse_turns_back() -> None:
    q, positions = random(4, 2, 64, dtype=torch.float32), torch.arange(4)
    old, cos_sin = q.clone(), rope_cos_sin(8, 64)
    rope(positions, q, q[:, :0], cos_sin)
    turned = q.clone()
    rope(positions, q, q[:, :0], cos_sin, inverse=True)
    check(q, turned, positions, cos_sin, inverse=True)
    assert torch.allclose(q, old, atol=1e-5) and not torch.allclose(turned, old, atol=1e-2)


def test_q_and_k_within_qkv(arch: str) -> None:
    """Rows of a fused projection; v and what lies between stays, bit by bit."""
    tokens, heads, dim = 5, 6, 128
    qkv = random(tokens, (heads + 2 + 2) * dim)
    before, cos_sin, positions = qkv.clone(), rope_cos_sin(64, dim), torch.tensor([9, 0, 63, 5, 5])
    q = qkv[:, : heads * dim].view(tokens, heads, dim)
    k = qkv[:, heads * dim : (heads + 2) * dim].view(tokens, 2, dim)
    old_q, old_k = q.clone(), k.clone()
    with rfops.vgpu.check() as c:
        rope(positions, q, k, cos_sin)
    assert not c.findings, "\n".join(map(str, c.findings))
    check(q, old_q, positions, cos_sin)
    check(k, old_k, positions, cos_sin)
    assert torch.equal(qkv[:, (heads + 2) * dim :], before[:, (heads + 2) * dim :])
    assert backend_of(positions, q, k, cos_sin, None, False, 0, False) == "hip"


@pytest.mark.requires_gfx950
def test_strides() -> None:
    """Misaligned rows by single pairs; heads before tokens; elements that are no neighbours, and
    tables that lie unlike each other, by torch."""
    positions, cos_sin = torch.tensor([3, 1, 2]), rope_cos_sin(4, 64)
    memory, wide = random(3, 600), random(4, 3, 64)
    halves = cos_sin.chunk(2, -1)
    cases: dict[str, tuple[torch.Tensor, tuple[Any, ...], str]] = {
        "misaligned": (memory[:, 3:259].view(3, 4, 64), (cos_sin,), "hip"),
        "heads first": (wide.transpose(0, 1), (cos_sin,), "hip"),
        "every other": (memory[:, 1:513:2].unflatten(1, (4, 64)), (cos_sin,), "torch"),
        "two tables": (random(3, 4, 64), halves, "hip"),
        "tables unlike": (random(3, 4, 64), (halves[0], halves[1].contiguous()), "torch"),
    }
    for name, (q, tables, backend) in cases.items():
        old = q.clone()
        rope(positions, q, q[:, :0], *tables)
        check(q, old, positions, cos_sin)
        sin = tables[1] if len(tables) > 1 else None
        args = (positions, q, q[:, :0], tables[0], sin, False, 0, False)
        assert backend_of(*args) == backend, name


@pytest.mark.requires_gfx950
def test_calls_of_changing_shapes() -> None:
    """The plan of one call serves no other: tokens, heads, where rows lie, the table's length."""
    qkv = random(6, 10 * 64)
    for positions_count in (1, 50):
        cos_sin = rope_cos_sin(positions_count, 64)
        for heads in (2, 3, 2, 8):
            for tokens in (4, 1, 3):
                positions = torch.arange(tokens) % positions_count
                q = qkv[:tokens, : heads * 64].view(tokens, heads, 64)
                k = qkv[:tokens, heads * 64 : (heads + 1) * 64].view(tokens, 1, 64)
                old_q, old_k = q.clone(), k.clone()
                rope(positions, q, k, cos_sin)
                check(q, old_q, positions, cos_sin)
                check(k, old_k, positions, cos_sin)


@pytest.mark.requires_gfx950
def test_strides_that_overlap_with_more_tokens() -> None:
    """Of one plan's strides: heads 128 elements apart have room for two tokens of 64, not three."""
    memory, cos_sin = random(1024), rope_cos_sin(4, 64)
    for tokens in (2, 3):
        q = memory.as_strided((tokens, 3, 64), (64, 128, 1))
        if tokens == 2:
            rope(torch.arange(2), q, q[:, :0], cos_sin)
        else:
            with pytest.raises(ValueError, match="q must be of elements with places of their own"):
                rope(torch.arange(3), q, q[:, :0], cos_sin)


def test_positions_outside_of_the_table(arch: str) -> None:
    """They count as its last row, and nothing outside is read."""
    cos_sin, positions = rope_cos_sin(4, 64), torch.tensor([-1, 4, 2**31, 2])
    inside = torch.tensor([3, 3, 3, 2])
    q, old = random(4, 2, 64), random(4, 2, 64)
    with rfops.vgpu.check() as c:
        rope(positions, q, q[:, :0], cos_sin)
    assert not c.findings, "\n".join(map(str, c.findings))
    check(q, old, inside, cos_sin)
    rope_ref(positions, old, old[:, :0], cos_sin)
    assert_within(q.float(), old.float(), old.float().abs() * 2 * HALF_ULP[BF16] + 1e-6)


def test_nans_of_all_payloads(arch: str) -> None:
    """A NaN makes its pair NaN, nothing else."""
    bits = torch.tensor([0x7FC0, 0x7FFF, 0x7F81, -1, -0x7F], dtype=torch.int16)
    q, k = torch.ones(5, 1, 64).bfloat16(), torch.ones(5, 1, 64).bfloat16()
    q[range(5), 0, range(5)] = bits.view(torch.bfloat16)
    rope(torch.arange(5), q, k, torch.rand(5, 64).bfloat16() + 0.5)
    of_low = torch.eye(5, 32, dtype=torch.bool)
    assert torch.equal(q[:, 0].isnan(), torch.cat([of_low, of_low], -1)) and not k.isnan().any()


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("interleaved", [False, True])
def test_triton(interleaved: bool) -> None:
    q, k = random(5, 3, 80)[:, :, :72], random(5, 1, 80)[:, :, :72]
    old_q, old_k = q.clone(), k.clone()
    cos_sin, positions = rope_cos_sin(7, 60), torch.tensor([6, 0, 9, 1, 2])
    args = (positions, q, k, cos_sin, None, interleaved, 4, True)
    c, _ = OP.check(args)
    OP.prepare("triton", c)(None, positions, q, k, cos_sin, None)
    inside = positions.clamp(max=6)
    check(q, old_q, inside, cos_sin, interleaved, 4, True)
    check(k, old_k, inside, cos_sin, interleaved, 4, True)


@pytest.mark.requires_gfx950
def test_torch_and_the_bench() -> None:
    for given in ({}, {"interleaved": True, "sin": True}):
        problem = Problem(OP, OP.call_of(T=3, H=2, G=1, D=64, P=9, **given))
        for backend in ("torch", "hip"):
            problem.checked(problem.launch_by(problem.prepare(backend)), backend)
    q = torch.empty(0, 2, 64)
    rope(torch.empty(0, dtype=torch.int64), q, q[:, :0], torch.ones(4, 64))


@pytest.mark.requires_gfx950
def test_compiled_and_fake() -> None:
    positions, q, k, cos_sin = torch.arange(3), random(3, 2, 64), random(3, 1, 64), random(5, 64)
    args = (positions, q, k, cos_sin, None, False, 0, False)
    torch.library.opcheck(torch.ops.rfops.rope.default, args)
    expected = q.clone()
    rope(positions, expected, k.clone(), cos_sin)
    compiled = torch.compile(rope, backend="eager", fullgraph=True)
    compiled(positions, q, k, cos_sin)
    assert torch.equal(q, expected)


Q, K, TABLE, P = torch.zeros(2, 3, 64), torch.zeros(2, 1, 64), torch.zeros(4, 64), torch.arange(2)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((P.float(), Q, K, TABLE), "positions must be int64 or int32"),
        ((P[:1], Q, K, TABLE), "q must be "),
        ((P, Q[0], K, TABLE), r"q must be a \[T=2, H, D\] tensor, got .*; reshape it"),
        ((P, Q.int(), K, TABLE), "q must be bfloat16 or float16 or float32"),
        ((P, Q, K.bfloat16(), TABLE), "k must be float32, as q is, got bfloat16; convert it first"),
        ((P, Q, K[..., :32], TABLE), "k must be "),
        ((P, Q, K, TABLE[:, :31]), "cos_sin must be of cosines and as many sines, got 31 columns"),
        ((P, Q, K, torch.zeros(4, 66)), "cos_sin must be of at most D=64 elements of a head"),
        ((P, Q, K, TABLE, None, False, 2), "cos_sin must be of at most D=64 .*64 from 2 on"),
        ((P, Q, K, TABLE, TABLE), "cos_sin must be of at most D=64 .*128 from 0 on"),
        ((P, Q, K, TABLE[:, :32], TABLE[:, :32].bfloat16()), "sin must be float32, as cos_sin is"),
        ((P, Q, K, TABLE, None, False, -1), "first must be 0 or more|first must be "),
        ((P, Q[:1].expand(2, 3, 64), K, TABLE), "q must be of elements with places of their own"),
        ((P, Q, K[:1].expand(2, 1, 64), TABLE), "k must be of elements with places of their own"),
    ],
)
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^rope: {message}"):
        rope(*args)


@pytest.mark.requires_gfx950
def test_registers() -> None:
    """No scratch and no spills."""
    for interleaved in (False, True):
        for dtype in (BF16, torch.float32):
            c = OP.call_of(T=4, H=16, G=1, D=64, q_dtype=dtype, interleaved=interleaved)
            defines = OP.kernels["hip"].defines(c, None)
            assert defines is not None
            bound = rope_kernel.bind(c.device, defines, "gfx950")
            spilled = [bound.resources[n] for n in ("scratch", "vgpr_spills", "sgpr_spills")]
            assert spilled == [0, 0, 0]


# ---------------------------------------------------------------- tables


def test_the_plain_table() -> None:
    table = rope_cos_sin(3, 4, base=100.0)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    assert torch.allclose(table, torch.cat((angles.cos(), angles.sin()), -1), atol=1e-7)
    with pytest.raises(ValueError, match="rotary_dim must be even, got 3"):
        rope_cos_sin(4, 3)


def test_yarn_of_deepseek() -> None:
    """DeepSeek-V3's: base 10000, factor 40, 4096 positions before, mscale 1 and 1. Pairs that turn
    32 times or more in 4096 positions keep their speed, those that turn less than once are 40 times
    slower; 64 elements: pairs 0 to 10 and from 23 on."""
    yarn = rope_cos_sin(2, 64, 1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=1.0, dtype=torch.float64)
    plain = rope_cos_sin(2, 64, 1e4, dtype=torch.float64)
    ratio = torch.asin(yarn[1, 32:]) / torch.asin(plain[1, 32:])
    ratio[0] = 1.0  # a turn of 1 radian, whose cosine says as much
    assert torch.allclose(yarn[1, 0], plain[1, 0])
    assert torch.allclose(ratio[:11], torch.ones(11, dtype=torch.float64))
    assert torch.allclose(ratio[23:], torch.full((9,), 1 / 40, dtype=torch.float64))
    turns = 4096 * 1e4 ** (-2 * torch.arange(32) / 64) / (2 * math.pi)
    assert turns[10] > 32 > turns[11] and turns[22] > 1 > turns[23]
    assert (ratio[10:24].diff() <= 0).all()


def test_the_scale_of_yarn() -> None:
    """m(mscale) / m(mscale_all_dim), m(s) = 0.1 s ln 40 + 1."""
    table = rope_cos_sin(1, 8, factor=40.0, mscale=1.0, mscale_all_dim=0.0)
    assert table[0, 0] == pytest.approx(0.1 * math.log(40) + 1)
    assert rope_cos_sin(1, 8, factor=40.0, mscale_all_dim=1.0)[0, 0] == pytest.approx(1.0)
