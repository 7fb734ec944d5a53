"""No op has a derivative, and none says so by silence: forward works, backward raises and names the
op, the arguments and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import rfops
from rfops import quant_mxfp8
from rfops.jit import Plans
from rfops.jit.launch import launcher, modes
from support.warm_ops import OPS

REFUSED = NotImplementedError  # torch's own for a derivative that is not there
# Op -> its tensors that are floating point, by position: float8 can require a gradient, too.
FLOATS = {
    "gemm_mxfp8": {0: "x", 1: "w", 2: "x_scale", 3: "w_scale"},
    "gemm_a8w8_blockscale": {0: "x", 1: "w", 2: "x_scale", 3: "w_scale"},
    "grouped_gemm_mxfp8": {0: "a_q", 1: "a_scale", 2: "w", 3: "w_scale", 12: "mul_weight_by"},
    "batched_gemm_a16w8_blockscale": {0: "x", 1: "w", 2: "w_scale"},
    "quant_mxfp8": {0: "x"},
    "mla_decode": {0: "q", 1: "kv"},
}
AT_ONCE = {"mla_decode"}  # it writes to an argument, which cannot have a history: the call raises
LATER = [op for op in FLOATS if op not in AT_ONCE]
CASES = [(op, at) for op in LATER for at in FLOATS[op]]


def arguments(op: str) -> list[Any]:
    if op == "quant_mxfp8":
        return [torch.randn(3, 64)]
    args = list(OPS[op][0]())
    return [*args, torch.rand(6)] if op == "grouped_gemm_mxfp8" else args


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_()


def first(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
    return tensor


def same_bytes(a: Any, b: Any) -> bool:
    return torch.equal(first(a).detach().view(torch.uint8), first(b).detach().view(torch.uint8))


def refusal(op: str, *names: str) -> str:
    named = ", ".join(names)
    return f"^{op}: there is no derivative, .* of {named}; call it under torch.no_grad.*detach"


@pytest.mark.parametrize(("op", "offset"), CASES)
def test_backward_raises(op: str, offset: int) -> None:
    call, args = getattr(rfops, op), arguments(op)
    expected = call(*args)
    args[offset] = leaf(args[offset])
    for _ in range(2):
        actual = call(*args)
        assert same_bytes(actual, expected)
        with pytest.raises(REFUSED, match=refusal(op, FLOATS[op][offset])):
            first(actual).float().sum().backward()
    assert args[offset].grad is None
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            actual = call(*args)
        assert same_bytes(actual, expected) and not first(actual).requires_grad


@pytest.mark.parametrize("op", AT_ONCE)
def test_the_call_raises(op: str) -> None:
    for offset, name in FLOATS[op].items():
        args = arguments(op)
        expected = getattr(rfops, op)(*args)
        args[offset] = leaf(args[offset])
        for _ in range(2):
            with pytest.raises(REFUSED, match=refusal(op, name)):
                getattr(rfops, op)(*args)
        with torch.no_grad():
            assert same_bytes(getattr(rfops, op)(*args), expected)


@pytest.mark.parametrize("op", LATER)
def test_all_that_want_one_are_named(op: str) -> None:
    args = [leaf(a) if index in FLOATS[op] else a for index, a in enumerate(arguments(op))]
    actual = getattr(rfops, op)(*args)
    with pytest.raises(REFUSED, match=refusal(op, *FLOATS[op].values())):
        first(actual).float().sum().backward()


def test_through_torch_ops() -> None:
    x, w, *scales = arguments("gemm_mxfp8")
    actual = torch.ops.rfops.gemm_mxfp8(leaf(x), w, *scales, torch.float32, "")
    with pytest.raises(REFUSED, match=refusal("gemm_mxfp8", "x")):
        actual.sum().backward()
    payload, _ = torch.ops.rfops.quant_mxfp8(torch.ones(2, 32, requires_grad=True), "up")
    with pytest.raises(REFUSED, match=refusal("quant_mxfp8", "x")):
        payload.float().sum().backward()


def test_a_parameter_and_what_is_computed() -> None:
    """What a model has: a weight that requires a gradient, an activation with a history."""
    x, w, *scales = arguments("batched_gemm_a16w8_blockscale")
    call = rfops.batched_gemm_a16w8_blockscale
    bias = torch.nn.Parameter(torch.zeros(1, dtype=x.dtype))
    actual = call(x + bias, torch.nn.Parameter(w), *scales)
    with pytest.raises(REFUSED, match=refusal("batched_gemm_a16w8_blockscale", "x", "w")):
        actual.float().sum().backward()
    frozen = call(x, torch.nn.Parameter(w, requires_grad=False), *scales)
    assert not frozen.requires_grad and same_bytes(frozen, actual)


@pytest.mark.parametrize("op", OPS)
def test_out_is_refused_at_once(op: str) -> None:
    """As torch's own ops do; nothing has been written then."""
    args, call = arguments(op), getattr(rfops, op)
    shape = OPS[op][1]
    out = torch.full(shape, 7.0, dtype=torch.bfloat16)
    call(*args, out=out.clone())
    cases = [
        (FLOATS[op][0], [leaf(args[0]), *args[1:]], out),
        ("out", args, out.clone().requires_grad_()),
        ("out", args, out.clone().requires_grad_() * 1),
    ]
    for name, given, target in cases:
        with pytest.raises(REFUSED, match=refusal(op, name)):
            call(*given, out=target)
        assert (target == 7.0).all()
        with torch.no_grad():
            call(*given, out=target)
        assert same_bytes(target, call(*args))


