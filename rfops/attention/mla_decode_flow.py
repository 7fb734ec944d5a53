"""mla_decode in HIP, 16 columns (a query's head) at a time: the cache is read once for each 16."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import check_config_ints
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.workspace import SPLIT, with_partials
from rfops.jit import compile_ops, f32, u32
from rfops.jit.arch import ARCH_SPECS

from .mla_terms import D_V, Traits

COLUMNS = 16  # of a workgroup
CUT = 64  # tokens to which a worker's are rounded up, and a sequence's cost: kCut of the kernel
MIN_TOKENS = CUT  # of a worker
# MIN_TOKENS and CUT where each CU would have fewer than MIN_TOKENS: to read less takes less time.
SHORT_MIN_TOKENS = 32
MAX_SPINS = 256  # polls, of some 1,000 clk, for other splits (csrc/attention/mla_combine_all.h)
LEVELS = 6  # kLevels of csrc/attention/mla_combine_tree.h, each of four waves' counts of two words
_MOST_WORKERS = 4096
_BF16 = torch.bfloat16


@dataclass(frozen=True)
class FlowConfig:
    """A variant of csrc/attention/mla_decode_flow.hip."""

    workers: int  # workgroups that share the tokens of all sequences, of each 16 columns
    least: int  # tokens of a worker at least, where there are fewer than for all
    # 1: sequences of equal lengths are cut into as many parts, by fewer workers where need be. The
    # kernel sees lengths, a decision does not; of others it shares the tokens out as without.
    even: int = 0

    def __post_init__(self) -> None:
        check_config_ints(self)
        if not 1 <= self.workers <= _MOST_WORKERS:
            raise ValueError(f"{self}: workers is 1 to {_MOST_WORKERS}")
        if self.least < CUT and self.least != SHORT_MIN_TOKENS:
            raise ValueError(f"{self}: least is {SHORT_MIN_TOKENS}, or {CUT} or more")
        if self.even not in (0, 1):
            raise ValueError(f"{self}: even is 0 or 1")


def _defines(
    kv: torch.dtype,
    q: torch.dtype,
    min_tokens: int,
    page: int = 1,
    rope: bool = False,
    ragged: bool = False,
    even: bool = False,
) -> dict[str, int]:
    flags = {
        "KV_FP8": kv != _BF16,
        "Q_FP8": q != _BF16,
        "PAGED": page > 1,
        "ROPE": rope,
        "RAGGED": ragged,
        "EVEN": even and not ragged,
    }
    return {
        **{name: int(flag) for name, flag in flags.items()},
        "LEAST": min_tokens,
        "TURNS": MAX_SPINS,
    }


def _variants(arch: str) -> list[dict[str, int]]:
    kinds = itertools.product((_BF16, fp8_of(arch)), (MIN_TOKENS, SHORT_MIN_TOKENS), (False, True))
    return [_defines(kv, _BF16, min_tokens, even=even) for kv, min_tokens, even in kinds]


def arguments(
    kv_indptr: torch.Tensor | None,
    kv_lens: torch.Tensor | None,
    batch: u32,
    workers: u32,
    page_shift: u32,
    width: u32,
    kv_indices: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    workspace: torch.Tensor,
    counts: torch.Tensor,
    angles: torch.Tensor | None,
    sm_scale: f32,
    columns: u32,
    heads: u32,
    unseen: u32,
    qo_indptr: torch.Tensor | None,
) -> None:
    """Of csrc/attention/mla_decode_flow.hip and mla_decode_shared.hip: the shapes stand there."""


_bind = compile_ops("mla_decode_flow", kernel="mla_decode_flow", variants=_variants)
mla_decode_flow = _bind(arguments)


def rotates_keys(kernel: Kernel) -> bool:
    """Return whether the kernel rotates keys itself, as its own class declares: a derived class
    does not inherit the declaration."""
    return bool(vars(type(kernel)).get("rotates_keys"))


def is_table(c: Call) -> bool:
    """Whether pages come as a block table."""
    indices = c.tensors.get("kv_indices")
    return indices is not None and indices.dim() == 2


class Flow(TimedKernel):
    name, module = "flow", "mla_decode_flow"
    limits = "B T S P W"
    rotates_keys = True  # by their positions, where the call has `angles`: mla_layer_decode's
    Config = FlowConfig
    error = 2.0**-8  # P in bf16
    source: ClassVar[Any] = staticmethod(mla_decode_flow)  # the kernel
    columns, min_tokens, short_min_tokens = COLUMNS, MIN_TOKENS, SHORT_MIN_TOKENS
    words = D_V + 8  # of a column of a part: its sums, and totals of four waves
    # What a decision chooses among: of equals the first, because workers of SHORT_MIN_TOKENS waited
    # twice as long for other splits.
    min_tokens_choices: ClassVar[tuple[int, ...]] = (
        MIN_TOKENS,
        SHORT_MIN_TOKENS,
        2 * MIN_TOKENS,
        4 * MIN_TOKENS,
    )
    has_single = True  # each sequence has a worker, however few tokens there are
    max_flat_splits = 32  # kMaxSplits of csrc/attention/mla_combine_all.h

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        for name in ("q", "kv"):
            dtype = getattr(c, f"{name}_dtype")
            if dtype not in (_BF16, fp8_of(c.arch)):
                return f"{c.arch} has {fp8_of(c.arch)}, {name} is {dtype}"
        if c.page < 1 or c.page & (c.page - 1):
            return f"pages of {c.page} tokens, not a power of two"
        if c.has("angles") and c.kv_dtype != _BF16:
            return "keys of FP8 are not turned"
        if c.P * c.page >= 2**32:
            return f"{c.P * c.page} rows of kv, 2^32 or more"
        if c.has("qo_indptr") and self.most_cost(c) >= 2**32:
            return f"{c.T * c.H} columns by {c.S * c.page} tokens: 2^32 or more to share out"
        return None

    def items(self, c: Call) -> int:
        """Return the largest number of work items of ragged queries; an item is `columns` query
        rows of one sequence."""
        return int(ceil(c.T * c.H, self.columns) + c.B)

    def most_cost(self, c: Call) -> int:
        """Return an upper bound of the tokens of all work items of ragged queries, which the kernel
        partitions in 32 bits."""
        # item_tokens: more than what an item costs beside its tokens
        item_tokens, tokens = 1024, c.S * c.page
        of_longest = ceil(c.qo_len * c.H, self.columns) * (tokens + item_tokens * c.B)
        return int(min(self.items(c) * (c.W * c.page + item_tokens), of_longest))

    def default(self, c: Call) -> FlowConfig:
        """Return the variant that the time model predicts as fastest. With ragged queries, whose
        items per sequence the model does not know, return one worker per CU."""
        if not c.has("qo_indptr"):
            config: FlowConfig = super().default(c)
            return config
        # Items of equal lengths are cut into equal parts.
        items = c.B * ceil(c.T * c.H, self.columns * max(1, c.B))
        workers = c.cu_num - c.cu_num % items if 0 < items <= c.cu_num else c.cu_num
        is_short = c.S * c.page * ceil(items, max(1, c.B)) < workers * self.min_tokens
        return self.Config(workers, self.short_min_tokens if is_short else self.min_tokens)

    def space(self, c: Call) -> Columns[Any] | None:
        if self.unsupported_arch_reason(c):
            return None
        workers = self.workers(self.groups(c), c.cu_num, ARCH_SPECS[c.arch].xcds)
        # As many parts of each sequence take fewer workers: of four one less, at most.
        return self._variants(workers, 1 < c.B <= workers and workers % c.B <= workers // 4)

    def has_few_tokens(self, c: Call) -> bool:
        """Whether a call has so few tokens that the kernel is not among its choices."""
        return False

    def groups(self, c: Call) -> int:
        """Return how many groups of `columns` query rows a sequence has; with ragged queries, on
        average."""
        columns = c.T * c.H / max(c.B, 1) if c.has("qo_indptr") else c.H * c.qo_len
        return int(max(1, -(-columns // self.columns)))

    def workers(self, groups: int, cus: int, xcds: int) -> int:
        """Return the workers per group of query rows: one per CU in all. With several groups the
        number is a multiple of the XCDs, so that those which read the same tokens share an L2."""
        workers = max(cus // groups, 1)
        return workers - workers % xcds if groups > 1 and workers > xcds else workers

    @functools.lru_cache(maxsize=256)  # noqa: B019 # kernels live as long as the process
    def _variants(self, workers: int, with_even: bool) -> Columns[FlowConfig]:
        pairs = itertools.product(self.min_tokens_choices, (0, 1) if with_even else (0,))
        return Columns([self.Config(workers, min_tokens, is_even) for min_tokens, is_even in pairs])

    def family(self, config: FlowConfig, c: Call) -> str:
        return f"kv{8 * c.kv_dtype.itemsize}"  # bits of an element

    def traits(self, config: FlowConfig, c: Call) -> tuple[float, ...]:
        return Traits(
            config.workers,
            config.least,
            config.even,
            self.has_single,
            self.groups(c),
            self.columns,
            self.overhead(c.arch, config),
            *self.tokens(c, config),
            self.max_flat_splits,
            self.max_single(c, config),
            4 * self.words,
        )

    def overhead(self, arch: str, config: FlowConfig) -> int:
        """Return the fixed cost of a sequence in tokens: kCut of the kernel."""
        return min(CUT, config.least)

    def tokens(self, c: Call, config: FlowConfig) -> tuple[int, int]:
        """Return the tokens to a multiple of which splits are cut, and the tokens of a tile: 32
        bytes of a column of the cache per wave, four waves."""
        return min(CUT, config.least), 128 // c.kv_dtype.itemsize

    def max_single(self, c: Call, config: FlowConfig) -> int:
        """Return how many tokens a range with a part of one sequence has at most, where lengths are
        equal: kMaxFlatRange of csrc/attention/mla_kv_splits.h."""
        cut, tile = self.tokens(c, config)
        return max(2 * cut, tile)

    def defines(self, c: Call, config: FlowConfig) -> Mapping[str, Any]:
        forms = c.has("angles"), c.has("qo_indptr")
        return _defines(c.kv_dtype, c.q_dtype, config.least, c.page, *forms, even=bool(config.even))

    def variant(self, c: Call, config: FlowConfig) -> RunOf:
        bound = self.source.bind(c.device, self.defines(c, config), c.arch)
        is_ragged, has_table = c.has("qo_indptr"), is_table(c)
        angles = ("angles",) if c.has("angles") else ()
        launch = bound.prepare((256, 1, 1), (*self.arguments, *angles, *SPLIT))

        def run_of(*sizes: int) -> Run:
            batch, rows, heads, _entries, _pages, page, _ends, width = sizes
            workers = config.workers
            columns = rows if is_ragged else c.qo_len * heads
            groups = 1 if is_ragged else ceil(columns, self.columns)
            shift = page.bit_length() - 1
            unseen = int(c.causal) if is_ragged else (c.qo_len - 1) * c.causal
            num_partials = groups * workers * 2
            run = launch(
                (groups * workers, 1, 1),
                batch=batch,
                workers=workers,
                page_shift=shift,
                width=width * has_table,
                sm_scale=c.sm_scale,
                columns=columns,
                heads=heads,
                unseen=unseen,
            )
            words = num_partials * self.columns * self.words
            return with_partials(run, c.device, words, LEVELS * num_partials * 8)

        return run_of
