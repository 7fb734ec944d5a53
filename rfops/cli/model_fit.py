"""Fits a time model's constants to times, and says what a choice by them costs: regret.

Linear constants are non-negative least squares of the relative error, weighted by (best / us)^2 of
a shape, so that what is near the best counts; those of a family are drawn to its kernel's, which
have all of the kernel's times. What they leave is fitted, for each kernel, by a quadratic form in
the logs, by ridge regression; an op keeps that if its regret of calls that were left out is less.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rfops.dispatch.heuristic import Columns
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.time_model import MAX_CORRECTION, Constants, TimeModel, Variants

Array = npt.NDArray[np.float64]
Family = tuple[str, str]  # a kernel and a family of its variants
Fitted = dict[Family, Constants]

_CORRECTED = 2.5  # times that are above the best by more have no part in the correction
_STEPS = 4  # of reweighting, from the relative error to that of logarithms
FOLDS = 5
_TINY = 1e-3  # us


@dataclass(frozen=True)
class Timed:
    """A call, and the times of its variants, in microseconds."""

    call: Call
    variants: tuple[tuple[str, Any], ...]  # kernel and config
    us: tuple[float, ...]


class Sample(NamedTuple):
    """The variants of a Timed as the model sees them."""

    families: list[Family]
    terms: Array  # [variants, terms]
    logs: Array  # [variants, logs]
    us: Array
    is_choice: npt.NDArray[np.bool_]  # whether a call may choose it without a row
    # The same at the sizes at which calls that share a decision choose (TimeModel.like).
    choice_terms: Array
    choice_logs: Array


def sample_of(op: Op, timed: Timed) -> Sample:
    model = model_of(op)
    kernels = {kernel.name: kernel for kernel in model.kernels}
    index_of = _indices(model, timed.call)
    timed = in_order(model, timed)
    families = [(name, kernels[name].family(v, timed.call)) for name, v in timed.variants]
    terms, logs = work_of(op, model, timed)
    choice_work = work_of(op, model, dataclasses.replace(timed, call=model.like(timed.call)))
    is_choice = np.array([variant in index_of for variant in timed.variants])
    return Sample(families, terms, logs, np.array(timed.us), is_choice, *choice_work)


def in_order(model: TimeModel, timed: Timed) -> Timed:
    """Variants in the order of a call's space, as of equal predictions it takes the first; then
    those that it does not choose among."""
    index_of = _indices(model, timed.call)
    us = dict(zip(timed.variants, timed.us, strict=True))
    variants = sorted(us, key=lambda variant: index_of.get(variant, len(index_of)))
    return Timed(timed.call, tuple(variants), tuple(us[variant] for variant in variants))


def _indices(model: TimeModel, c: Call) -> dict[tuple[str, Any], int]:
    """Of all variants that a call chooses among."""
    shared = model.like(c)
    variants = ((kernel.name, v) for kernel in model.kernels for v in kernel.space(shared) or ())
    return {variant: index for index, variant in enumerate(variants)}


def work_of(op: Op, model: TimeModel, timed: Timed) -> tuple[Array, Array]:
    """Terms and logs, [variants, terms] and [variants, logs]."""
    count = len(timed.us)
    terms, logs = np.empty((count, len(model.terms))), np.empty((count, len(model.logs)))
    for name in dict.fromkeys(kernel for kernel, _ in timed.variants):
        rows = [i for i, (kernel, _) in enumerate(timed.variants) if kernel == name]
        kernel: Any = op.kernels[name]
        table = Columns([timed.variants[i][1] for i in rows])
        work = model.work(Variants(model, [kernel], [table], timed.call), timed.call)
        for target, values in zip((terms, logs), work[:2], strict=True):
            for column, value in enumerate(values):
                target[rows, column] = value
    return terms, logs


def model_of(op: Op) -> TimeModel:
    if op.time_model is None:
        raise ValueError(f"{op.name} has no model of its kernels' times")
    return op.time_model


# ---------------------------------------------------------------- the fit


def fit(model: TimeModel, samples: Sequence[Sample], is_corrected: bool = True) -> Fitted:
    """Constants of all families, and of each kernel as a whole (family "")."""
    best = [sample.us.min() for sample in samples]
    weights = np.concatenate([(b / s.us) ** 2 for b, s in zip(best, samples, strict=True)])
    terms, logs, us = (
        np.concatenate([getattr(s, n) for s in samples]) for n in ("terms", "logs", "us")
    )
    families = np.array([f"{k}\n{f}" for sample in samples for k, f in sample.families])
    kernels = np.array([k for sample in samples for k, _ in sample.families])
    fitted: Fitted = {}
    for kernel in dict.fromkeys(kernels):
        of_kernel = kernels == kernel
        overall = linear(terms[of_kernel], us[of_kernel], weights[of_kernel])
        by_family: dict[str, Array] = {}
        predicted = np.empty(len(us))
        for name in dict.fromkeys(families[of_kernel]):
            in_family = families == name
            of_family = terms[in_family], us[in_family], weights[in_family]
            by_family[name] = linear(*of_family, overall, model.family_prior)
            predicted[in_family] = terms[in_family] @ by_family[name]
        is_near = of_kernel & (weights > _CORRECTED**-2)
        residuals = np.log2(us[is_near] / np.maximum(predicted[is_near], _TINY))
        correction = quadratic(logs[is_near], residuals, weights[is_near], model.ridge)
        for name, constants in by_family.items():
            fitted[kernel, name.partition("\n")[2]] = model.nominal()._replace(linear=constants)
        nominal = model.nominal()._replace(linear=overall)
        fitted[kernel, ""] = Constants(overall, *correction) if is_corrected else nominal
    return fitted


def linear(
    terms: Array, us: Array, weights: Array, prior: Array | None = None, pull: float = 0.0
) -> Array:
    """Constants >= 0 of the least relative error, drawn to `prior` as so large a share of rows
    would."""
    root, predicted = np.sqrt(weights), us
    size = np.sqrt(((terms / us[:, None] * root[:, None]) ** 2).mean(0)) + 1e-9
    constants = np.zeros(terms.shape[1])
    for _ in range(_STEPS):
        scale = root / np.sqrt(us * predicted)
        rows, values = terms * scale[:, None], us * scale
        if prior is not None:
            pulls = size * np.sqrt(pull * len(us))
            rows = np.vstack([rows, np.diag(pulls)])
            values = np.concatenate([values, pulls * prior])
        constants = non_negative(rows, values)
        predicted = np.maximum(terms @ constants, _TINY)
    return constants


def non_negative(rows: Array, values: Array) -> Array:
    """The x >= 0 that makes |rows x - values| least, by active sets: Lawson and Hanson, Solving
    Least Squares Problems (1974), chapter 23."""
    gram, target = rows.T @ rows, rows.T @ values
    x = np.zeros(len(target))
    free = np.zeros(len(target), dtype=bool)
    for _ in range(10 * len(target)):
        gradient = np.where(free, -np.inf, target - gram @ x)
        if free.all() or gradient.max() <= 1e-10 * np.abs(target).max():
            break
        free[gradient.argmax()] = True
        while free.any():
            free_idx = np.flatnonzero(free)
            goal = np.zeros_like(x)
            goal[free_idx] = np.linalg.lstsq(
                gram[np.ix_(free_idx, free_idx)], target[free_idx], rcond=None
            )[0]
            negative = free_idx[goal[free_idx] <= 0]
            if not len(negative):
                x = goal
                break
            x += (x[negative] / (x[negative] - goal[negative])).min() * (goal - x)
            free &= x > 1e-14
            x[~free] = 0
    return x


def quadratic(
    logs: Array, residuals: Array, weights: Array, ridge: float = 1.0
) -> tuple[Array, Array, Array]:
    """[logs, logs] of the quadratic form that has `left` with the least error, and the bounds of
    logs. The first log is 1 always; the others are standardised first, so that the ridge is the
    same for all."""
    size = logs.shape[1]
    center, spread = logs.mean(0), logs.std(0) + 0.5
    center[0], spread[0] = 0.0, 1.0
    pairs = np.triu_indices(size)
    products = ((logs - center) / spread)[:, pairs[0]] * ((logs - center) / spread)[:, pairs[1]]
    weighted = products * weights[:, None]
    gram = weighted.T @ products + ridge * np.eye(products.shape[1])
    form = np.zeros((size, size))
    form[pairs] = np.linalg.solve(gram, weighted.T @ residuals)
    # In logs as they are: (x - center) / spread = change @ x, as x[0] is 1.
    change = np.diag(1 / spread)
    change[1:, 0] = -center[1:] / spread[1:]
    form = change.T @ form @ change
    form = np.triu(form) + np.tril(form, -1).T
    return form, logs.min(0), logs.max(0)


def predict(fitted: Fitted, sample: Sample) -> Array:
    """Microseconds of each variant at the sizes that were timed."""
    return _predict(fitted, sample.families, sample.terms, sample.logs)


def _predict(fitted: Fitted, families: Sequence[Family], terms: Array, logs: Array) -> Array:
    us = np.full(len(families), np.inf)
    for family_idx, (kernel, family) in enumerate(families):
        overall = fitted.get((kernel, ""))
        if overall is not None:
            constants = fitted.get((kernel, family), overall)
            x = np.clip(logs[family_idx], overall.low, overall.high)
            correction = float(x @ overall.quadratic @ x)
            correction = min(max(correction, -MAX_CORRECTION), MAX_CORRECTION)
            us[family_idx] = max(terms[family_idx] @ constants.linear, _TINY) * 2**correction
    return us


# ---------------------------------------------------------------- the regret


class Regret(NamedTuple):
    """Time of a choice over the best found, over several shapes."""

    median: float
    p95: float
    maximum: float
    mean: float  # geometric

    @classmethod
    def from_ratios(cls, ratios: Sequence[float]) -> Regret:
        high = float(np.percentile(ratios, 95))
        return cls(float(np.median(ratios)), high, max(ratios), geometric_mean(ratios))

    def __str__(self) -> str:
        return f"regret median {self.median:.3f} p95 {self.p95:.3f} max {self.maximum:.3f}"


def ratio(fitted: Fitted, sample: Sample) -> float:
    """Of the variant that the constants choose, to the best of all that were timed."""
    us = _predict(fitted, sample.families, sample.choice_terms, sample.choice_logs)
    predicted = np.where(sample.is_choice, us, np.inf)
    return float(sample.us[int(predicted.argmin())] / sample.us.min())


def best_of(model: TimeModel, samples: Sequence[Sample]) -> tuple[Regret, Fitted]:
    """The fit with a correction or the one without, by the mean regret; cross-validated."""
    regrets = {flag: cross_validated(model, samples, flag) for flag in (False, True)}
    flag = min(regrets, key=lambda flag: regrets[flag].mean)
    return regrets[flag], fit(model, samples, flag)


def cross_validated(
    model: TimeModel, samples: Sequence[Sample], is_corrected: bool = True
) -> Regret:
    """Each shape by constants that were fitted without it."""
    order = list(range(len(samples)))
    random.Random(1).shuffle(order)
    ratios = []
    for fold in range(FOLDS):
        out = set(order[fold::FOLDS])
        fitted = fit(
            model,
            [s for sample_idx, s in enumerate(samples) if sample_idx not in out],
            is_corrected,
        )
        ratios += [ratio(fitted, samples[index]) for index in sorted(out)]
    return Regret.from_ratios(ratios)
