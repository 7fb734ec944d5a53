"""Predicted times of the variants of an op's kernels, by which a call without a tuned row chooses.

    us = sum_t constant[t] * term[t] * 2^correction
    correction = sum_{i <= j} coefficient[i, j] * log[i] * log[j]

Terms are what a variant does at a call's sizes, in microseconds at the rates that the vendor
states or as counts (steps along K, rounds of workgroups): an op's TimeModel says them for all of
its kernels. Constants are fitted to times by `rfops tune OP --model`, a set for each family of
variants (a tile size), and stand in configs/<op>_model.csv with their source. The correction has
what terms do not: it is quadratic in the binary logarithms of sizes, taken no farther than the
sizes that it was fitted to, and at most a factor of 1.3.

A kernel's row without a family has the correction of all of its families, and the constants of one
that has no row. An architecture without rows has those that the model calls typical, else 1.
"""

from __future__ import annotations

import csv
import functools
import itertools
import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rfops.jit import ConfigError, paths, settings

from .heuristic import Columns
from .kernel import Call, Kernel
from .tuned_table import serving

Array = npt.NDArray[np.float64]
COLUMNS = "arch", "cu_num", "kernel", "family", "constants", "correction", "origin", "source"
MAX_CORRECTION = 0.38  # binary logarithm: a factor of 1.3
_MAX_RANKED, _MAX_VARIANTS = 4096, 256


class Constants(NamedTuple):
    """Those of a family of variants."""

    linear: Array  # [terms]
    quadratic: Array  # [logs, logs], upper triangle
    low: Array  # [logs]: the bounds of what it was fitted to
    high: Array


class Work(NamedTuple):
    """What variants do at a call's sizes: each an array, or one number for all."""

    terms: Sequence[Any]
    logs: Sequence[Any]
    # Which are far from what was timed, so that constants say nothing of them: not to be chosen.
    excluded: Any = None


class Choice(NamedTuple):
    """The quickest variant of a kernel, as predicted."""

    kernel: str
    config: Any
    us: float


class Variants:
    """Variants of several kernels side by side, with what does not depend on a call: an array for
    each trait, and their constants."""

    def __init__(
        self,
        model: TimeModel,
        kernels: Sequence[TimedKernel],
        tables: Sequence[Columns[Any]],
        c: Call,
    ) -> None:
        self.tables = tables  # whose ids are its key
        self.members = [(k, v) for k, t in zip(kernels, tables, strict=True) for v in t]
        traits = [k.traits(v, c) for k, v in self.members]
        for name, values in zip(model.traits, zip(*traits, strict=True), strict=True):
            setattr(self, name, np.array(values, dtype=np.float64))
        constants = [
            model.constants(c.arch, c.cu_num, k.name, k.family(v, c)) for k, v in self.members
        ]
        self.linear = np.array([f.linear for f in constants]).T.copy()  # [terms, variants]
        self.low = np.array([f.low for f in constants]).T.copy()  # [logs, variants]
        self.high = np.array([f.high for f in constants]).T.copy()
        self.derived: Mapping[str, Any] = {}
        # Of the last call, what others may share, behind what it depends on.
        self.kept: tuple[Any, tuple[Any, ...]] = None, ()
        model.prepare(self, c)
        ends = list(itertools.accumulate(len(t.candidates) for t in tables))
        self.parts = [
            (k.name, slice(e - len(t.candidates), e))
            for k, t, e in zip(kernels, tables, ends, strict=True)
        ]
        # [logs, logs] of each kernel.
        self.quadratic = [constants[span.start].quadratic.T for _, span in self.parts]
        self.has_correction = any(form.any() for form in self.quadratic)
        self.terms, self.logs = _Rows(self.linear.shape), _Rows(self.low.shape)
        self.x, self.product = np.empty(self.low.shape), np.empty(self.low.shape)
        self.products = [
            (form, self.x[:, span], self.product[:, span])
            for (_, span), form in zip(self.parts, self.quadratic, strict=True)
        ]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __len__(self) -> int:
        return len(self.members)


