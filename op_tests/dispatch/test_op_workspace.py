"""Ops of several launches, and the scratch memory that they share."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rfops.dispatch import workspace
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.steps import Step, run_steps
from rfops.dispatch.workspace import Workspace
from rfops.jit import compile_ops, u32
from rfops.jit.launch import hip
from support.small_ops import MODULE, random, unique

pytestmark = pytest.mark.usefixtures("own_registry", "launch_path")


# ---------------------------------------------------------------- several launches, scratch memory


def partial_sums(partial: torch.Tensor, x: torch.Tensor, n: u32) -> None:
    """The kernel's parameters."""


def total(out: torch.Tensor, partial: torch.Tensor, groups: u32) -> None:
    """The kernel's parameters."""


class Sum(Kernel):
    name, module = "sum", MODULE

    def __init__(self, config: Path) -> None:
        self.compiler_config = config
        self.partial = compile_ops(MODULE, config=config)(partial_sums)
        self.total = compile_ops(MODULE, config=config)(total)

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(n: int) -> Run:
            groups = -(-n // 64)
            return run_steps(
                c.device,
                self.arguments,
                [
                    Step(self.partial, {}, 64, groups, {"n": n}),
                    Step(self.total, {}, 64, 1, {"groups": groups}),
                ],
                workspace={"partial": (groups, torch.float32), "unused": (7, torch.int64)},
            )

        return run_of


def test_launches_share_scratch_memory_that_is_kept(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_arenas", {})
    op = Op(unique("sum"), "x: f32[N]\n-> out: f32[1]", kernels=(Sum(config),))
    for n in (1, 64, 1000, 40_000, 3_000_000, 5):
        x = random(n)
        torch.testing.assert_close(op.call(x, None), x.sum()[None], rtol=1e-4, atol=1e-2)
    (arena,) = workspace._arenas.values()
    assert len(arena.buffers) == 2, "the first is enough until 3,000,000"
    x, out = random(1000), torch.empty(1)
    op.call(x, out)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda *_args, **_more: pytest.fail("allocates"))
        op.call(x, out.fill_(math.nan))
    torch.testing.assert_close(out, x.sum()[None], rtol=1e-4, atol=1e-2)


def test_scratch_memory_is_a_threads_and_a_streams_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_arenas", {})
    cpu = torch.device("cpu")
    scratch = Workspace(cpu, ((2, 5), torch.float32), (3, torch.int64), zeros=9)
    ours, repeated, theirs = scratch(), scratch(), []
    thread = threading.Thread(target=lambda: theirs.append(scratch()))
    thread.start()
    thread.join()
    assert ours is repeated and [t.shape for t in ours] == [(2, 5), (3,), (9,)]
    assert [t.dtype for t in ours] == [torch.float32, torch.int64, torch.int32]
    assert not set(addresses(theirs[0])) & set(addresses(ours)) and not ours[2].any()
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (*ours, *theirs[0]))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(start % 64 == 0 for start, _ in spans)
    assert addresses(Workspace(cpu, (1, torch.int8), zeros=1)()) == addresses(ours[::2]), "kept"
    assert {key[1] for key in workspace._arenas} == {0} and len(workspace._arenas) == 2


def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def test_scratch_memory_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By stream. A captured call has memory of its own, with zeros that the graph writes: those of
    a stream are zero only once something has run there."""
    monkeypatch.setattr(workspace, "_arenas", {})
    streams, capturing = [7], [False]
    monkeypatch.setattr(hip, "raw_stream", lambda _index: streams[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[-1])
    scratch = Workspace(torch.device("cpu"), (10, torch.float32), zeros=3)
    scratch._index = 0  # a GPU's, whose memory is the host's
    ours = scratch()
    assert scratch() is ours
    streams.append(8)
    assert not set(addresses(scratch())) & set(addresses(ours))
    streams.append(7)
    assert scratch() is ours
    capturing.append(True)
    first, second = scratch(), scratch()
    assert not set(addresses(first)) & {*addresses(second), *addresses(ours)}
    assert first[0].shape == (10,) and not first[1].any() and not second[1].any()
    capturing.append(False)
    assert scratch() is ours and len(workspace._arenas) == 2


def test_a_launch_that_fails_leaves_zeros() -> None:
    """Its successor would take them for workgroups that have arrived."""
    scratch = Workspace(torch.device("cpu"), (4, torch.float32), zeros=3)
    recorded_calls = []

    def launch(fails: bool, _parts: torch.Tensor, counts: torch.Tensor) -> None:
        recorded_calls.append(counts.tolist())
        if fails:
            counts.fill_(2)
            raise RuntimeError("half-way")

    run = workspace.with_workspace(launch, scratch)
    for fails in (False, True, False):
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            run(fails)  # type: ignore[arg-type]
    assert recorded_calls == [[0, 0, 0]] * 3


def test_large_scratch_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_arenas", {})
    scratch = Workspace(torch.device("cpu"), (2**28 + 1, torch.uint8), zeros=2)
    (large, zeros), (other, _) = scratch(), scratch()
    assert large.data_ptr() != other.data_ptr() and not zeros.any() and not workspace._arenas
