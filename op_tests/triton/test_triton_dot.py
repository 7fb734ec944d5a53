"""tl.dot, compiled by Triton's AMD backend and run on the virtual GPU, against float64.

Its layouts are what hardware runs, so a mismatch is the virtual GPU's. Products of f16, bf16 and
fp8 operands are exact in fp32, so that only additions round: any order of them is within
k * 2^-24 * sum of |products|. f32 operands round each product as well, which the k + 1 covers.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import triton

import rfops.vgpu
from rfops.dispatch.compare import HALF_ULP, assert_within
from support import vgpu_triton_kernels as kernels
from support.triton_builds import FP8_DOTS, compiled_by_triton
from support.vgpu.checks import nothing_found

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "xf32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
# Formats of a and b. Each architecture has matrix instructions for one flavour of fp8, in which
# the pair may be mixed; Triton converts the other flavour to f16.
PAIRS = {
    "gfx950": [
        "f16", "bf16", "f32", "i8", "e4m3fn", "e5m2", "e4m3fn*e5m2", "e5m2*e4m3fn", "e4m3fnuz",
        "e5m2fnuz",
    ],
    "gfx942": [
        "f16", "bf16", "f32", "xf32", "i8", "e4m3fnuz", "e5m2fnuz", "e4m3fnuz*e5m2fnuz",
        "e5m2fnuz*e4m3fnuz", "e4m3fn", "e5m2",
    ],
}  # fmt: skip
if not FP8_DOTS:
    PAIRS = {arch: [pair for pair in pairs if "*" not in pair] for arch, pairs in PAIRS.items()}
    PAIRS["gfx950"] = [pair for pair in PAIRS["gfx950"] if "fnuz" not in pair]


@dataclass(frozen=True)
class Case:
    pair: str
    tile: tuple[int, int, int]  # m, n, k
    warps: int = 4
    stages: int = 2
    nonkdim: int = 0  # m and n of the MFMA; 0: Triton's choice
    order: str = "kn"  # contiguous index of a ("m" or "k") and of b ("k" or "n")
    kpack: int = 1
    even: bool = True  # sizes are multiples of 16, and k of the tile's

    def __str__(self) -> str:
        size = "x".join(map(str, self.tile))
        tail = f"-kpack{self.kpack}" * (self.kpack > 1) + "-ragged" * (not self.even)
        return (
            f"{self.pair}-{size}-w{self.warps}-s{self.stages}-mfma{self.nonkdim}-{self.order}{tail}"
        )


@pytest.fixture(scope="module", autouse=True)
def _off() -> Iterator[None]:
    yield
    rfops.vgpu.deactivate_triton()


def _operand(rows: int, columns: int, name: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if name == "i8":
        return torch.randint(-128, 128, (rows, columns), generator=generator, dtype=torch.int8)
    value = torch.randn(rows, columns, generator=generator)
    return value.to(DTYPES[name])


def _stored(x: torch.Tensor, transposed: bool) -> torch.Tensor:
    return x.t().contiguous().t() if transposed else x


def _run(arch: str, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str]:
    """Result, exact result, its bound, and the assembly that Triton made."""
    rfops.vgpu.activate_triton(arch)
    names = case.pair.split("*")
    bm, bn, bk = case.tile
    # The second tile is not full. Strides that 16 divides let Triton use wide and direct-to-LDS
    # loads.
    m, n, k = (bm + 16, bn + 16, 4 * bk) if case.even else (bm + 19, bn + 21, 3 * bk + bk // 2 + 1)
    a = _stored(_operand(m, k, names[0], 1), case.order[0] == "m")
    b = _stored(_operand(k, n, names[-1], 2), case.order[1] == "k")
    integers = case.pair == "i8"
    if integers:
        out = torch.full((m, n), 0x7F7F7F7F, dtype=torch.int32)
    else:
        out = torch.full((m, n), float("nan"))
    extra = {"kpack": case.kpack} if case.kpack > 1 else {}
    with compiled_by_triton():
        compiled = kernels.matmul[(-(-m // bm), -(-n // bn))](
            a, b, out, m, n, k, *a.stride(), *b.stride(),
            BM=bm, BN=bn, BK=bk, EVEN_K=case.even,
            ACC=kernels.tl.int32 if integers else kernels.tl.float32,
            PRECISION="tf32" if case.pair == "xf32" else "ieee", num_warps=case.warps,
            num_stages=case.stages, matrix_instr_nonkdim=case.nonkdim, **extra,
        )  # fmt: skip
    exact_a, exact_b = a.to(torch.float32).double(), b.to(torch.float32).double()
    total = exact_a.abs() @ exact_b.abs()
    depth = 0.0 if integers else (k + 1) * HALF_ULP[torch.float32]
    if case.pair == "xf32":
        depth += 2 * 2.0**-10  # each operand loses up to an ULP of a 10-bit fraction
    return out, exact_a @ exact_b, depth * total, compiled.asm["amdgcn"]


def _check(arch: str, case: Case) -> str:
    out, exact, bound, assembly = _run(arch, case)
    assert_within(out, exact, bound)
    return assembly


# ---------------------------------------------------------------------------------- default


TILES = [
    (16, 16, 32),
    (16, 64, 64),
    (32, 32, 64),
    (32, 128, 32),
    (64, 16, 128),
    (64, 64, 64),
    (128, 32, 32),
    (128, 128, 32),
    (16, 128, 128),
    (64, 128, 64),
]
LAYOUTS = ("kn", "kk", "mn", "mk")
WARPS, STAGES, NONKDIMS = (1, 2, 4, 8), (1, 2, 3), (0, 16, 32)


def _fits(case: Case) -> bool:
    """No more lanes than elements, an MFMA no larger than the tile, and tiles that fit gfx942's
    LDS."""
    bm, bn, bk = case.tile
    size = max(DTYPES[name].itemsize for name in case.pair.split("*"))
    buffers = max(case.stages, 1)
    lds = (bm + bn) * bk * size * buffers
    small = bm * bn >= 64 * case.warps and case.nonkdim <= min(bm, bn)
    return small and lds <= (64 << 10) - 1024


def _sample(arch: str, pair: str, count: int) -> list[Case]:
    """Cases that together have every tile, wave count, stage count, MFMA size and memory order."""
    draw = random.Random(f"{arch} {pair}")
    selected: list[Case] = []
    missing = {("tile", t) for t in TILES} | {("warps", w) for w in WARPS}
    missing |= {("stages", s) for s in STAGES} | {("nonkdim", d) for d in NONKDIMS}
    missing |= {("order", o) for o in LAYOUTS} | {("even", e) for e in (True, False)}
    while len(selected) < count:
        candidates = [
            Case(
                pair,
                draw.choice(TILES),
                draw.choice(WARPS),
                draw.choice(STAGES),
                draw.choice(NONKDIMS),
                draw.choice(LAYOUTS),
                even=draw.random() > 0.2,
            )
            for _ in range(200)
        ]
        fitting = [case for case in candidates if _fits(case)]
        best = max(fitting, key=lambda case: len(missing & _traits(case)))
        missing -= _traits(best)
        selected.append(best)
    return selected


def _traits(case: Case) -> set[tuple[str, object]]:
    names = ("tile", "warps", "stages", "nonkdim", "order", "even")
    return {(name, getattr(case, name)) for name in names}


def _default_cases() -> list[object]:
    results = []
    for arch, pairs in PAIRS.items():
        native = {"gfx950": ("e4m3fn", "e5m2"), "gfx942": ("e4m3fnuz", "e5m2fnuz")}[arch]
        for pair in pairs:
            few = "*" in pair or (pair.startswith("e") and pair not in native)
            cases = _sample(arch, pair, 2 if few else 4)
            results += [pytest.param(arch, case, id=f"{arch}-{case}") for case in cases]
    return results


@pytest.mark.thin(5)
@pytest.mark.parametrize(("arch", "case"), _default_cases())
def test_dot(arch: str, case: Case) -> None:
    _check(arch, case)


# ---------------------------------------------------------------------------------- the checks

# On gfx942 the schedule in which two halves of the waves take turns, by barriers of their own.
PING_PONG = Case("f16", (256, 256, 64), warps=8)
CHECKED = [
    Case("f16", (64, 64, 64)),
    Case("i8", (32, 32, 64), 2, 3, 32, "mk"),
    Case("f32", (16, 64, 64), even=False),
    PING_PONG,
]


@pytest.mark.parametrize("case", CHECKED, ids=str)
@pytest.mark.parametrize("arch", rfops.vgpu.ARCHS)
def test_the_checks_find_nothing(arch: str, case: Case) -> None:
    with nothing_found():
        assembly = _check(arch, case)
    if (arch, case) == ("gfx942", PING_PONG):
        assert "s_setprio" in assembly, "the waves do not take turns"


# ---------------------------------------------------------------------------------- instructions

SQUARE = (64, 64, 128)
# The case must be made of these instructions, else it does not test what it is there for. (Triton
# computes the transposed product, so the instruction names b's format first.)
NATIVE = [
    ("gfx950", Case("f16", SQUARE, nonkdim=16, order="mn"), "v_mfma_f32_16x16x32_f16"),
    ("gfx950", Case("bf16", SQUARE, nonkdim=32), "v_mfma_f32_32x32x16_bf16"),
    ("gfx950", Case("f32", (64, 64, 32), nonkdim=16), "v_mfma_f32_16x16x4_f32"),
    ("gfx950", Case("i8", SQUARE, nonkdim=32), "v_mfma_i32_32x32x32_i8"),
    ("gfx950", Case("e4m3fn", SQUARE, nonkdim=16), "v_mfma_f32_16x16x128_f8f6f4"),
    ("gfx950", Case("e5m2", SQUARE, nonkdim=32), "v_mfma_f32_32x32x64_f8f6f4"),
    ("gfx950", Case("e4m3fn*e5m2", (32, 32, 32), 1, 2, 16), "v_mfma_f32_16x16x32_bf8_fp8"),
    ("gfx950", Case("e5m2*e4m3fn", (64, 64, 32), nonkdim=32), "v_mfma_f32_32x32x16_fp8_bf8"),
    ("gfx950", Case("f16", SQUARE, order="mn"), "ds_read_b64_tr_b16"),
    ("gfx950", Case("e4m3fn", SQUARE, order="mn"), "ds_read_b64_tr_b8"),
    ("gfx950", Case("bf16", SQUARE, stages=3, order="kk"), r"buffer_load_dwordx4 .* lds\b"),
    ("gfx942", Case("f16", SQUARE, nonkdim=16), "v_mfma_f32_16x16x16_f16"),
    ("gfx942", Case("bf16", SQUARE, nonkdim=32, kpack=2), "v_mfma_f32_32x32x8_bf16"),
    ("gfx942", Case("f32", (64, 64, 32), nonkdim=32), "v_mfma_f32_32x32x2_f32"),
    ("gfx942", Case("xf32", (64, 64, 32), nonkdim=16), "v_mfma_f32_16x16x8_xf32"),
    ("gfx942", Case("xf32", (64, 64, 32), nonkdim=32), "v_mfma_f32_32x32x4_xf32"),
    ("gfx942", Case("i8", SQUARE, nonkdim=16, kpack=2), "v_mfma_i32_16x16x32_i8"),
    ("gfx942", Case("e4m3fnuz", SQUARE, nonkdim=16, kpack=2), "v_mfma_f32_16x16x32_fp8_fp8"),
    ("gfx942", Case("e5m2fnuz*e4m3fnuz", SQUARE, nonkdim=32), "v_mfma_f32_32x32x16_fp8_bf8"),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("arch", "case", "instruction"), NATIVE, ids=lambda value: str(value).replace("\\", "")
)
def test_dot_uses(arch: str, case: Case, instruction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.pair not in PAIRS[arch]:
        pytest.skip("Triton before 3.7 multiplies mixed fp8 wrongly; .ci/run has the newest")
    if "lds" in instruction:  # gfx950's default only since Triton 3.8
        monkeypatch.setattr(triton.knobs.amd, "use_async_copy", True)
    assembly = _check(arch, case)
    assert re.search(instruction, assembly), f"{instruction} is not in the kernel"


# ---------------------------------------------------------------------------------- other forms


@pytest.mark.parametrize("arch", rfops.vgpu.ARCHS)
@pytest.mark.parametrize("warps", [1, 4])
def test_dot_batched(arch: str, warps: int) -> None:
    rfops.vgpu.activate_triton(arch)
    a, b = (
        torch.randn(4, 32, 32, generator=torch.Generator().manual_seed(i)).half() for i in (1, 2)
    )
    out = torch.full((4, 32, 32), float("nan"))
    kernels.matmul_batched[(1,)](a, b, out, B=4, M=32, N=32, K=32, num_warps=warps)
    total = a.double().abs() @ b.double().abs()
    assert_within(out, a.double() @ b.double(), 33 * HALF_ULP[torch.float32] * total)


@pytest.mark.parametrize("arch", rfops.vgpu.ARCHS)
@pytest.mark.parametrize(("precision", "lost"), [("bf16x3", 2.0**-14), ("bf16x6", 2.0**-21)])
def test_dot_f32_in_bf16_parts(arch: str, precision: str, lost: float) -> None:
    """f32 operands as sums of two or three bf16. With h the half ULP 2^-9 of bf16, what is left out
    of a product are parts of at most h^2 (three products: high*low2, low*low, twice) and h^3."""
    rfops.vgpu.activate_triton(arch)
    m, n, k = 64, 64, 128
    a, b = _operand(m, k, "f32", 1), _operand(k, n, "f32", 2)
    out = torch.full((m, n), float("nan"))
    kernels.matmul[(2, 2)](
        a,
        b,
        out,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        BM=32,
        BN=32,
        BK=32,
        EVEN_K=True,
        ACC=kernels.tl.float32,
        PRECISION=precision,
    )
    total = a.double().abs() @ b.double().abs()
    bound = (lost + 6 * (k + 1) * HALF_ULP[torch.float32]) * total
    assert_within(out, a.double() @ b.double(), bound)


def test_dot_small_tiles() -> None:
    """Tiles with less along k than one matrix instruction takes."""
    for arch in rfops.vgpu.ARCHS:
        for pair in ("f16", "bf16", "i8", "f32"):
            _check(arch, Case(pair, (16, 16, 16), warps=1))


# ---------------------------------------------------------------------------------- many of them

SWEEP = 150  # for each architecture


def _sweep() -> list[object]:
    """A fixed sample of the cross product, which has thousands and would take hours."""
    results = []
    for arch, pairs in PAIRS.items():
        draw, cases = random.Random(arch), []
        for grid in itertools.product(pairs, TILES, WARPS, STAGES, NONKDIMS):
            case = Case(*grid, order=draw.choice(LAYOUTS), even=draw.random() > 0.2)
            if _fits(case):
                cases.append(case)
        results += [
            pytest.param(arch, case, id=f"{arch}-{case}") for case in draw.sample(cases, SWEEP)
        ]
    return results


@pytest.mark.sweep
@pytest.mark.parametrize(("arch", "case"), _sweep())
def test_dot_sweep(arch: str, case: Case) -> None:
    _check(arch, case)
