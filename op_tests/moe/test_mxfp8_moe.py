"""The compiled kernel of grouped_gemm_mxfp8: what it reads and issues, its registers, what the
virtual GPU's checker says."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch

import rfops.vgpu
from rfops.moe.kernels.grouped.hip import MoeConfig, mxfp8_moe
from support.calls import default_moe
from support.grouped_problems import BF16, ROUTINGS, problem_of, run, scattered_blocks

pytestmark = pytest.mark.requires_gfx950
moe_module = importlib.import_module("rfops.moe.kernels.grouped.hip")


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(("n", "k"), [(96, 2048), (64, 768)])
def test_counters(n: int, k: int, rows: int, gfx950: torch.device) -> None:
    """However many rows a block has: one MFMA for 16 x 16 x 128, w asked for once, a line of w in
    one request, no more distinct lines than the tensors have."""
    topk_ids = torch.arange(3, dtype=torch.int32).repeat_interleave(rows).view(-1, 1)
    problem = problem_of(topk_ids, 3, n, k, block_m=16)
    in_use = problem.sorted_token_ids[:48]
    with rfops.vgpu.profile() as profile:
        run(
            dataclasses.replace(problem, sorted_token_ids=in_use),
            gfx950,
            config=MoeConfig(16, 1, 2, 3),
        )
    (launch,) = profile.launches
    blocks, tiles = 3, n // 16
    assert launch.mfma == {"v_mfma_scale_f32_16x16x128_f8f6f4": blocks * tiles * k // 128}
    payload_loads = launch.instructions["buffer_load_dwordx4"]
    assert payload_loads * 1024 == 2 * blocks * n * k  # as much for a's rows as for w's
    asked = (blocks * n + blocks * rows * tiles) * k  # lanes of invalid rows ask for nothing
    scales = asked // 16  # each dword by two lanes: 16 bytes for 256 of K
    ids = blocks * tiles * (3 * 64 + 16) * 4
    assert launch.global_read["bytes"] == asked + scales + ids
    tensors = (problem.w, problem.w_scale, problem.a_q, problem.a_scale)
    lines = sum(tensor.numel() for tensor in tensors) // 64
    assert lines <= launch.global_read["lines_64B"] <= lines + 8
    assert launch.scratch_bytes_per_lane == launch.vgpr_spills == launch.sgpr_spills == 0


def test_rows_beyond_the_last_valid_one_cost_nothing(gfx950: torch.device) -> None:
    """A block of 64 with 17 rows takes the MFMAs of two tiles; blocks of padding take none."""
    problem = problem_of(torch.zeros(17, 1, dtype=torch.int32), 2, 32, 512, block_m=64)
    with rfops.vgpu.profile() as profile:
        run(problem, gfx950, config=MoeConfig(16, 1, 1, 2))
    assert sum(profile.launches[0].mfma.values()) == 2 * 2 * 512 // 128


@pytest.mark.parametrize("block_m", [5, 16, 48])
@pytest.mark.parametrize("k", [288, 768])
def test_checker_finds_nothing(k: int, block_m: int, gfx950: torch.device) -> None:
    problem = problem_of(ROUTINGS["some rows in no block"], 8, 37, k, block_m, gemm=2)
    with rfops.vgpu.check() as checked:
        run(problem, gfx950, config=MoeConfig(16, 1, 2, 3))
        if block_m <= 8:
            run(problem, gfx950, config=MoeConfig(8, 2, 1, 2))
    assert not checked.findings


def test_checker_finds_nothing_between_blocks(gfx950: torch.device) -> None:
    """A workgroup's second block reuses the LDS of its first."""
    with rfops.vgpu.check() as checked:
        run(scattered_blocks(), gfx950, config=MoeConfig(16, 1, 1, 2))
    assert not checked.findings


@pytest.mark.thin(3)
@pytest.mark.parametrize("block_m", [8, 16, 64, 128])
def test_resources(block_m: int, gfx950: torch.device) -> None:
    """No spills, no scratch, two waves a SIMD, of what the heuristic takes for one row and of the
    candidates that need the most registers with few and with many waves."""
    candidates = list(moe_module._candidates(block_m, 256))
    few = [config for config in candidates if config.waves <= 8]
    many = [config for config in candidates if config.waves > 8]
    checked = {default_moe(1536, 6144, 128, 4, block_m)}
    checked |= {
        max(group, key=lambda c: moe_module._registers(c, block_m, 256))
        for group in (few, many)
        if group
    }
    for config in checked:
        defines = config.defines(block_m, 256, 1, True, BF16)
        resources = mxfp8_moe.bind(device=gfx950, defines=defines).resources
        assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch"] == 0
        assert resources["waves_per_simd"] >= 2, (config, resources)
        estimate = moe_module._registers(config, block_m, 256)
        assert abs(resources["vgpr"] - estimate) <= 12, (config, estimate, resources)


@pytest.mark.sweep
@pytest.mark.parametrize("k", [128, 256])
@pytest.mark.parametrize("block_m", [1, 8, 16, 32, 48, 64, 128])
def test_no_candidate_spills(block_m: int, k: int, gfx950: torch.device) -> None:
    for config in moe_module._candidates(block_m, moe_module._chunk(k)):
        defines = config.defines(block_m, moe_module._chunk(k), 4, False, BF16)
        resources = mxfp8_moe.bind(device=gfx950, defines=defines).resources
        assert resources["vgpr_spills"] == resources["scratch"] == 0, config
        estimate = moe_module._registers(config, block_m, moe_module._chunk(k))
        assert abs(resources["vgpr"] - estimate) <= 12, (config, estimate, resources)
