"""Any call in any sequence of calls is what it is alone, the same to the last bit as on empty
plans, through the native launcher and through ctypes; and no call keeps what its caller passed."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import rfops
from rfops.attention import mla_decode
from rfops.dispatch.op import ops
from rfops.gemm import a8w8_blockscale
from rfops.jit import compiled_ops
from rfops.jit.launch import launcher
from rfops.jit.launch.plans import Plans
from support.sequences import (
    CallInputs,
    Recipe,
    change,
    compare_with_fresh,
    draw,
    empty_plans,
    outcome,
    sequence,
    without_refused_layouts,
)

LAUNCHERS = "native", "ctypes"
NAMES = sorted(name for name, op in ops().items() if op.modules and "." not in name)
# A call of these takes the virtual GPU 0.2 s and more, and their kernels the compiler seconds: they
# are drawn less often, and by default not at all.
SLOW = {"fused_moe", "fused_moe_mxfp4", "fused_moe_mxfp8", "fused_moe_tables", "mla_decode"}
QUICK_NAMES = [pytest.param(name, marks=[pytest.mark.sweep] * (name in SLOW)) for name in NAMES]
OFTEN = [name for name in NAMES for _ in range(1 if name in SLOW else 3)]
_LAST = 6  # calls of the op that a failure prints


@pytest.fixture(params=LAUNCHERS)
def through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The launcher that all calls of the test go through; all plans are empty."""
    if request.param == "native":
        assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    else:
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
        monkeypatch.setattr(launcher, "_native", None)
        for kernel in compiled_ops():
            monkeypatch.setattr(kernel, "_bound", {})
    with empty_plans():
        yield request.param


def _run(seed: int, length: int, names: list[str], through: str) -> None:
    """Fails at the first call that differs, with what is needed to see it again."""
    done: list[Recipe] = []
    for at, recipe in enumerate(sequence(seed, length, names)):
        difference = compare_with_fresh(CallInputs(recipe))
        if difference:
            before = [one for one in done if one.op == recipe.op]
            pytest.fail(
                f"seed {seed}, call {at}, {through}: {difference}\n  {recipe}\n"
                f"after {_least(before, recipe)}\nthe last calls of the op:\n  "
                + "\n  ".join(map(str, before[-_LAST:]))
            )
        done.append(recipe)


def _least(before: list[Recipe], recipe: Recipe) -> str:
    """The one call after which the recipe differs too, where there is one."""
    for one in reversed(before):
        with empty_plans():
            outcome(CallInputs(one))
            if compare_with_fresh(CallInputs(recipe)):
                return f"this call alone:\n  {one}"
    return "no single call, but all of the sequence"


# The first two find a family of plans that takes the stride of a size of 1 for another's, and one
# that asks no kernel about a page of another size.
@pytest.mark.parametrize(
    ("names", "seed", "length"),
    [
        (["topk_softmax", "moe_router", "grouped_topk"], 6, 60),
        (["mla_decode"], 3, 20),
        ([name for name in NAMES if name not in SLOW], 1, 60),
        pytest.param(OFTEN, 1, 60, marks=pytest.mark.sweep),
    ],
    ids=["choosing", "mla_decode", "quick", "all"],
)
def test_a_call_in_a_sequence_is_what_it_is_alone(
    names: list[str], seed: int, length: int, through: str
) -> None:
    _run(seed, length, names, through)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 140))
