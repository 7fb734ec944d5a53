"""The notation of an op's arguments, its mistakes, and what refusals say."""

from __future__ import annotations

import re

import pytest
import torch

import rfops
from rfops.dispatch import guards
from rfops.dispatch.declare import Declaration
from rfops.dispatch.op import Op, ops
from support.small_ops import random, unique

pytestmark = pytest.mark.usefixtures("own_registry", "launch_path")


def test_the_notation() -> None:
    d = Declaration.parse(
        """
        x: e4m3|u8[M, K] @16
        s: e8m0[M^128, K/32] strided
        rows: R >= 0
        flag: bool
        dtype: bf16|f16
        w: f32[*R]?
        ids: any?
        -> out: dtype[M, 16]
        """
    )
    assert d.sizes == ("M", "K", "R") and [a.name for a in d.passed] == ["out"]
    assert Declaration.parse("x: f32[M]\n-> y: f32[M] new").passed == ()
    assert d.patterns == ("M,K", "M^128,K/32", "R", "", "", "*R", "?", "M,16")
    assert [a.name for a in d.values] == ["rows", "flag", "dtype"] and d.written == (7,)
    assert Declaration.parse("x: fp4[M, K/2]\n-> y: f32[M]").sizes == ("M", "K")
    two = Declaration.parse("a: f32[N]\nx: f32[*M, K]\nw: f32[*N, K]\n-> y: f32[*N, K]")
    assert two.leader(two.results[0]).name == "w", "not x, nor the a that is of N without a star"
    starred = Declaration.parse("x: f32[*M, K]\n-> y: f32[*M]\n-> n: i32[1]")
    assert starred.sizes == ("M", "K") and starred.patterns == ()
    for wrong in (
        "x",
        "x: f33[M]",
        "x: f32[M+1]",
        "x: f32[M] @",
        "x: a b",
        "x: f32[K^32]",
        "x: f32[M]\n-> y: f32[M] new\n-> z: f32[M]",
    ):
        with pytest.raises(ValueError):
            Declaration.parse(wrong)


def test_a_mistake_in_the_notation_is_named() -> None:
    told = {
        "x: bf17[M]\n-> y: f32[M]": r"op typo: x: 'bf17' is no dtype \(near: bf16\): expected any",
        "x: bf16|f33[M]\n-> y: f32[M]": r"op typo: x: 'f33' is no dtype",
        "x: f32[M+1]\n-> y: f32[M]": r"op typo: 'M\+1' is no extent: expected N, N/32",
        "x: f32[M]\n-> y: float": r"op typo: '-> y: float': a result must be a tensor",
        "x: f32[K^32]\n-> z: f32[K]": r"op typo: 'x: f32\[K\^32\]': K stands alone",
        "x: a b\n-> y: f32[M]": r"op typo: x: 'a b' is no argument",
    }
    for text, message in told.items():
        with pytest.raises(ValueError, match=message):
            Op("typo", text, kernels=())
    with pytest.raises(ValueError, match="op typo: coarse: 'N' is no size of it"):
        Op("typo", "x: f32[M]\n-> y: f32[M]", kernels=(), coarse={"N": 1})
    assert "typo" not in ops()


def test_the_way_out_is_that_of_the_check() -> None:
    """A wrong dtype is converted and a wrong shape reshaped, also with leading dimensions."""
    op = Op(unique("way"), "x: bf16[*M, K]\ny: f32[*M]\n-> out: bf16[*M, K]", kernels=())
    x, y = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(2)
    for args, way in (
        ((x.float(), y), "x must be bfloat16, got [2, 4] float32 on cpu; convert it first"),
        ((x[0, 0], y), "x must be a [..., K] tensor, got [] bfloat16 on cpu; reshape it"),
        ((None, y), "x must be a [..., K] tensor, got NoneType None; pass a torch.Tensor"),
        ((x, torch.ones(3)), "y must be of M = 2 elements, got [3]; reshape it"),
    ):
        with pytest.raises(ValueError, match=re.escape(way)):
            op.call(*args, None)


def test_describe_is_what_messages_say() -> None:
    with pytest.raises(ValueError, match=r"f: dtype must be bfloat16, got torch\.float32; convert"):
        guards.check_dtype("f", "dtype", torch.float32, (torch.bfloat16,))
    assert guards.describe(random(2)) == "[2] float32 on cpu" and rfops.__version__
