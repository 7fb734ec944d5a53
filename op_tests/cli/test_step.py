"""`rfops bench step`: the launches of models, their times, and the sums."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rfops.cli import step
from rfops.cli.step import Time, all_reduce_us, table, times
from rfops.cli.step.models import ALL_REDUCE, MODELS, Component, Setup
from rfops.dispatch.op import ops
from rfops.jit.arch import ARCHS
from support.command import good, rfops


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", MODELS)
def test_every_launch_has_a_kernel(name: str, arch: str) -> None:
    """On one GPU and on eight; the blocks are those that the model counts."""
    for tp, batch in ((1, 1), (4, 16), (8, 128)):
        parts = list(MODELS[name].components(Setup(tp, batch, 4096)))
        assert {part.block for part in parts} == {*MODELS[name].layers}
        for part in parts:
            if not part.op:
                assert part.size > 0, part
                continue
            op = ops()[part.op]
            c = op.call_of(arch, **part.shape)
            op.check_sizes(c)
            assert op.route(c).backend in op.kernels


def test_weights_of_a_layer() -> None:
    """DeepSeek-V3 by its launches: 671 B parameters, as its card says, less the embedding."""
    model, total = MODELS["deepseek-v3"], 0.0
    for part in model.components(Setup(1, 1, 1)):
        s = part.shape
        if part.op in ("gemm_a8w8_blockscale", "linear_fp8_blockscale", "gemm_a16w16"):
            count = s["N"] * s["K"]
        elif part.op == "batched_gemm_a16w16":
            count = s["B"] * s["N"] * s["K"]
        elif part.op == "mla_absorb_cache_write":
            count = s["H"] * s["L"] * s["D"]
        elif part.op == "fused_moe_fp8":
            count = 3 * s["E"] * s["D"] * s["I"]
        else:
            count = 0
        total += count * model.layers[part.block]
    assert total + 129280 * 7168 == pytest.approx(671e9, rel=0.01)


def test_operands_of_earlier_launches_are_warm() -> None:
    """A quantiser reads what the launch before wrote; a GEMM's weight comes from HBM."""
    quantiser = Component("a", "q", "quant_fp8_blockscale", {"M": 64, "K": 7168})
    product = Component("a", "w", "gemm_a8w8_blockscale", {"M": 4, "N": 512, "K": 1024})
    first, second, again = times.estimates([quantiser, product, quantiser], "gfx950", None, 8)
    assert 1.6 < first.us < first.alone_us and again == first
    assert second.us == pytest.approx(second.alone_us, rel=0.02)
    assert {first.kind, second.kind} == {"estimated"} and second.bytes > 512 * 1024


def test_what_has_no_op() -> None:
    """Its bytes at HBM's rate, named; an all-reduce by published times, none on one GPU."""
    norm, reduce = Component("a", "norm", size=5_700_000), Component("a", ALL_REDUCE, size=96 << 10)
    (by_bytes, published) = times.estimates([norm, reduce], "gfx950", None, 8)
    assert (by_bytes.kind, by_bytes.kernel) == ("bytes", "no op")
    assert by_bytes.us == pytest.approx(3.0, rel=0.05)
    assert (published.kind, published.us) == ("published", 6.8)
    assert all_reduce_us(1, 8) == 6.4 and all_reduce_us(96 << 10, 1) == 0.0
    assert 6.8 < all_reduce_us(200 << 10, 8) < 7.5 < 12.9 < all_reduce_us(2 << 20, 8)


def test_the_sums() -> None:
    """A step is its blocks as often as it has them; the chain is less than its launches alone."""
    found = [
        Time(Component("attention", "x"), 10.0, 12.0, "k", "estimated", 1_000_000, 1.0),
        Time(Component("experts", "y"), 30.0, 30.0, "", "published", 0, 0.0),
    ]
    text = "\n".join(table(found, {"attention": 3, "experts": 2}))
    assert "step 0.09 ms: 3 x attention 10.0 us, 2 x experts 30.0 us" in text
    assert "layer with experts 40.0 us" in text and "caches saves 6.2%" in text
    assert "of the step: estimated 33%, published 67%" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "step.csv"
    assert "--context" in good("bench", "step", "--help")
    done = rfops("bench", "step", "--batch", "0")
    assert done.returncode == 1 and "expected 1 or more" in done.stderr
    tiny = [
        Component("head", "q", "quant_mxfp8", {"M": 4, "K": 256}),
        Component("head", "n", size=100),
    ]
    model = MODELS["deepseek-v3"]._replace(layers={"head": 1}, components=lambda _setup: iter(tiny))
    monkeypatch.setitem(step.MODELS, "deepseek-v3", model)
    assert step.main(["--arch", "gfx950", "--csv", str(file)]) == 0
    assert pd.read_csv(file)["kind"].tolist() == ["estimated", "bytes"]