def test_long_sequences(through: str, seed: int) -> None:
    """10,000 calls through each launcher, half of them in sequences of one op."""
    names = OFTEN if seed % 2 else [NAMES[seed // 2 % len(NAMES)]]
    _run(seed, 250, names, through)


# ---------------------------------------------------------------- what is kept


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", QUICK_NAMES)
def test_a_call_keeps_nothing(name: str, through: str) -> None:
    """Of several calls no tensor lives on: neither a family's first one nor a plan's."""
    rng, op = random.Random(name), ops()[name]
    recipe, calls = draw(rng, op), 0
    kept: list[tuple[str, Callable[[], bool]]] = []
    for _ in range(40):
        recipe = change(rng, without_refused_layouts(recipe))
        calls += _call_once(recipe, kept)
        if calls == 3:
            break
    gc.collect()
    alive = [what for what, is_alive in kept if is_alive()]
    assert calls == 3 and not alive, f"{len(alive)} of {len(kept)}: {alive}"


def _call_once(recipe: Recipe, kept: list[tuple[str, Callable[[], bool]]]) -> bool:
    """Call it twice, for its plan; whether it had results."""
    call = CallInputs(recipe)
    made = outcome(call), outcome(call)
    pairs = zip([arg.name for arg in call.op.declaration.inputs], call.inputs, strict=False)
    tensors = {f"{recipe}: {name}": value for name, value in pairs}
    tensors |= {f"{recipe}: out {i}": value for i, value in enumerate(call.passed)}
    for name, value in tensors.items():
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                ref = weakref.ref(tensor)
                kept.append((name, lambda ref=ref: ref() is not None))
                memory = StorageWeakRef(tensor.untyped_storage())  # a view of it may live
                kept.append((f"{name}, memory", lambda memory=memory: not memory.expired()))
    return not made[0].error


def test_a_results_memory_is_its_callers(through: str) -> None:
    x = torch.randn(3, 256)
    results = [weakref.ref(t) for _ in range(2) for t in rfops.quant_mxfp8(x)]
    gc.collect()
    assert all(ref() is None for ref in results)


# ---------------------------------------------------------------- single faults


def _expanded(rows: int, columns: int) -> torch.Tensor:
    """One element of a buffer of others as a whole matrix: strides (1, 0), then (0, 0)."""
    return (torch.arange(4096) % 7 + 1.0)[:1][None].expand(rows, columns)


def test_a_scale_of_the_whole_x(through: str) -> None:
    """A row stride of 1 where there is one row, and of 0 where there are several."""
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(64, 256), (128, 128))
    for m in (1, 4, 16, 1):
        x, _ = rfops.quant_fp8_blockscale(torch.randn(m, 256))
        scale = _expanded(m, 2)
        assert scale.stride() == ((1, 0) if m == 1 else (0, 0))
        args = x, w, scale, w_scale, torch.float32
        exact = a8w8_blockscale.gemm_a8w8_blockscale_ref(*args)
        torch.testing.assert_close(
            rfops.gemm_a8w8_blockscale(*args),
            exact,
            rtol=1e-5,
            atol=1e-5 * exact.abs().max().item(),
        )


def test_logits_of_one_row_expanded(through: str) -> None:
    """Every second element of a buffer is a logit; the row stride of one row is arbitrary."""
    logits = torch.arange(100.0) * 37 % 101
    best = logits[:16:2].topk(2).indices.tolist()
    for m in (1, 4, 2):
        rows = logits.as_strided((m, 8), (0 if m > 1 else 16, 2))
        assert rfops.topk_softmax(rows, 2)[1].tolist() == [best] * m


@pytest.mark.parametrize("pages", [(64, 63, 62), (32, 31, 33), (1, 2, 3)])
def test_pages_of_other_sizes(through: str, pages: tuple[int, ...]) -> None:
    """The second and third are refused by the kernel of the first."""
    torch.manual_seed(0)
    for page in pages:
        kv, q = torch.randn(16, page, 1, 576).bfloat16(), torch.randn(2, 4, 576).bfloat16()
        table = torch.randperm(16)[:8].view(2, 4).to(torch.int32)
        lens = torch.tensor([3 * page, 4 * page - 1], dtype=torch.int32)
        got = rfops.mla_decode(q, kv, None, table, 1 / 24, kv_lens=lens)
        exact = mla_decode.mla_decode_ref(q, kv, lens, table, 1 / 24, 2, kv_lens=lens)
        error = (got.float() - exact).norm() / exact.norm()
        assert error < 2.0**-7, f"pages of {page}: relative error {error:.2e}"


def test_a_part_of_its_own(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual GPU's part decides too: a plan made for another one is not found, not even where
    the call's own checks would find the same."""
    monkeypatch.delenv("RFOPS_VGPU_ARCH", raising=False)
    monkeypatch.setenv("RFOPS_VGPU_PART", "MI300X")
    x = torch.randn(2, 256)
    before = [t.clone() for t in rfops.quant_fp8_blockscale(x)]
    monkeypatch.setenv("RFOPS_VGPU_PART", "MI355X")
    payload, _ = rfops.quant_fp8_blockscale(x)
    assert before[0].dtype == torch.float8_e4m3fnuz
    assert payload.dtype == torch.float8_e4m3fn
    plans, logits = ops()["topk_softmax"].plans, torch.randn(3, 8)
    hits = []
    for part in ("MI300X", "MI355X", "MI300X"):
        monkeypatch.setenv("RFOPS_VGPU_PART", part)
        before_call = plans.hits
        rfops.topk_softmax(logits, 2)
        hits.append(plans.hits - before_call)
    assert hits == [0, 0, 1]


@pytest.mark.parametrize("part", ["MI300X", "MI308X", "MI355X"])
def test_plans_of_another_part(through: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = ops()["gemm_mxfp8"].plans.new_table()
    monkeypatch.setenv("RFOPS_VGPU_PART", "MI350X")
    plans.add("plan", torch.ones(3))
    assert plans.find(torch.ones(3)) == "plan"
    monkeypatch.setenv("RFOPS_VGPU_PART", part)
    assert plans.find(torch.ones(3)) is None


def test_values_are_told_apart_by_their_bits(through: str) -> None:
    """0.0 equals -0.0 and is another value; a NaN equals nothing and is found nevertheless."""
    plans = ops()["gemm_mxfp8"].plans.new_table()
    plans.add("plan", 0.0, torch.ones(3))
    assert plans.find(0.0, torch.ones(3)) == "plan"
    assert plans.find(-0.0, torch.ones(3)) is None
    plans.add("none", float("nan"), torch.ones(3))
    assert plans.find(float("nan"), torch.ones(3)) == "none"
    assert plans.find(0.0, torch.ones(3)) == "plan"


def test_values_that_numpy_made(through: str) -> None:
    """np.float64(0.0) is a float too, and equals its negative."""
    plans = ops()["gemm_mxfp8"].plans.new_table()
    plans.add("plan", np.float64(0.0), torch.ones(3))
    assert plans.find(np.float64(-0.0), torch.ones(3)) is None


def test_families_of_other_values_and_parts(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of another size is made by its family alone, which has the values' bits and the part
    of the virtual GPU in its key too."""
    monkeypatch.setenv("RFOPS_VGPU_PART", "MI300X")
    plans = Plans(sizes="M N", shapes=("M,N",))
    for value in (0.0, float("nan")):
        is_native = plans.add_family(lambda *sizes: sizes, torch.ones(2, 4), value)
        assert is_native == (through == "native")
        assert plans.find(torch.ones(3, 4), value) == ((3, 4) if is_native else None)
    assert plans.find(torch.ones(5, 4), -0.0) is None
    assert plans.find(torch.ones(5, 4), 1.0) is None
    monkeypatch.setenv("RFOPS_VGPU_PART", "MI355X")
    assert plans.find(torch.ones(6, 4), 0.0) is None
