"""moe_align_block_size against a Python loop: results are integers, so they are equal or wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rfops.vgpu
from rfops.dispatch import workspace
from rfops.jit.launch import launcher
from rfops.moe import align_block_size as op_module
from rfops.moe.align_block_size import OP, moe_align_block_size, moe_align_block_size_ref

ARCHS = ("gfx942", "gfx950")
NAMES = ("sorted_token_ids", "expert_ids", "num_tokens_post_padded")


@pytest.fixture(params=ARCHS)
def device(request: pytest.FixtureRequest) -> torch.device:
    device: torch.device = request.getfixturevalue(request.param)
    return device


def random_ids(
    rows: int, experts: int, dtype: torch.dtype = torch.int32, outside: int = 0
) -> torch.Tensor:
    """Experts from -outside to experts - 1 + outside."""
    generator = torch.Generator().manual_seed(1009 * rows + experts)
    return torch.randint(-outside, experts + outside, (rows,), generator=generator).to(dtype)


def half_local(experts: int) -> torch.Tensor:
    """An expert map: odd experts are local, in order; even ones are elsewhere."""
    local = torch.arange(experts, dtype=torch.int32) // 2
    return local.masked_fill(torch.arange(experts) % 2 == 0, -1)


def assert_same(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for name, ours, theirs in zip(NAMES, actual, expected, strict=True):
        assert ours.dtype == torch.int32 and ours.shape == theirs.shape, name
        wrong = (ours.cpu() != theirs.cpu()).nonzero().view(-1)
        assert not len(wrong), (
            f"{name}: {len(wrong)} of {len(ours)} differ, first at {int(wrong[0])}: "
            f"got {int(ours[wrong[0]])}, expected {int(theirs[wrong[0]])}"
        )


def check(device: torch.device, ids: torch.Tensor, *args: Any, **options: Any) -> None:
    """The op and its torch route against the reference."""
    expected = moe_align_block_size_ref(ids, *args, **options)
    moved = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in options.items()}
    assert_same(moe_align_block_size(ids.to(device), *args, **moved), expected)
    experts, ignore = options.get("expert_map"), options.get("ignore_invalid_experts")
    by_torch = tuple(torch.full_like(tensor, -7) for tensor in expected)
    c = OP.call_of(
        rows=ids.numel(), E=args[1], block_size=args[0], ignore_invalid_experts=bool(ignore)
    )
    OP.prepare("torch", c)(op_module.Aligned(*by_torch), ids, experts)
    assert_same(by_torch, expected)


TRITON = {
    "decode": (random_ids(24, 8, outside=2), 16, 8, {}),
    "many": (random_ids(3000, 129, torch.int64, outside=40), 5, 129, {"pad_sorted_ids": True}),
    "one": (random_ids(70, 1), 1, 1, {}),
    "no rows": (random_ids(0, 8), 16, 8, {}),
    "a map": (random_ids(1100, 8), 16, 8, {"expert_map": half_local(8)}),
    "local": (
        random_ids(1100, 8, outside=1),
        16,
        8,
        {"expert_map": half_local(8), "ignore_invalid_experts": True},
    ),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", TRITON)
def test_triton(case: str, gfx950: torch.device) -> None:
    """The same to the bit, in memory that is its results' alone."""
    ids, block, experts, options = TRITON[case]
    expected = moe_align_block_size_ref(ids, block, experts, **options)
    memory = [torch.full((len(t) + 256,), -7, dtype=torch.int32) for t in expected]
    result = [m[128:-128] for m in memory]
    flags = {name: value for name, value in options.items() if name != "expert_map"}
    c = OP.call_of(rows=ids.numel(), E=experts, block_size=block, topk_ids_dtype=ids.dtype, **flags)
    run = OP.prepare("triton", c)
    with rfops.vgpu.check() as checked:
        run(op_module.Aligned(*result), ids, options.get("expert_map"))
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert_same(tuple(result), expected)
    assert all((m[:128] == -7).all() and (m[-128:] == -7).all() for m in memory)


