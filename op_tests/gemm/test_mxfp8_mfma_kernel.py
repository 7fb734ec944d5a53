"""What the matrix-core kernel of gemm_mxfp8 does to get its result: matrix instructions, bytes,
registers, loads in flight; which variant a shape gets, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rfops
from rfops.gemm.kernels.mxfp8.mfma import MfmaConfig, mxfp8_mfma
from rfops.gemm.mxfp8 import OP as DENSE
from rfops.jit import paths
from rfops.jit.build.spec import module_spec
from support.calls import default_config, dense_call, prepare
from support.mxfp8_mfma import CPU, MODEL_M, VARIANTS, run
from support.mxfp8_problems import ALL_SHAPES, MODEL_SHAPES, random_problem

pytestmark = pytest.mark.requires_gfx950


# ---------------------------------------------------------------- what it did


@pytest.mark.parametrize(
    ("m", "n", "k", "config"),
    [
        *[(m, 130, 1536, None) for m in (1, 16, 17, 33, 64, 65, 130)],
        (5, 37, 160, None),
        *[(*shape, config) for config, shape in VARIANTS.values()],
    ],
)
def test_one_matrix_instruction_a_tile(m: int, n: int, k: int, config: MfmaConfig | None) -> None:
    """And w is read once for 64 rows of x, in lines that are each asked for once."""
    problem = random_problem(m, n, k)
    config = config or default_config("mfma", m, n, k)
    with rfops.vgpu.profile() as p:
        run(problem, config)
    (launch,) = p.launches
    tiles = math.ceil(m / 16) * math.ceil(n / 16) * math.ceil(k / 128)
    assert launch.mfma == {"v_mfma_scale_f32_16x16x128_f8f6f4": tiles}

    m_groups = math.ceil(m / 16 / config.m_tiles)
    n_groups = math.ceil(n / 16 / config.n_tiles)
    scales = 4 if k % 128 == 0 else 1  # the lanes of a row all load their four
    payload = (m_groups * n + n_groups * m) * k
    read = launch.global_read["bytes"] - payload - payload // 32 * scales
    # Of the parts of K lanes without a row or column may read theirs or not, as compilers have it.
    least = 16 * config.split * m * math.ceil(n / 4) * (config.split > 1)
    assert least <= read <= parts(config, m, n)


def parts(config: MfmaConfig, m: int, n: int) -> int:
    """Bytes that workgroups along K leave for each other."""
    return 4 * math.prod(config.groups(m, n)) * config.split * config.words * (config.split > 1)


@pytest.mark.parametrize("m", MODEL_M)
def test_w_is_read_once(m: int) -> None:
    """Of the published qkv: bytes from memory are those of the tensors, once."""
    k, n = 6144, 2304
    problem = random_problem(m, n, k)
    with rfops.vgpu.profile() as p:
        run(problem)
    (launch,) = p.launches
    least = (m + n) * (k + k // 32) + parts(default_config("mfma", m, n, k), m, n)
    lines = 64 * launch.global_read["lines_64B"]
    assert least <= lines <= 1.01 * least
    assert launch.mfma == {
        "v_mfma_scale_f32_16x16x128_f8f6f4": math.ceil(m / 16) * n // 16 * k // 128
    }
    assert launch.lds_conflict_cycles == 0
    assert launch.workgroups >= 128, "half of the CUs at least"


def heuristic_variants() -> dict[tuple[object, ...], tuple[MfmaConfig, dict[str, int | str]]]:
    """Those of the model shapes, by both ways to load scales."""
    results = {}
    for k, n in ALL_SHAPES:
        for m in MODEL_M:
            config = default_config("mfma", m, n, k)
            for wide in (True, False):
                defines = config.defines(m, n, k, torch.bfloat16, wide)
                results[tuple(defines.items())] = (config, defines)
    return results


def assert_fits(config: MfmaConfig, defines: dict[str, int | str], device: torch.device) -> None:
    resources = mxfp8_mfma.bind(device, defines).resources
    spilled = {n: resources[n] for n in ("vgpr_spills", "sgpr_spills", "scratch") if resources[n]}
    assert not spilled, (defines, resources)
    needed = -(-config.waves // 4)
    assert resources["waves_per_simd"] >= needed, f"{defines}: not even one workgroup: {resources}"
    counted = config.registers + 8
    assert resources["vgpr"] <= counted, f"{defines}: the heuristic counts {counted}: {resources}"


@pytest.mark.parametrize("m", MODEL_M)
@pytest.mark.parametrize(("k", "n"), MODEL_SHAPES["tp4"])
def test_resources(k: int, n: int, m: int, gfx950: torch.device) -> None:
    """No spills, no scratch, and no more registers than the heuristic counts on."""
    config = default_config("mfma", m, n, k)
    assert_fits(config, config.defines(m, n, k, torch.bfloat16, True), gfx950)


@pytest.mark.sweep
def test_resources_of_all(gfx950: torch.device) -> None:
    for config, defines in heuristic_variants().values():
        assert_fits(config, defines, gfx950)


@pytest.mark.parametrize(
    ("config", "ragged"),
    [
        (MfmaConfig(1, 1, 4, 12, 1), 0),
        (MfmaConfig(4, 1, 3, 8, 1), 0),
        (MfmaConfig(2, 2, 2, 4, 2), 1),
    ],
)
def test_all_loads_are_in_flight_at_once(config: MfmaConfig, ragged: int, tmp_path: Path) -> None:
    """Each load of a turn is issued before the first is waited for, w before x. Read from the
    assembly that ziglang's clang makes of the source."""
    tiles = config.m_tiles + config.n_tiles
    defines = config.defines(
        16 * (config.m_tiles + ragged), 16 * config.n_tiles, 6144, torch.float32, True
    )
    assert defines["RAGGED_M"] == ragged
    spec, assembly = module_spec("mxfp8_mfma"), tmp_path / "k.s"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "clang", "-x", "hip", "--cuda-device-only",
         "--offload-arch=gfx950", "-nogpuinc", "-nogpulib", "-std=c++20", "-O3", "-S",
         f"-I{paths.INCLUDE}", f"-I{paths.CSRC}",
         *spec.flags, *(f"-DRFOPS_{k}={v}" for k, v in defines.items()),
         str(spec.sources()[0]), "-o", str(assembly)],
        check=True,
    )  # fmt: skip
    lines = [line.split(";")[0].split() for line in assembly.read_text().splitlines()]
    lines = [words for words in lines if words and words[0].startswith(("buffer_", "s_waitcnt"))]
    first = next(
        i for i, words in enumerate(lines) if words[0] == "s_waitcnt" and "vmcnt" in " ".join(words)
    )
    issued = [words for words in lines[:first] if words[0] != "s_waitcnt"]
    payload = [words for words in issued if words[0].endswith("x4") and "offen" in words]
    if config.steps < 4:  # else scales come by the same instruction
        assert len(payload) == 2 * config.steps * tiles
    assert len(issued) == 2 * config.steps * tiles + tiles
    streamed = ["nt" in words for words in payload]
    assert ragged or streamed == sorted(streamed, reverse=True) or config.steps == 4


