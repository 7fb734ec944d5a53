"""Predicted times of the variants of an op's kernels, by which a call without a tuned row chooses.

    us = sum_t constant[t] * term[t] * 2^correction
    correction = sum_{i <= j} coefficient[i, j] * log[i] * log[j]

Terms are what a variant does at a call's sizes, in microseconds at the rates that the vendor
states or as counts (steps along K, rounds of workgroups): an op's TimeModel says them for all of
its kernels. Each term is a sum of coefficient * factor. Factors change from call to call and are
few for all terms; coefficients are those of a layer. They are multiplied by the constants once, so
that a new size costs its factors and one sum over them.

Constants are fitted to times by `rfops tune OP --model`, a set for each family of variants (a tile
size), and stand in configs/<op>_model.csv with their source. The correction has
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
from rfops.jit.launch import launcher

from .heuristic import Columns
from .kernel import Call, Kernel
from .row_program import Program, Rows
from .tuned_table import serving

Array = npt.NDArray[np.float64]
COLUMNS = "arch", "cu_num", "kernel", "family", "constants", "correction", "origin", "source"
MAX_CORRECTION = 0.38  # binary logarithm: a factor of 1.3
MAX_TIE = 1e-12  # by which equal times differ as predicted, relative: more than roundings do
# numpy takes an array in half the time of a number.
_LEAST_CORRECTION, _MOST_CORRECTION = np.array(-MAX_CORRECTION), np.array(MAX_CORRECTION)
_MAX_RANKED, _MAX_VARIANTS, _MAX_LAYERS, _MAX_PREDICTORS = 4096, 256, 64, 512


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


class Layer(NamedTuple):
    """What calls have in common that differ only in changing sizes."""

    terms: Mapping[str, Mapping[str, Any]]  # of each term its coefficients, by factor
    logs: Mapping[str, Any]  # those that do not change
    excluded: Any = None
    derived: Mapping[str, Any] = {}  # what the factors of its calls are made of


class Predictor(NamedTuple):
    """What calls of a layer with the same variants share."""

    variants: Variants
    layer: Layer | None
    fold: Fold | None  # None: the model states its terms alone
    weights: Array


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
        families = [(k.name, k.family(v, c)) for k, v in self.members]
        constants_of = {f: model.constants(c.arch, c.cu_num, *f) for f in dict.fromkeys(families)}
        constants = [constants_of[family] for family in families]
        self.linear = np.array([f.linear for f in constants]).T.copy()  # [terms, variants]
        self.low = np.array([f.low for f in constants]).T.copy()  # [logs, variants]
        self.high = np.array([f.high for f in constants]).T.copy()
        self.derived: Mapping[str, Any] = {}
        model.prepare(self, c)
        ends = list(itertools.accumulate(len(t.candidates) for t in tables))
        self.kernel_spans = [
            (k.name, slice(e - len(t.candidates), e))
            for k, t, e in zip(kernels, tables, ends, strict=True)
        ]
        # [logs, logs] of each kernel, upper triangle.
        self.quadratic = [constants[span.start].quadratic for _, span in self.kernel_spans]
        self.has_correction = any(form.any() for form in self.quadratic)
        self.fold: Fold | None = None
        self.layers: dict[Any, Predictor] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __len__(self) -> int:
        return len(self.members)


class Fold:
    """Predicts calls of variants by two sums:

        us = sum_r weights[r] * rows[r] * 2^correction
        correction = sum_r weights[r] * rows[r]

    The rows of the first sum are 1 and the factors; those of the second are 1, the changing logs
    and the product of each two. A layer's weights are its coefficients times the constants. All
    calls are evaluated in the same arrays: one thread at a time."""

    def __init__(self, model: TimeModel, v: Variants, layer: Layer) -> None:
        self.model, self.v = model, v
        pairs = [(term, factor) for term, values in layer.terms.items() for factor in values]
        factors = ["one", *model.factors]
        # Coefficients of one factor follow each other.
        self.order = sorted(range(len(pairs)), key=lambda index: factors.index(pairs[index][1]))
        self.linear = v.linear[[model.terms.index(pairs[index][0]) for index in self.order]]
        names = [pairs[index][1] for index in self.order]
        self.begins = [names.index(factor) for factor in factors]
        self.spans = [span for _, span in v.kernel_spans]
        self._split_logs()
        self.num_factors, num_logs = len(factors), len(model.changing_logs)
        num_rows = self.num_factors
        if v.has_correction:
            num_rows += 1 + num_logs + num_logs * (num_logs + 1) // 2
        first_log = self.num_factors + 1
        self.program: Rows | None = None
        if model.program is not None:
            targets = {name: 1 + index for index, name in enumerate(model.factors)}
            for index, name in enumerate(model.changing_logs if v.has_correction else ()):
                targets[f"log_{name}"] = first_log + index
            self.program = model.rows(model.program, v, targets, num_rows)
        self.rows = np.ones((num_rows, len(v)))
        if self.program is not None:
            self.rows = self.program.values[:num_rows]
        self.products = np.empty((num_rows, len(v)))
        self.factors = list(self.rows[1 : self.num_factors])
        self.log_rows = self.rows[first_log : first_log + num_logs]
        # What the model writes to where there is no correction too.
        self.logs = list(self.log_rows if v.has_correction else np.empty((num_logs, len(v))))
        self.squares = []  # a log, it and those behind it, their products
        begin = first_log + num_logs
        for index in range(num_logs if v.has_correction else 0):
            end = begin + num_logs - index
            logs = self.log_rows[index:]
            self.squares.append((logs[0], logs, self.rows[begin:end]))
            begin = end
        self.us_products = self.products[: self.num_factors]
        self.log_products = self.products[self.num_factors :]
        self.us, self.correction = np.empty((2, len(v)))
        self.us_of_kernels = [(name, span.start, self.us[span]) for name, span in v.kernel_spans]
        begins = tuple([(name, span.start) for name, span in v.kernel_spans])
        used = slice(None) if v.has_correction else slice(0)
        low, high = (np.ascontiguousarray(bounds[used]) for bounds in (self.low, self.high))
        self.of_native = low, high  # of logs that a correction has
        self.sizes_of_native = len(v), self.num_factors, MAX_CORRECTION, begins

    def _split_logs(self) -> None:
        """Into those of a layer and those that change."""
        model, v = self.model, self.v
        changing = [model.logs.index(name) for name in model.changing_logs]
        fixed = [index for index in range(len(model.logs)) if index not in changing]
        self.fixed_logs = [model.logs[index] for index in fixed]
        self.fixed_low, self.fixed_high = v.low[fixed], v.high[fixed]
        self.low, self.high = v.low[changing], v.high[changing]
        # Of each kernel: what fixed logs give with each other, then with changing ones.
        self.fixed_forms = [
            np.vstack([form[np.ix_(fixed, fixed)], (form + form.T)[np.ix_(changing, fixed)]])
            for form in v.quadratic
        ]
        # Of products of changing logs, [products, variants].
        upper = np.triu_indices(len(changing))
        self.forms = np.empty((len(upper[0]), len(v)))
        for span, form in zip(self.spans, v.quadratic, strict=True):
            changing_form = form[np.ix_(changing, changing)]
            symmetric_form = changing_form + np.tril(changing_form, -1).T
            self.forms[:, span] = symmetric_form[upper][:, None]

    def weights(self, layer: Layer) -> Array:
        """Of a layer, [rows, variants]."""
        coefficients = [c for values in layer.terms.values() for c in values.values()]
        rows = np.empty(self.linear.shape)
        for row, index in zip(rows, self.order, strict=True):
            row[...] = coefficients[index]
        rows *= self.linear
        weights = np.empty(self.rows.shape)
        np.add.reduceat(rows, self.begins, out=weights[: self.num_factors])
        if layer.excluded is not None:
            weights[0][layer.excluded] = np.inf
        if self.v.has_correction:
            self._correct(layer, weights[self.num_factors :])
        return weights

    def _correct(self, layer: Layer, weights: Array) -> None:
        """Set the weights of the correction."""
        logs = np.empty_like(self.fixed_low)
        for row, name in zip(logs, self.fixed_logs, strict=True):
            row[...] = layer.logs[name]
        np.minimum(np.maximum(logs, self.fixed_low, out=logs), self.fixed_high, out=logs)
        size, num_logs = len(logs), len(self.logs)
        sums = np.empty((size + num_logs, len(self.v)))
        for form, span in zip(self.fixed_forms, self.spans, strict=True):
            np.matmul(form, logs[:, span], out=sums[:, span])
        np.add.reduce(sums[:size] * logs, out=weights[0])
        weights[1 : 1 + num_logs] = sums[size:]
        weights[1 + num_logs :] = self.forms

    def predict(self, predictor: Predictor, c: Call) -> Array:
        """Return microseconds of all variants, in the array that the next call uses too."""
        us, correction, logs = self.us, self.correction, self.log_rows
        excluded = self._changes(predictor, c)
        if self.squares:
            np.maximum(logs, self.low, out=logs)
            np.minimum(logs, self.high, out=logs)
            for log, later_logs, products in self.squares:
                np.multiply(log, later_logs, out=products)
        np.multiply(self.rows, predictor.weights, out=self.products)
        np.add.reduce(self.us_products, out=us)
        if self.squares:
            np.add.reduce(self.log_products, out=correction)
            us *= _factor(correction)
        if excluded is not None:
            us[excluded] = np.inf
        return us

    def _changes(self, predictor: Predictor, c: Call) -> Any:
        """Set the rows of factors and logs for a call; return the mask of excluded variants."""
        if self.program is None:
            assert predictor.layer is not None, "a model with factors has layers"
            return self.model.changes(self.v, c, predictor.layer, self.factors, self.logs)
        self.program.run(self.model.numbers(self.v, c))
        return self.program.mask()

    def best(self, predictor: Predictor, c: Call) -> list[tuple[float, str, int]]:
        """Return the best variant of each kernel: its microseconds, kernel and index; the quickest
        kernel first. By the native launcher where it is loaded: numpy takes 25 us more."""
        native = launcher.native()
        if native is not None:
            bounds, sizes, program = self.of_native, self.sizes_of_native, self.program
            ranking: list[tuple[float, str, int]]
            if program is None:
                excluded, weights = self._changes(predictor, c), predictor.weights
                ranking = native.rank(self.rows, weights, *bounds, excluded, *sizes)
            else:
                numbers = self.model.numbers(self.v, c)
                args = predictor.weights, *bounds, program.mask_row, *sizes
                program_args = program.codes, numbers, program.first_number
                ranking = native.rank(program.values, *args, *program_args)
            return ranking
        self.predict(predictor, c)
        best = []
        for kernel, begin, us in self.us_of_kernels:
            index = quickest(us)
            best.append((us.item(index), kernel, begin + index))
        best.sort(key=_microseconds)
        return best


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
    """Of an op. A subclass says `factors`, `layer` and `changes`, or `program` and `numbers` in
    place of `changes`; where choices are rare, `work` alone."""

    terms: ClassVar[tuple[str, ...]]
    units: ClassVar[Mapping[str, str]]  # of each term's constant
    typical: ClassVar[Mapping[str, float]] = {}  # what stands for a constant that was not fitted
    logs: ClassVar[tuple[str, ...]]
    traits: ClassVar[tuple[str, ...]]
    factors: ClassVar[tuple[str, ...]] = ()  # of terms, beside "one", which is 1
    changing_logs: ClassVar[tuple[str, ...]] = ()
    # How much a fit draws the constants of a family to its kernel's: as so large a share of times.
    family_prior: ClassVar[float] = 0.03
    # How much it draws the correction to none: as so many times at the best of their calls.
    ridge: ClassVar[float] = 1.0
    # Sets rows named as the factors, log_<name> of the changing logs, and `excluded` or none.
    program: ClassVar[Program | None] = None
    # A tuned row also holds for sizes near its own while the predicted time of its variant, over
    # that of the choice without a row, is at most max_row_ratio, and at most max_row_rise times as
    # much as at the row's sizes. The row was the best there: what is predicted above 1 is the
    # model's error, which is much the same at sizes near it.
    max_row_ratio: ClassVar[float] = 1.4
    max_row_rise: ClassVar[float] = 1.05

    def __init__(self, name: str) -> None:
        self.name = f"{name}_model"
        self.kernels: tuple[TimedKernel, ...] = ()
        self._ranked: dict[tuple[Any, ...], dict[str, Choice]] = {}
        self._variants: dict[tuple[Any, ...], Variants] = {}
        self._predictors: dict[tuple[Any, ...], Predictor] = {}
        self._fitted: Mapping[tuple[str, str], Constants] | None = None

    def use(self, fitted: Mapping[tuple[str, str], Constants] | None) -> None:
        """Rank by these constants, by kernel and family, on every chip; None: by those of the
        files again."""
        self._fitted = fitted
        self._ranked.clear()
        self._variants.clear()
        self._predictors.clear()

    def set_kernels(self, kernels: Sequence[TimedKernel]) -> None:
        """The kernels of its op."""
        self.kernels = tuple(kernels)
        for kernel in kernels:
            kernel.time_model = self

    def changing(self, c: Call) -> Any:
        """What a call's ranking depends on beside the architecture, `static` and `layer_key`."""
        return tuple(c.sizes.values())

    def space_key(self, c: Call) -> Any:
        """What of these sizes decides which variants the kernels have (`space`); None if that is
        not known, so that each new call asks them."""
        return None

    def like(self, c: Call) -> Call:
        """The call at whose sizes variants are ranked: of those that share a decision, one."""
        return c

    def resized(self, c: Call, sizes: Mapping[str, int]) -> Call:
        """The call at a row's sizes."""
        return c.with_sizes(**sizes)

    def prepare(self, v: Variants, c: Call) -> None:
        """Set `derived`, what `layer` and `changes` need again and again: of traits, the chip and
        what `static` says of a call."""

    def layer_key(self, c: Call) -> Any:
        """The sizes that `layer` reads, beside what `static` says."""
        return ()

    def layer(self, v: Variants, c: Call) -> Layer:
        """Return what calls of one layer have in common."""
        raise NotImplementedError

    def changes(
        self, v: Variants, c: Call, layer: Layer, factors: Sequence[Array], logs: Sequence[Array]
    ) -> Any:
        """Write what is of this call alone to rows, in the order of `factors` and `changing_logs`;
        return the mask of variants that are excluded, or None."""
        assert self.program is not None, "a model with factors has a program or changes"
        targets = [*self.factors, *[f"log_{name}" for name in self.changing_logs]]
        indices = {name: index for index, name in enumerate(targets)}
        rows = self.rows(self.program, v, indices, len(targets))
        rows.run(self.numbers(v, c))
        for row, value in zip((*factors, *logs), rows.values, strict=False):
            row[:] = value
        return rows.mask()

    def numbers(self, v: Variants, c: Call) -> Sequence[float]:
        """Of a call, those of `program`, then its table."""
        raise NotImplementedError

    def rows(self, program: Program, v: Variants, targets: Mapping[str, int], size: int) -> Rows:
        """Rows of variants for the program, whose columns are `derived` and traits; its table has
        an entry for each of `derived` of its name."""

        def column(name: str) -> Any:
            return v.derived[name] if name in v.derived else getattr(v, name)

        return Rows(program, targets, size, column, len(v), len(v.derived.get(program.table, ())))

    def work(self, v: Variants, c: Call) -> Work:
        """Return each term by itself, as it is fitted and explained."""
        layer = self.layer(v, c)
        factors, logs = (
            list(np.empty((len(n), len(v)))) for n in (self.factors, self.changing_logs)
        )
        excluded = self.changes(v, c, layer, factors, logs)
        value_of = {"one": 1.0, **dict(zip(self.factors, factors, strict=True))}
        terms = [
            functools.reduce(operator.add, [k * value_of[f] for f, k in layer.terms[term].items()])
            for term in self.terms
        ]
        log_of = {**layer.logs, **dict(zip(self.changing_logs, logs, strict=True))}
        masks = [mask for mask in (layer.excluded, excluded) if mask is not None]
        excluded = functools.reduce(operator.or_, masks) if masks else None
        return Work(terms, [log_of[name] for name in self.logs], excluded)

    # ------------------------------------------------------------ the ranking

    def rank(self, c: Call) -> dict[str, Choice]:
        """The best variant of each kernel, the quickest kernel first."""
        c = self.like(c)
        layer = c.arch, c.cu_num, self.static(c), self.layer_key(c)
        key = layer, self.changing(c)
        choices = self._ranked.get(key)
        if choices is None:
            predictor, best = self._predictor(layer, c), list[tuple[float, str, int]]()
            if predictor is not None and predictor.fold is not None:
                with _evaluating:
                    best = predictor.fold.best(predictor, c)
            elif predictor is not None:
                best = _best_of(predictor.variants, self._predict(predictor, c))
            choices = {
                kernel: Choice(kernel, predictor.variants.members[index][1], us)
                for us, kernel, index in best
                if predictor is not None
            }
            if len(self._ranked) >= _MAX_RANKED:
                self._ranked.clear()
            self._ranked[key] = choices
        return choices

    def _predictor(self, layer: tuple[Any, ...], c: Call) -> Predictor | None:
        """Return that of a call, and of all of its layer with as many variants."""
        space_key = self.space_key(c)
        key = layer, space_key
        predictor = self._predictors.get(key)
        if predictor is None:
            kernels, tables = self._spaces(c)
            if not kernels:
                return None
            predictor = self._new_predictor(kernels, tables, c)
            if space_key is not None:
                if len(self._predictors) >= _MAX_PREDICTORS:
                    self._predictors.clear()
                self._predictors[key] = predictor
        return predictor

    def _spaces(self, c: Call) -> tuple[list[TimedKernel], list[Columns[Any]]]:
        """Return the kernels that have variants for a call, and these."""
        kernels, tables = [], []
        for kernel in self.kernels:
            table = kernel.space(c)
            if table is not None:
                kernels.append(kernel)
                tables.append(table)
        return kernels, tables

    def _new_predictor(
        self, kernels: Sequence[TimedKernel], tables: Sequence[Columns[Any]], c: Call
    ) -> Predictor:
        key = (c.arch, c.cu_num, self.static(c), *map(id, tables))
        v = self._variants.get(key)
        if v is None:
            if len(self._variants) >= _MAX_VARIANTS:
                self._variants.clear()
            v = self._variants[key] = Variants(self, kernels, tables, c)
        if not self.factors:
            return Predictor(v, None, None, v.linear)
        layer_key = self.layer_key(c)
        predictor = v.layers.get(layer_key)
        if predictor is None:
            layer = self.layer(v, c)
            if v.fold is None:
                v.fold = Fold(self, v, layer)
            if len(v.layers) >= _MAX_LAYERS:
                v.layers.clear()
            predictor = v.layers[layer_key] = Predictor(v, layer, v.fold, v.fold.weights(layer))
        return predictor

    def _predict(self, predictor: Predictor, c: Call) -> Array:
        if predictor.fold is None:
            return plain_us(predictor.variants, self.work(predictor.variants, c))
        with _evaluating:
            return predictor.fold.predict(predictor, c).copy()

    def predict(
        self, kernels: Sequence[TimedKernel], tables: Sequence[Columns[Any]], c: Call
    ) -> tuple[Variants, Array]:
        """Microseconds of all variants of these tables."""
        predictor = self._new_predictor(kernels, tables, c)
        return predictor.variants, self._predict(predictor, c)

    def ratio(self, c: Call, kernel: TimedKernel, config: Any) -> float:
        """Return the predicted time of a variant over that of the choice; 1 where the model does
        not rank the kernel, has no constants for it, or excludes the variant."""
        ranked = self.rank(c)
        has_constants = (kernel.name, "") in self.table(c.arch, c.cu_num)
        if kernel.name not in ranked or not has_constants:
            return 1.0
        best = next(iter(ranked.values())).us
        if config is None:
            return ranked[kernel.name].us / best
        us = float(self.predict([kernel], [_alone(config)], self.like(c))[1][0])
        return us / best if us < np.inf else 1.0

    def explain(self, c: Call, count: int = 2) -> list[tuple[Choice, dict[str, float]]]:
        """The quickest variants, each with its terms in microseconds; `correction` is a factor."""
        c = self.like(c)
        kernels, tables = self._spaces(c)
        if not kernels:
            return []
        v, us = self.predict(kernels, tables, c)
        work = self.work(v, c)
        contributions = np.array([np.broadcast_to(term, len(v)) for term in work.terms]) * v.linear
        factor = _plain_factor(v, work.logs)
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
            cu_counts = [cu for table_name, cu in rows if table_name == name]
            if cu_counts:
                return rows[name, min(cu_counts, key=lambda cu: (abs(cu - cu_num), cu))]
        return {}


