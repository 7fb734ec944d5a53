"""Routes of batched_gemm_a16w8_blockscale: which kernel a shape takes, and why.

The tuned row of the shape, or of one near it (batched_gemm_a16w8_table.py), that the call may take;
else the heuristic (triton/batched_gemm_a16w8_blockscale.py).
"""

from __future__ import annotations

import torch

from . import batched_gemm_a16w8_table as tuned
from . import routing
from .jit import UnsupportedArch
from .routing import Route
from .triton import batched_gemm_a16w8_blockscale as routes
from .triton.batched_gemm_a16w8_blockscale import BmmConfig, Config, Shape

OP = "batched_gemm_a16w8_blockscale"
ARCHS = ("gfx942", "gfx950", "sm_89 and later")


def decide(shape: Shape, x_dtype: torch.dtype, arch: str) -> tuple[Route, Config]:
    """The route, and its config. Raises ConfigError."""
    found = tuned.find(shape, x_dtype, arch)
    if found is not None:
        row, rule = found
        config = row.config
    else:
        row, rule = None, "heuristic"
        config = routes.heuristic(shape, x_dtype, arch)
    name = routes.route_of(config)

    def words() -> tuple[str, dict[str, str]]:
        least = {other: kind(*_LEAST[other]) for other, kind in routes.ROUTES.items()}
        refused = {
            other: routes.refuses(shape, x_dtype, one, arch) or f"{name} comes first"
            for other, one in least.items()
            if other != name
        }
        return f"{row} says so" if row else "no row is near", refused

    return Route(name, rule, routing.config_text(config), words=words), config


# Configs that any shape may have that the route takes at all.
_LEAST = {"rows": (16, 128), "tiles": (16, 64, 64), "staged": (16, 16, 32), "bmm": ()}


def route(
    b: int, m: int, n: int, k: int, arch: str, x_dtype: torch.dtype = torch.bfloat16
) -> Route:
    """The kernel that a shape gets, and why. Raises UnsupportedArch, ConfigError."""
    if routes.family(arch) is None:
        raise UnsupportedArch(OP, arch, ARCHS)
    return decide(Shape(b, m, n, k), x_dtype, arch)[0]


def why(b: int, m: int, n: int, k: int, arch: str, x_dtype: torch.dtype = torch.bfloat16) -> str:
    """`rfops why`: the route of a shape in words."""
    chosen = route(b, m, n, k, arch, x_dtype)
    lines = [("decision", chosen.backend), ("config", chosen.config), ("rule", chosen.rule),
             ("because", chosen.why)]  # fmt: skip
    if chosen.backend == "bmm":
        shape = Shape(b, m, n, k)
        config = routing.parse_config(BmmConfig, chosen.config)
        space = 2 * config.batches(shape) * n * k
        lines.append(("workspace", f"{space / 2**20:.0f} MiB, {config.batches(shape)} batches"))
    lines += [(f"not {name}", reason) for name, reason in chosen.refused.items()]
    head = f"{OP} b={b} m={m} n={n} k={k} on {arch}"
    return "\n".join([head, *(f"  {name.ljust(10)}  {text}" for name, text in lines)])