class _Rows:
    """Rows of numbers of variants, filled for one call after another. What is the same object as
    before, as what no call changes is, stands there already."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = np.zeros(shape)
        self._rows = list(self.values)
        self._last: list[Any] = [0.0] * shape[0]

    def fill(self, found: Sequence[Any]) -> Array:
        last, rows = self._last, self._rows
        for index, row in enumerate(found):
            if row is not last[index]:
                rows[index][...] = last[index] = row
        return self.values


class TimedKernel(Kernel):
    """A kernel whose variants an op's model ranks."""

    is_ranked = True
    time_model: TimeModel  # set by the op
    sources: ClassVar[tuple[str, ...]] = ()  # modules of Triton kernels, which times depend on

    def space(self, c: Call) -> Columns[Any] | None:
        """The variants to choose among, the same object for like calls; None where sizes or the
        architecture exclude them all."""
        raise NotImplementedError

    def full_space(self, c: Call) -> Columns[Any] | None:
        """Those that a tuner may try."""
        return self.space(c)

    def traits(self, config: Any, c: Call) -> tuple[float, ...]:
        """Of a variant, what the model's terms are made of."""
        raise NotImplementedError

    def family(self, config: Any, c: Call) -> str:
        """Variants that share constants."""
        return ""

    def default(self, c: Call) -> Any:
        """The quickest as predicted; of a kernel that calls do not choose here, the first."""
        choice = self.time_model.rank(c).get(self.name)
        if choice is not None:
            return choice.config
        table = self.full_space(c)
        if table is None:
            raise ValueError(f"{self.name}: no variant takes {c} on {c.arch}")
        return table.candidates[0]

    def candidates(self, c: Call) -> Iterable[Any]:
        """The default, then all by their predicted times but those that a model excludes."""
        table = self.full_space(c)
        if table is None:
            return []
        us = self.time_model.predict([self], [table], c)[1]
        order = np.argsort(us, kind="stable")
        ranked = [table.candidates[index] for index in order if us[index] < np.inf]
        return list(dict.fromkeys([self.default(c), *ranked]))