def test_example_of_the_module() -> None:
    actual = moe_align_block_size(torch.tensor([[2, 0], [0, 2]], dtype=torch.int32), 2, 3)
    assert [t.tolist() for t in actual] == [[1, 2, 0, 3, 4, 4, 4], [0, 2, 0, 0], [4]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("block_size", [1, 5, 16, 128])
@pytest.mark.parametrize("experts", [1, 8, 129, 256])
def test_blocks_and_experts(
    experts: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    check(device, random_ids(140, experts, dtype), block_size, experts)


@pytest.mark.parametrize("experts", [1023, 1024, 2000, 5000])
def test_many_experts(experts: int, device: torch.device) -> None:
    """LDS holds fewer waves' counters the more experts there are."""
    check(device, random_ids(700, experts), 16, experts)


def test_more_experts_than_lds_holds_take_the_torch_route(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_module, "_launches", None)
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    check(device, random_ids(700, 6000), 4, 6000)


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 1023, 1025, 8192, 8193, 30000])
def test_rows(rows: int, device: torch.device) -> None:
    """Around a wave's turn, and from 8193 on several workgroups and the counting kernel."""
    check(device, random_ids(rows, 33), 8, 33)


def test_rows_of_one_expert_only(device: torch.device) -> None:
    for rows in (1, 100, 20000):
        check(device, torch.full((rows,), 5, dtype=torch.int32), 16, 8)


@pytest.mark.parametrize("rows", [90, 9000])
@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("pad", [False, True])
def test_expert_map_and_invalid_experts(
    pad: bool, ignore: bool, rows: int, device: torch.device
) -> None:
    """Ids outside 0..E-1 among them; the map's -1 stay as blocks, or are left out."""
    options = {
        "expert_map": half_local(37),
        "pad_sorted_ids": pad,
        "ignore_invalid_experts": ignore,
    }
    check(device, random_ids(rows, 37, outside=3), 16, 37, **options)


def test_shape_of_topk_ids_does_not_matter() -> None:
    ids = random_ids(60, 7)
    assert_same(moe_align_block_size(ids.view(15, 4), 4, 7), moe_align_block_size(ids, 4, 7))


