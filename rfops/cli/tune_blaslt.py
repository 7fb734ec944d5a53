"""`rfops tune blaslt`: time hipBLASLt's algorithms for linear layers, dense or grouped, and write
down the best, for a library of this version and this architecture alone. It needs ROCm with
hipBLASLt's headers, and an AMD GPU with a torch for ROCm (it has run on none yet) or the virtual
GPU, whose times are estimates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from rfops.gemm.blaslt import Library, Linear


def main(arguments: list[str]) -> int:
    """Run `rfops tune blaslt` and return the exit status."""
    options = _parser().parse_args(arguments)
    from rfops.cli.common import with_ops

    with_ops()
    problems = _problems(options)
    library = _library(options)
    table = options.out / "blaslt.csv"
    status = 0
    for problem in problems:
        status |= _tune(library, problem, table, options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rfops tune blaslt", description=__doc__)
    add = parser.add_argument
    add(
        "--shape",
        nargs=3,
        type=int,
        action="append",
        default=[],
        metavar=("M", "N", "K"),
        help="a linear layer, y [M, N] = x [M, K] @ w [N, K]^T",
    )
    add(
        "--group",
        nargs=3,
        action="append",
        default=[],
        metavar=("M,M,...", "N", "K"),
        help="a group of them, of so many rows each",
    )
    add("--dtype", choices=("bf16", "f16", "f32"), default="bf16")
    add("--out", type=Path, required=True, metavar="FOLDER", help="its blaslt.csv gets a row each")
    add("--runs", type=int, default=20)
    add("--library", type=Path, help="libhipblaslt.so; torch's, else ROCM_PATH's")
    add("--include", type=Path, action="append", help="of its headers; ROCM_PATH's")
    return parser


def _problems(options: argparse.Namespace) -> list[Linear]:
    import torch

    from rfops.gemm.blaslt import Linear

    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    dtype = dtypes[options.dtype]
    problems = [Linear(((m, n, k),), dtype) for m, n, k in options.shape]
    for rows, n, k in options.group:
        sizes = tuple((int(m), int(n), int(k)) for m in rows.split(","))
        problems.append(Linear(sizes, dtype, is_grouped=True))
    if not problems:
        raise ValueError("rfops tune blaslt: expected --shape M N K or --group M,M,... N K")
    return problems


def _library(options: argparse.Namespace) -> Library:
    import torch

    from rfops.gemm.blaslt import Library, by_estimates
    from rfops.jit import settings
    from rfops.jit.launch import hip

    rocm = settings.path("ROCM_PATH") or Path("/opt/rocm")
    torch_library = Path(torch.__file__).parent / "lib" / "libhipblaslt.so"
    library = options.library or (
        torch_library if torch_library.is_file() else rocm / "lib" / "libhipblaslt.so"
    )
    include = options.include or [rocm / "include"]
    if not library.is_file():
        raise ValueError(f"{library}: there is no such file; say --library")
    if not any((folder / "hipblaslt" / "hipblaslt-ext.hpp").is_file() for folder in include):
        raise ValueError(f"{include[0]}: no hipblaslt/hipblaslt-ext.hpp there; say --include")
    device = _device()
    hip.runtime(device)  # its library is the one that hipBLASLt finds
    clock = by_estimates if device.type == "cpu" else None
    return Library(library, include, hip.device_arch(device), clock)


def _device() -> torch.device:
    """An AMD GPU of torch's, or the virtual one, whose memory is that of CPU tensors."""
    import torch

    return torch.device("cuda" if torch.version.hip and torch.cuda.is_available() else "cpu")


def _tune(library: Library, problem: Linear, table: Path, options: argparse.Namespace) -> int:
    import torch

    from rfops.gemm.blaslt import pin

    device = _device()
    tuned = library.tune(problem, options.runs, device.type)
    print(" ".join(problem.key), f"by hipBLASLt {library.version} on {library.gfx}")
    for solution in tuned.timed[:5]:
        print(f"  {solution.us:9.2f} us  {solution.solution}")
    print(f"  {len(tuned.timed)} of {len(tuned.timed) + len(tuned.refused)} algorithms take it")
    if not tuned.timed:
        reasons = sorted(set(tuned.refused.values()))
        print(f"  none: {'; '.join(reasons[:3]) or 'the library has none for this architecture'}")
        return 1
    if device.type == "cpu":
        source = f"estimated for {library.gfx}"
    else:
        source = f"measured on {torch.cuda.get_device_name()}"
    pin(table, problem, library, tuned.timed[0], source)
    return 0
