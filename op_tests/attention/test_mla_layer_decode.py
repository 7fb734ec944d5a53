"""mla_layer_decode: its formula by every kernel, what it leaves alone, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops.attention import mla_decode
from rfops.attention.mla_decode_flow import rotates_keys
from rfops.attention.mla_decode_shared import mla_decode_shared
from rfops.attention.mla_layer_decode import OP, mla_layer_decode, rope_angles
from rfops.attention.mla_layer_decode_triton import LayerTritonConfig
from rfops.attention.mla_layer_parts import attention_call, attention_kernel
from rfops.attention.mla_layer_products import QUERY_WIDE, products, query_defines, query_groups
from rfops.challenge import mla_decode as challenge
from rfops.dispatch.declare import fp8_of
from support.layer_problems import BF16, Problem, assert_cache, assert_correct, problem, run

KERNELS = [("gfx950", "torch"), ("gfx942", "hip"), ("gfx950", "hip"), ("gfx950", "triton")]


@pytest.fixture(params=KERNELS, ids="-".join)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    arch, name = request.param
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    return str(name)


# Of rows of x: one, a tile and one more, two workgroups'; of K: less than a step, half a step at
# the end, several workgroups; of the cache: pages of 1, 32 and 256 rows.
SHAPES: dict[str, dict[str, Any]] = {
    "one": {"lens": [0], "heads": 1, "dim": 32, "rank": 32},
    "ragged": {"lens": [5, 0, 31, 64, 16], "heads": 3, "rows": 96},
    "tiles": {"lens": [3] * 17, "heads": 2, "dim": 2080, "rank": 64, "rows": 5},
    "challenge": {"lens": [128, 200], "heads": 16, "dim": 256, "rank": 128, "rows": 256},
}
MORE: dict[str, dict[str, Any]] = {
    "columns": {"lens": [1] * 65, "heads": 1, "dim": 800, "rank": 4000, "rows": 4},
    "wide": {"lens": [2] * 65, "heads": 5, "dim": 288, "rank": 64, "rows": 4},
    "two_groups": {"lens": [2] * 130, "heads": 1, "dim": 64, "rank": 64, "rows": 4},
    "far": {"lens": [4130, 4093], "heads": 4, "dim": 64, "rank": 64, "rows": 4160},
    "heads": {"lens": [300, 129], "heads": 128, "dim": 256, "rank": 160, "rows": 304},
    "deep": {"lens": [9] * 40, "heads": 16, "dim": 7168, "rank": 1536, "rows": 16},
}


def _values(kernel: str, p: Problem) -> None:
    with rfops.vgpu.check() as c:
        got = run(kernel, p)
    assert_correct(got, p)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)


@pytest.mark.thin(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(kernel: str, shape: str) -> None:
    """Against float64; what is beyond a sequence's end is NaN."""
    _values(kernel, problem(**SHAPES[shape]))


@pytest.mark.sweep
@pytest.mark.parametrize("shape", MORE)
def test_more_values(kernel: str, shape: str) -> None:
    """Beyond position 4096 32 neighbours share an angle: 4095 becomes 4096."""
    _values(kernel, problem(**MORE[shape]))


def test_half_of_the_tokens_is_not_enough() -> None:
    """The tests above would see it, and one token of 65."""
    p = problem([64, 64], 4)
    got = run("torch", p)
    assert_correct(got, p)
    for kept in (32, 60):
        fewer = Problem(p.x, p.cache.clone(), p.weights, [kept] * 2)
        with pytest.raises(AssertionError, match="relative L2"):
            assert_correct((run("torch", fewer)[0], got[1]), p)


@pytest.mark.thin(3)
def test_the_challenge(kernel: str) -> None:
    """Its reference, element by element: k and v of every token in bf16, tokens' angles too."""
    of = challenge.PROBLEM
    config, x, cache = data = of.generate(of.shrink(of.tests[0]))
    expected = of.reference(data)
    weights = [
        config.Q_proj_down_weight,
        config.Q_proj_up_weight,
        config.KV_proj_down_weight,
        config.KV_proj_up_weight,
        config.wo_weight,
    ]
    own = cache.data.clone()
    angles = rope_angles(own.shape[1])
    out = torch.full_like(x, math.nan)
    c, _ = OP.check((x, own, cache.seq_len, *weights, angles, None, out, None))
    OP.prepare(kernel, c)(out, x, own, *weights, angles, None)
    assert not of.official(expected, (out, own)), of.official(expected, (out, own))
    assert not of.strict(data, (out, own), expected)
    assert torch.equal(own[:, : cache.seq_len], cache.data[:, : cache.seq_len])


