"""The kernels of gemm_mxfp8 and which one a call takes: HIP's gemv (mxfp8_gemv.py) and mfma
(mxfp8_mfma.py), Triton (triton/gemm_mxfp8.py), and torch, which takes whatever is left."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from . import mxfp8_gemv, mxfp8_mfma, routing
from .guards import Guard
from .quant_mxfp8 import BLOCK, dequant_mxfp8
from .routing import Route
from .tuned_table import Query

OP = "gemm_mxfp8"
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Without a row: the GEMV first up to this M (beyond, its vector ALU is the bound), and no HIP
# kernel at all beyond that one.
GEMV_FIRST_M, UNTUNED_M = 4, 16

Launch = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    None,
]  # out, x, w, x_scale, w_scale

_HIP: dict[str, ModuleType] = {"gemv": mxfp8_gemv, "mfma": mxfp8_mfma}
_CONFIGS = {"gemv": mxfp8_gemv.GemvConfig, "mfma": mxfp8_mfma.MfmaConfig}
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
    order = ("gemv", "mfma") if m <= GEMV_FIRST_M else ("mfma", "gemv")
    return routing.choose(
        Query.of(OP, arch, cu_num, m=m, n=n, k=k),
        {name: refuses(name, m, n, k, dtype, arch) for name in order},
        None if m <= UNTUNED_M else f"M={m} is above {UNTUNED_M} and has no row",
        lambda: refuses("triton", m, n, k, dtype, arch),
    )


def decide(
    m: int, n: int, k: int, dtype: torch.dtype, arch: str, cu_num: int, config: Any
) -> tuple[str, Any]:
    """Backend and config: of the route, or of the caller's config."""
    if config is None:
        chosen = route(m, n, k, dtype, arch, cu_num)
        routing.say(f"{OP} m={m} n={n} k={k} on {arch}", chosen.backend, chosen.rule, chosen.why)
        return chosen.backend, parse_config(chosen.backend, chosen.config, chosen.row)
    backend = backend_of(config)
    reason = refuses(backend, m, n, k, dtype, arch)
    if reason:
        wanted = f"of a kernel that takes M={m} N={n} K={k} on {arch}"
        Guard(OP).fail("config", wanted, f"{config}, and {reason}", "pass another or none")
    return backend, config


def backend_of(config: Any) -> str:
    for name, kind in _CONFIGS.items():
        if isinstance(config, kind):
            return name
    if type(config).__module__ == "rfops.triton.tiles":  # without importing it in a trace
        return "triton"
    kinds = ", ".join([*(kind.__name__ for kind in _CONFIGS.values()), "TritonConfig"])
    return Guard(OP).fail("config", f"one of {kinds}", repr(config)[:80], "pass one of these")


def parse_config(backend: str, text: str, row: routing.Row | None = None) -> Any:
    """A backend's config from its text in a table; None for its heuristic. Raises ConfigError."""
    if not text or backend == "torch":
        return None
    kind = _CONFIGS[backend] if backend in _CONFIGS else _triton().TritonConfig
    return routing.parse_config(kind, text, row)


def prepare(
    backend: str, device: torch.device, m: int, n: int, k: int, config: Any, dtype: torch.dtype
) -> Launch:
    if backend == "torch":
        return run_torch
    module = _HIP[backend] if backend in _HIP else _triton()
    run: Launch = module.prepare(device, m, n, k, config=config, dtype=dtype)
    return run


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
