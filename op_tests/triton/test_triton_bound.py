"""BoundTriton keeps compiled Triton kernels for arguments that they fit, and for no others. What it
does on a GPU is done here on the virtual one, made Triton's device for the time of a test."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.dispatch.kernel import Run
from rfops.jit import BindError
from rfops.triton import bound, split_kernels
from rfops.triton.bound import BoundTriton
from support import vgpu_triton_kernels

SPLITS, BLOCK_N = 2, 64


class Counted:
    """The kernel, counting Triton's own launches."""

    def __init__(self, kernel: Any = split_kernels.add_splits) -> None:
        self.kernel, self.count = kernel, 0

    def __getitem__(self, grid: Any) -> Any:
        self.count += 1
        return self.kernel[grid]


@pytest.fixture(params=["gfx950", "gfx942"])
def searched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted = Counted()
    monkeypatch.setattr(bound, "_compiled", {})
    monkeypatch.setattr(bound.launch, "on_device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(BoundTriton, "is_current", lambda _self: True)
    monkeypatch.setattr(bound.torch.version, "hip", "7.0")  # sizes of storages count
    rfops.vgpu.activate_triton(request.param)
    yield counted
    rfops.vgpu.deactivate_triton()


CONSTANTS = {"COLUMNS": BLOCK_N, "SPLITS": SPLITS}


def add_splits(**constants: int) -> BoundTriton:
    cpu = torch.device("cpu")
    return BoundTriton("rfops.triton.split_kernels", "add_splits", cpu, constants or CONSTANTS)


class Sum:
    """add_splits, prepared once; a launch for each shape is kept as plans do."""

    def __init__(self, counted: Counted) -> None:
        bound = add_splits()
        bound.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
        bound.jit = counted
        self.prepare = bound.prepare("out partials", strides={"out": "out_m _"})
        self.launches: dict[tuple[int, int], Run] = {}

    def __call__(self, out: torch.Tensor, partials: torch.Tensor) -> None:
        m, n = out.shape
        grid = m, -(-n // BLOCK_N), 1
        if (m, n) not in self.launches:
            self.launches[m, n] = self.prepare(grid, n=n, m=m)
        self.launches[m, n](out, partials)


def run(result: Sum, m: int, n: int, apart: int = 0, skip: int = 0, **options: Any) -> None:
    """`apart` more columns between rows of out, which starts `skip` elements into its memory."""
    partials = torch.randn(SPLITS, m, n)
    memory = torch.full((skip + m * (n + apart),), 7.0, **options)
    out = memory[skip:].view(m, n + apart)[:, :n]
    result(out, partials)
    expected = (partials[0] + partials[1]).to(out.dtype)
    assert torch.equal(out, expected), f"{m} x {n}: differs"
    remaining = memory[skip:].view(m, n + apart)[:, n:]
    assert (memory[:skip] == 7).all() and (remaining == 7).all(), "written outside"


SHAPES = [*itertools.product((1, 2, 16), (1, 2, 15, 16, 17, 32, 100), (0, 1, 16), (0, 1))]


def test_one_bound_kernel_takes_any_numbers(searched: Counted) -> None:
    result = Sum(searched)
    for _ in range(2):
        for m, n, apart, skip in SHAPES:
            run(result, m, n, apart, skip)
        first, searched.count = searched.count, 0
    assert searched.count == 0, "known the second time"
    assert first < len(SHAPES) / 3


def test_others_find_what_one_has_compiled(searched: Counted) -> None:
    for n in range(2, 60):
        run(Sum(searched), 3, n)
    assert searched.count == 2, "multiples of 16, and others"
    run(Sum(searched), 3, 17, dtype=torch.bfloat16)
    assert searched.count == 3, "another type of out"
    run(Sum(searched), 3, 17, skip=1)
    assert searched.count == 4, "another alignment"


def test_what_is_kept_is_bounded(searched: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "_MAX_CACHED", 8)
    result = Sum(searched)
    for m in range(1, 40):
        run(result, 3, 5, apart=m)
        (launch,) = result.launches.values()
        assert len(launch._cached) <= 8 and len(bound._compiled) <= 8  # type: ignore[attr-defined]
    assert searched.count < 4


@pytest.mark.usefixtures("searched")
def test_a_number_may_be_a_tuple() -> None:
    """Of tuples too; what is kept fits all tuples whose numbers are specialised alike."""
    bound = BoundTriton(
        "support.vgpu_triton_kernels", "copy_strided", torch.device("cpu"), {"COLUMNS": BLOCK_N}
    )
    bound.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
    bound.jit = counted = Counted(vgpu_triton_kernels.copy_strided)
    prepared = bound.prepare("out x")
    counts = []
    for m, n, step in [*itertools.product((2, 3), (1, 16, 17, 19), (1, 2, 16))] * 2:
        x = torch.randn(m, n * step)[:, ::step]
        out = torch.full((m, n), float("nan"))
        prepared((m, 1, 1), layout=((m, n), x.stride()))(out, x)
        assert torch.equal(out, x), f"{m} x {n}, strides {x.stride()}"
        counts.append(counted.count)
    assert counts[-1] == counts[len(counts) // 2 - 1], "known the second time"
    assert counts[-1] < len(counts) / 4, "others of their kind are found"


# ---------------------------------------------------------------- names


def test_arguments_go_by_name() -> None:
    """Each order of the launch's arguments gives the same, those that it ignores and those of
    another name too; on the virtual GPU without what a GPU keeps."""
    m, n = 3, 100
    partials = torch.randn(SPLITS, m, n)
    expected = partials[0] + partials[1]
    for arguments, sources, order in (
        ("out partials", {}, (0, 1)),
        ("partials out", {}, (1, 0)),
        ("ignored partials sums out", {"out": "sums"}, (2, 1, 0, 2)),
    ):
        out, ignored = torch.full((m, n), float("nan")), torch.full((m, n), 7.0)
        given = [(out, partials, ignored)[offset] for offset in order]
        source = next(iter(sources.values()), "out")
        bound = add_splits()
        launch = bound.prepare(arguments, sources=sources, strides={source: "out_m _"})
        launch((m, -(-n // BLOCK_N), 1), n=n, m=m)(*given)
        assert torch.equal(out, expected) and bool((ignored == 7).all()), arguments


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda: add_splits(COLUMNS=64), "constants must be SPLITS, COLUMNS, got COLUMNS"),
        (lambda: add_splits(**CONSTANTS, WIDE=1), "constants must be SPLITS, COLUMNS, got"),
        (
            lambda: add_splits().prepare("out partials", sources={"sums": "out"}),
            "sources and strides must be of its parameters, out partials m n out_m, got sums",
        ),
        (
            lambda: add_splits().prepare("out partials", strides={"out": "SPLITS _"}),
            "sources and strides must be of its parameters, out partials m n out_m, got SPLITS",
        ),
        (
            lambda: add_splits().prepare("partials"),
            "out must have a source among the launch's arguments, partials, got none. Tensors come",
        ),
        (
            lambda: add_splits().prepare("out", sources={"partials": "sums"}),
            "sources and strides must come from the launch's arguments, out, got sums",
        ),
    ],
)
def test_names_are_checked_when_a_kernel_is_bound(
    prepare: Callable[[], object], message: str
) -> None:
    with pytest.raises(BindError, match=f"^add_splits: {re.escape(message)}"):
        prepare()


def test_numbers_are_checked_when_a_launch_is_made() -> None:
    launch = add_splits().prepare("out partials", strides={"out": "out_m _"})
    for numbers, given in (({"m": 1}, "m"), ({"m": 1, "n": 2, "k": 3}, "m, n, k")):
        with pytest.raises(TypeError, match=f"^add_splits: numbers must be m, n, got {given}. A"):
            launch((1, 1, 1), **numbers)
    with pytest.raises(TypeError, match="numbers must be partials, m, n, out_m, got m"):
        add_splits().prepare("out")((1, 1, 1), m=1)
