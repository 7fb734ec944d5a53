"""A small op with a fused epilogue, declared once; decisions of ops without a table; old names.

Its siblings test_op_*.py have results, inputs and scratch memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rfops.dispatch import op as registry
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.jit import compile_ops, f32, u32
from support.small_ops import MODULE, Small, random, unique

pytestmark = pytest.mark.usefixtures("own_registry", "launch_path")


def affine(out: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, a: f32, n: u32) -> None:
    """The kernel's parameters."""


class Affine(Small):
    name = "affine"

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return {"BIAS": int(c.has("bias")), "RELU": int(c.activation == "relu")}

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.op.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((64, 1, 1), self.arguments)
        return lambda n: launch((-(-n // 64), 1, 1), n=n, a=float(c.a))


def affine_op(config: Path) -> Op:
    return Op(
        unique("affine"),
        """
        x: f32[N]
        bias: f32[N]?
        a: float
        activation: none|relu
        -> out: f32[N]
        """,
        kernels=(Affine(compile_ops(MODULE, config=config)(affine)),),
        coarse={"N": 64},
    )


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_fused_epilogue(config: Path, activation: str, with_bias: bool) -> None:
    op = affine_op(config)
    for n in (1, 64, 200, 201):
        x, bias = random(n), random(n, seed=1) if with_bias else None
        expected = 2.5 * x + (bias if bias is not None else 0)
        expected = expected.relu() if activation == "relu" else expected
        for _ in range(2):
            out = torch.full((n,), math.nan)
            assert op.call(x, bias, 2.5, activation, out) is out
            torch.testing.assert_close(out, expected)
        torch.testing.assert_close(op.call(x, bias, 2.5, activation, None), expected)
    args = (random(70), random(70), 0.5, activation)
    torch.library.opcheck(getattr(torch.ops.rfops, op.name).default, args)
    torch.library.opcheck(getattr(torch.ops.rfops, f"{op.name}_out").default, (*args, random(70)))
    assert op.call(random(0), None, 1.0, "none", None).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [1.0]}, r"x must be a \[N\] tensor, got list"),
        ({"x": random(4).double()}, "x must be float32, got .*float64"),
        ({"x": random(8)[::2]}, "x must be contiguous"),
        ({"bias": random(3)}, r"bias must be a \[N=4\] tensor, got \[3\]"),
        ({"bias": 3}, "bias must be a tensor or None, got int"),
        ({"a": "much"}, "a must be a float, got 'much'"),
        ({"activation": "gelu"}, "activation must be none or relu, got 'gelu'"),
        ({"out": random(5)}, r"out must be a \[N=4\] tensor, got \[5\]"),
    ],
)
def test_its_refusals(config: Path, change: dict[str, Any], message: str) -> None:
    op = affine_op(config)
    args = {"x": random(4), "bias": None, "a": 1.0, "activation": "none", "out": None, **change}
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{op.name}: {message}"):
            op.call(*args.values())


def test_an_overlap_is_refused(config: Path) -> None:
    memory = random(100)
    op = affine_op(config)
    with pytest.raises(ValueError, match=r"out must not overlap x, .*pass another out, or none"):
        op.call(memory[:64], None, 1.0, "none", memory[36:])


def test_shapes_share_a_decision_without_a_hip_kernel() -> None:
    class Double(Kernel):
        name = "double"

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda n: lambda out, x: torch.add(x, x, out=out)

    text = "x: f32[N]\n-> out: f32[N]"
    op = Op(unique("double"), text, kernels=(Double(),), coarse={"N": 4})
    for n in (5, 6, 7, 5):
        assert torch.equal(op.call(torch.ones(n), None), torch.full((n,), 2.0))
    with pytest.raises(AssertionError, match="a table's sizes come first"):
        Op(unique("double"), "a: int\n" + text, kernels=(Double(),), table="a N")


def test_a_decision_without_a_table_names_each_other_kernel_and_why() -> None:
    class Even(Kernel):
        name = "even"

        def unsupported_reason(self, c: Call) -> str | None:
            return "N is odd" if c.N % 2 else None

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda n: lambda out, x: torch.add(x, x, out=out)

    class All(Even):
        name = "all"

        def unsupported_reason(self, c: Call) -> str | None:
            return None

    op = Op(unique("even"), "x: f32[N]\n-> out: f32[N]", kernels=(Even(), All()))
    even, odd = op.route(op.call_of(N=4)), op.route(op.call_of(N=5))
    assert (even.backend, even.refused) == ("even", {"all": "even comes first"})
    assert (odd.backend, odd.refused) == ("all", {"even": "N is odd"})


