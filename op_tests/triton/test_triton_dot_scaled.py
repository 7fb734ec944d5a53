"""tl.dot_scaled (OCP MX formats), compiled by Triton and run on the virtual GPU, against float64.

gfx950 has matrix instructions that scale; elsewhere, and for operands of 16 bits, Triton multiplies
by the scale first, in bf16 (in f16 on gfx942 with an f16 operand). That product is exact as long as
its exponent fits, and so is the product of two operands in fp32. Only additions round: any order is
within k * 2^-24 * sum of |products|, half-block sums and scaling included.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

import rfops.vgpu
from rfops.dispatch.compare import HALF_ULP, assert_within
from support import vgpu_triton_kernels as kernels
from support.triton_builds import compiled_by_triton
from support.vgpu.checks import nothing_found

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
WIDE = {"bf16": torch.bfloat16, "fp16": torch.float16}
MX = ("e4m3", "e5m2", "e2m1")
NATIVE = [f"{a}*{b}" for a, b in itertools.product(MX, MX)]
MIXED = [f"{a}*{b}" for a in WIDE for b in MX] + [f"{a}*{b}" for a in MX for b in WIDE]
GROUP = 32  # elements along k that share a scale
BIAS = 127


@dataclass(frozen=True)
class Case:
    pair: str
    tile: tuple[int, int, int] = (64, 64, 128)
    warps: int = 4
    stages: int = 2
    nonkdim: int = 0
    order: str = "kk"  # contiguous index of a ("m" or "k") and of b ("k" or "n")
    packing: str = "kk"  # two e2m1 in a byte are neighbours along this index of a, of b
    scaled: str = "ab"  # which operands of MX formats have a scale
    fast_math: bool = False

    def __str__(self) -> str:
        size = "x".join(map(str, self.tile))
        tail = f"-pack_{self.packing}" * (self.packing != "kk")
        tail += f"-scaled_{self.scaled or 'none'}" * (self.scaled != "ab")
        tail += "-fast" * self.fast_math
        return (
            f"{self.pair}-{size}-w{self.warps}-s{self.stages}-mfma{self.nonkdim}-{self.order}{tail}"
        )


@pytest.fixture(scope="module", autouse=True)
def _off() -> Iterator[None]:
    yield
    rfops.vgpu.deactivate_triton()


@dataclass
class Operand:
    payload: torch.Tensor  # as the kernel gets it, [rows, k] or packed
    scale: torch.Tensor | None  # e8m0 [rows, k/32]
    exact: torch.Tensor  # float64 [rows, k]


def _codes(rows: int, k: int, name: str, generator: torch.Generator) -> torch.Tensor:
    """Every code of the format that is a number, equally likely."""
    if name == "e2m1":
        return torch.randint(0, 16, (rows, k), generator=generator, dtype=torch.uint8)
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes.view(FP8[name]).to(torch.float32).isfinite()]
    return codes[torch.randint(0, len(codes), (rows, k), generator=generator)]


def _operand(
    rows: int, k: int, name: str, pack_k: bool, scaled: bool, spread: int, seed: int
) -> Operand:
    generator = torch.Generator().manual_seed(seed)
    if name in WIDE:
        value = torch.randn(rows, k, generator=generator).to(WIDE[name])
        return Operand(value, None, value.double())
    codes = _codes(rows, k, name, generator)
    if name == "e2m1":
        exact = FP4[codes.int()].double()
        payload = codes[:, 0::2] | codes[:, 1::2] << 4 if pack_k else codes[0::2] | codes[1::2] << 4
    else:
        exact, payload = codes.view(FP8[name]).to(torch.float32).double(), codes
    scale = None
    if scaled:
        size = (rows, k // GROUP)
        scale = torch.randint(BIAS - spread, BIAS + spread + 1, size, generator=generator)
        exact = exact * torch.exp2((scale - BIAS).double()).repeat_interleave(GROUP, dim=1)
        scale = scale.to(torch.uint8)
    return Operand(payload, scale, exact)


def _spread(pair: str) -> int:
    """How far scales are from 1, as powers of 2: f16 holds e5m2 (2^-16 to 2^15.8) at 2^0 only."""
    if "fp16" in pair:
        return 0 if "e5m2" in pair else 4
    return 12


def _launch(arch: str, case: Case, a: Operand, b: Operand, m: int, n: int, k: int):  # noqa: ANN202
    """The output and the assembly."""
    rfops.vgpu.activate_triton(arch)
    names = case.pair.split("*")
    bm, bn, bk = case.tile
    out = torch.full((m, n), float("nan"))
    x = a.payload.t().contiguous().t() if case.order[0] == "m" else a.payload
    y = b.payload.t() if case.order[1] == "k" else b.payload.t().contiguous()
    with compiled_by_triton():
        compiled = kernels.matmul_scaled[(m // bm, n // bn)](
            x, a.scale, y, b.scale, out, m, n, k, *x.stride(), *y.stride(), BM=bm, BN=bn, BK=bk,
            A_FORMAT=names[0], B_FORMAT=names[1], A_K_PACK=case.packing[0] == "k",
            B_K_PACK=case.packing[1] == "k", FAST_MATH=case.fast_math,
            num_warps=case.warps, num_stages=case.stages, matrix_instr_nonkdim=case.nonkdim,
        )  # fmt: skip
    return out, compiled.asm["amdgcn"]


def _check(arch: str, case: Case) -> str:
    names = case.pair.split("*")
    bm, bn, bk = case.tile
    m, n, k = 2 * bm, 2 * bn, 3 * bk
    spread = _spread(case.pair)
    a = _operand(m, k, names[0], case.packing[0] == "k", "a" in case.scaled, spread, 1)
    b = _operand(n, k, names[1], case.packing[1] == "k", "b" in case.scaled, spread, 2)
    out, assembly = _launch(arch, case, a, b, m, n, k)
    total = a.exact.abs() @ b.exact.abs().t()
    assert_within(out, a.exact @ b.exact.t(), (k + 1) * HALF_ULP[torch.float32] * total)
    return assembly


# ---------------------------------------------------------------------------------- every pair


@pytest.mark.thin(5)
@pytest.mark.parametrize("nonkdim", [16, 32])
@pytest.mark.parametrize("pair", NATIVE)
def test_scaled_instruction(pair: str, nonkdim: int) -> None:
    """gfx950 multiplies every pair of MX formats as they are, in both shapes."""
    assembly = _check("gfx950", Case(pair, nonkdim=nonkdim))
    shape = {16: "16x16x128", 32: "32x32x64"}[nonkdim]
    assert f"v_mfma_scale_f32_{shape}_f8f6f4" in assembly


@pytest.mark.thin(5)
@pytest.mark.parametrize("pair", MIXED)
def test_wide_operand(pair: str) -> None:
    """gfx950 converts the MX operand to the other's 16 bits."""
    assert "v_mfma_scale" not in _check("gfx950", Case(pair, (32, 32, 64)))