class TimeModel:
    """Of an op. A subclass says terms."""

    terms: ClassVar[tuple[str, ...]]
    units: ClassVar[Mapping[str, str]]  # of each term's constant
    typical: ClassVar[Mapping[str, float]] = {}  # what stands for a constant that was not fitted
    logs: ClassVar[tuple[str, ...]]
    traits: ClassVar[tuple[str, ...]]

    def __init__(self, name: str) -> None:
        self.name = f"{name}_model"
        self.kernels: tuple[TimedKernel, ...] = ()
        self._ranked: dict[tuple[Any, ...], dict[str, Choice]] = {}
        self._variants: dict[tuple[Any, ...], Variants] = {}
        self._fitted: Mapping[tuple[str, str], Constants] | None = None

    def use(self, fitted: Mapping[tuple[str, str], Constants] | None) -> None:
        """Rank by these constants, by kernel and family, on every chip; None: by those of the
        files again."""
        self._fitted = fitted
        self._ranked.clear()
        self._variants.clear()

    def own(self, kernels: Sequence[TimedKernel]) -> None:
        """The kernels of its op."""
        self.kernels = tuple(kernels)
        for kernel in kernels:
            kernel.time_model = self

    def key(self, c: Call) -> tuple[Any, ...]:
        """What of a call its ranking depends on, beside the architecture."""
        return tuple(c.sizes.values())

    def like(self, c: Call) -> Call:
        """The call at whose sizes variants are ranked: of those that share a decision, one."""
        return c

    def prepare(self, v: Variants, c: Call) -> None:
        """Set `derived`, what `work` needs again and again: of traits, the chip and what `static`
        says of a call."""

    def work(self, v: Variants, c: Call) -> Work:
        raise NotImplementedError

    # ------------------------------------------------------------ the ranking

    def rank(self, c: Call) -> dict[str, Choice]:
        """The best variant of each kernel, the quickest kernel first."""
        c = self.like(c)
        key = c.arch, c.cu_num, *self.key(c)
        known = self._ranked.get(key)
        if known is None:
            pairs = [(k, t) for k in self.kernels if (t := k.space(c)) is not None]
            choices: list[Choice] = []
            if pairs:
                kernels, tables = zip(*pairs, strict=True)
                v, us = self.predict(kernels, tables, c)
                for name, span in v.parts:
                    index = span.start + int(us[span].argmin())
                    choices.append(Choice(name, v.members[index][1], float(us[index])))
            choices.sort(key=_us)
            if len(self._ranked) >= _MAX_RANKED:
                self._ranked.clear()
            known = self._ranked[key] = {choice.kernel: choice for choice in choices}
        return known

    def predict(
        self, kernels: Sequence[TimedKernel], tables: Sequence[Columns[Any]], c: Call
    ) -> tuple[Variants, Array]:
        """Microseconds of all variants of these tables."""
        key = (c.arch, c.cu_num, self.static(c), *map(id, tables))
        v = self._variants.get(key)
        if v is None:
            if len(self._variants) >= _MAX_VARIANTS:
                self._variants.clear()
            v = self._variants[key] = Variants(self, kernels, tables, c)
        work = self.work(v, c)
        us = _evaluate(v, work)
        if work.excluded is not None:
            us[work.excluded] = np.inf
        return v, us

    def explain(self, c: Call, count: int = 2) -> list[tuple[Choice, dict[str, float]]]:
        """The quickest variants, each with its terms in microseconds; `correction` is a factor."""
        c = self.like(c)
        pairs = [(k, t) for k in self.kernels if (t := k.space(c)) is not None]
        if not pairs:
            return []
        kernels, tables = zip(*pairs, strict=True)
        v, us = self.predict(kernels, tables, c)
        work = self.work(v, c)
        contributions = np.array([np.broadcast_to(term, len(v)) for term in work.terms]) * v.linear
        with _room:
            factor = np.exp2(_correction(v, work.logs)) if v.has_correction else np.ones(len(v))
        explanations = []
        for index in np.argsort(us, kind="stable")[:count]:
            kernel, config = v.members[index]
            term_us = zip(self.terms, contributions[:, index], strict=True)
            figures = {name: float(value) for name, value in term_us if value}
            figures["correction"] = float(factor[index])
            explanations.append((Choice(kernel.name, config, float(us[index])), figures))
        return explanations

    def static(self, c: Call) -> tuple[Any, ...]:
        """What of a call traits depend on."""
        return ()

    # ------------------------------------------------------------ the constants

    def constants(self, arch: str, cu_num: int, kernel: str, family: str) -> Constants:
        table = self.table(arch, cu_num)
        overall = table.get((kernel, ""))
        if overall is None:
            return self.nominal()
        constants = table.get((kernel, family), overall)
        return overall._replace(linear=constants.linear)

    def nominal(self) -> Constants:
        size = len(self.logs)
        zeros = np.zeros(size)
        linear = np.array([self.typical.get(term, 1.0) for term in self.terms])
        return Constants(linear, np.zeros((size, size)), zeros, zeros)

    def table(self, arch: str, cu_num: int) -> Mapping[tuple[str, str], Constants]:
        """By kernel and family: of the architecture, or of the one that serves it; of the nearest
        number of compute units."""
        if self._fitted is not None:
            return self._fitted
        rows = _load(self, settings.path("RFOPS_CONFIGS"))
        for name in dict.fromkeys((arch, serving(arch) or arch)):
            near = [cu for table_name, cu in rows if table_name == name]
            if near:
                return rows[name, min(near, key=lambda cu: (abs(cu - cu_num), cu))]
        return {}


_us = operator.attrgetter("us")


_room = threading.Lock()  # of what Variants keep to compute in


def _evaluate(v: Variants, work: Work) -> Array:
    with _room:
        us: Array = np.einsum("tv,tv->v", v.terms.fill(work.terms), v.linear)
        if v.has_correction:
            us *= np.exp2(_correction(v, work.logs))
    return us