def test_methods_by_their_old_names() -> None:
    """An op outside of rfops may say `refuses`; what it inherits is found by both names."""

    class Old(Kernel):
        name = "old"

        def refuses(self, c: Call) -> str | None:
            return super().refuses(c) or ("N is odd" if c.N % 2 else None)  # type: ignore[misc]

        def variant(self, c: Call, config: Any) -> RunOf:
            return lambda n: lambda out, x: torch.add(x, x, out=out)

    class New(Old):
        def unsupported_reason(self, c: Call) -> str | None:
            return "never"

    class OldOp(Op):
        def refuses(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
            return ("x", "of 4 at least", f"{sizes[0]}", "pad it") if sizes[0] < 4 else None

    op = OldOp(unique("old"), "x: f32[N]\n-> out: f32[N]", kernels=(Old(),))
    assert torch.equal(op.call(torch.ones(4), None), torch.full((4,), 2.0))
    with pytest.raises(ValueError, match="old: N is odd"):
        op.call(torch.ones(5), None)
    with pytest.raises(ValueError, match="x must be of 4 at least, got 2; pad it"):
        op.call(torch.ones(2), None)
    assert New().refuses(op.call_of(N=4)) == "never"  # type: ignore[attr-defined]
    assert op.forms(op.call_of(N=4)) == [([4], torch.float32)]  # type: ignore[attr-defined]


class Plus(Kernel):
    """x + n."""

    name = "plus"

    def __init__(self, n: int) -> None:
        self.n = n

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda n: lambda out, x: torch.add(x, self.n, out=out)


class PlusBias(Kernel):
    name = "plus_bias"

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda n: lambda out, x, bias: torch.add(x, bias, out=out)


def test_an_op_declared_again_replaces_the_first() -> None:
    """A module's reload, a notebook's cell that runs again: torch.ops has the last one, and the
    first one's callers keep it."""
    name, x = unique("again"), torch.ones(5)
    results = []
    for n in (1, 2):
        op = Op(name, "x: f32[N]\n-> out: f32[N]", kernels=(Plus(n),))
        results.append(op.call)
        torch.testing.assert_close(op.call(x, None), x + n)
        torch.testing.assert_close(getattr(torch.ops.rfops, name)(x), x + n)
        compiled = torch.compile(lambda x, op=op: op.traced(x, None) * 2, backend="aot_eager")
        torch.testing.assert_close(compiled(x), (x + n) * 2)
        out = torch.empty(5)
        getattr(torch.ops.rfops, f"{name}_out")(x, out)
        torch.testing.assert_close(out, x + n)
        torch.library.opcheck(getattr(torch.ops.rfops, name).default, (x,))
    torch.testing.assert_close(results[0](x, None), x + 1)


def test_compiled_code_knows_a_changed_result() -> None:
    """In memory and on disk: torch's caches know an op by its name alone, and inductor's code for
    float32 took results of float16 for it."""
    name, x, compiled = unique("result"), torch.ones(5), []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        compiled.append(torch.compiler.config.cache_key_tag)
        return graph.forward

    holder = SimpleNamespace()
    doubled = torch.compile(lambda x: holder.op.traced(x, None) * 2, backend=backend)
    for kind, dtype in (("f32", torch.float32), ("f16", torch.float16), ("f32", torch.float32)):
        holder.op = Op(name, f"x: f32[N]\n-> out: {kind}[N]", kernels=(Plus(1),))
        assert torch.equal(doubled(x), torch.full((5,), 4, dtype=dtype))
    first, second, third = compiled
    assert first == third != second and all(tag.count("rfops-") == 1 for tag in compiled)


def test_an_op_declared_again_with_other_arguments() -> None:
    """torch calls the last one alone; the first one's own call still works."""
    name, x = unique("changed"), torch.ones(5)
    first = Op(name, "x: f32[N]\n-> out: f32[N]", kernels=(Plus(1),))
    torch.testing.assert_close(getattr(torch.ops.rfops, name)(x), x + 1)
    text = "x: f32[N]\nbias: f32[N]?\n-> result: f32[N]"
    second = Op(name, text, kernels=(PlusBias(),))
    assert "bias" in str(getattr(torch.ops.rfops, name).default._schema)
    torch.library.opcheck(getattr(torch.ops.rfops, name).default, (x, x))
    torch.library.opcheck(getattr(torch.ops.rfops, f"{name}_out").default, (x, x, x.clone()))
    torch.testing.assert_close(second.call(x, x, None), x + x)
    torch.testing.assert_close(first.call(x, None), x + 1)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert second.call(fake, None, None).shape == (5,)
        with pytest.raises(RuntimeError, match=f"^{name}: was declared again with other arguments"):
            first.call(fake, None)
    Op(name, "x: f32[N] inout", kernels=(Plus(1),))
    assert not hasattr(torch.ops.rfops, f"{name}_out")


def test_every_earlier_op_of_other_arguments_is_refused() -> None:
    """Not the last of them alone: torch would run the new op on the earlier one's arguments."""
    name, x = unique("thrice"), torch.ones(5)
    same = [Op(name, "x: f32[N]\n-> out: f32[N]", kernels=(Plus(n),)) for n in (1, 2)]
    Op(name, "y: f32[N]\n-> out: f32[N]", kernels=(Plus(3),))
    for n, op in enumerate(same, 1):
        torch.testing.assert_close(op.call(x, None), x + n)
        with pytest.raises(RuntimeError, match=f"^{name}: was declared again"):
            op.call(torch.ones(5, requires_grad=True), None)


def test_a_handle_of_an_op_that_is_gone_calls_no_other() -> None:
    """torch gave its memory to an op that was declared later, and the handle called that one."""
    name, x = unique("gone"), torch.ones(5)
    Op(name, "x: f32[N]\n-> out: f32[N]", kernels=(Plus(1),))
    handle = getattr(torch.ops.rfops, f"{name}_out").default
    Op(name, "x: f32[N] inout", kernels=(Plus(1),))
    others = [unique("other") for _ in range(20)]
    for other in others:
        Op(other, "x: f32[N]\n-> out: f32[N]", kernels=(Plus(2),))
    with pytest.raises(RuntimeError, match=f"the schema for rfops::{name}_out which"):
        handle(x, torch.empty(5))


def test_names_that_torch_has_for_another_op_are_refused() -> None:
    """Each took the other's place in torch, and a call of that crashed."""
    name, taken = unique("place"), "expected a name that torch.ops.rfops does not have"
    declare = functools.partial(Op, text="x: f32[N]\n-> out: f32[N]", kernels=(Plus(1),))
    declare(name)
    for wrong in ("no_gradient", f"{name}_out"):
        with pytest.raises(ValueError, match=f"^op {wrong}: {taken}"):
            declare(wrong)
    later = unique("place")
    declare(f"{later}_out")
    with pytest.raises(ValueError, match=f"^op {later}: {taken}, and {later}_out is another op"):
        declare(later)


def test_an_op_of_code_without_a_module_s_name() -> None:
    """exec with names of its own."""
    names = {"Op": Op, "kernels": (Plus(1),), "name": unique("nameless")}
    exec("op = Op(name, 'x: f32[N]\\n-> out: f32[N]', kernels=kernels)", names)
    torch.testing.assert_close(names["op"].call(torch.ones(5), None), torch.ones(5) + 1)


@pytest.mark.parametrize(
    ("name", "owner"),
    [("rms_norm", "rfops.rowwise.rms_norm"), ("fused_moe_mxfp4", "rfops.moe.fused_moe_mxfp4")],
)
def test_a_name_of_another_module_is_refused(name: str, owner: str) -> None:
    """Of an op that is public before it is imported; of others once they are declared."""
    registry.import_ops()
    for known in (registry._OPS, {}) if name == "rms_norm" else (registry._OPS,):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError) as raised:
            patch.setattr(registry, "_OPS", dict(known))
            Op(name, "x: f32[N]\n-> out: f32[N]", kernels=(Plus(1),))
        assert str(raised.value) == (
            f"op {name}: expected a name that no other module declares, and {owner} has it;"
            f" {__name__} must take another"
        )