@pytest.mark.thin(4)
@pytest.mark.parametrize("pair", NATIVE + MIXED[::2])
def test_upcast(pair: str) -> None:
    """gfx942 has no scaling matrix instruction: Triton converts both operands."""
    assert "v_mfma_f32" in _check("gfx942", Case(pair, (32, 32, 64)))


# ---------------------------------------------------------------------------------- layouts

TILES = [
    (16, 16, 128),
    (32, 32, 64),
    (16, 64, 256),
    (64, 32, 128),
    (32, 128, 128),
    (64, 64, 256),
    (128, 128, 128),
    (128, 32, 64),
]
WARPS, STAGES, NONKDIMS = (1, 2, 4, 8), (1, 2, 3), (0, 16, 32)
ORDERS = ("kk", "kn", "mk", "mn")
LAYOUTS = [
    Case("e4m3*e4m3", (16, 16, 128), 1, 1, 16, "kk"),
    Case("e4m3*e5m2", (16, 64, 256), 2, 1, 16, "mn"),
    Case("e4m3*e4m3", (128, 32, 64), 4, 2, 32, "mk"),
    Case("e5m2*e2m1", (64, 32, 128), 2, 3, 16, "kk"),
    Case("e2m1*e2m1", (16, 16, 128), 1, 2, 16, "kk"),
    Case("e2m1*e2m1", (32, 128, 128), 4, 2, 32, "kk"),
    Case("e2m1*e2m1", (64, 64, 256), 8, 3, 16, "kk"),
    Case("e2m1*e2m1", (64, 64, 128), 4, 2, 0, "mn"),
    Case("e4m3*e2m1", (128, 128, 128), 8, 2, 0, "kk"),
    Case("e4m3*e4m3", (64, 64, 128), 4, 2, 0, "kk", scaled=""),
    Case("e4m3*e4m3", (64, 64, 128), 4, 2, 0, "kk", scaled="a"),
    Case("e4m3*e2m1", (64, 64, 128), 4, 2, 0, "kk", scaled="b"),
    Case("bf16*e2m1", (128, 64, 128), 8, 2, 0, "kn"),
    Case("fp16*e4m3", (16, 64, 128), 2, 3, 16, "mn"),
    Case("e2m1*bf16", (64, 32, 64), 4, 1, 32, "kk"),
    Case("e2m1*bf16", (64, 32, 64), 4, 2, 32, "kk", fast_math=True),
]


@pytest.mark.thin(5)
@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_layout(case: Case) -> None:
    _check("gfx950", case)


@pytest.mark.thin(5)
@pytest.mark.parametrize("case", LAYOUTS[::3], ids=str)
def test_layout_upcast(case: Case) -> None:
    """The layouts of test_triton_dot.py with a conversion before them: a few are enough."""
    _check("gfx942", case)


