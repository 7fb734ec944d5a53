"""Inputs of small ops: a table of pointers, weights in another layout."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rfops.dispatch.kernel import Call, RunOf
from rfops.dispatch.layout import Shuffled, shuffled, unwrap
from rfops.dispatch.op import Op
from rfops.jit import compile_ops, tensors, u32
from rfops.jit.launch import launcher
from support.small_ops import MODULE, Small, op_call, random, unique

pytestmark = pytest.mark.usefixtures("own_registry", "launch_path")


# ---------------------------------------------------------------- a table of pointers


def gather(out: torch.Tensor, table: tensors(100)) -> None:  # type: ignore[valid-type]
    """The kernel's parameters."""


class Gather(Small):
    name = "gather"

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.op.bind(c.device, None, c.arch)
        launch = bound.prepare((64, 1, 1), self.arguments, sources={"table": "w"})
        return lambda *_sizes: launch((100, 1, 1))


def test_a_table_of_100_pointers(config: Path) -> None:
    op = Op(
        unique("gather"),
        """
        w: f32[N] x 100
        -> out: f32[100]
        """,
        kernels=(Gather(compile_ops(MODULE, config=config)(gather)),),
    )
    weights: list[weakref.ref[torch.Tensor]] = []
    for seed in range(3):
        w = tuple(random(64, seed=100 * seed + i) for i in range(100))
        weights += [weakref.ref(row) for row in w]
        expected = torch.stack([row.sum() for row in w])
        for form in (w, list(w)):
            torch.testing.assert_close(op.call(form, None), expected, rtol=1e-4, atol=1e-4)
    if launcher.native() is not None:
        assert op.plans.hits >= 4, "the same sizes, other tensors"
    del w, form
    gc.collect()
    assert not any(ref() is not None for ref in weights), "a plan keeps no weight alive"
    w = tuple(random(64, seed=i) for i in range(100))
    wrong = (*w[:99], random(65))
    for args, message in (
        (w[:99], "w must be 100 tensors, got 99"),
        (w[0], "w must be a tuple of tensors, got Tensor"),
        (wrong, r"w\[99\] must be a \[N=64\] tensor, got \[65\]"),
        ((*w[:99], w[0].double()), r"w\[99\] must be float32"),
        ((*w[:99], random(128)[::2]), r"w\[99\] must be contiguous"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                op.call(args, None)
    out = torch.empty(4096)
    shared = (*w[:99], out[:64])
    with pytest.raises(ValueError, match=r"out must not overlap w\[99\]"):
        op.call(shared, out[:100])
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, (list(w),))


def test_a_launch_explains_a_wrong_table(config: Path) -> None:
    bound = compile_ops(MODULE, config=config)(gather).bind("cpu")
    for table, message in (((random(64),) * 99, "100 tensors"), (random(64), "table")):
        with pytest.raises(ValueError, match=message):
            bound.launch((100, 1, 1), (64, 1, 1), (random(100), table))


# ---------------------------------------------------------------- weights in another layout


def scale_by(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


class ScaleBy(Small):
    name = "scale_by"

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return {"REVERSED": int(c.w_layout == "reversed")}

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.op.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((64, 1, 1), self.arguments)
        return lambda n: launch((-(-n // 64), 1, 1), n=n)


def test_weights_in_another_layout_are_a_type(config: Path) -> None:
    """Told apart by their type, never guessed; the layout is a value of the declaration."""
    op = Op(
        unique("scale_by"),
        """
        x: f32[N]
        w: f32[N]
        w_layout: raw|reversed
        -> out: f32[N]
        """,
        kernels=(ScaleBy(compile_ops(MODULE, config=config)(scale_by)),),
    )

    def public(x: torch.Tensor, w: torch.Tensor | Shuffled) -> Any:
        return op_call(op, x, *unwrap(w), None)

    x, w = random(70), random(70, seed=1)
    packed = shuffled(w.flip(0), "reversed", layouts=("reversed",))
    for _ in range(2):
        for given in (w, packed, packed.to("cpu")):
            assert torch.equal(public(x, given), x * w)
    compiled = torch.compile(lambda x: public(x, packed) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * w + 1)
    with pytest.raises(ValueError, match=r"w must be a \[N=70\] tensor, got Shuffled"):
        op.call(x, packed, "raw", None)
    with pytest.raises(ValueError, match="w_layout must be raw or reversed, got '16x16'"):
        public(x, Shuffled(w, "16x16"))
    with pytest.raises(ValueError, match="layout must be one of reversed, got '8x8'"):
        shuffled(w, "8x8", layouts=("reversed",))
    assert packed.shape == w.shape and packed.device == w.device and packed.dtype == w.dtype
    assert "reversed" in repr(packed)