# ---------------------------------------------------------------- torch.func, forward mode


@pytest.mark.parametrize("op", FLOATS)
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "jacrev", "jacfwd", "vmap of grad"])
def test_torch_func(op: str, transform: str) -> None:
    func, (x, *remaining) = torch.func, arguments(op)
    x = x.float()  # torch.func has no tangents of float8; the op comes behind a conversion

    def call(x: torch.Tensor) -> torch.Tensor:
        return first(getattr(rfops, op)(x.to(dtype), *remaining)).float()

    def total(x: torch.Tensor) -> torch.Tensor:
        return call(x).sum()

    dtype = arguments(op)[0].dtype
    calls: dict[str, Callable[[], Any]] = {
        "grad": lambda: func.grad(total)(x),
        "vjp": lambda: func.vjp(call, x),
        "jvp": lambda: func.jvp(call, (x,), (torch.ones_like(x),)),
        "jacrev": lambda: func.jacrev(call)(x),
        "jacfwd": lambda: func.jacfwd(call)(x),
        "vmap of grad": lambda: func.vmap(func.grad(total))(x.expand(2, *x.shape)),
    }
    with pytest.raises(REFUSED, match=refusal(op, FLOATS[op][0])):
        calls[transform]()


def test_vmap() -> None:
    """Row by row where an op has no rule of its own; a captured weight's gradient is not lost."""
    x, w, scale = arguments("batched_gemm_a16w8_blockscale")
    call, rows = rfops.batched_gemm_a16w8_blockscale, torch.stack([x, 2 * x])
    expected = torch.stack([call(row, w, scale) for row in rows])
    assert torch.equal(torch.func.vmap(lambda x: call(x, w, scale))(rows), expected)
    weight = leaf(w)
    actual = torch.func.vmap(lambda x: call(x, weight, scale))(rows)
    with pytest.raises(REFUSED, match=refusal("batched_gemm_a16w8_blockscale", "w")):
        actual.float().sum().backward()
    stack = torch.randn(3, 5, 64)
    batched = torch.func.vmap(quant_mxfp8, in_dims=1)(stack)
    for actual, expected in zip(batched, quant_mxfp8(stack.movedim(1, 0)), strict=True):
        assert same_bytes(actual, expected)