# Two e2m1 of a byte along m and n, for which Triton wants the scaling instruction.
PACKED = [
    Case("e2m1*e2m1", (64, 64, 128), 4, 2, 16, "mn", packing="mn"),
    Case("e2m1*e2m1", (64, 64, 128), 2, 1, 32, "mn", packing="mn"),
    Case("e2m1*e2m1", (32, 128, 256), 4, 3, 16, "kn", packing="kn"),
    Case("e2m1*e4m3", (64, 32, 128), 4, 2, 16, "mn", packing="mk"),
    Case("e4m3*e2m1", (32, 32, 64), 2, 2, 32, "kn", packing="kn"),
]


@pytest.mark.parametrize("case", PACKED, ids=str)
def test_fp4_packed_across(case: Case) -> None:
    """gfx950 transposes them while it reads LDS."""
    assembly = _check("gfx950", case)
    assert "ds_read_b64_tr_b4" in assembly
    assert "v_mfma_scale" in assembly


# ---------------------------------------------------------------------------------- special scales


@pytest.mark.thin(3)
@pytest.mark.parametrize("arch", rfops.vgpu.ARCHS)
@pytest.mark.parametrize("pair", ["e4m3*e4m3", "e2m1*e2m1", "e5m2*e2m1", "bf16*e2m1"])
def test_nan_scale(arch: str, pair: str) -> None:
    """A scale of 0xff is NaN, and makes NaN of what it scales and of nothing else."""
    case = Case(pair, (32, 32, 128), 2)
    names = pair.split("*")
    m, n, k = 32, 64, 256
    a = _operand(m, k, names[0], True, True, 3, 1)
    b = _operand(n, k, names[1], True, True, 3, 2)
    exact = a.exact @ b.exact.t()
    assert b.scale is not None
    b.scale[41, 5] = 0xFF
    exact[:, 41] = float("nan")
    if a.scale is not None:
        a.scale[7, 0] = 0xFF
        exact[7, :] = float("nan")
    out, _ = _launch(arch, case, a, b, m, n, k)
    total = a.exact.abs() @ b.exact.abs().t()
    assert_within(out, exact, (k + 1) * HALF_ULP[torch.float32] * total)


def test_extreme_scales() -> None:
    """2^127 against 2^-127, which only an instruction that adds the exponents gets right."""
    m, n, k = 32, 32, 256
    a, b = (_operand(rows, k, "e4m3", True, False, 0, rows) for rows in (m, n))
    a.scale = torch.full((m, k // GROUP), 254, dtype=torch.uint8)
    b.scale = torch.zeros((n, k // GROUP), dtype=torch.uint8)
    out, assembly = _launch("gfx950", Case("e4m3*e4m3", (32, 32, 128), 2), a, b, m, n, k)
    assert "v_mfma_scale" in assembly
    total = a.exact.abs() @ b.exact.abs().t()
    assert_within(out, a.exact @ b.exact.t(), (k + 1) * HALF_ULP[torch.float32] * total)


# ---------------------------------------------------------------------------------- many of them

SWEEP = 150  # for each architecture


def _fits(case: Case) -> bool:
    bm, bn, bk = case.tile
    sizes = [4 * (n in WIDE) + 2 * (n in FP8) + (n == "e2m1") for n in case.pair.split("*")]
    lds = (bm * sizes[0] + bn * sizes[1]) * bk // 2 * case.stages
    return lds <= 48 << 10 and bm * bn >= 64 * case.warps and case.nonkdim <= min(bm, bn)


def _native(arch: str, case: Case) -> bool:
    """Whether Triton takes the scaling instruction."""
    enough_k = case.tile[2] >= (128 if case.nonkdim == 16 else 64)
    return arch == "gfx950" and case.pair in NATIVE and case.warps > 1 and enough_k


def _sweep() -> list[object]:
    """A fixed sample of the cross product, which has thousands and would take hours."""
    results = []
    for arch in rfops.vgpu.ARCHS:
        draw, cases = random.Random(arch), []
        for grid in itertools.product(NATIVE + MIXED, TILES, WARPS, STAGES, NONKDIMS):
            case = Case(*grid, order=draw.choice(ORDERS))
            names = case.pair.split("*")
            packs = _native(arch, case)
            packing = "".join(
                offset if packs and name == "e2m1" and draw.random() < 0.5 else "k"
                for offset, name in zip(case.order, names, strict=True)
            )
            case = replace(case, packing=packing)
            if _fits(case):
                cases.append(case)
        results += [
            pytest.param(arch, case, id=f"{arch}-{case}") for case in draw.sample(cases, SWEEP)
        ]
    return results


@pytest.mark.sweep
@pytest.mark.parametrize(("arch", "case"), _sweep())
def test_dot_scaled_sweep(arch: str, case: Case) -> None:
    _check(arch, case)


@pytest.mark.parametrize("pair", ["e4m3*e4m3", "e2m1*e2m1"])
@pytest.mark.parametrize("arch", rfops.vgpu.ARCHS)
def test_the_checks_find_nothing(arch: str, pair: str) -> None:
    with nothing_found():
        _check(arch, Case(pair, (32, 32, 128)))
