"""Facts of the hardware: one row an architecture, read by dispatch, cost models and estimates.

Device code and the virtual GPU have their own copies of what they need
(csrc/include/rfops/chip/arch.h, csrc/vgpu/base/{arch.h,device.cpp});
op_tests/engine/test_arch.py holds them to these. Sources are public measurements: gpu-benches
(RRZE-HPC, MI300X), rocm-systems pull request 8480 (MI350X), rocm-origami
(AMD's model of GEMM times), Formocast; "vendor" is AMD's or NVIDIA's data sheet.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """One chip of an architecture, the one that its users mostly have."""

    name: str
    chip: str
    cus: int  # compute units (NVIDIA: SMs); vendor
    xcds: int  # dies with an L2 of their own; vendor
    simds: int  # of a CU; vendor
    lds_bytes: int  # of a CU (NVIDIA: shared memory a block may take); vendor
    lds_banks: int  # of 4 bytes; ISA documents
    ghz: float  # peak engine clock; vendor
    hbm_peak_tb_s: float  # vendor
    hbm_tb_s: float  # that kernels reach: rocm-origami; gpu-benches 4.0, PR 8480 5.6 to 6.9
    l2_tb_s: float  # rocm-origami; gpu-benches 27.5 where all CUs read the same
    launch_us: float  # from a graph: published for both (Formocast, rocm-origami)
    matrix_tflops: Mapping[str, float]  # dense peak by operand type; vendor
    elf_machine: int = 0  # the low byte of a code object's e_flags; LLVM's AMDGPU usage


_MI355X = {"bf16": 2300.0, "fp8": 4600.0, "fp4": 9200.0}
_MI300X = {"bf16": 1307.0, "fp8": 2615.0}
ARCH_SPECS = {
    arch.name: arch
    for arch in (
        Arch("gfx942", "MI300X", 304, 8, 4, 64 << 10, 32, 2.1, 5.3, 4.0, 17.0, 2.0, _MI300X,
             0x4C),
        Arch("gfx950", "MI355X", 256, 8, 4, 160 << 10, 64, 2.4, 8.0, 6.0, 17.0, 2.0, _MI355X,
             0x4F),
        # Triton's routes alone.
        Arch("sm_90", "H200", 132, 1, 4, 227 << 10, 32, 1.98, 4.8, 4.2, 10.0, 2.0,
             {"bf16": 989.0, "fp8": 1979.0}),
    )
}  # fmt: skip
ARCHS = tuple(name for name in ARCH_SPECS if name.startswith("gfx"))  # that kernels are built for
# Compute units of the parts of an architecture (csrc/vgpu/base/device.cpp); vendor.
PART_CUS = {"MI300X": 304, "MI308X": 80, "MI300A": 228, "MI325X": 304, "MI350X": 256, "MI355X": 256}
WAVE = 64  # lanes of an AMD wave
REGISTERS = 512  # VGPRs of a SIMD's lane, accumulation registers among them
MAX_WAVES = 8  # of a SIMD
MAX_GRID = 65535  # workgroups along y and z


def waves_per_simd(vgpr: int) -> int:
    """Waves that the register file of a SIMD holds: it hands out granules of 8 registers.

    LDS and the workgroup's size can lower it further; they depend on the launch.
    """
    return min(MAX_WAVES, REGISTERS // max(8, vgpr + 7 & ~7))


# EF_AMDGPU_MACH, the low byte of e_flags.
_MACHINES = {row.elf_machine: name for name, row in ARCH_SPECS.items() if row.elf_machine}


def of_code_object(elf: bytes) -> str:
    """The architecture that it is for; empty for another one's and for a bundle."""
    if elf[:4] != b"\x7fELF" or len(elf) < 52:
        return ""
    return _MACHINES.get(struct.unpack_from("<I", elf, 48)[0] & 0xFF, "")
