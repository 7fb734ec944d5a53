"""What the ops' Triton kernels share: the architectures that they run on, and whether a config fits
the LDS (shared memory)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rfops.dispatch.config import POSITIVE, Allowed, CheckedConfig, powers, up_to
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel
from rfops.dispatch.tuned_table import serving
from rfops.jit.arch import ARCH_SPECS, Arch

from . import launch

MAX_SPLITS = 16  # of K


class TileConfig(CheckedConfig):
    """Base of a config dataclass with some of these fields."""

    ALLOWED: ClassVar[Allowed] = {
        "block_m": powers(16, 256),
        "block_n": powers(32, 256),
        "splits": up_to(MAX_SPLITS),
        "group_m": POSITIVE,
        "warps": powers(1, 32),
        "stages": up_to(8),
    }


def stages_in_lds(stages: int, arch: str) -> int:
    """Return the number of stages whose operands are in LDS. On AMD one fewer, because Triton keeps
    the newest in registers."""
    return max(1, stages - 1) if arch.startswith("gfx") else stages


@dataclass(frozen=True)
class GemmTileConfig(TileConfig):
    """A program computes `block_m` rows of x by `block_n` rows of w."""

    block_m: int
    block_n: int

    def tiles(self, m: int, n: int) -> int:
        return ceil(m, self.block_m) * ceil(n, self.block_n)


class TritonKernel(Kernel):
    """A Triton kernel for AMD's GPUs and NVIDIA's."""

    name = "triton"

    def unsupported_reason(self, c: Call) -> str | None:
        return launch.missing() or unsupported_arch_reason(c.arch)

    def unsupported_config_reason(self, c: Call, config: Any) -> str | None:
        lds_bytes, available = self.lds_bytes(c, config), spec_of(c.arch).lds_bytes
        if lds_bytes > available:
            return f"about {lds_bytes} bytes of LDS, {c.arch} has {available}"
        return None

    def lds_bytes(self, c: Call, config: Any) -> int:
        """Return about how much LDS a program takes."""
        return 0


def unsupported_arch_reason(arch: str) -> str | None:
    """Return why no Triton kernel of an op runs on this architecture; None if they do."""
    if serving(arch) is not None:
        return None
    return f"no tiles for {arch}: {', '.join(ARCH_SPECS)} and later NVIDIA GPUs have some"


def spec_of(arch: str) -> Arch:
    """Return the figures of an architecture, or of the one whose rows serve it."""
    return ARCH_SPECS[serving(arch) or "sm_90"]
