"""The kernels of grouped_gemm_mxfp8 and which one a call takes: HIP's moe (mxfp8_moe.py), Triton
(triton/grouped_gemm_mxfp8.py), and torch, which takes whatever is left."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from . import mxfp8_moe, routing
from .gemm_mxfp8_route import MOST_DEFAULTS
from .guards import MAX_BYTES, Guard, show
from .heuristic import coarse
from .mxfp8_moe import MoeConfig
from .quant_mxfp8 import BLOCK, dequant_mxfp8
from .routing import Route, Router
from .triton.tiles import TritonConfig

OP = "grouped_gemm_mxfp8"
LAYOUT = "make the layout with rfops.moe_align_block_size"  # a way out
OUT_DTYPES = tuple(mxfp8_moe.OUT_DTYPES)
BACKENDS = ("moe", "triton", "torch")
CONFIG_KINDS = (("moe", MoeConfig), ("triton", TritonConfig))
# Routed rows up to which HIP is taken without a row of the table, as published (aiter pull request
# 3783): of a gemm1 (a_div = top_k, no weight), with few experts and with MANY or more; of a gemm2.
GEMM1_ROWS, GEMM1_ROWS_MANY, MANY_EXPERTS, GEMM2_ROWS = 16, 64, 128, 8

# out, a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids, num_tokens_post_padded, weights
Launch = Callable[..., None]


class Shape(NamedTuple):
    """The sizes that decide route and variant."""

    num_valid_tokens: int
    top_k: int
    block_m: int
    a_div: int
    n: int
    k: int
    e: int
    a_rows: int
    weighted: bool


@functools.cache
def _triton() -> ModuleType | None:
    """Triton's route; imported when it is first asked, as triton takes long to import."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("rfops.triton.grouped_gemm_mxfp8")


def refuses(backend: str, shape: Shape, dtype: torch.dtype, arch: str) -> str | None:
    """Why a backend (moe, triton, torch) does not take the shape, None if it does."""
    n, k, block_m = shape.n, shape.k, shape.block_m
    if backend == "torch":
        return None
    if backend == "moe":
        rows = (shape.num_valid_tokens, block_m, shape.a_rows)
        return mxfp8_moe.refuses(n, k, shape.e, *rows, dtype, arch)
    triton = _triton()
    if triton is None:
        return "Triton is not installed"
    reason: str | None = triton.refuses(n, k, arch=arch, block_m=block_m, dtype=dtype)
    return reason


def default_config(backend: str, shape: Shape, arch: str) -> Any:
    """The config that a backend takes by itself."""
    n, k, block_m = shape.n, shape.k, shape.block_m
    if backend == "moe":
        return MoeConfig.from_heuristic(n, k, shape.e, shape.num_valid_tokens, block_m)
    return None if backend == "torch" else _triton().from_table(arch, block_m, n, k)


def _beyond_envelope(shape: Shape) -> str | None:
    """Why HIP is not taken without a row, None if it is."""
    if shape.a_div == shape.top_k and not shape.weighted:
        name, most = "gemm1", GEMM1_ROWS_MANY if shape.e >= MANY_EXPERTS else GEMM1_ROWS
    else:
        name, most = "gemm2", GEMM2_ROWS
    if shape.num_valid_tokens <= most:
        return None
    return f"{shape.num_valid_tokens} routed rows of {name} with E={shape.e} are above {most}"


def choose_backend(shape: Shape, dtype: torch.dtype, arch: str, cu_num: int) -> Route:
    """The kernel that a shape gets on a chip, and why. Raises ConfigError."""
    return _route(Router(OP, arch, cu_num), shape, dtype)


def _route(router: Router, shape: Shape, dtype: torch.dtype) -> Route:
    return router.choose(
        (shape.num_valid_tokens, shape.n, shape.k, shape.e, shape.a_div, int(shape.weighted)),
        ("moe",),
        lambda backend: refuses(backend, shape, dtype, router.arch),
        _beyond_envelope(shape),
    )


