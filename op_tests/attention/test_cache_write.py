"""Writes of paged caches, alone and after RoPE: HIP against the ops one by one and float64, slots
that are skipped, where rows lie, FP8; refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops
from rfops.attention import kv_cache_write as kv
from rfops.attention import mla_absorb_cache_write as absorb
from rfops.attention import mla_cache_write as mla
from rfops.attention.kv_cache_write import kv_cache_write
from rfops.attention.mla_absorb_cache_write import (
    mla_absorb_cache_write,
    mla_absorb_cache_write_ref,
)
from rfops.attention.mla_cache_write import (
    mla_cache_write,
    mla_rope_cache_write,
    mla_rope_concat_cache_write,
)
from rfops.attention.rope import rope
from rfops.attention.rotary import rope_cos_sin
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.problem import Problem, poison
from rfops.quantization.fp8_blockscale import reference as quantise
from rfops.rowwise.rms_norm import rms_norm_ref

BF16, F16 = torch.bfloat16, torch.float16
SCALE = torch.tensor([0.02])


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def random(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def empty_cache(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Bytes that no row has."""
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.full((count,), 85, dtype=torch.uint8).view(dtype).view(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    different = (bits(actual) != bits(expected)).nonzero()[:1].tolist()
    assert not different, f"bytes differ from {different[0]} on"


def converted(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor = SCALE) -> torch.Tensor:
    """x as a cache of this dtype has it."""
    if dtype.itemsize > 1:
        return x.to(dtype)
    most = torch.finfo(dtype).max
    return (x.float() * (1 / scale)).clamp(-most, most).to(dtype)


def filled(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The cache [pages, page, ...] with rows of its dtype at slots, one by one."""
    cache, page = cache.clone(), cache.shape[1]
    for row, slot in zip(rows, slots.tolist(), strict=False):
        if 0 <= slot < cache.shape[0] * page:
            cache[slot // page, slot % page] = row
    return cache


class Tokens:
    """Inputs of one call: `tokens` of them, of which the second is not cached."""

    def __init__(self, tokens: int, heads: int = 3, latent: int = 512, rotary: int = 64) -> None:
        self.kv_c, self.k_pe = random(tokens, latent), random(tokens, rotary, seed=1)
        self.q_pe = random(tokens, heads, rotary, seed=2)
        self.q_nope = random(tokens, heads, latent, seed=3)
        self.positions = torch.arange(tokens) * 7 % 40
        self.cos_sin = rope_cos_sin(40, rotary)
        self.slots = torch.randperm(3 * 16, generator=torch.Generator().manual_seed(5))[:tokens]
        if tokens > 1:
            self.slots[1] = -1
        self.width = latent + rotary

    def cache(self, dtype: torch.dtype = BF16) -> torch.Tensor:
        return empty_cache(3, 16, self.width, dtype=dtype)

    def rotated(self, interleaved: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """q_pe and k_pe by the op rope."""
        q, k = self.q_pe.clone(), self.k_pe.clone()
        rope(self.positions, q, k[:, None], self.cos_sin, interleaved=interleaved)
        return q, k

    def row(self, k_pe: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return converted(torch.cat((self.kv_c, k_pe), -1), dtype)


CACHES = ["bf16", "fp8"]


def dtype_of(word: str, arch: str) -> torch.dtype:
    return BF16 if word == "bf16" else fp8_of(arch)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("tokens", [1, 9])
def test_mla_cache_write(tokens: int, cache_dtype: str, arch: str) -> None:
    t, dtype = Tokens(tokens), dtype_of(cache_dtype, arch)
    cache = t.cache(dtype)
    expected = filled(cache, t.row(t.k_pe, dtype), t.slots)
    with rfops.vgpu.check() as c:
        mla_cache_write(t.kv_c, t.k_pe, cache, t.slots, SCALE)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert_same(cache, expected)
    args = (t.kv_c, t.k_pe, cache, t.slots, SCALE)
    assert mla.OP.route(mla.OP.check(args)[0]).backend == "hip"


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("tokens", [1, 9])
def test_mla_rope_cache_write(tokens: int, cache_dtype: str, interleaved: bool, arch: str) -> None:
    """The bits of rope, then of the cache write."""
    t, dtype = Tokens(tokens), dtype_of(cache_dtype, arch)
    cache, (q, k) = t.cache(dtype), t.rotated(interleaved)
    expected = filled(cache, t.row(k, dtype), t.slots)
    values = t.kv_c, cache, t.slots, t.cos_sin, None, SCALE, interleaved
    with rfops.vgpu.check() as c:
        mla_rope_cache_write(t.positions, t.q_pe, t.k_pe, *values)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert_same(cache, expected)
    assert_same(t.q_pe, q)
    assert_same(t.k_pe, k)
    args = (t.positions, t.q_pe, t.k_pe, *values)
    assert mla.IN_PLACE_OP.route(mla.IN_PLACE_OP.check(args)[0]).backend == "hip"


@pytest.mark.thin(2)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("cache_dtype", "q_dtype"), [("bf16", "bf16"), ("fp8", "bf16"), ("fp8", "fp8")]
)
@pytest.mark.parametrize("tokens", [1, 9])
def test_mla_rope_concat_cache_write(
    tokens: int, cache_dtype: str, q_dtype: str, interleaved: bool, arch: str
) -> None:
    t, dtype, q_type = Tokens(tokens), dtype_of(cache_dtype, arch), dtype_of(q_dtype, arch)
    cache, (q_pe, k) = t.cache(dtype), t.rotated(interleaved)
    expected = filled(cache, t.row(k, dtype), t.slots)
    expected_q = converted(torch.cat((t.q_nope, q_pe), -1), q_type, torch.tensor([0.03]))
    old, key = (t.q_pe.clone(), t.k_pe.clone()), poison(torch.empty_like(t.k_pe))
    out = poison(torch.empty(tokens, 3, t.width).to(q_type))
    values = t.kv_c, cache, t.slots, t.cos_sin, None, SCALE, torch.tensor([0.03])
    with rfops.vgpu.check() as c:
        made = mla_rope_concat_cache_write(
            t.positions, t.q_nope, t.q_pe, t.k_pe, *values, key, interleaved, q=out
        )
    assert not c.findings, "\n".join(map(str, c.findings))
    assert made is out
    assert_same(cache, expected)
    assert_same(out, expected_q)
    assert_same(key, k)
    assert_same(t.q_pe, old[0])
    assert_same(t.k_pe, old[1])
    again = mla_rope_concat_cache_write(
        t.positions, t.q_nope, t.q_pe, t.k_pe, *values, None, interleaved, q_type
    )
    assert_same(again, expected_q)


def test_a_query_of_the_other_16_bit_dtype() -> None:
    """The HIP kernel wrote bf16's bits into float16."""
    t = Tokens(9)
    values = t.kv_c, t.cache(torch.bfloat16), t.slots, t.cos_sin, None, None, None, None, False
    made = mla_rope_concat_cache_write(
        t.positions, t.q_nope, t.q_pe, t.k_pe, *values, torch.float16
    )
    q = torch.cat((t.q_nope, t.rotated(False)[0]), -1)
    assert made.dtype == torch.float16
    assert_same(made, q.half())


def assert_near(actual: torch.Tensor, exact: torch.Tensor, sums: torch.Tensor) -> None:
    """Rounded once, after fp32 sums of products whose magnitudes add up to `sums`."""
    rounding = torch.finfo(actual.dtype).eps / 2
    excess = (actual.double() - exact).abs() - (rounding * exact.abs() + 2**-20 * sums)
    worst = int(excess.argmax())
    got, want = float(actual.flatten()[worst]), float(exact.flatten()[worst])
    assert float(excess.max()) <= 0, f"element {worst} is {got}, expected {want}"


def absorbed(t: Tokens, width: int, arch: str, weight: str) -> dict[str, Any]:
    """Heads of `width` + 64 as q_b writes them, rows of q_a, kv_a, k_pe, and weights."""
    tokens, heads, latent = len(t.kv_c), t.q_pe.shape[1], t.kv_c.shape[1]
    q = random(tokens, heads, width + 64, seed=4)
    a = random(tokens, 32 + t.width, seed=5)
    w, scale = random(heads * latent, width, seed=6), None
    if weight == "fp8":
        w, scale = quantise(w, 128, False, fp8_of(arch))
        scale = scale.view(heads, latent // 128, -1)
    return {
        "q_nope": q[..., :width],
        "q_pe": q[..., width:],
        "k_pe": a[:, 32 + latent :],
        "kv_c": a[:, 32 : 32 + latent],
        "k_up": w.view(heads, latent, width),
        "k_up_scale": scale,
        "kv_norm": random(latent, seed=7).float(),
    }


@pytest.mark.thin(3)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("weight", ["bf16", "fp8"])
@pytest.mark.parametrize(
    ("tokens", "width", "latent"), [(1, 128, 512), (9, 128, 512), (17, 32, 128), (33, 160, 1024)]
)
def test_mla_absorb_cache_write(
    tokens: int, width: int, latent: int, weight: str, interleaved: bool, arch: str
) -> None:
    """The product within its rounding, the norm too; what is rotated has the bits of rope; FP8 has
    those of what is written otherwise."""
    t = Tokens(tokens, latent=latent)
    given = absorbed(t, width, arch, "bf16" if width % 128 else weight)
    t.q_pe, t.k_pe, t.kv_c = given["q_pe"], given["k_pe"].clone(), given["kv_c"]
    kept = {name: x.clone() for name, x in given.items() if x is not None}
    q_pe, k = t.rotated(interleaved)
    common = {"positions": t.positions, "slots": t.slots, "cos_sin": t.cos_sin}
    common |= {"interleaved": interleaved, **given}
    cache, out = t.cache(), poison(torch.empty(tokens, 3, t.width, dtype=BF16))
    key = poison(torch.empty_like(t.k_pe))
    with rfops.vgpu.check() as c:
        made = mla_absorb_cache_write(kv=cache, q=out, k_pe_out=key, **common)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert made is out
    assert_same(key, k)
    w = given["k_up"].double()
    if given["k_up_scale"] is not None:
        w = w * given["k_up_scale"].double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    x = given["q_nope"].double().transpose(0, 1)
    exact, sums = (x @ w.mT).transpose(0, 1), (x.abs() @ w.abs().mT).transpose(0, 1)
    assert_near(out[..., :latent], exact, sums)
    assert_same(out[..., latent:], q_pe)
    y = rms_norm_ref(given["kv_c"].double(), given["kv_norm"].double())
    cached = t.slots >= 0
    rows = cache.view(-1, t.width)[t.slots[cached]]
    assert_near(rows[:, :latent], y.double()[cached], torch.zeros(()))
    both = torch.cat((rows[:, :latent], k[cached]), -1)
    assert_same(cache, filled(t.cache(), both, t.slots[cached]))
    for name, x in kept.items():
        assert_same(given[name], x)

    fp8, scale = fp8_of(arch), torch.tensor([0.03])
    narrow = t.cache(fp8)
    common |= {"kv_scale": SCALE, "q_scale": scale}
    q = mla_absorb_cache_write(kv=narrow, q=poison(torch.empty(out.shape).to(fp8)), **common)
    assert_same(q, converted(out, fp8, scale))
    assert_same(narrow, filled(t.cache(fp8), converted(rows, fp8), t.slots[cached]))
    plain = t.cache()
    mla_absorb_cache_write(kv=plain, **(common | {"kv_norm": None}))
    rows = torch.cat((given["kv_c"], k), -1)
    assert_same(plain, filled(t.cache(), rows, t.slots))


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("weight", ["f16", "fp8"])
def test_absorbed_in_float16(weight: str) -> None:
    """By the kernel, and by the reference, which rounded products of FP8 weights to bf16 first."""
    t, half = Tokens(9), torch.float16
    given = absorbed(t, 128, "gfx950", weight)
    given |= {name: x.to(half) for name, x in given.items() if x is not None and x.dtype == BF16}
    w = given["k_up"].double()
    if weight == "fp8":
        w = w * given["k_up_scale"].double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    x = given["q_nope"].double().transpose(0, 1)
    exact, sums = (x @ w.mT).transpose(0, 1), (x.abs() @ w.abs().mT).transpose(0, 1)
    common = {"positions": t.positions, "slots": t.slots, "cos_sin": t.cos_sin.to(half), **given}
    q = mla_absorb_cache_write(kv=t.cache(half), **common)
    values = dict.fromkeys(("sin", "kv_scale", "q_scale", "k_pe_out")) | {"eps": 1e-6}
    values |= {"interleaved": False, "dtype": half}
    reference = mla_absorb_cache_write_ref(kv=t.cache(half), **common, **values)
    for actual in (q, reference):
        assert actual.dtype == half
        assert_near(actual[..., :512], exact, sums)


@pytest.mark.requires_gfx950
def test_what_absorbs_by_other_kernels() -> None:
    """Many tokens, and weights that lie the other way, by several launches, near the one's result;
    no token at all."""
    for tokens, route in ((66, "ops"), (5, "ops"), (5, "hip"), (0, "hip")):
        t = Tokens(tokens)
        t.slots = torch.arange(tokens) % 48
        t.slots[48:] = -1
        given = absorbed(t, 128, "gfx950", "bf16")
        own = given
        if route == "ops" and tokens == 5:
            own = given | {"k_up": given["k_up"].mT.contiguous().mT}
        common = {"positions": t.positions, "slots": t.slots, "cos_sin": t.cos_sin}
        cache = t.cache()
        q = mla_absorb_cache_write(kv=cache, **common, **own)
        with rfops.vgpu.profile() as profiled:
            mla_absorb_cache_write(kv=t.cache(), **common, **own)
        names = [launch.kernel for launch in profiled.launches]
        assert (names == ["mla_absorb_cache_write"]) == (route == "hip" and tokens > 0), names
        assert q.shape == (tokens, 3, 576)
        x, w = given["q_nope"].double().transpose(0, 1), given["k_up"].double()
        exact, sums = (x @ w.mT).transpose(0, 1), (x.abs() @ w.abs().mT).transpose(0, 1)
        if tokens:
            assert_near(q[..., :512], exact, sums)
            y = rms_norm_ref(given["kv_c"].double(), given["kv_norm"].double()).double()
            cached = t.slots >= 0
            rows = cache.view(-1, 576)[t.slots[cached]]
            assert_near(rows[:, :512], y[cached], torch.zeros(()))


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k_up": torch.zeros(3, 512, 128)}, "k_up must be bfloat16"),
        ({"k_up": torch.zeros(3, 512, 128).half()}, "k_up must be bfloat16, as q_nope is, or FP8"),
        ({"k_up": torch.zeros(3, 512, 64, dtype=BF16)}, "k_up must be "),
        ({"k_up_scale": torch.ones(3, 4, 1)}, "k_up_scale must be a tensor for k_up in FP8"),
        ({"kv_norm": torch.ones(64)}, "kv_norm must be "),
        ({"q_nope": torch.zeros(2, 3, 128).half()}, "q_nope must be bfloat16, as kv_c is"),
        ({"kv": torch.zeros(3, 16, 575, dtype=BF16)}, "kv must be of rows of L . R = 576"),
    ],
)
def test_refusals_of_absorbed(given: dict[str, Any], message: str) -> None:
    t = Tokens(2)
    arguments = absorbed(t, 128, "gfx950", "bf16")
    arguments |= {"positions": t.positions, "kv": t.cache(), "slots": t.slots}
    arguments |= {"cos_sin": t.cos_sin}
    with pytest.raises(ValueError, match=f"^mla_absorb_cache_write: {message}"):
        mla_absorb_cache_write(**(arguments | given))


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("shape", [(1, 1, 128), (9, 2, 128), (5, 3, 64)])
def test_kv_cache_write(shape: tuple[int, int, int], cache_dtype: str, arch: str) -> None:
    tokens, heads, dim = shape
    dtype, slots = dtype_of(cache_dtype, arch), Tokens(tokens).slots
    key, value = random(*shape), random(*shape, seed=1)
    caches = [empty_cache(3, 16, heads, dim, dtype=dtype) for _ in range(2)]
    scales = SCALE, torch.tensor([0.05])
    expected = [
        filled(cache, converted(x, dtype, scale), slots)
        for cache, x, scale in zip(caches, (key, value), scales, strict=True)
    ]
    with rfops.vgpu.check() as c:
        kv_cache_write(key, value, *caches, slots, *scales)
    assert not c.findings, "\n".join(map(str, c.findings))
    for cache, want in zip(caches, expected, strict=True):
        assert_same(cache, want)
    args = (key, value, *caches, slots, *scales)
    assert kv.OP.route(kv.OP.check(args)[0]).backend == "hip"


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(
    "slots", [[-1, 12, -7], [-1, 3, 12, 0, 11], [5, -1], [0, 99], [4, 2, 1], [12], []], ids=str
)
def test_rows_without_a_slot_leave_the_cache_alone(slots: list[int], dtype: torch.dtype) -> None:
    """In plain torch, which writes a row for each slot, used or not."""
    rows = torch.arange(7 * 6).view(7, 6).to(torch.bfloat16)  # more rows than slots
    scale = torch.full((1,), 0.5) if dtype.itemsize == 1 else None
    cache = torch.full((6, 2, 12), 3.0).to(dtype)[::2, :, ::2]  # 3 pages of 2 slots
    expected = cache.clone()
    for row, slot in zip(rows, slots, strict=False):
        if 0 <= slot < 6:
            expected[slot // 2, slot % 2] = (row / (0.5 if scale is not None else 1)).to(dtype)
    mla.write_slots(rows, cache, torch.tensor(slots, dtype=torch.int64), scale)
    assert torch.equal(cache.float(), expected.float())


def test_skipped_slots() -> None:
    """Negative ones, those beyond the cache, of 32 bits too, and tokens without a slot."""
    t = Tokens(5)
    slots = torch.tensor([-1, 48, 2**31 - 1, 3], dtype=torch.int32)
    cache = t.cache()
    expected = filled(cache, t.row(t.k_pe, BF16), slots)
    with rfops.vgpu.check() as c:
        mla_cache_write(t.kv_c, t.k_pe, cache, slots)
    assert not c.findings, "\n".join(map(str, c.findings))
    assert_same(cache, expected)
    q, k = t.rotated()
    values = (t.kv_c, cache, slots[:0], t.cos_sin)
    mla_rope_cache_write(t.positions, t.q_pe, t.k_pe, *values)  # padding alone
    assert_same(t.q_pe, q)
    assert_same(t.k_pe, k)
    assert_same(cache, expected)


@pytest.mark.requires_gfx950
def test_strided_rows() -> None:
    """Rows of projections, heads first, pages with gaps; rows that are not aligned, by pairs."""
    t, width = Tokens(6), 576
    a = random(6, 1536 + width)  # q_a, kv_c and k_pe by one projection
    kv_c, k_pe = a[:, 1536 : 1536 + 512], a[:, 1536 + 512 :]
    heads = random(6, 3, 192)
    q_pe, q_nope = heads[..., 128:], random(3, 6, 512).transpose(0, 1)
    memory = empty_cache(3, 20, width)
    for offset in (0, 1):
        cache = memory[:, 4:] if offset == 0 else empty_cache(3, 16, width + 1)[..., 1:]
        turned, key = q_pe.contiguous(), k_pe.contiguous()
        rope(t.positions, turned, key[:, None], t.cos_sin)
        expected = filled(cache, torch.cat((kv_c, key), -1), t.slots)
        out = torch.zeros(6, 4, width, dtype=BF16)
        values = kv_c, cache, t.slots, *t.cos_sin.chunk(2, -1)
        with rfops.vgpu.check() as c:
            mla_rope_concat_cache_write(t.positions, q_nope, q_pe, k_pe, *values, q=out[:, :3])
        assert not c.findings, "\n".join(map(str, c.findings))
        assert_same(cache, expected)
        assert_same(out[:, :3], torch.cat((q_nope, turned), -1))
        assert (out[:, 3] == 0).all()
    assert (bits(memory[:, :4]) == 85).all()


@pytest.mark.requires_gfx950
def test_heads_before_slots() -> None:
    """Caches whose memory is [pages, heads, page, D]; those that lie unlike, by torch."""
    slots, key, value = Tokens(5).slots, random(5, 2, 64), random(5, 2, 64, seed=1)
    for other in (True, False):
        caches = [empty_cache(3, 2, 16, 64).transpose(1, 2) for _ in range(2)]
        caches[1] = caches[1] if other else empty_cache(3, 16, 2, 64)
        expected = [filled(c, x, slots) for c, x in zip(caches, (key, value), strict=True)]
        kv_cache_write(key, value, *caches, slots)
        for cache, want in zip(caches, expected, strict=True):
            assert_same(cache, want)
        c, _ = kv.OP.check((key, value, *caches, slots, None, None))
        assert kv.OP.route(c).backend == ("hip" if other else "torch")


@pytest.mark.requires_gfx950
def test_calls_of_changing_shapes() -> None:
    """Tokens, pages and where pages lie change from call to call."""
    memory = empty_cache(6, 20, 576)
    for pages in (1, 6, 2):
        for page in (20, 16):
            for tokens in (3, 1, 7):
                t, cache = Tokens(tokens), memory[:pages, :page]
                t.slots %= pages * page
                t.slots[: tokens // 2] = -1
                expected = filled(cache, t.row(t.k_pe, BF16), t.slots)
                mla_cache_write(t.kv_c, t.k_pe, cache, t.slots)
                assert_same(cache, expected)


@pytest.mark.requires_gfx950
def test_fp8_saturates_and_keeps_what_is_no_number() -> None:
    t = Tokens(1)
    t.kv_c[0, :4] = torch.tensor([1e4, -1e4, float("inf"), float("nan")])
    cache, t.slots = t.cache(torch.float8_e4m3fn), torch.tensor([0])
    mla_cache_write(t.kv_c, t.k_pe, cache, t.slots, SCALE)
    row = cache[0, 0].float()
    assert row[:3].tolist() == [448.0, -448.0, 448.0] and row[3].isnan()


OPS = [mla.OP, mla.IN_PLACE_OP, mla.CONCAT_OP, kv.OP, absorb.OP]


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_torch_and_the_bench(op: Any) -> None:
    sizes = {"H": 3} if "H" in op.declaration.sizes else {}
    sizes |= {"G": 2} if "G" in op.declaration.sizes else {}
    problem = Problem(op, op.call_of(T=5, **sizes))
    for backend in ("torch", "hip"):
        problem.checked(problem.launch_by(problem.prepare(backend)), backend)


@pytest.mark.requires_gfx950
def test_compiled_and_fake() -> None:
    t = Tokens(3)
    args = (t.kv_c, t.k_pe, t.cache(), t.slots, None)
    torch.library.opcheck(torch.ops.rfops.mla_cache_write.default, args)
    values = t.kv_c, t.cache(), t.slots, t.cos_sin
    compiled = torch.compile(mla_rope_concat_cache_write, backend="eager", fullgraph=True)
    arguments = t.positions, t.q_nope, t.q_pe, t.k_pe, *values
    assert_same(compiled(*arguments), mla_rope_concat_cache_write(*arguments))


@pytest.mark.requires_gfx950
def test_no_tokens() -> None:
    t = Tokens(0)
    values = t.kv_c, t.cache(), t.slots, t.cos_sin
    mla_cache_write(t.kv_c, t.k_pe, t.cache(), t.slots)
    made = mla_rope_concat_cache_write(t.positions, t.q_nope, t.q_pe, t.k_pe, *values)
    assert made.shape == (0, 3, 576)


T = Tokens(2)
FP8 = torch.float8_e4m3fn


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_c": T.kv_c.float()}, "kv_c must be bfloat16 or float16"),
        ({"k_pe": T.k_pe.half()}, "k_pe must be bfloat16, as kv_c is, got float16"),
        ({"kv": T.cache()[0]}, "kv must be "),
        ({"kv": T.cache()[..., 1:]}, "kv must be of rows of L . R = 576 elements, got 575"),
        ({"kv": T.cache().half()}, "kv must be bfloat16, as kv_c is, or FP8, got float16"),
        ({"kv": T.cache(FP8).view(torch.uint8)}, "kv must be .*; view bytes as float8"),
        ({"kv": T.cache()[:1].expand(3, 16, 576)}, "kv must be of elements with places of their"),
        ({"kv": T.cache(FP8)}, "kv_scale must be a tensor where FP8 is written, got None"),
        ({"slots": torch.zeros(3, dtype=torch.int64)}, "slots must be of at most T=2 elements"),
        ({"slots": torch.zeros(2)}, "slots must be int64 or int32"),
        ({"kv_scale": torch.ones(2)}, "kv_scale must be "),
        ({"cos_sin": T.cos_sin[:, :32]}, "cos_sin must be of R=64 columns, got 32"),
        ({"q_pe": T.q_pe.half()}, "q_pe must be bfloat16, as kv_c is"),
        ({"dtype": FP8}, "q_scale must be a tensor where FP8 is written, got None"),
        ({"dtype": torch.float32}, "dtype must be "),
        ({"k_pe_out": T.k_pe[:1].expand(2, 64)}, "k_pe_out must be of elements with places"),
        ({"q": torch.zeros(1, 3, 576, dtype=BF16).expand(2, 3, 576)}, "q must be of elements with"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    arguments = {"positions": T.positions, "q_nope": T.q_nope, "q_pe": T.q_pe, "k_pe": T.k_pe}
    arguments |= {"kv_c": T.kv_c, "kv": T.cache(), "slots": T.slots, "cos_sin": T.cos_sin}
    with pytest.raises(ValueError, match=f"^mla_rope_concat_cache_write: {message}"):
        mla_rope_concat_cache_write(**(arguments | given))


@pytest.mark.requires_gfx950
def test_a_result_in_an_input() -> None:
    memory = torch.zeros(4, 3, 576, dtype=BF16)
    values = T.kv_c, T.cache(), T.slots, T.cos_sin
    with pytest.raises(ValueError, match=r"q must not overlap q_nope"):
        mla_rope_concat_cache_write(
            T.positions, memory[1:3, :, :512], T.q_pe, T.k_pe, *values, q=memory[2:]
        )


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"value": random(2, 1, 64).half()}, "value must be bfloat16, as key is, got float16"),
        (
            {
                "key_cache": empty_cache(3, 16, 1, 64, dtype=F16),
                "value_cache": empty_cache(3, 16, 1, 64, dtype=F16),
            },
            "key_cache must be bfloat16, as",
        ),
        ({"value_cache": empty_cache(3, 16, 1, 64, dtype=F16)}, "value_cache must be bfloat16, as"),
        (
            {
                "key_cache": empty_cache(3, 16, 1, 64, dtype=FP8),
                "value_cache": empty_cache(3, 16, 1, 64, dtype=FP8),
            },
            "key_scale must be a tensor",
        ),
        ({"slots": torch.zeros(3, dtype=torch.int64)}, "slots must be of at most T=2 elements"),
        ({"key_cache": empty_cache(1, 16, 1, 64).expand(3, 16, 1, 64)}, "key_cache must be of "),
    ],
)
def test_refusals_of_key_and_value(given: dict[str, Any], message: str) -> None:
    arguments = {"key": random(2, 1, 64), "value": random(2, 1, 64), "slots": T.slots}
    arguments |= {f"{name}_cache": empty_cache(3, 16, 1, 64) for name in ("key", "value")}
    with pytest.raises(ValueError, match=f"^kv_cache_write: {message}"):
        kv_cache_write(**(arguments | given))


@pytest.mark.requires_gfx950
def test_registers() -> None:
    """No scratch and no spills, of each thing that is written."""
    kernels = {
        kv.OP: kv.kv_cache_write_kernel,
        absorb.OP: absorb.mla_absorb_cache_write_kernel,
    }
    for op in OPS:
        sizes = {"H": 16} if "H" in op.declaration.sizes else {}
        sizes |= {"G": 8} if "G" in op.declaration.sizes else {}
        fp8: dict[str, Any] = {} if op is kv.OP else {"kv_dtype": "fp8"}
        c = op.call_of(T=4, **sizes, **fp8)
        defines = op.kernels["hip"].defines(c, None)
        bound = kernels.get(op, mla.mla_cache_write_kernel).bind(c.device, defines, "gfx950")
        spilled = [bound.resources[n] for n in ("scratch", "vgpr_spills", "sgpr_spills")]
        assert spilled == [0, 0, 0], op.name