@pytest.mark.parametrize("op", OPS)
def test_a_dual_tensor_is_refused(op: str) -> None:
    """It looks like any other: requires_grad is False."""
    args, call = arguments(op), getattr(rfops, op)
    offset = {"grouped_gemm_mxfp8": 12, "gemm_a8w8_blockscale": 2}.get(op, 0)
    for _ in range(2):
        expected = call(*args)
    with forward_ad.dual_level():
        assert same_bytes(call(*args), expected), "no tangent"
        args[offset] = forward_ad.make_dual(args[offset], args[offset].clone())
        with pytest.raises(REFUSED, match=refusal(op, FLOATS[op][offset])):
            call(*args)


# ---------------------------------------------------------------- torch.compile


@pytest.mark.parametrize("op", LATER)
def test_a_compiled_backward_raises(op: str) -> None:
    """And the forward does not, though the backward is traced with it."""
    torch._dynamo.reset()  # one function for all ops, of which it compiles a few variants only
    args, call = arguments(op), getattr(rfops, op)
    compiled = torch.compile(
        lambda *args: first(call(*args)).float() * 2, backend="aot_eager", fullgraph=True
    )
    expected = 2 * first(call(*args)).float()
    assert torch.equal(compiled(*args), expected) and not compiled(*args).requires_grad
    for dynamic in (False, True):
        if dynamic:
            torch._dynamo.mark_dynamic(args[0], 0)
        x = leaf(args[0])
        actual = compiled(x, *args[1:])
        assert torch.equal(actual, expected)
        with pytest.raises(REFUSED, match=refusal(op, FLOATS[op][0])):
            actual.sum().backward()


def test_out_in_a_compiled_function() -> None:
    x, *remaining = arguments("gemm_mxfp8")
    out = torch.empty(2, 24, dtype=torch.bfloat16)
    compiled = torch.compile(
        lambda x: rfops.gemm_mxfp8(x, *remaining, out=out) * 2, backend="aot_eager"
    )
    assert torch.equal(compiled(x), 2 * rfops.gemm_mxfp8(x, *remaining))
    with pytest.raises(REFUSED, match=refusal("gemm_mxfp8", "x")):
        compiled(leaf(x))


# ---------------------------------------------------------------- plans


class Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["native", "native, metadata not found", "python"])
def plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    if request.param == "python":
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
        monkeypatch.setattr(launcher, "_native", None)
        yield Plans()
        return
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    if request.param == "native":
        assert modes._metadata() > (0, 0), "this torch keeps autograd's metadata elsewhere"
        yield Plans()
        return
    native = launcher.native()
    assert native is not None
    with monkeypatch.context() as patch:
        patch.setattr(modes, "_metadata", lambda: (0, 0))
        launcher._set_up(native)
        yield Plans()
    launcher._set_up(native)


def test_a_plan_is_not_found_where_a_gradient_is_wanted(plans: Plans) -> None:
    plain = torch.ones(6)
    plans.add("plan", plain, 3)
    one = torch.ones(6, requires_grad=True)
    wanting = (one, one.view(6), one * 2, torch.nn.Parameter(plain))
    others = (plain, torch.ones(2, 3).view(6), one.detach(), torch.nn.Parameter(plain, False))
    assert [plans.find(tensor, 3) for tensor in others] == ["plan"] * 4
    assert [plans.find(tensor, 3) for tensor in wanting] == [None] * 4
    with torch.no_grad():
        assert [plans.find(tensor, 3) for tensor in wanting] == ["plan"] * 4
    with forward_ad.dual_level():
        assert plans.find(forward_ad.make_dual(plain, plain.clone()), 3) is None
    assert plans.find(plain, 3) == "plan"


def test_metadata_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layout of torch's tensors: no word tells, or two do. All tensors are asked then."""
    assert min(result := modes._metadata()) > 0
    with torch.inference_mode(), Recorder() as mode:
        assert modes._metadata() == result, "whatever is on when the launcher is loaded"
    assert not mode.seen
    for words in ([7] * 8, [0] * 8):
        monkeypatch.setattr(modes, "_read_words", lambda *_, words=words: words)
        assert modes._metadata() == (0, 0)