def route(
    m: int,
    n: int,
    k: int,
    e: int,
    top_k: int,
    a_div: int,
    has_weight: bool = False,
    block_m: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    arch: str = "gfx950",
    cu_num: int = 256,
    a_rows: int | None = None,
) -> Route:
    """The kernel that `m` routed rows get on a chip, and why; `a_rows` of a_q, by default as many
    as are needed. Raises ConfigError."""
    if a_rows is None:
        a_rows = -(-m // a_div)
    shape = Shape(m, top_k, block_m, a_div, n, k, e, a_rows, has_weight)
    return choose_backend(shape, dtype, arch, cu_num)


def decide(shape: Shape, dtype: torch.dtype, router: Router, config: Any) -> tuple[str, str, Any]:
    """Backend, rule and config (None: its default): of the route, or of the caller's config."""
    if config is None:
        chosen = _route(router, shape, dtype)
        routing.say(lambda: f"{OP} {shape} on {router.arch}", chosen)
        config = parse_config(chosen.backend, chosen.config, chosen.row)
        if isinstance(config, MoeConfig) and config.refuses(shape.block_m):
            config = None  # rows of the table hold for any block_m, not so their config
        return chosen.backend, chosen.rule, config
    backend = backend_of(config)
    reason = refuses(backend, shape, dtype, router.arch)
    if reason is None and backend == "moe":
        reason = config.refuses(shape.block_m)
    if reason:
        wanted = f"of a kernel that takes this call on {router.arch}"
        Guard(OP).fail("config", wanted, f"{config}, and {reason}", "pass another or none")
    return backend, "the caller's config", config


def backend_of(config: Any) -> str:
    if isinstance(config, MoeConfig):
        return "moe"
    triton = _triton()
    if triton is not None and isinstance(config, triton.TritonConfig):
        return "triton"
    return Guard(OP).fail(
        "config", "a MoeConfig or a TritonConfig", show(config), "pass one of these"
    )


def parse_config(backend: str, text: str, row: routing.Row | None = None) -> Any:
    """A backend's config from its text in a table; None for its heuristic. Raises ConfigError."""
    if not text or backend == "torch":
        return None
    return routing.parse_config(
        MoeConfig if backend == "moe" else _triton().TritonConfig, text, row
    )


# Of num_valid_tokens, n, k, e, a_rows and the number of ids in the layout.
LaunchOf = Callable[[int, int, int, int, int, int], Launch]


def variant(
    backend: str,
    device: torch.device,
    shape: Shape,
    config: Any,
    dtype: torch.dtype,
    arch: str | None = None,
    scale_align: int = 1,
) -> LaunchOf:
    """What makes the launches of shapes with the same top_k, block_m, a_div and weights. `arch` is
    the device's where it is known, `scale_align` what the scales' addresses are a multiple of."""
    if backend == "moe":
        return mxfp8_moe.variant(
            device, config, block_m=shape.block_m, a_div=shape.a_div, weighted=shape.weighted,
            dtype=dtype, arch=arch, scale_align=scale_align,
        )  # fmt: skip

    def launch_of(rows: int, n: int, k: int, e: int, a_rows: int, _num_ids: int) -> Launch:
        now = shape._replace(num_valid_tokens=rows, n=n, k=k, e=e, a_rows=a_rows)
        if backend == "torch":
            return functools.partial(run_torch, now)
        names = ("num_valid_tokens", "top_k", "block_m", "a_div", "n", "k", "e")
        sizes = {name: getattr(now, name) for name in names}
        run: Launch = _triton().prepare(device, **sizes, dtype=dtype, config=config)
        return run

    return launch_of


def prepare(
    backend: str,
    device: torch.device,
    shape: Shape,
    num_ids: int,
    config: Any = None,
    dtype: torch.dtype = torch.bfloat16,
    scale_align: int = 1,
) -> Launch:
    """The launch of one shape by a backend; without a config by its default."""
    if config is None:
        config = default_config(backend, shape, routing.chip(device)[0])
    launch_of = variant(backend, device, shape, config, dtype, scale_align=scale_align)
    return launch_of(shape.num_valid_tokens, shape.n, shape.k, shape.e, shape.a_rows, num_ids)


class Family:
    """Makes the plans of calls that differ in sizes alone: (rows, N, what fills out).

    Coarse numbers of rows share a decision where it is the default of the HIP kernel, as sizes do
    in gemm_mxfp8_route.py.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, config: Any, like: Shape, scale_align: int
    ) -> None:
        self.device, self.dtype, self.config, self.scale_align = device, dtype, config, scale_align
        self.like = like
        self.block_m, self.a_div, self.weighted = like.block_m, like.a_div, int(like.weighted)
        self.router = Router(OP, *routing.chip(device))
        self._defaults: dict[tuple[int, ...], LaunchOf] = {}

    def __call__(
        self, rows: int, n: int, k: int, e: int, a_rows: int, ids: int, blocks: int
    ) -> tuple[int, int, Launch] | None:
        if refuses_sizes(rows, a_rows, self.a_div, ids, self.block_m, blocks):
            return None  # the guards say it
        most_rows = coarse(rows, 1)
        sizes = most_rows, n, k, e, mxfp8_moe.reaches(a_rows, k)
        launch_of = self._defaults.get(sizes)
        if launch_of is None or not self.router.is_untuned(
            (rows, n, k, e, self.a_div, self.weighted)
        ):
            shape = self.like._replace(num_valid_tokens=rows, n=n, k=k, e=e, a_rows=a_rows)
            launch_of = self._decide(shape, most_rows, sizes)
        return rows, n, launch_of(rows, n, k, e, a_rows, ids)

    def _decide(self, shape: Shape, most_rows: int, sizes: tuple[int, ...]) -> LaunchOf:
        dtype, arch = self.dtype, self.router.arch
        backend, rule, config = decide(shape, dtype, self.router, self.config)
        if config is None:
            config = default_config(backend, shape, arch)
        made = variant(backend, self.device, shape, config, dtype, arch, self.scale_align)
        if rule == "envelope default" and self._takes(shape, most_rows):
            if len(self._defaults) >= MOST_DEFAULTS:
                self._defaults.clear()
            self._defaults[sizes] = made
        return made

    def _takes(self, shape: Shape, rows: int) -> bool:
        """Whether the same decision holds for so many rows, and so for those between."""
        largest = shape._replace(num_valid_tokens=rows)
        reason = refuses("moe", largest, self.dtype, self.router.arch)
        return reason is None and _beyond_envelope(largest) is None


def refuses_sizes(
    num_valid: int, a_rows: int, a_div: int, num_ids: int, block_m: int, blocks: int
) -> tuple[str, str, str, str] | None:
    """What the sizes of a call must be to each other: a refusal's argument, expected, got and way
    out, or None."""
    if 4 * num_ids >= MAX_BYTES:
        few = f"shorter than {MAX_BYTES // 4} (its byte offsets are signed 32-bit)"
        return "sorted_token_ids", few, f"{num_ids}", "split the rows"
    needed = -(-num_ids // block_m)
    if blocks < needed:
        wanted = f"one for each of {needed} blocks of {block_m}"
        return "expert_ids", wanted, f"{blocks}", LAYOUT
    if a_rows * a_div < num_valid:
        wanted = f"of at least num_valid_tokens / a_div = {-(-num_valid // a_div)} rows"
        way = "pass a_div = top_k for rows of tokens, 1 for routed rows"
        return "a_q", wanted, f"{a_rows}", way
    return None


def supports(
    *,
    arch: str,
    dtype: torch.dtype = torch.bfloat16,
    shape: tuple[int, int, int, int] | None = None,
    backend: str | None = None,
    block_m: int = 16,
) -> bool:
    """Whether the op gives a result of `dtype` on `arch` (gfx942, gfx950, sm_90, ...) for a shape
    (routed rows, N, K, E), and with `backend`, whether that kernel does: moe, triton, torch."""
    m, n, k, e = shape or (1, 16, BLOCK, 1)
    if dtype not in OUT_DTYPES or k < BLOCK or k % BLOCK or min(m, n, e) < 0 or block_m < 1:
        return False
    full = Shape(m, 1, block_m, 1, n, k, e, m, False)
    if backend not in (None, *BACKENDS):
        known = ", ".join(BACKENDS)
        raise ValueError(f"{OP}.supports: backend must be one of {known}, got {backend!r}")
    if backend in ("moe", "triton"):
        return refuses(backend, full, dtype, arch) is None
    return arch.startswith(("gfx", "sm_"))


_CHUNK = 1 << 22  # elements of w in float64 at once: 32 MiB


def run_torch(
    shape: Shape,
    out: torch.Tensor,
    a_q: torch.Tensor,
    a_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    weights: torch.Tensor | None,
) -> None:
    """Any size and device, one block after the other and a part of its expert's w at a time, in
    float64, where values and products are exact. Does not synchronise with a GPU: blocks beyond
    num_tokens_post_padded are computed there, and dropped."""
    num_ids, valid = sorted_token_ids.shape[0], shape.num_valid_tokens
    place = torch.arange(num_ids, device=out.device)
    named = place < num_tokens_post_padded
    named &= (sorted_token_ids >= 0) & (sorted_token_ids < valid)
    ids = torch.where(named, sorted_token_ids, valid).long()
    result = torch.cat([out, out.new_empty((1, shape.n))])  # row `valid` takes what is dropped
    end = min(int(num_tokens_post_padded), num_ids) if out.is_cpu else num_ids
    for block in range(-(-end // shape.block_m)):
        rows = ids[block * shape.block_m : (block + 1) * shape.block_m]
        a_row = (rows // shape.a_div).clamp(max=shape.a_rows - 1)
        a = dequant_mxfp8(_take(a_q, a_row), _take(a_scale, a_row), torch.float64)
        expert = expert_ids[block]
        inside = (expert >= 0) & (expert < shape.e)
        product = _times_expert(a, w, w_scale, torch.where(inside, expert, 0)[None])
        if weights is not None:
            product *= weights.view(-1)[rows.clamp(max=valid - 1)].double()[:, None]
        result[rows] = torch.where(inside, product, 0.0).to(out.dtype)
    out.copy_(result[:valid])


def _take(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """tensor[index]; as bytes, since torch does not index every 8-bit float everywhere."""
    return tensor.view(torch.uint8).index_select(0, index).view(tensor.dtype)


def _times_expert(
    a: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, expert: torch.Tensor
) -> torch.Tensor:
    """a @ w[expert].T in float64, a part of N at a time; `expert` is [1], on the device."""
    if w.shape[0] == 0:
        return a.new_zeros((a.shape[0], w.shape[1]))
    step = max(1, _CHUNK // w.shape[2])
    parts = [
        dequant_mxfp8(
            _take(w[:, n0 : n0 + step], expert)[0],
            _take(w_scale[:, n0 : n0 + step], expert)[0],
            torch.float64,
        )
        for n0 in range(0, w.shape[1], step)
    ]
    return torch.cat([a @ part.T for part in parts], dim=1)
