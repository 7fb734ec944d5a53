"""The kernels of gemm_mxfp8 and which one a call takes: HIP's gemv (mxfp8_gemv.py) and mfma
(mxfp8_mfma.py), Triton (triton/gemm_mxfp8.py), and torch, which takes whatever is left."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch

from . import mxfp8_gemv, mxfp8_mfma, routing
from .guards import Guard, show
from .heuristic import coarse
from .mxfp8_gemv import Launch, LaunchOf
from .quant_mxfp8 import BLOCK, dequant_mxfp8
from .routing import Route, Router
from .triton.tiles import TritonConfig

OP = "gemm_mxfp8"
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Without a row: the GEMV first up to this M (beyond, its vector ALU is the bound), and no HIP
# kernel at all beyond that one.
GEMV_FIRST_M, UNTUNED_M = 4, 16
MOST_DEFAULTS = 1024  # decisions that a family of plans keeps

_HIP: dict[str, ModuleType] = {"gemv": mxfp8_gemv, "mfma": mxfp8_mfma}
_CONFIGS = {"gemv": mxfp8_gemv.GemvConfig, "mfma": mxfp8_mfma.MfmaConfig}
CONFIG_KINDS = (*_CONFIGS.items(), ("triton", TritonConfig))
BACKENDS = (*_HIP, "triton", "torch")


@functools.cache
def _triton() -> ModuleType | None:
    """Triton's route; imported when it is first asked, as triton takes long to import."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("rfops.triton.gemm_mxfp8")


def refuses(
    backend: str,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype = torch.bfloat16,
    arch: str = "gfx950",
) -> str | None:
    """Why a backend (gemv, mfma, triton, torch) does not take the shape, None if it does."""
    if backend == "torch":
        return None
    module = _HIP[backend] if backend in _HIP else _triton()
    if module is None:
        return "Triton is not installed"
    reason: str | None = module.refuses(m, n, k, dtype=dtype, arch=arch)
    return reason


def default_config(backend: str, m: int, n: int, k: int, arch: str) -> Any:
    """The config of a backend that no row names: its heuristic's, or its tile table's."""
    if backend in _CONFIGS:
        return _CONFIGS[backend].from_heuristic(m, n, k)
    return _triton().from_table(arch, m, n, k) if backend == "triton" else None


def route(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype = torch.bfloat16,
    arch: str = "gfx950",
    cu_num: int = 256,
) -> Route:
    """The kernel that a shape gets on a chip, and why. Raises ConfigError."""
    return _route(Router(OP, arch, cu_num), m, n, k, dtype)


def _order(m: int) -> tuple[str, str]:
    """The HIP kernels, the one to take without a row first."""
    return ("gemv", "mfma") if m <= GEMV_FIRST_M else ("mfma", "gemv")


def _route(router: Router, m: int, n: int, k: int, dtype: torch.dtype) -> Route:
    return router.choose(
        (m, n, k),
        _order(m),
        lambda backend: refuses(backend, m, n, k, dtype, router.arch),
        None if m <= UNTUNED_M else f"M={m} is above {UNTUNED_M} and has no row",
    )


def decide(
    m: int, n: int, k: int, dtype: torch.dtype, router: Router, config: Any
) -> tuple[str, str, Any]:
    """Backend, rule and config (None: its default): of the route, or of the caller's config."""
    if config is None:
        chosen = _route(router, m, n, k, dtype)
        routing.say(lambda: f"{OP} m={m} n={n} k={k} on {router.arch}", chosen)
        parsed = parse_config(chosen.backend, chosen.config, chosen.row)
        return chosen.backend, chosen.rule, parsed
    backend = backend_of(config)
    reason = refuses(backend, m, n, k, dtype, router.arch)
    if reason:
        wanted = f"of a kernel that takes M={m} N={n} K={k} on {router.arch}"
        Guard(OP).fail("config", wanted, f"{config}, and {reason}", "pass another or none")
    return backend, "the caller's config", config


def backend_of(config: Any) -> str:
    for name, kind in _CONFIGS.items():
        if isinstance(config, kind):
            return name
    if type(config).__module__ == "rfops.triton.tiles":  # without importing it in a trace
        return "triton"
    kinds = ", ".join([*(kind.__name__ for kind in _CONFIGS.values()), "TritonConfig"])
    return Guard(OP).fail("config", f"one of {kinds}", show(config), "pass one of these")


def parse_config(backend: str, text: str, row: routing.Row | None = None) -> Any:
    """A backend's config from its text in a table; None for its heuristic. Raises ConfigError."""
    if not text or backend == "torch":
        return None
    kind = _CONFIGS[backend] if backend in _CONFIGS else _triton().TritonConfig
    return routing.parse_config(kind, text, row)


