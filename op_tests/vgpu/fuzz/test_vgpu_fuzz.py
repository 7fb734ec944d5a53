"""What fuzzing reached and mutations of it, on the virtual GPU as everybody has it:
each input is accepted, or refused with a text, and the process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rfops.jit import paths
from rfops.jit.build.toolchain import host_toolchain
from support.vgpu import fuzz_replay as replay
from support.vgpu.asm import assemble

FUZZ = Path(__file__).parent

MUTATIONS = {"loader": 20, "decoder": 8, "run": 3}  # of each input of the corpus
STEPS = 3000  # the budget that fuzz_run.cpp gives a program

# A kernel with room for the programs of fuzz_replay.py.
_KERNEL = f"""
.text
.globl k0
.p2align 8
.type k0,@function
k0:
.rept {replay.TEXT_WORDS}
  s_nop 0
.endr
.rodata
.p2align 6
.amdhsa_kernel k0
  .amdhsa_next_free_vgpr 512
  .amdhsa_next_free_sgpr 96
  .amdhsa_accum_offset 256
  .amdhsa_group_segment_fixed_size 512
  .amdhsa_private_segment_fixed_size 64
  .amdhsa_enable_private_segment 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - {{.name: k0, .symbol: k0.kd, .kernarg_segment_size: 0, .kernarg_segment_align: 8,
     .group_segment_fixed_size: 512, .private_segment_fixed_size: 64, .wavefront_size: 64,
     .sgpr_count: 96, .vgpr_count: 512, .agpr_count: 256, .max_flat_workgroup_size: 256}}
.end_amdgpu_metadata
"""


@pytest.fixture(name="programs", scope="module")
def programs_fixture(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Code objects for programs, in the order of replay.ARCHS."""
    folder = tmp_path_factory.mktemp("programs")
    files = []
    for arch in replay.ARCHS:
        source = f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n{_KERNEL}'
        files.append(folder / f"{arch}.hsaco")
        files[-1].write_bytes(assemble(source, arch, folder))
    return files


@pytest.mark.parametrize("target", list(MUTATIONS))
def test_replay(vgpu_path: Path, programs: list[Path], target: str) -> None:
    arguments = [str(vgpu_path), target, str(MUTATIONS[target])]
    arguments += [str(file) for file in programs] if target == "run" else []
    environment = {**os.environ, "RFOPS_VGPU_LOG": "0", "RFOPS_VGPU_MAX_STEPS": str(STEPS)}
    completed = subprocess.run(
        [sys.executable, replay.__file__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert completed.returncode == 0, (
        f"exit status {completed.returncode}\n{completed.stderr[-3000:]}"
    )
    ran, well = map(int, completed.stdout.split())
    assert ran == len(replay.inputs(target)) * (1 + MUTATIONS[target])
    assert 0.02 * ran < well < ran, f"{well} of {ran}: the inputs are all good, or all bad"


@pytest.mark.parametrize("target", list(MUTATIONS))
def test_the_fuzz_target_fits_the_sources(target: str) -> None:
    """Nobody but a fuzzing run links them: here they only have to compile."""
    flags = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror")
    include = f"-I{paths.CSRC}"
    command = [*host_toolchain().argv, *flags, include, str(FUZZ / f"fuzz_{target}.cpp")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]


def test_mutations_are_the_same_every_time() -> None:
    assert list(replay.cases("loader", 2)) == list(replay.cases("loader", 2))


def test_the_corpus_is_small_and_bounded() -> None:
    for target in MUTATIONS:
        assert (FUZZ / f"{target}.tar.xz").stat().st_size <= 64 << 10
        assert 100 <= len(replay.inputs(target)) <= 2000
