"""What the ops of a mixture's experts share: how rows of their tables are found, their floors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rfops.dispatch import cost, tuned_table
from rfops.dispatch.op import Op
from rfops.jit import paths
from rfops.moe import fused_moe, fused_moe_fp8, fused_moe_mxfp4, fused_moe_mxfp8, fused_moe_tables
from support.tables import Write

OPS = {
    m.OP.name: m.OP
    for m in (fused_moe, fused_moe_fp8, fused_moe_tables, fused_moe_mxfp4, fused_moe_mxfp8)
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_rows_know_shared_experts(op: Op) -> None:
    """They count as choices of each token; the number of routed experts tells the two apart, as
    experts have other numbers of rows."""
    sizes = {"M": 48, "D": 1024, "I": 512, "E": 33}
    named = op.call_of("gfx950", **sizes, K=9, R=33)
    shared = op.call_of("gfx950", **sizes, K=8, R=32)
    assert op.table_sizes(named) == (48, 1024, 512, 33, 9, 33)
    assert op.table_sizes(shared) == (48, 1024, 512, 33, 9, 32)
    for c in (named, shared):  # and as a known plan finds it, from sizes alone
        result = op.table_getter()([c.sizes[name] for name in op.declaration.sizes])
        assert result == op.table_sizes(c)
        row_sizes = dict(zip(op.table, op.table_sizes(c), strict=True))
        assert op.call_of("gfx950", **op.sizes_of_row(row_sizes)).sizes == c.sizes
    del row_sizes["R"]  # a row from before the key had it
    assert op.call_of("gfx950", **op.sizes_of_row(row_sizes)).sizes == named.sizes


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_row_holds_for_its_number_of_routed_experts(op: Op, overlay: Write) -> None:
    sizes = {"M": 48, "D": 1024, "I": 512, "E": 33}
    named = op.call_of("gfx950", **sizes, K=9, R=33)
    shared = op.call_of("gfx950", **sizes, K=8, R=32)
    row = {"m": 48, "d": 1024, "i": 512, "e": 33, "k": 9, "kernel": "hip"}
    overlay({**row, "r": 32}, op=op.name)
    assert op.route(shared).rule == "exact row" and op.route(named).row is None
    overlay(row, op=op.name)  # without a number: for any
    assert op.route(shared).rule == op.route(named).rule == "exact row"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_shipped_rows_say_how_many_experts_are_routed(op: Op) -> None:
    assert op.tuned is not None
    rows = tuned_table.read(paths.CONFIGS / f"{op.name}.csv", op.name)
    assert all(row.sizes[-1] is not None for row in rows)


@pytest.mark.parametrize("name", ["fused_moe_mxfp4", "fused_moe_mxfp8"])
def test_what_bench_takes_is_what_rows_were_tuned_for(name: str) -> None:
    op = OPS[name]
    for shape in op.shapes["published"]:
        c = op.call_of("gfx950", **shape)
        assert c.E - c.R == 1 and c.w_layout == "16x16"
        # A row that decides nothing was dropped; others' figures for the sizes stay.
        figures = op.tuned.published("gfx950", op.table_sizes(c))
        assert op.route(c).rule == "exact row" or figures is not None, shape


@pytest.mark.parametrize(("m", "routed", "shared"), [(1, 8, 0), (1, 8, 1), (4, 16, 1), (999, 8, 0)])
def test_the_floor_has_the_experts_that_are_chosen(m: int, routed: int, shared: int) -> None:
    """Of K = 2 each: how many different ones, if all are alike."""
    op, d, i, e = OPS["fused_moe"], 64, 32, routed + shared
    weights: dict[str, Any] = {
        "w1": torch.empty(e, 2 * i, d, dtype=torch.bfloat16),
        "w2": torch.empty(e, d, i, dtype=torch.bfloat16),
    }
    remaining: dict[str, Any] = {
        "x": torch.empty(m, d, dtype=torch.bfloat16),
        "topk_weights": torch.empty(m, 2),
        "topk_ids": torch.empty(m, 2, dtype=torch.int32),
        "router_weight": None,
    }
    c = op.call_of("gfx950", M=m, D=d, I=i, E=e, K=2, R=routed)
    c.tensors.update(weights | remaining)
    read = op.traffic(c) - sum(t.nbytes for t in remaining.values() if t is not None) - m * d * 2
    experts = read / (sum(w.nbytes for w in weights.values()) / e)
    expected = routed * (1 - math.comb(routed - 1, 2) ** m / math.comb(routed, 2) ** m) + shared
    assert experts == pytest.approx(expected, abs=1e-3)


def test_the_floor_has_the_peak_of_what_is_multiplied() -> None:
    by = {
        name: op.product_type(op.call_of("gfx950", M=64, D=1024, I=512, E=8, K=2))
        for name, op in OPS.items()
    }
    assert by == {
        "fused_moe": "bf16",
        "fused_moe_tables": "bf16",
        "fused_moe_fp8": "fp8",
        "fused_moe_mxfp4": "fp4",
        "fused_moe_mxfp8": "fp8",
    }
    op = OPS["fused_moe_mxfp4"]
    c = op.call_of("gfx950", **op.shapes["published"][-1])
    c.tensors.update(dict.fromkeys((arg.name for arg in op.declaration.tensors), None))
    assert cost.floor(op, c).us == pytest.approx(6 * 512 * 9 * 7168 * 2048 / 9200e6, rel=0.01)
