"""BoundTriton keeps compiled Triton kernels for arguments that they fit, and for no others. What it
does on a GPU is done here on the virtual one, made Triton's device for the time of a test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.triton import bound, split_kernels
from rfops.triton.bound import BoundTriton

SPLITS, BLOCK_N = 2, 64


class Counted:
    """The kernel, counting Triton's own launches."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, grid: Any) -> Any:
        self.count += 1
        return split_kernels.add_splits[grid]


@pytest.fixture(params=["gfx950", "gfx942"])
def searched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted = Counted()
    monkeypatch.setattr(bound, "_compiled", {})
    monkeypatch.setattr(bound.launch, "on", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(BoundTriton, "_is_current", lambda _self: True)
    monkeypatch.setattr(bound.torch.version, "hip", "7.0")  # sizes of storages count
    rfops.vgpu.activate_triton(request.param)
    yield counted
    rfops.vgpu.deactivate_triton()


def kernel(counted: Counted) -> BoundTriton:
    made = BoundTriton("split_kernels", "add_splits", torch.device("cpu"), (SPLITS, BLOCK_N))
    made._device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
    made._jit, made._driver = counted, None
    return made


def run(made: BoundTriton, m: int, n: int, apart: int = 0, skip: int = 0, **options: Any) -> None:
    """`apart` more columns between rows of out, which starts `skip` elements into its memory."""
    parts = torch.randn(SPLITS, m, n)
    memory = torch.full((skip + m * (n + apart),), 7.0, **options)
    out = memory[skip:].view(m, n + apart)[:, :n]
    made((m, -(-n // BLOCK_N), 1), (out, parts), (m, n, out.stride(0)))
    wanted = (parts[0] + parts[1]).to(out.dtype)
    assert torch.equal(out, wanted), f"{m} x {n}: differs"
    rest = memory[skip:].view(m, n + apart)[:, n:]
    assert (memory[:skip] == 7).all() and (rest == 7).all(), "written outside"


SHAPES = [*itertools.product((1, 2, 16), (1, 2, 15, 16, 17, 32, 100), (0, 1, 16), (0, 1))]


def test_one_bound_kernel_takes_any_numbers(searched: Counted) -> None:
    made = kernel(searched)
    for _ in range(2):
        for m, n, apart, skip in SHAPES:
            run(made, m, n, apart, skip)
        first, searched.count = searched.count, 0
    assert searched.count == 0, "known the second time"
    assert first < len(SHAPES) / 3


def test_others_find_what_one_has_compiled(searched: Counted) -> None:
    for n in range(2, 60):
        run(kernel(searched), 3, n)
    assert searched.count == 2, "multiples of 16, and others"
    run(kernel(searched), 3, 17, dtype=torch.bfloat16)
    assert searched.count == 3, "another type of out"
    run(kernel(searched), 3, 17, skip=1)
    assert searched.count == 4, "another alignment"


def test_what_is_kept_is_bounded(searched: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "_MOST", 8)
    made = kernel(searched)
    for m in range(1, 40):
        run(made, m, 5)
        assert len(made._known) <= 8 and len(bound._compiled) <= 8
    assert searched.count < 4
