"""The options that bench_mxfp8.py and tune_mxfp8.py share: shapes of both MX-FP8 ops."""

from __future__ import annotations

import argparse
from typing import Any

from rfops.dispatch.op import Op
from rfops.gemm.mxfp8 import OP as DENSE
from rfops.moe.grouped_gemm_mxfp8 import OP as GROUPED

GROUPS = {**dict.fromkeys(DENSE.shapes, DENSE), **dict.fromkeys(GROUPED.shapes, GROUPED)}


def add(parser: argparse.ArgumentParser, **shape: Any) -> None:
    parser.add_argument("--cells", nargs="+", choices=GROUPS, help="default: published")
    parser.add_argument("--m", type=int, nargs="+", help="rows, or routed rows, instead of all")
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), **shape)


def chosen(
    options: argparse.Namespace, groups: list[str], shapes: list[list[int]]
) -> list[tuple[Op, dict[str, Any]]]:
    """Ops and shapes, each once."""
    found = [(DENSE, dict(zip("MNK", shape, strict=True))) for shape in shapes]
    for group in groups:
        for shape in GROUPS[group].shapes[group]:
            found += [(GROUPS[group], {**shape, "M": m}) for m in options.m or [shape["M"]]]
    return [pair for at, pair in enumerate(found) if pair not in found[:at]]
