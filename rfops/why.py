"""`rfops why`: which kernel a call takes, by which rule and row, and why not the others; whether
that is cached, and if not, in what the key of the nearest variant differs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import cli_cache
from .cli_common import with_ops
from .jit import manifest
from .jit.manifest import Wanted
from .jit.spec import ARCHS
from .jit.why import explain
from .tuned_table import Query

if TYPE_CHECKING:
    import torch

    from . import routing

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}  # as torch calls them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ops = parser.add_subparsers(metavar="op")
    dense = ops.add_parser("gemm_mxfp8", help="y = x @ w^T in MX-FP8")
    dense.add_argument("--m", type=int, required=True, help="rows of x")
    _add_common(dense, _gemm_mxfp8)
    grouped = ops.add_parser("grouped_gemm_mxfp8", help="experts' linears of a mixture in MX-FP8")
    grouped.add_argument("--m", type=int, required=True, help="routed rows: tokens times top_k")
    grouped.add_argument("--e", type=int, required=True, help="experts")
    grouped.add_argument("--top-k", type=int, required=True, help="experts of a token")
    grouped.add_argument("--a-div", type=int, help="1 (gemm2) or top_k (gemm1, the default)")
    grouped.add_argument("--weight", action="store_true", help="the result takes routed weights")
    grouped.add_argument("--block-m", type=int, default=16, help="default: %(default)s")
    _add_common(grouped, _grouped_gemm_mxfp8)
    batched = ops.add_parser("batched_gemm_a16w8_blockscale", help="16-bit x, block-scaled FP8 w")
    batched.add_argument("--b", type=int, required=True, help="batches")
    batched.add_argument("--m", type=int, required=True, help="rows of x in a batch")
    batched.add_argument("--x-dtype", choices=("bf16", "f16"), default="bf16")
    _add_common(batched, _batched_gemm_a16w8_blockscale, in_blocks=False)
    module = ops.add_parser("module", help="why a kernel's variants are cached or not: the keys")
    cli_cache.add_why(module)


def _add_common(
    parser: argparse.ArgumentParser,
    explain: Callable[[argparse.Namespace], str],
    in_blocks: bool = True,
) -> None:
    parser.add_argument("--n", type=int, required=True, help="rows of w, or of an expert's")
    parser.add_argument("--k", type=int, required=True, help="the summed dimension")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="default: %(default)s")
    parser.add_argument("--arch", default="gfx950", help="gfx950 (default), gfx942, sm_90, ...")
    parser.add_argument("--cu-num", type=int, help="compute units; default: the arch's own")
    parser.set_defaults(command=run, explain=explain, in_blocks=in_blocks)


def run(options: argparse.Namespace) -> int:
    with_ops()
    from . import routing
    from .quant_mxfp8 import BLOCK

    sizes = {name: value for name, value in vars(options).items() if isinstance(value, int)}
    for name, value in sizes.items():
        if value < 1 and not isinstance(value, bool):
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected 1 or more")
    if options.in_blocks and options.k % BLOCK:
        raise ValueError(f"--k {options.k}: expected a multiple of {BLOCK}, as the op does")
    if not re.fullmatch(r"gfx\d\w+|sm_\d+", options.arch):
        raise ValueError(f"--arch {options.arch}: expected gfx950, gfx942, sm_90 or the like")
    known = routing.VIRTUAL_CUS
    if options.cu_num is None and options.arch not in known and options.arch.startswith("gfx"):
        raise ValueError(f"--arch {options.arch}: say --cu-num too; known are {', '.join(ARCHS)}")
    options.cu_num = options.cu_num or known.get(options.arch, 132)
    print(options.explain(options))
    return 0


def _gemm_mxfp8(options: argparse.Namespace) -> str:
    from .gemm_mxfp8_route import BACKENDS, OP, default_config, parse_config, refuses, route
    from .mxfp8_mfma import TILE_K

    m, n, k, dtype, arch = options.m, options.n, options.k, *_target(options)
    chosen = route(m, n, k, dtype, arch, options.cu_num)
    query = Query.of(OP, arch, options.cu_num, m=m, n=n, k=k)
    reasons = {name: refuses(name, m, n, k, dtype, arch) for name in BACKENDS}
    default = default_config(chosen.backend, m, n, k, arch)
    defines = None
    if chosen.is_hip:
        config = parse_config(chosen.backend, chosen.config, chosen.row) or default
        shape = (m,) if chosen.backend == "gemv" else (m, n, k, dtype, k % TILE_K == 0)
        defines = config.defines(*shape)
    return text(query, chosen, default, reasons, defines)


def _grouped_gemm_mxfp8(options: argparse.Namespace) -> str:
    from .grouped_gemm_mxfp8_route import (
        BACKENDS,
        OP,
        Shape,
        choose_backend,
        default_config,
        parse_config,
        refuses,
    )
    from .mxfp8_moe import NARROW_K, WIDE_K

    a_div, m, dtype, arch = options.a_div or options.top_k, options.m, *_target(options)
    n, k, e, weighted, block_m = options.n, options.k, options.e, options.weight, options.block_m
    shape = Shape(m, options.top_k, block_m, a_div, n, k, e, -(-m // a_div), weighted)
    chosen = choose_backend(shape, dtype, arch, options.cu_num)
    query = Query.of(
        OP, arch, options.cu_num, m=m, n=n, k=k, e=e, a_div=a_div, has_weight=weighted
    )  # fmt: skip
    reasons = {name: refuses(name, shape, dtype, arch) for name in BACKENDS}
    default = default_config(chosen.backend, shape, arch)
    defines = None
    if chosen.is_hip:
        config = parse_config(chosen.backend, chosen.config, chosen.row)
        if config is None or config.refuses(block_m):
            config = default
        chunk = NARROW_K if k % WIDE_K else WIDE_K
        defines = config.defines(block_m, chunk, a_div, weighted, dtype)
    return text(query, chosen, default, reasons, defines)


def _batched_gemm_a16w8_blockscale(options: argparse.Namespace) -> str:
    from .batched_gemm_a16w8_blockscale import why

    sizes = options.b, options.m, options.n, options.k
    return why(*sizes, options.arch, _dtype(options.x_dtype))


def _target(options: argparse.Namespace) -> tuple[torch.dtype, str]:
    return _dtype(options.dtype), options.arch


def _dtype(name: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, DTYPES[name])
    return found


def text(
    query: Query,
    chosen: routing.Route,
    default: object,
    refusals: Mapping[str, str | None],
    defines: Mapping[str, Any] | None,
) -> str:
    """The decision as aligned lines; `refusals` of every kernel, those that were not asked too.
    `defines` are those of a HIP kernel's variant for tensors that lie as torch allocates them."""
    kind = "a HIP kernel" if chosen.is_hip else "no HIP kernel"
    config = chosen.config or (f"its default, {default}" if default else "its own")
    lines = [
        ("decision", f"{chosen.backend}, {kind}"),
        ("config", config),
        ("rule", chosen.rule),
        ("because", chosen.why),
        ("row", str(chosen.row) if chosen.row else "none for this shape"),
    ]
    for name, reason in refusals.items():
        if name != chosen.backend:
            lines.append((f"not {name}", reason or chosen.refused.get(name, "comes last")))
    if defines is not None:
        wanted = Wanted(f"mxfp8_{chosen.backend}", query.arch, manifest.defines_of(defines))
        first, *more = str(explain(wanted)).splitlines()
        lines += [("variant", first), *(("", line.strip()) for line in more)]
    width = max(len(name) for name, _ in lines)
    return "\n".join([str(query), *(f"  {name.ljust(width)}  {value}" for name, value in lines)])