def variant(
    backend: str,
    device: torch.device,
    m: int,
    config: Any,
    dtype: torch.dtype,
    arch: str | None = None,
    scale_align: int = 1,
) -> LaunchOf:
    """What makes the launches of shapes with M rows. `arch` is the device's where it is known,
    `scale_align` what the scales' addresses are a multiple of."""
    if backend == "torch":
        return lambda *_shape: run_torch
    if backend == "gemv":
        return mxfp8_gemv.variant(device, m, config, dtype, arch)
    if backend == "mfma":
        return mxfp8_mfma.variant(device, config, dtype, arch, scale_align)
    return functools.partial(_triton().prepare, device, config=config, dtype=dtype)


def prepare(
    backend: str,
    device: torch.device,
    m: int,
    n: int,
    k: int,
    config: Any = None,
    dtype: torch.dtype = torch.bfloat16,
    scale_align: int = 1,
) -> Launch:
    """The launch of one shape by a backend; without a config by its default."""
    if config is None:
        config = default_config(backend, m, n, k, routing.chip(device)[0])
    return variant(backend, device, m, config, dtype, scale_align=scale_align)(m, n, k)


def scale_align(*scales: torch.Tensor) -> int:
    """What the scales' addresses are a multiple of, as far as kernels care: 4 or 1."""
    return 1 if any(scale.data_ptr() % 4 for scale in scales) else 4


class Family:
    """Makes the plans of calls that differ in sizes alone: (M, N, what fills out).

    Shapes between coarse sizes share a decision where it is the default of a HIP kernel, so that
    one which changes every call costs 2 us and not 8.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, config: Any, scale_align: int
    ) -> None:
        self.device, self.dtype, self.config, self.scale_align = device, dtype, config, scale_align
        self.router = Router(OP, *routing.chip(device))
        self._defaults: dict[tuple[int, int, int], LaunchOf] = {}

    def __call__(self, m: int, n: int, k: int) -> tuple[int, int, Launch]:
        sizes = m, coarse(n, mxfp8_mfma.TILE), coarse(k, mxfp8_mfma.TILE_K)
        launch_of = self._defaults.get(sizes)
        if launch_of is None or not self.router.is_untuned((m, n, k)):
            launch_of = self._decide(m, n, k, sizes)
        return m, n, launch_of(m, n, k)

    def _decide(self, m: int, n: int, k: int, sizes: tuple[int, int, int]) -> LaunchOf:
        dtype, arch = self.dtype, self.router.arch
        backend, rule, config = decide(m, n, k, dtype, self.router, self.config)
        if config is None:
            config = default_config(backend, m, n, k, arch)
        made = variant(backend, self.device, m, config, dtype, arch, self.scale_align)
        # Kernels refuse what is too large: the largest of these shapes is taken by the same one.
        is_default = rule == "envelope default" and backend == _order(m)[0]
        if is_default and refuses(backend, *sizes, dtype, arch) is None:
            if len(self._defaults) >= MOST_DEFAULTS:
                self._defaults.clear()
            self._defaults[sizes] = made
        return made


def supports(
    *,
    arch: str,
    dtype: torch.dtype = torch.bfloat16,
    shape: tuple[int, int, int] | None = None,
    backend: str | None = None,
) -> bool:
    """Whether the op gives a result of `dtype` on `arch` (gfx942, gfx950, sm_90, ...) for a shape
    (M, N, K), and with `backend`, whether that kernel does: gemv, mfma, triton, torch."""
    m, n, k = shape or (1, 16, BLOCK)
    if dtype not in OUT_DTYPES or k < BLOCK or k % BLOCK or min(m, n) < 0:
        return False
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"{OP}.supports: backend must be one of {BACKENDS}, got {backend!r}")
    known = arch.startswith(("gfx", "sm_"))
    return known and refuses(backend or "torch", m, n, k, dtype, arch) is None


# ---------------------------------------------------------------- torch

_CHUNK = 1 << 22  # elements of an operand in float64 at once: 32 MiB
_CHUNK_K = 1 << 16


def run_torch(
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
) -> None:
    """Any size and device: in float64, where values and products are exact, in pieces."""
    (m, k), n = x.shape, w.shape[0]
    step = min(k, _CHUNK_K)
    rows = max(1, _CHUNK // step)

    def part(payload: torch.Tensor, scale: torch.Tensor, row: int, k0: int) -> torch.Tensor:
        blocks = slice(k0 // BLOCK, (k0 + step) // BLOCK)
        piece = payload[row : row + rows, k0 : k0 + step]
        return dequant_mxfp8(piece, scale[row : row + rows, blocks], torch.float64)

    for m0 in range(0, m, rows):
        for n0 in range(0, n, rows):
            target = out[m0 : m0 + rows, n0 : n0 + rows]
            total = torch.zeros(target.shape, dtype=torch.float64, device=out.device)
            for k0 in range(0, k, step):
                total += part(x, x_scale, m0, k0) @ part(w, w_scale, n0, k0).T
            target.copy_(total)
