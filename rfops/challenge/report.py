"""What `rfops eval` tells: a case as it comes, one entry's page, several entries side by side."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import msgspec

from rfops.challenge.problem import Problem
from rfops.challenge.verdict import Verdict
from rfops.vgpu.page import style
from rfops.vgpu.page.elements import Column, table
from rfops.vgpu.report import readable

_MAX_NAMES = 5  # operators of torch, in a line

Verdicts = Mapping[str, Sequence[Verdict]]  # by entry


# ---------------------------------------------------------------- text


def case_text(verdict: Verdict) -> str:
    """A case of one entry."""
    lines = [f"{_state(verdict)}  {verdict.spec}{_time(verdict)}"]
    return "\n".join([*lines, *(f"      {line}" for line in _details(verdict))])


def case_json(verdict: Verdict, submission: str = "") -> str:
    """The same as a line of JSON; `submission` where there are several."""
    fields = {"submission": submission} if submission else {}
    return json.dumps({**fields, **msgspec.to_builtins(verdict), "passes": verdict.passes})


def summary(problem: Problem, verdicts: Sequence[Verdict]) -> str:
    """How many cases of one entry pass."""
    num_passed = sum(verdict.passes for verdict in verdicts)
    strict = sum(verdict.passes and not verdict.strict for verdict in verdicts)
    text = f"{num_passed} of {len(verdicts)} cases pass the official check, {strict} the strict one"
    if not problem.bound:
        text = f"{num_passed} of {len(verdicts)} cases pass its own check; there is no strict one"
    mean = geomean(verdicts)
    return f"{problem.name}: {text}" + ("" if mean is None else f"; geomean {mean:.2f} us")


def geomean(verdicts: Sequence[Verdict]) -> float | None:
    """Of the cases' times in us; None where a case fails or has none."""
    times = [verdict.mean_us for verdict in verdicts]
    valid_times = [us for us in times if us is not None]
    if not valid_times or len(valid_times) < len(times):
        return None
    return math.exp(statistics.fmean(map(math.log, valid_times)))


def compared(entries: Verdicts) -> str:
    """Several entries: a row a case, a column an entry; then the geomean and the winner."""
    rows = [["case", *entries], *_rows(entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, winner(entries)])


def winner(entries: Verdicts) -> str:
    """The fastest of those that pass all cases and have a time for each."""
    ranked = sorted((mean, name) for name, v in entries.items() if (mean := geomean(v)) is not None)
    if not ranked:
        return "no winner: no entry passes and has a time in every case"
    best, name = ranked[0]
    text = f"winner: {name}, geomean {best:.2f} us"
    if len(ranked) > 1:
        text += f", {ranked[1][0] / best:.2f} times as fast as {ranked[1][1]}"
    out = [entry_name for entry_name, v in entries.items() if geomean(v) is None]
    return text + (f"; out of competition: {', '.join(out)}" if out else "")


def _rows(entries: Verdicts) -> Iterable[list[str]]:
    for verdicts in zip(*entries.values(), strict=True):
        yield [verdicts[0].spec, *(_cell(verdict) for verdict in verdicts)]
    means = [geomean(verdicts) for verdicts in entries.values()]
    yield ["geomean", *("-" if mean is None else f"{mean:.2f} us" for mean in means)]


def _cell(verdict: Verdict) -> str:
    mean = verdict.mean_us
    return "FAIL" if not verdict.passes else "not timed" if mean is None else f"{mean:.2f} us"


def _state(verdict: Verdict) -> str:
    return "pass" if verdict.passes else "FAIL"


def _time(verdict: Verdict) -> str:
    origin = "measured" if verdict.measured else "estimated"
    mean = verdict.mean_us
    if mean is not None:
        return f", {origin} {mean:.2f} us"
    return f", not timed: {verdict.untimed}" if verdict.untimed and verdict.passes else ""


def _details(verdict: Verdict) -> list[str]:
    """Return a case's errors, defects and kernels, a line each."""
    lines = [verdict.error] if verdict.error else []
    lines += [f"official: {verdict.official}"] if verdict.official else []
    lines += [f"strict: {verdict.strict}"] if verdict.strict else []
    lines += [defect for defect in verdict.named if defect != verdict.error]
    if len(verdict.kernels) > 1:
        lines.append("kernels: " + ", ".join(f"{n} {us:.2f} us" for n, us in _kernels(verdict)))
    if verdict.beside:
        lines.append(
            f"torch computes beside the case, which has no time here: {counts(verdict.beside)}"
        )
    return lines


def _kernels(verdict: Verdict) -> list[tuple[str, float]]:
    ranked = sorted(verdict.kernels.items(), key=lambda kernel: -kernel[1])
    return [(readable(name), us) for name, us in ranked]


def counts(names: Mapping[str, int]) -> str:
    """Operators with how often they ran in a call, the most frequent first."""
    ranked = sorted(names.items(), key=lambda item: -item[1])
    shown = [f"{name.removesuffix('.default')} {count}x" for name, count in ranked[:_MAX_NAMES]]
    num_hidden = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {num_hidden} more" if num_hidden else "")


# ---------------------------------------------------------------- a page


def page(problem: Problem, entries: Verdicts, arch: str) -> str:
    """Return the evaluation of `entries` on a problem as one page of HTML, without scripts or
    network."""
    title = f"rfops eval {problem.name}: {', '.join(entries)}"
    elements = [f"<h1>{escape(title)}</h1>"]
    is_measured = any(v.measured for verdicts in entries.values() for v in verdicts)
    origin = (
        "measured on torch's GPU, by the entry's own process"
        if is_measured
        else f"estimated by the virtual GPU's model of {arch}, not measured"
    )
    elements.append(f'<p class="soft">Times are {escape(origin)}.</p>')
    if len(entries) > 1:
        elements += [f"<p><b>{escape(winner(entries))}</b></p>", _comparison(entries)]
    for name, verdicts in entries.items():
        elements += [f"<h2>{escape(name)}</h2>", f"<p>{escape(summary(problem, verdicts))}</p>"]
        elements.append(_cases(verdicts))
        elements += [section for verdict in verdicts for section in _case(verdict)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        + "\n".join(elements)
        + "\n</body>\n</html>\n"
    )


def _comparison(entries: Verdicts) -> str:
    return _table(["case", *entries], _rows(entries))


def _cases(verdicts: Sequence[Verdict]) -> str:
    head = ["case", "official", "strict", "us", "worst element"]
    rows = []
    for v in verdicts:
        strict = "fail" if v.strict else "pass" if v.passes else "-"
        mean = v.mean_us
        us = "not timed" if mean is None else f"{mean:.2f}"
        rows.append([v.spec, _state(v), strict, us, v.worst])
    return _table(head, rows)


def _case(verdict: Verdict) -> Iterable[str]:
    """Yield the page's elements for one case: its defects and its kernels; none where it has
    neither."""
    lines = [verdict.untimed and f"not timed: {verdict.untimed}", *_details(verdict)]
    lines = [line for line in lines if line]
    kernels = _kernels(verdict)
    if not lines and len(kernels) < 2:
        return
    yield f"<h3>{escape(verdict.spec)}</h3>"
    if lines:
        yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
    if kernels:
        yield _table(["kernel", "us"], [[name, f"{us:.2f}"] for name, us in kernels])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    columns = [Column(escape(name), is_sortable=False) for name in head]
    return table(columns, [[escape(cell) for cell in row] for row in rows])