@pytest.mark.parametrize(("k", "n"), [*ALL_SHAPES, (32, 1), (96, 17), (28672, 8192), (16384, 64)])
def test_heuristic(k: int, n: int) -> None:
    """Few rows make few tiles, w is read as often as 64 rows of x go into M, no wave is idle."""
    for m in (*MODEL_M, 3, 65, 130, 1000):
        config = default_config("mfma", m, n, k)
        assert math.ceil(m / 16 / config.m_tiles) == math.ceil(m / 64)
        tiles = math.ceil(k / 128)
        assert (config.split * config.waves - 1) * config.steps < tiles, f"{config} at K={k}"


# ---------------------------------------------------------------- refusals


def test_the_op_takes_a_config(gfx950: torch.device) -> None:
    """rfops.gemm_mxfp8 with this kernel, and with its guards before it."""
    config = MfmaConfig(2, 1, 2, 2, 2)
    problem = random_problem(20, 40, 640).to(gfx950)
    assert torch.equal(rfops.gemm_mxfp8(*problem.args, config=config), run(problem, config))
    out = torch.empty(40, 20, dtype=torch.bfloat16, device=gfx950).T
    with pytest.raises(ValueError, match="out must be contiguous"):
        rfops.gemm_mxfp8(*problem.args, out=out, config=config)


@pytest.mark.parametrize(
    ("m", "n", "k", "more", "reason"),
    [
        (4, 64, 128, {"arch": "gfx942"}, "no kernel for gfx942, only for gfx950"),
        (0, 64, 128, {}, "M=0, N=64: nothing to compute"),
        (4, 64, 48, {}, "K=48 is not a positive multiple of 32"),
        (4, 64, 0, {}, "K=0 is not"),
        (4, 64, 2**25, {}, "64 rows of K=33554432 are beyond signed 32-bit offsets"),
        (2**22 + 1, 64, 128, {}, "more than 65535 workgroups in one direction"),
        (4, 2**26 + 1, 32, {}, "more than 65535 workgroups in one direction"),
    ],
)
def test_refuses(m: int, n: int, k: int, more: dict[str, object], reason: str) -> None:
    assert reason in str(DENSE.kernels["mfma"].unsupported_reason(dense_call(m, n, k, **more)))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_takes(dtype: torch.dtype) -> None:
    for m, n, k in [(1, 1, 32), (64, 2304, 6144), (100_000, 50_000, 6176), (1, 2**21, 2**12)]:
        assert DENSE.kernels["mfma"].unsupported_reason(dense_call(m, n, k, dtype)) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((5, 1, 1, 1, 1), "m_tiles must be 1 to 4, got 5"),
        ((1, 0, 1, 1, 1), "n_tiles must be 1 to 4, got 0"),
        ((1, 1, 5, 1, 1), "steps must be 1 to 4, got 5"),
        ((1, 1, 1, 17, 1), "waves must be 1 to 16, got 17"),
        ((1, 1, 1, 1, 0), "split must be 1 to 16, got 0"),
        ((1, 1, 1, 1, 17), "split must be 1 to 16, got 17"),
        ((4, 4, 1, 16, 1), "take 262144 bytes of LDS, a CU has 163840; take fewer"),
        ((4, 2, 4, 1, 1), "more than 63 loads in flight; take fewer"),
        ((4, 1, 3, 16, 1), "about 173 VGPRs in each of 16 waves would spill; take fewer"),
    ],
)
def test_configs_that_cannot_be(values: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MfmaConfig(*values)


def test_a_grid_that_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"at most 65535 workgroups .* for M=2097152, N=64"):
        prepare("mfma", CPU, 2**21, 64, 128, MfmaConfig(1, 1, 1, 1, 1))


def test_other_architectures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    with pytest.raises(ValueError, match=r"mfma does not take .* no kernel for gfx942"):
        prepare("mfma", CPU, 4, 64, 128)