@functools.lru_cache(maxsize=1024)
def _alone(config: Any) -> Columns[Any]:
    """The same object for equal variants, as models know lists by the object."""
    return Columns([config])


_microseconds = operator.itemgetter(0)


def quickest(us: Array) -> int:
    """The first of the shortest times; a difference of a rounding is none."""
    min_us = us.min()
    return int((~(us > min_us + abs(min_us) * MAX_TIE)).argmax())


def _best_of(v: Variants, us: Array) -> list[tuple[float, str, int]]:
    """As Fold.best."""
    indices = [(name, span.start + quickest(us[span])) for name, span in v.kernel_spans]
    return sorted([(float(us[index]), name, index) for name, index in indices], key=_microseconds)


_evaluating = threading.Lock()  # of the arrays that folds keep


def plain_us(v: Variants, work: Work) -> Array:
    """Predict microseconds of all variants from each term by itself."""
    terms = np.array([np.broadcast_to(term, len(v)) for term in work.terms])
    us: Array = np.add.reduce(terms * v.linear) * _plain_factor(v, work.logs)
    if work.excluded is not None:
        us[work.excluded] = np.inf
    return us


def _plain_factor(v: Variants, logs: Sequence[Any]) -> Array:
    """2^correction."""
    x = np.clip(np.array([np.broadcast_to(log, len(v)) for log in logs]), v.low, v.high)
    correction = np.empty(len(v))
    for (_, span), form in zip(v.kernel_spans, v.quadratic, strict=True):
        correction[span] = np.add.reduce((form @ x[:, span]) * x[:, span])
    return _factor(correction)


def _factor(correction: Array) -> Array:
    np.maximum(correction, _LEAST_CORRECTION, out=correction)
    np.minimum(correction, _MOST_CORRECTION, out=correction)
    factor: Array = np.exp2(correction, out=correction)
    return factor


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
    other_lines: list[Sequence[Any]] = []
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as stream:
            lines = list(csv.reader(stream))[1:]
        other_lines = [line for line in lines if line[:2] != [arch, str(cu_num)]]
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    with temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows(
            [COLUMNS, *sorted([*other_lines, *rows], key=lambda row: [*map(str, row[:4])])]
        )
    temporary.replace(file)