def test_angles_are_the_challenges() -> None:
    """Bit for bit, with every rounding of it."""
    x = torch.randn(8192, 64, generator=torch.Generator().manual_seed(1)).to(BF16)
    angles = rope_angles(8192)
    low, high, cos, sin = *x.split(32, -1), *angles.split(32, -1)
    made = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
    assert torch.equal(made, challenge.rope(x, 0, BF16))
    assert len(angles.unique(dim=0)) == 897


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "name", [k.name for k in mla_decode.OP.kernels.values() if rotates_keys(k)]
)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_keys_are_turned_as_torch_turns_them(
    arch: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as from a cache of keys that torch has turned."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    lens, rows, heads = [300, 1, 77], 320, 130 if name == "shared" else 16
    generator = torch.Generator().manual_seed(3)
    cache = torch.randn(3, rows, 576, generator=generator).to(BF16)
    q = torch.randn(3, heads, 576, generator=generator).to(BF16)
    angles = rope_angles(rows)
    kernel = mla_decode.OP.kernels[name]
    sizes = {"B": 3, "L": rows, "A": rows, "V": heads * 128}
    c = OP.call_of(arch, start=rows - 1, **sizes)
    lengths = torch.tensor(lens, dtype=torch.int32)
    config = kernel.default(attention_call(c, 1))  # pages of 64 may have another

    def seen(turn: bool) -> torch.Tensor:
        kv = cache.clone()
        if not turn:
            kv[..., 512:] = challenge.rope(kv[..., 512:], 0, BF16)
        page = 64 if turn else 1  # the builds that other tests need
        table = torch.arange(3 * rows // page, dtype=torch.int32).view(3, -1)
        of = attention_call(c, page)
        of.tensors = {**of.tensors, "angles": of.tensors["angles"] if turn else None}
        out = torch.full((3, heads, 512), math.nan, dtype=BF16)
        launch = kernel.variant(of, config)(*of.sizes.values())
        given = (angles,) if turn else ()
        launch(out, q, kv, lengths, table, lengths, None, None, None, None, *given)
        return out

    assert torch.equal(seen(True), seen(False))


@pytest.mark.thin(2)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_public_call(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start as int and as a tensor, x with and without its middle; five launches; deterministic."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    p = problem([20, 20], 4, rows=32)
    made = []
    for start in (20, p.positions):
        for x in (p.x, p.x[:, 0]):
            cache = p.cache.clone()
            with rfops.vgpu.profile() as profile:
                out = mla_layer_decode(x, cache, start, *p.weights)
            assert out.shape == x.shape
            assert_correct((out.view(p.x.shape), cache), p)
            made.append(out.view(p.x.shape))
    assert all(torch.equal(made[0], other) for other in made)
    names = [launch.kernel for launch in profile.launches]
    assert names == [
        "mla_layer_decode",
        "mla_layer_decode_query",
        "mla_decode_flow",
        "mla_layer_decode",
        "mla_layer_decode_out",
    ]
    for launch in profile.launches:
        spilled = launch.vgpr_spills, launch.sgpr_spills, launch.scratch_bytes_per_lane
        assert spilled == (0, 0, 0), launch.kernel
        assert launch.lds_conflict_cycles == 0, launch.kernel
        if launch.kernel.startswith("mla_layer"):  # nothing is asked for that nobody wants
            read = launch.global_read
            assert read["requests_64B"] * 64 <= 1.02 * read["bytes"]


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_wide_batch(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 64 sequences: rows of x, columns and K that fill no tile of o; the same bits
    whichever workgroup of a tile comes last, and adds up, of q and o."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    monkeypatch.setenv("RFOPS_VGPU_THREADS", "1")  # random orders of workgroups repeat
    p = problem([b % 3 for b in range(67)], 3, dim=160, rank=544, rows=4)
    made = []
    for schedule in ("hardware", "random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        with rfops.vgpu.profile() as profile:
            made.append(run("hip", p))
        for launch in profile.launches:
            assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
            assert launch.lds_conflict_cycles == 0, launch.kernel
        assert profile.launches[-1].kernel == "mla_layer_decode_wide"
    of_out = products(OP.call_of(arch, B=67, start=3, V=384, D=160))[2].defines(67, 256)
    assert of_out["SPLIT"] > 1 and query_defines(67, 3, 544, 256)["SPLIT"] == 3
    assert_correct(made[0], p)
    for out, cache in made[1:]:
        assert torch.equal(out, made[0][0])
        assert_cache(cache, made[0][1], p)


@pytest.mark.thin(3)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_many_heads(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workgroups that fetch and multiply by turns of waves: rows that fill no tile, and half a step
    at K's end."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    p = problem([b % 3 for b in range(67)], 77, dim=32, rank=288, rows=4)
    assert query_defines(67, 77, 288, 304) is query_defines(67, 77, 288, 256) is QUERY_WIDE
    with rfops.vgpu.profile() as profile:
        _values("hip", p)
    query = profile.launches[1]
    assert query.kernel == "mla_layer_decode_query_wide"
    assert query.vgpr_spills == query.sgpr_spills == query.scratch_bytes_per_lane == 0
    assert query.lds_conflict_cycles == 0


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_rows_of_memory(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are read 256 bytes of a row at once: two lines of each row of memory that is opened.
    By 128 bytes it would be 1.8, with neighbours' help. Products have theirs by WaveRows, but o of
    large batches."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    heads, dim, rank = 16, 256, 1536

    def zeros(*shape: int) -> torch.Tensor:  # begins where a row of memory does
        room = torch.zeros(math.prod(shape) + 2048, dtype=BF16)
        return room[-room.data_ptr() % 4096 // 2 :][: math.prod(shape)].view(shape)

    x, cache = zeros(128, dim), zeros(128, 16, 576)
    weights = [
        zeros(rank, dim),
        zeros(192 * heads, rank),
        zeros(576, dim),
        zeros(256 * heads, 512),
        zeros(dim, 128 * heads),
        zeros(16, 64),
    ]
    with rfops.vgpu.timing(results=False, detail=False) as timing:
        mla_layer_decode(x, cache, 8, *weights)
    query = next(one for one in timing.launches if one.kernel == "mla_layer_decode_query")
    lines, rows = query.memory["hbm_read_bytes"] / 128, query.memory["hbm_rows_opened"]
    assert lines >= 2 * rows > 0, f"{lines / rows:.2f} lines of each row that is opened"


@pytest.mark.thin(4)
def test_a_step_after_the_other(kernel: str) -> None:
    """The row that a step writes is what the next one reads."""
    p = problem([17, 3], 2, rows=32)
    for _ in range(2):
        out, cache = run(kernel, p)
        assert_correct((out, cache), p)
        p = Problem(p.x.flip(0), cache, p.weights, [length + 1 for length in p.lens])


@pytest.mark.sweep
def test_compiled() -> None:
    """Traced as one op, which writes the cache."""
    p = problem([20, 20], 2, rows=32)

    def twice(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return mla_layer_decode(x, cache, p.positions, *p.weights) * 2

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
    cache, other = p.cache.clone(), p.cache.clone()
    assert torch.equal(compiled(p.x, cache), twice(p.x, other))
    assert_cache(cache, other, p)


def test_nothing() -> None:
    p = problem([3], 2, rows=8)
    x, cache = p.x[:0], p.cache[:0]
    assert mla_layer_decode(x, cache, 3, *p.weights).shape == (0, 1, 128)


# ---------------------------------------------------------------- refusals and routes

BAD: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "heads": (lambda a: a.__setitem__(7, a[7][:, :100].contiguous()), "128 columns a head"),
    "q_up": (lambda a: a.__setitem__(4, a[4][:192]), "q_up must be of 192 rows for each"),
    "kv_up": (lambda a: a.__setitem__(6, a[6][:256]), "kv_up must be of 256 rows for each"),
    "angles": (lambda a: a.__setitem__(8, a[8][:9]), r"angles must be .*; pass rope_angles\(32\)"),
    "start": (lambda a: a.__setitem__(2, 32), "start must be below the cache's 32 rows"),
    "minus": (lambda a: a.__setitem__(2, -1), "start must be an int from 0"),
    "cache": (lambda a: a.__setitem__(1, a[1][:1]), "cache must be"),
    "dtype": (lambda a: a.__setitem__(1, a[1].float()), "cache must be"),
    "rows": (lambda a: a.__setitem__(1, a[1][..., :570]), "cache must be"),
    "dim": (lambda a: a.__setitem__(0, a[0][..., :64].contiguous()), "q_down must be"),
    "positions": (lambda a: a.__setitem__(2, torch.zeros(2, dtype=torch.int64)), "positions must"),
    "short": (lambda a: a.__setitem__(2, torch.zeros(3, dtype=torch.int32)), "positions must"),
    "strided": (lambda a: a.__setitem__(1, a[1].mT.contiguous().mT), "cache must be contiguous"),
    "overlap": (lambda a: a.__setitem__(5, a[1][0, :1].expand(576, 576)), "kv_down must"),
}


@pytest.mark.parametrize("bad", [None, 1.5, "x", True, 2**40, [3]], ids=str)
def test_a_start_that_is_none(bad: Any) -> None:
    p = problem([20, 20], 2, rows=32)
    with pytest.raises(ValueError, match=r"^mla_layer_decode: start must be an int"):
        mla_layer_decode(p.x, p.cache, bad, *p.weights)
    with pytest.raises(ValueError, match=r"^mla_layer_decode: config must be"):
        mla_layer_decode(p.x, p.cache, 20, *p.weights, config=bad or "none")


@pytest.mark.parametrize("bad", BAD)
def test_refusals(bad: str) -> None:
    p = problem([20, 20], 2, rows=32)
    args: list[Any] = [p.x, p.cache, 20, *p.weights]
    change, says = BAD[bad]
    change(args)
    with pytest.raises(ValueError, match=says):
        mla_layer_decode(*args)


def test_routes() -> None:
    for arch in ("gfx942", "gfx950"):
        assert OP.route(OP.call_of(arch, B=128, start=4096)).backend == "hip"
        c = OP.call_of(arch, B=128, start=4096, R=1000)
        assert "no multiples of 32" in str(OP.kernels["hip"].unsupported_reason(c))
        assert OP.route(c).backend == "triton"
    c = OP.call_of("gfx942", B=70000, start=0, L=1)
    assert "70000 rows of an operand are beyond" in str(OP.kernels["hip"].unsupported_reason(c))
    assert OP.route(OP.call_of("sm_90", B=128, start=4096)).backend == "triton"
    assert OP.route(OP.call_of("sm_70", B=128, start=4096)).backend == "torch"
    assert mla_layer_decode.supports(arch="sm_90", shape=(128, 4096))


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_kernels_of_its_attention(arch: str) -> None:
    for batch, heads, name in (
        (64, 32, "flow"),
        (64, 33, "shared"),
        (64, 128, "shared"),
        (2, 128, "flow"),
    ):
        of = attention_call(OP.call_of(arch, B=batch, start=9, V=heads * 128), 8192)
        kernel, _ = attention_kernel(of, hip=True)
        assert kernel is not None and kernel.name == name, heads
        triton, _ = attention_kernel(of, hip=False)
        assert triton is not None and triton.name == "triton"
    table = of.tensors["kv_indices"]
    of.tensors = {"kv_indices": table, "angles": table}
    of.kv_dtype = fp8_of(arch)  # type: ignore[misc]
    kernel, reason = attention_kernel(of, hip=True)
    assert kernel is None and "keys of FP8 are not turned" in reason


@pytest.mark.thin(2)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_resources_of_its_attention(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What turns keys has registers enough."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    of = attention_call(OP.call_of(arch, B=2, start=64), 64)
    shared = mla_decode.OP.kernels["shared"]
    defines = shared.defines(of, shared.default(of))
    found = mla_decode_shared.bind(torch.device("cpu"), defines, arch).resources
    assert defines["ROPE"] == defines["PAGED"] == 1
    assert found["vgpr_spills"] == found["scratch"] == 0


def test_workgroups_of_the_challenge() -> None:
    """All CUs have something to read of each product."""
    for arch, batch, wanted in (
        ("gfx942", 128, [264, 256, 300]),
        ("gfx950", 128, [220, 256, 224]),
        ("gfx950", 256, [204, 512, 256]),
    ):
        c = OP.call_of(arch, B=batch, start=4096)
        assert [p.groups(batch, c.cu_num) for p in products(c)] == wanted, (arch, batch)
    for heads, tiles, split in ((128, 4, 1), (64, 2, 1), (16, 1, 2)):
        defines = query_defines(128, heads, 1536, 304)
        assert defines == {"M_TILES": tiles, "SPLIT": split}
        assert query_groups(128, heads, tiles) * split == 256
    assert query_defines(64, 128, 1536, 304) is QUERY_WIDE
    assert query_defines(1, 16, 1536, 304) == {"M_TILES": 1, "SPLIT": 6}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ((24, 64), "block_n must be a power of two"),
        ((256, 64), "block_n must be a power of two from 16 to 128, got 256"),
        ((32, 16), "block_k must be a power of two from 32 to 256, got 16"),
        ((32, 64, 16), "warps must be a power of two from 1 to 8, got 16"),
        ((32, 64, 4, 9), "stages must be 1 to 8, got 9"),
    ],
)
def test_configs_that_cannot_be(config: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LayerTritonConfig(*config)


@pytest.mark.thin(4)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    "config", [LayerTritonConfig(16, 64, 8, 1), LayerTritonConfig(64, 32, 4, 2)], ids=str
)
def test_triton_variants(
    arch: str, config: LayerTritonConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    p = problem([33, 7, 0], 2, dim=200, rank=72, rows=48)
    assert_correct(run("triton", p, config), p)


def test_lds_of_a_variant_is_refused() -> None:
    c = OP.call_of("gfx942", B=128, start=64)
    triton = OP.kernels["triton"]
    assert "bytes of LDS" in str(
        triton.unsupported_config_reason(c, LayerTritonConfig(64, 256, 4, 4))
    )
    assert all(
        triton.unsupported_config_reason(c, config) is None for config in triton.candidates(c)
    )