def test_rows_and_experts_that_change_every_call(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked once, right each time; and what the guards refuse they still do."""
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    plans, checks, guard = OP.plans.new_table(), [], OP.check
    monkeypatch.setattr(OP, "plans", plans)
    monkeypatch.setattr(OP, "check", lambda args: checks.append(1) or guard(args))
    cases = [(rows, 8) for rows in range(1, 40)] + [(33, experts) for experts in (1, 9, 64, 6000)]
    for rows, experts in cases:
        check(device, random_ids(rows, experts), 4, experts)
    assert len(checks) == 1 and len(plans) == len(cases)
    local = half_local(8)
    for rows in (5, 6):
        check(device, random_ids(rows, 8), 4, 8, expert_map=local)
    assert len(checks) == 2
    ids = random_ids(5, 8).to(device)
    with pytest.raises(ValueError, match="expert_map must be a"):
        moe_align_block_size(ids, 4, 9, expert_map=local.to(device))
    with pytest.raises(ValueError, match="topk_ids must be small enough"):
        moe_align_block_size(ids, 4, 2**27)


def test_writes_all_of_its_output_and_nothing_else(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every element poisoned first, guard words around each tensor; of the scratch memory only the
    counts of the workgroups."""
    buffers = []

    def poisoned(size: Any, **options: Any) -> torch.Tensor:
        size = tuple(size)
        count = torch.Size(size).numel()
        buffer = torch.full((count + 128,), -77, **options)
        buffers.append(buffer)
        return buffer[64 : 64 + count].view(size)

    ids = random_ids(9000, 40).to(device)
    expected = moe_align_block_size_ref(ids, 16, 40)
    monkeypatch.setattr(workspace, "_arenas", {})
    monkeypatch.setattr(op_module.OP, "plans", op_module.OP.plans.new_table())
    assert_same(moe_align_block_size(ids, 16, 40), expected)
    ((scratch,),) = (arena.buffers for arena in workspace._arenas.values())
    scratch.fill_(177)
    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(op_module.OP, "plans", op_module.OP.plans.new_table())
    actual = moe_align_block_size(ids, 16, 40)
    monkeypatch.undo()
    assert_same(actual, expected)
    counts = 4 * 40 * -(-9000 // op_module.GROUP_ROWS)
    assert (scratch[:counts].view(torch.int32) < 9000).all() and (scratch[counts:] == 177).all()
    assert len(buffers) == 3
    for buffer in buffers:
        assert (buffer[:64] == -77).all() and (buffer[-64:] == -77).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_checker_finds_nothing(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    with rfops.vgpu.check() as checked:
        moe_align_block_size(random_ids(9000, 40, outside=1), 16, 40, half_local(40))
        moe_align_block_size(random_ids(20, 128), 16, 128)
    assert not checked.findings


def test_resources(device: torch.device) -> None:
    for op in (op_module.moe_align_count, op_module.moe_align_place):
        resources = op.bind(device, op_module._defines(16, torch.int64)).resources
        assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch"] == 0
        assert resources["waves_per_simd"] == 8


@pytest.mark.parametrize("options", [{}, {"expert_map": half_local(9), "pad_sorted_ids": True}])
def test_opcheck(options: dict[str, Any]) -> None:
    args = (random_ids(12, 9), 4, 9, options.get("expert_map"), "pad_sorted_ids" in options, False)
    torch.library.opcheck(torch.ops.rfops.moe_align_block_size.default, args)


def test_compiles() -> None:
    """Traced as one op, with a number of rows that may change."""

    def used(ids: torch.Tensor) -> torch.Tensor:
        return moe_align_block_size(ids, 4, 9).sorted_token_ids + 1

    compiled = torch.compile(used, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (12, 20, 33):
        ids = random_ids(rows, 9)
        assert torch.equal(compiled(ids), used(ids))


def test_supports() -> None:
    assert moe_align_block_size.supports(arch="gfx942", dtype=torch.int64)  # type: ignore[attr-defined]
    assert not moe_align_block_size.supports(arch="gfx950", dtype=torch.int16)  # type: ignore[attr-defined]


IDS = torch.zeros(4, dtype=torch.int32)
REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "a list": (([0, 1], 4, 2), r"topk_ids must be a tensor, got list \[0, 1\]; pass a torch"),
    "float ids": ((torch.zeros(4), 4, 2), r"topk_ids must be int32 or int64, got \[4\] float32"),
    "strided ids": ((torch.zeros(4, 2, dtype=torch.int32).T, 4, 2), "topk_ids must be contiguous"),
    "block of 0": ((IDS, 0, 2), "block_size must be an int from 1 to .*, got 0; pass"),
    "no experts": ((IDS, 4, 0), "num_experts must be an int from 1 to .*, got 0; pass"),
    "experts as float": ((IDS, 4, 2.0), "num_experts must be an int from 1 to .*, got 2.0; pass"),
    "map too short": (
        (IDS, 4, 3, torch.zeros(2, dtype=torch.int32)),
        r"expert_map must be a \[num_experts=3\] tensor, got \[2\]",
    ),
    "map of int64": (
        (IDS, 4, 2, torch.zeros(2, dtype=torch.int64)),
        "expert_map must be int32, .*int64",
    ),
    "map strided": (
        (IDS, 4, 2, torch.zeros(4, dtype=torch.int32)[::2]),
        "expert_map must be contiguous",
    ),
    "too many slots": ((IDS, 2**20, 2**9), "topk_ids must be small enough for 536870912 slots"),
    "another device": ((IDS.to("meta"), 4, 2), "topk_ids must be on a GPU .*on meta"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    args, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^moe_align_block_size: {message}"):
        moe_align_block_size(*args)


def test_torch_route_makes_no_tensor_of_a_number() -> None:
    """Which would lie on the host, and whose copy ends a capture into a graph on a GPU."""
    ran = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            ran.add(str(func))
            return func(*args, **(kwargs or {}))

    ids = random_ids(12, 9)
    result = [torch.zeros(n, dtype=torch.int32) for n in op_module.layout_sizes(12, 4, 9, False)]
    aligned = op_module.Aligned(*result, torch.zeros(1, dtype=torch.int32))
    c: Any = SimpleNamespace(block_size=4, ignore_invalid_experts=True)
    with Watch():
        op_module.align_by_torch(c, 9, aligned, ids, half_local(9))
    assert "aten.sort.stable" in ran and not [name for name in ran if "lift" in name]
