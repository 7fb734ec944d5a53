"""Random programs on the host and on the virtual GPU: a few by default, hundreds in the sweep
(thousands: op_tests/vgpu/fuzz/programs.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.vgpu import differential as diff
from support.vgpu.cases import ARCHS
from support.vgpu.random_programs import Program, Step


def _same(batch: list[Program], levels: dict[str, list[str]], folder: Path, datasets: int) -> None:
    tally = diff.run_batch(batch, levels, folder, datasets)
    assert tally.runs == len(batch) * datasets * sum(map(len, levels.values()))
    small = [diff.minimised(results, folder) for results in tally.mismatches[:2]]
    text = "\n".join(f"{m}\n" + "\n".join(step.device for step in m.program.steps) for m in small)
    assert not tally.mismatches, f"{tally}\n{text}"


def test_programs_give_what_the_host_gives(tmp_path: Path) -> None:
    batch = [Program(seed, 24) for seed in (9_000_001, 9_000_002, 9_000_003)]
    _same(batch, {"gfx942": ["O3"], "gfx950": ["O2", "global isel"]}, tmp_path, 3)


def test_a_program_without_optimisation(tmp_path: Path) -> None:
    _same([Program(9_000_004, 16)], {"gfx950": ["O0"]}, tmp_path, 3)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(1_000_000, 1_000_160, 8))
def test_more_programs(first: int, tmp_path: Path) -> None:
    (batch,) = diff.batches(first, 8)
    _same(batch, diff.sampled_levels(first, 2), tmp_path, 3)


def test_a_program_is_its_seed() -> None:
    assert Program(5).text() == Program(5).text() != Program(6).text()


def test_a_difference_is_found_and_cut(tmp_path: Path) -> None:
    """A wrong host stands for a wrong device: the statement that differs is what is left."""
    program = Program(7, 12)
    mismatches = Step("s.u32_0 += 1;", "EACH s[l].u32_0 += 2;")
    program.steps = [*program.steps, mismatches]
    (tmp_path / "a.cpp").write_text(diff.programs.source([program]))
    host = diff.build_host(tmp_path / "a.cpp", tmp_path)
    data = diff.Data.of(program, 0)
    want = diff.execute(program, data, host)
    module, _ = diff.build_device(tmp_path / "a.cpp", tmp_path, ARCHS[0], "O1")
    lines = diff.differences(program, want, diff.execute(program, data, module))
    assert any(line.startswith("u32_0: 256 lanes") for line in lines), lines
    assert np.count_nonzero(want.variables) > want.variables.size // 2
    small = diff.minimised(diff.Mismatch(program, 0, ARCHS[0], "O1", lines), tmp_path)
    assert small.program.steps == [mismatches], small.program.steps
