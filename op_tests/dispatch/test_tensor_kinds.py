"""Arguments that are no tensor in plain memory: wrong Python types, lazily negated, sparse, nested,
quantized and meta tensors, subclasses. Every op by every tensor argument and result: a ValueError
that names op, argument, expectation and fix, or the result of the plain tensor."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import rfops
from rfops.dispatch.declare import TensorArg
from rfops.jit.launch import launcher, modes
from support.small_calls import Case, arguments, cases, public, replaced, tensors_of

FIRST = [case for case in cases() if case.name in ("few", "rows")]


class Watch(TorchFunctionMode):
    """Sends calls to torch's dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Marked(torch.Tensor):
    """A subclass that leaves all to torch."""


def values_of_wrong_types(good: torch.Tensor) -> dict[str, Any]:
    return {
        "an int": 3,
        "a float": 1.5,
        "a str": "x",
        "a list": [1.0, 2.0],
        "a tuple": (),
        "an empty list": [],
        "a list of lists": [[0, 1], [1, 0]],
        "a list of tensors": [good],
        "numpy's array": np.zeros((2, 2), np.float32),
        "a dtype": torch.float32,
        "a class": torch.Tensor,
    }


def strange_tensors(good: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    like = torch.zeros(good.shape)
    yield "negated", torch._neg_view(good)
    with torch.inference_mode():
        yield "negated in inference", torch._neg_view(good)
    yield "meta", good.to("meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield "sparse", like.to_sparse()
        yield "sparse rows", torch.eye(4).to_sparse_csr()
        yield "quantized", torch.quantize_per_tensor(like, 1.0, 0, torch.qint8)
        parts = [torch.zeros(2, 3), torch.zeros(4, 3)]
        yield "nested", torch.nested.nested_tensor(parts)
        yield "jagged", torch.nested.nested_tensor(parts, layout=torch.jagged)
        if torch.backends.mkldnn.is_available():
            yield "mkldnn", torch.zeros(4, 4).to_mkldnn()
    yield "conjugated", torch.zeros(good.shape, dtype=torch.complex64).conj()


@pytest.fixture(params=["native", "python"])
def _launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    else:
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
        monkeypatch.setattr(launcher, "_native", None)


@pytest.fixture(params=FIRST, ids=str)
def warm(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _launcher: None
) -> tuple[Case, list[Any]]:
    """A call that has a plan, from which a strange argument must differ."""
    case = request.param
    monkeypatch.setattr(case.op, "plans", case.op.plans.new_table())
    args = arguments(case)
    case.op.call(*args)
    return case, args


def assert_refused(case: Case, args: list[Any], name: str, label: str) -> None:
    for mode in (contextlib.nullcontext(), Watch()):
        with mode, pytest.raises(ValueError) as error:
            case.op.call(*args)
            pytest.fail(f"{case} {name}: {label} is taken")
        text = str(error.value)
        head = f"{case.op.name}: {name}"
        assert text.startswith(head) and " must be " in text and ", got " in text, (label, text)
        assert "; " in text and len(text) < 400, (label, text)


def test_wrong_types(warm: tuple[Case, list[Any]]) -> None:
    case, args = warm
    for offset, position, arg, tensor in tensors_of(case.op, args):
        bad = values_of_wrong_types(tensor)
        if not arg.optional:
            bad["None"] = None
        for label, value in bad.items():
            if position <= 0:
                assert_refused(case, replaced(args, offset, position, value), arg.name, label)
    for i, result in enumerate(case.op.declaration.passed):
        for label, value in values_of_wrong_types(torch.zeros(2)).items():
            wrong = replaced(args, case.op.num_inputs + i, -1, value)
            assert_refused(case, wrong, result.name, label)


def test_strange_tensors(warm: tuple[Case, list[Any]]) -> None:
    case, args = warm
    for offset, position, arg, tensor in tensors_of(case.op, args):
        for label, value in strange_tensors(tensor):
            given = replaced(args, offset, position, value)
            if label == "meta":  # torch's dispatcher answers with meta tensors
                with pytest.raises(ValueError, match=rf"{arg.name}\S* must be on"):
                    case.op.call(*given)
            else:
                assert_refused(case, given, arg.name, label)


def test_a_strange_result(warm: tuple[Case, list[Any]]) -> None:
    case, args = warm
    results = case.op.call(*args)
    results = [results] if isinstance(results, torch.Tensor) else list(results or ())
    for i, (arg, result) in enumerate(zip(case.op.declaration.passed, results, strict=False)):
        given = replaced(args, case.op.num_inputs + i, -1, torch.empty_like(result))
        case.op.call(*given)  # so that there is a plan
        for label, value in strange_tensors(result):
            if label != "meta":
                wrong = replaced(args, case.op.num_inputs + i, -1, value)
                assert_refused(case, wrong, arg.name, label)


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_a_subclass_is_the_tensor(case: Case) -> None:
    args = arguments(case)
    written = {i for i, a in enumerate(case.op.declaration.inputs) if getattr(a, "written", False)}

    def call(given: list[Any]) -> list[torch.Tensor]:
        copies = [v.clone() if i in written and v is not None else v for i, v in enumerate(given)]
        result = case.op.call(*copies)
        return [result] if isinstance(result, torch.Tensor) else list(result or ())

    expected = call(args)
    for offset, position, _arg, tensor in tensors_of(case.op, args):
        actual = call(replaced(args, offset, position, tensor.as_subclass(Marked)))
        for one, other in zip(actual, expected, strict=True):
            assert torch.equal(
                one.as_subclass(torch.Tensor).view(torch.uint8), other.view(torch.uint8)
            )


def test_the_negative_bit_is_found() -> None:
    """The native table reads it at an offset that is probed; without one it asks each tensor."""
    offset, bit = modes.negative_bit()
    assert offset and bit.bit_count() == 1
    with torch.inference_mode():
        tensors = torch.ones(3), torch._neg_view(torch.ones(3)), torch.ones(2, 2).T
    for tensor in (*tensors, torch._neg_view(torch.ones(4)), torch.ones(5, requires_grad=True)):
        (word,) = modes._read_words(tensor._cdata + offset, 1)
        assert bool(word & bit) == tensor.is_neg()


@pytest.mark.parametrize("case", ["the keys stand twice", "two bits differ"])
def test_an_ambiguous_negative_bit_is_not_used(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """(0, 0): the native table then asks each tensor."""
    offset, _ = modes.negative_bit()
    words, negated = modes._read_words, torch._neg_view

    def twice(address: int, count: int) -> list[int]:
        result = words(address, count)
        return [*result[:-1], result[offset // 8]]

    def on_another_device(tensor: torch.Tensor) -> torch.Tensor:
        return negated(tensor) if tensor.is_floating_point() else tensor.to("meta")

    if case == "the keys stand twice":
        monkeypatch.setattr(modes, "_read_words", twice)
    else:
        monkeypatch.setattr(torch, "_neg_view", on_another_device)
    assert modes.negative_bit() == (0, 0)


# ---------------------------------------------------------------- public functions


PUBLIC = [case for case in FIRST if hasattr(rfops, case.op.name)]


@pytest.mark.parametrize("case", PUBLIC, ids=str)
def test_wrong_types_of_public_arguments(case: Case) -> None:
    function, good = public(case)
    function(**good)
    tensors = {arg.name: arg for arg in case.op.declaration.inputs if isinstance(arg, TensorArg)}
    names = [name for name, value in good.items() if name in tensors and value is not None]
    names += [arg.name for arg in case.op.declaration.passed]
    for name in names:
        bad = values_of_wrong_types(torch.zeros(2))
        if name in tensors and not tensors[name].optional:
            bad["None"] = None
        for label, value in bad.items():
            with pytest.raises(ValueError, match=rf"^{case.op.name}\w*: .* must be .*, got "):
                function(**{**good, name: value})
                pytest.fail(f"{name}: {label} is taken")


def test_every_op_has_a_public_function_or_stands_behind_one() -> None:
    behind = {"fused_moe_fp8", "fused_moe_tables", "fused_moe_mxfp4", "fused_moe_mxfp8"}
    assert {case.op.name for case in cases()} - {c.op.name for c in PUBLIC} == behind
