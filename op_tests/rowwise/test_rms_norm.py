"""rms_norm: HIP and Triton against float64, where rows lie, in place; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops
from rfops.dispatch.compare import HALF_ULP, assert_within
from rfops.dispatch.problem import Problem, poison
from rfops.quantization.rows import row_lanes, row_strides
from rfops.rowwise.rms_norm import OP, rms_norm, rms_norm_ref

BF16 = torch.bfloat16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def rows(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    size = torch.randint(-8, 8, (*shape[:-1], 1), generator=generator)
    return (torch.randn(*shape, generator=generator) * torch.exp2(size)).to(dtype)


def check(
    actual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """In float64. A sum of K squares in fp32 is off by K roundings at most, its root by half of
    that; the root and two products round once each."""
    z = x.double()
    if residual is not None:
        z = (x.float() + residual.float()).to(x.dtype).double()
    exact = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * weight.double()
    depth = (x.shape[-1] / 2 + 4) * 2.0**-24
    smallest = torch.finfo(x.dtype).smallest_normal
    bound = exact.abs() * (HALF_ULP[x.dtype] * (1 + depth) + depth) + smallest
    assert_within(actual.double(), exact, bound)


def hip_is_taken(*args: Any) -> bool:
    return OP.route(OP.check((*args, 1e-6, None))[0]).backend == "hip"


# Several rows a wave, a wave, waves with and without idle lanes, chunks; single elements.
SHAPES = [(1, 8), (37, 128), (5, 512), (3, 1536), (2, 2880), (2, 7168), (3, 1), (3, 37), (2, 1001)]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values(shape: tuple[int, int], residual: bool, arch: str) -> None:
    x, weight = rows(*shape), rows(shape[1])
    other = rows(*shape, seed=1) if residual else None
    before = other.clone() if other is not None else None
    out = poison(torch.empty_like(x))
    with rfops.vgpu.check() as c:
        made = rms_norm(x, weight, other, out=out)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert made is out
    check(out, x, weight, before)
    if other is not None and before is not None:
        assert torch.equal(other, x + before)
        other.copy_(before)
    assert torch.equal(rms_norm(x, weight, other), out)  # by its plan, and the same bits
    assert hip_is_taken(x, weight, other)


@pytest.mark.thin(2)
@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype, weight_dtype: torch.dtype, arch: str) -> None:
    x, weight = rows(3, 264, dtype=dtype), rows(264, dtype=weight_dtype)
    check(rms_norm(x, weight, eps=1e-5), x, weight, eps=1e-5)
    assert hip_is_taken(x, weight, None)


def test_q_and_k_within_qkv(arch: str) -> None:
    """q and k norms of [tokens, heads, dim], in place; v and what lies between stays."""
    tokens, heads, dim = 5, 6, 128
    qkv = rows(tokens, (heads + 2 + 2) * dim)
    before = qkv.clone()
    weight = rows(dim)
    for begin, count in ((0, heads), (heads, 2)):
        part = qkv[:, begin * dim : (begin + count) * dim].view(tokens, count, dim)
        old = part.clone()
        with rfops.vgpu.check() as c:
            assert rms_norm(part, weight, out=part) is part
        assert not c.findings, "\n".join(map(str, c.findings))
        check(part, old, weight)
        assert hip_is_taken(part, weight, None)
    assert torch.equal(qkv[:, (heads + 2) * dim :], before[:, (heads + 2) * dim :])


@pytest.mark.requires_gfx950
def test_strided_rows() -> None:
    """Of a slice, expanded, reversed in dimensions, without 16-byte alignment, of every other
    element: the last of them by torch."""
    memory, weight = rows(6, 520), rows(128)
    cases = {
        "slice": (memory[:, 8:136], True),
        "misaligned": (memory[:, 3:131], True),
        "expanded": (memory[:1, :128].expand(4, 128), True),
        "to a strided out": (memory.view(6, 4, 130)[:, :3, :128], True),
        "every other": (memory[:, :256:2], False),
        "three strides": (rows(4, 5, 6, 136)[::2, ::2, ::2, :128], False),
    }
    for name, (x, by_hip) in cases.items():
        check(rms_norm(x, weight), x, weight)
        assert hip_is_taken(x, weight, None) is by_hip or name == "every other", name
    out = torch.zeros(6, 3, 256, dtype=BF16)
    x = cases["to a strided out"][0]
    rms_norm(x, weight, out=out[:, :, :128])
    check(out[:, :, :128], x, weight)
    assert (out[:, :, 128:] == 0).all()


@pytest.mark.requires_gfx950
def test_calls_of_changing_shapes() -> None:
    """The plan of one call serves no other: the same strides with more heads, more tokens."""
    qkv, weight = rows(4, 8 * 64), rows(64)
    for heads in (2, 3, 2, 8):
        for tokens in (4, 1, 3):
            part = qkv[:tokens, : heads * 64].view(tokens, heads, 64)
            check(rms_norm(part, weight), part, weight)


@pytest.mark.requires_gfx950
def test_zeros_and_what_is_no_number() -> None:
    x, weight = torch.zeros(4, 64), torch.ones(64)
    x[1, 3], x[2, 5] = float("inf"), float("nan")
    x[3] = 1e30  # squares beyond fp32
    y = rms_norm(x, weight)
    assert (y[0] == 0).all() and y[2].isnan().all() and y[1, 3].isnan() and (y[3] == 0).all()


# NaNs by the bits of their fraction: the first, all, the last alone; of both signs.
NANS = torch.tensor([0x7FC0, 0x7FFF, 0x7F81, -1, -0x7F], dtype=torch.int16).view(torch.bfloat16)


def test_nans_of_all_payloads(arch: str) -> None:
    """One NaN in each row of x, then of the residual, whose other elements stay numbers."""
    x, residual, weight = torch.ones(10, 64).bfloat16(), rows(10, 64), rows(64)
    for row in range(10):
        (x if row < 5 else residual)[row, row] = NANS[row % 5]
    y = rms_norm(x, weight, residual=residual)
    assert y.isnan().all()
    assert torch.equal(residual.isnan(), torch.eye(10, 64, dtype=torch.bool))


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("residual", [False, True])
def test_triton(residual: bool) -> None:
    x, weight = rows(5, 6, 200)[:, :4], rows(200)
    other = rows(5, 4, 200, seed=1) if residual else None
    before = other.clone() if other is not None else None
    c, _ = OP.check((x, weight, other, 1e-6, None))
    out = poison(torch.empty(5, 4, 200, dtype=BF16))
    OP.prepare("triton", c)(out, x, weight, other)
    check(out, x, weight, before)
    if before is not None:
        assert torch.equal(other, x + before)


@pytest.mark.requires_gfx950
def test_torch_and_the_bench() -> None:
    for backend in ("torch", "hip"):
        problem = Problem(OP, OP.call_of(M=3, K=256, residual=True))
        problem.checked(problem.launch_by(problem.prepare(backend)), backend)
    assert rms_norm(torch.empty(0, 64), torch.ones(64)).shape == (0, 64)


@pytest.mark.requires_gfx950
def test_compiled_and_fake() -> None:
    x, weight = rows(3, 64), rows(64)
    torch.library.opcheck(torch.ops.rfops.rms_norm.default, (x, weight, None, 1e-6))
    compiled = torch.compile(rms_norm, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, weight), rms_norm(x, weight))


X, W = torch.zeros(2, 64), torch.ones(64)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X.int(), W), "x must be bfloat16 or float16 or float32"),
        ((X, W[:32]), r"weight must be a \[K=64\]|weight must be .*64"),
        ((X, W, X.bfloat16()), "residual must be float32, as x is, got bfloat16; convert it first"),
        ((X, W, torch.zeros(3, 64)), "residual must be "),
        ((X, W, torch.zeros(2, 128)[:, :64]), "residual must be contiguous"),
        ((X, W, X), "residual must not overlap x"),
        ((X, W, None, "eps"), "eps must be a float"),
        ((X, W, None, 1e-6, torch.zeros(2, 64, dtype=BF16)), "out must be float32"),
        ((torch.zeros(2, 0), torch.ones(0)), "K must be positive"),
    ],
)
def test_refusals(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^rms_norm: {message}"):
        rms_norm(*args)


@pytest.mark.requires_gfx950
def test_an_out_that_overlaps_x_but_is_not_x() -> None:
    memory = torch.zeros(3, 64)
    with pytest.raises(ValueError, match=r"^rms_norm: out must not overlap x"):
        rms_norm(memory[:2], W, out=memory[1:])


@pytest.mark.parametrize("k", [1, 8, 37, 128, 520, 2880, 4096, 7168, 16384, 32768])
@pytest.mark.parametrize("vec", [1, 8])
def test_lanes_cover_rows(k: int, vec: int) -> None:
    """All elements once, whole waves, no wave idle; too long a row has none."""
    lanes = row_lanes(k, vec)
    if lanes is None:
        assert k > 64 * 8 * 8 * vec
        return
    units = -(-k // vec)
    assert lanes.lanes * lanes.chunks >= units and lanes.threads % lanes.lanes == 0
    assert lanes.exact == (lanes.lanes * lanes.chunks == units)
    assert lanes.lanes <= 64 or lanes.lanes == lanes.threads <= 512
    assert (lanes.chunks - 1) * lanes.lanes < units


def test_strides_of_rows() -> None:
    found = {
        (2, 3, 8): ((24, 8, 1), (8, 1, 0)),
        (2, 3, 4): ((24, 8, 1), (8, 1, 0)),
        (5, 2, 4): ((100, 8, 1), (100, 2, 8)),
        (5, 1, 4): ((100, 8, 1), (100, 1, 0)),
    }
    for shape, (strides, expected) in found.items():
        tensor = torch.empty(1000).as_strided(shape, strides)
        r = row_strides(tensor, shape[-1])
        assert r is not None
        assert (r.outer_stride, r.inner, r.inner_stride) == expected, shape
    assert row_strides(torch.empty(64).as_strided((2, 3), (6, 2)), 3) is None


@pytest.mark.requires_gfx950
def test_registers() -> None:
    """No scratch and no spills, of one chunk and of eight."""
    from rfops.rowwise.rms_norm import rms_norm_kernel

    for k in (512, 7168, 32768):
        for residual in (0, 1):
            c = OP.call_of(M=4, K=k, residual=bool(residual))
            defines = OP.kernels["hip"].defines(c, None)
            assert defines is not None
            bound = rms_norm_kernel.bind(c.device, defines, "gfx950")
            spilled = [bound.resources[n] for n in ("scratch", "vgpr_spills", "sgpr_spills")]
            assert spilled == [0, 0, 0]


def test_the_reference_by_hand() -> None:
    y = rms_norm_ref(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
    expected = torch.tensor([[3.0, 8.0]]) / 12.5**0.5
    assert torch.allclose(y, expected, rtol=1e-6)