def _correction(v: Variants, logs: Sequence[Any]) -> Array:
    np.maximum(v.logs.fill(logs), v.low, out=v.x)
    np.minimum(v.x, v.high, out=v.x)
    for form, x, product in v.products:
        np.matmul(form, x, out=product)
    v.product *= v.x
    correction: Array = np.add.reduce(v.product)
    np.maximum(correction, -MAX_CORRECTION, out=correction)
    return np.minimum(correction, MAX_CORRECTION, out=correction)


# ---------------------------------------------------------------- the file


Table = Mapping[tuple[str, int], Mapping[tuple[str, str], Constants]]


@functools.lru_cache(maxsize=64)
def _load(model: TimeModel, overlay: Path | None) -> Table:
    """By architecture and compute units. A user's rows of these replace all that are shipped."""
    rows: dict[tuple[str, int], Mapping[tuple[str, str], Constants]] = {}
    for folder in (paths.CONFIGS, overlay):
        file = folder / f"{model.name}.csv" if folder is not None else None
        if file is not None and file.is_file():
            rows |= read(file, model)
    return rows


def read(file: Path, model: TimeModel) -> Table:
    """A file of constants. Raises ConfigError."""
    rows: dict[tuple[str, int], dict[tuple[str, str], Constants]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream, strict=True)
            for cells in reader:
                if tuple(cells) != COLUMNS:
                    raise ValueError(f"the header must be {','.join(COLUMNS)}")
                of_chip = rows.setdefault((cells["arch"], int(cells["cu_num"])), {})
                of_chip[cells["kernel"], cells["family"]] = parse(model, cells)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError, KeyError) as error:
        raise ConfigError(f"{file}: not a table of {model.name}: {error}") from error
    return rows


def parse(model: TimeModel, cells: Mapping[str, str]) -> Constants:
    """A row's constants. Raises ValueError, KeyError."""
    terms, logs = list(model.terms), list(model.logs)
    linear, size = np.zeros(len(terms)), len(logs)
    quadratic, low, high = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    for name, value in _pairs(cells["constants"]):
        linear[terms.index(name)] = float(value)
    for name, value in _pairs(cells["correction"]):
        if ":" in value:
            log_idx = logs.index(name)
            low[log_idx], high[log_idx] = map(float, value.split(":"))
        else:
            i, j = (logs.index(log) for log in name.split("*"))
            quadratic[i, j] = float(value)
    return Constants(linear, quadratic, low, high)


def text_of(model: TimeModel, constants: Constants) -> tuple[str, str]:
    """The cells `constants` and `correction` of a row; what is 0 is left out."""
    linear = [f"{n}={v:.5g}" for n, v in zip(model.terms, constants.linear, strict=True) if v]
    correction: list[str] = []
    if constants.quadratic.any():
        logs = model.logs
        correction = [
            f"{logs[i]}*{logs[j]}={constants.quadratic[i, j]:.6g}"
            for i in range(len(logs))
            for j in range(i, len(logs))
            if constants.quadratic[i, j]
        ]
        bounds = zip(logs, constants.low, constants.high, strict=True)
        correction += [f"{name}={low:.5g}:{high:.5g}" for name, low, high in bounds]
    return " ".join(linear), " ".join(correction)


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for word in text.split():
        name, sign, value = word.partition("=")
        if not sign:
            raise ValueError(f"{word!r} is no name=value")
        pairs.append((name, value))
    return pairs


def replace_rows(file: Path, arch: str, cu_num: int, rows: Sequence[Sequence[Any]]) -> None:
    """Write a chip's rows in place of those that the file has of it."""
    kept: list[Sequence[Any]] = []
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as stream:
            lines = list(csv.reader(stream))[1:]
        kept = [line for line in lines if line[:2] != [arch, str(cu_num)]]
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    with temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([COLUMNS, *sorted([*kept, *rows], key=lambda row: [*map(str, row[:4])])])
    temporary.replace(file)
