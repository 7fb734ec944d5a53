"""One self-contained page of HTML about timed launches, for who would rather look than read: a
summary, a roofline, and of each launch its stalls, a timeline and the annotated code. No script, no
network; light or dark as the reader has it. Figures are estimates, and the page says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rfops.vgpu import page_charts as charts
from rfops.vgpu import timed_text
from rfops.vgpu.report import Followed, Kernel, Report, many, readable
from rfops.vgpu.timed import TimedLaunch

HOT = 5  # instructions that are marked
# What a wave waits for, in words.
MEANING = {
    "issue": "its turn: other waves of the SIMD issue",
    "dependency": "the result of an instruction before",
    "mfma_dependency": "the result of a matrix instruction",
    "vmcnt": "vector memory, at an s_waitcnt",
    "lgkmcnt": "LDS or scalar memory, at an s_waitcnt",
    "valu_unit": "the vector unit, busy",
    "mfma_unit": "the matrix unit, busy",
    "lds_unit": "the LDS pipe, full",
    "salu_unit": "the scalar unit, busy",
    "vmem_queue": "room in the vector memory queue",
    "barrier": "other waves, at a barrier",
    "sleep": "s_sleep or s_nop",
    "branch": "a branch that was taken",
    "instruction_cache": "its code",
}

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2330; --soft: #5b6577;
  --line: #d9dee7; --card: #f6f8fb; --bar: #9db8ea; --hot: #fff0d6; --source: #eaf2ea; }
@media (prefers-color-scheme: dark) { :root { --back: #14181f; --text: #e3e8f0; --soft: #9aa5b8;
  --line: #323b4a; --card: #1c222c; --bar: #35578f; --hot: #3a2f18; --source: #1d2a22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 78rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1, h2, p, li, .facts div { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .5rem;
  padding-top: .8rem; border-top: 2px solid var(--line); } h3 { font-size: 1rem;
  margin: 1.4rem 0 .4rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } a { color: inherit; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.code { max-height: 36rem; overflow: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: var(--card); font-weight: 600; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; white-space: nowrap; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .5rem; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .4rem .7rem; } .facts b { display: block; font-size: 1.1rem; }
.facts span { color: var(--soft); font-size: .85rem; }
.code td { font: 12.5px/1.45 ui-monospace, monospace; white-space: pre; border: 0;
  padding-block: 0; }
.code tr.hot td { background-color: var(--hot); }
.code tr.source td { background: var(--source); color: var(--soft); }
.code td.text { min-width: 26rem; }
.stack { display: flex; height: 1.6rem; border-radius: 6px; overflow: hidden;
  border: 1px solid var(--line); margin-bottom: .5rem; } .stack i { display: block; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em; } .key span { margin-right: 1em; white-space: nowrap; }
svg { display: block; } svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--soft); fill: none; } svg .grid { stroke: var(--line); fill: none; }
svg .wave { fill: var(--card); stroke: var(--line); } svg .soft { fill: var(--soft); }
svg .roof { stroke: var(--text); fill: none; stroke-width: 1.5; }
svg .dash { stroke-dasharray: 5 4; }
"""


def page(report: Report, title: str) -> str:
    """The whole page as text."""
    launches_shown = report.followed
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_head(report))}</p>',
        _kernels(report.by_time),
        charts.roofline(launches_shown),
        *(_failures(report)),
    ]
    if report.left_out:
        sections.append(
            f"<p>Below are {len(launches_shown)} launches; {report.left_out} different ones are "
            "left out.</p>"
        )
    max_rects = min(
        charts.MAX_RECTS,
        max(charts.MIN_RECTS, charts.MAX_PAGE_RECTS // max(len(launches_shown), 1)),
    )
    sections += [
        _launch(number, launch_, max_rects) for number, launch_ in enumerate(launches_shown, 1)
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    launches = sum(kernel.launches for kernel in report.kernels.values())
    us = sum(kernel.us for kernel in report.kernels.values())
    return (
        f"{many(launches, 'launch')}, {us:.2f} us. Estimated by the virtual GPU's model of time, "
        "not measured; bands say how far off it may be."
    )


def table(head: Sequence[str], rows: Iterable[str], numbers: int, kind: str = "") -> str:
    """Of ready rows; the first columns are numbers."""
    cells = (
        f'<th class="n">{name}</th>' if column < numbers else f"<th>{name}</th>"
        for column, name in enumerate(head)
    )
    body = "\n".join(rows)
    return (
        f'<div class="scroll {kind}"><table><thead><tr>{"".join(cells)}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _kernels(kernels: Sequence[Kernel]) -> str:
    total = sum(kernel.us for kernel in kernels) or 1.0
    rows = []
    for k in kernels:
        bound = k.bounds.most_common(1)[0][0] if k.bounds else "-"
        stall_clk = k.stalls.total() or 1
        reasons = ", ".join(
            f"{name} {clk / stall_clk:.0%}" for name, clk in k.stalls.most_common(3)
        )
        numbers = (f"{k.us:.2f}", f"{k.low:.2f} to {k.high:.2f}", f"{k.us / total:.1%}", k.launches)
        cells = "".join(f'<td class="n">{value}</td>' for value in numbers)
        cell_texts = (readable(k.name), k.part, bound, reasons)
        rows.append(f"<tr>{cells}{''.join(f'<td>{escape(text)}</td>' for text in cell_texts)}</tr>")
    head = ("us", "band", "share", "launches", "kernel", "part", "bound", "its waves wait for")
    return f"<h2>Kernels</h2>\n{table(head, rows, 4)}"


def _failures(report: Report) -> list[str]:
    texts = [
        *(
            f"{f.kind}: {f.kernel} at {f.offset:#x} ({f.instruction}): {f.detail}"
            for f in report.findings
        ),
        *report.failed,
    ]
    if not texts:
        return []
    return [
        f"<h2>Found and failed</h2>\n<ul>{''.join(f'<li>{escape(t)}</li>' for t in texts)}</ul>"
    ]


# ---------------------------------------------------------------------------------- a launch


def _launch(number: int, followed: Followed, max_rects: int) -> str:
    launch = followed.time
    grid, block = ("x".join(map(str, launch.figures[name])) for name in ("grid", "block"))
    return "\n".join(
        [
            f'<h2 id="launch{number}">{number}. {escape(readable(launch.kernel))}</h2>',
            f'<p class="soft">{escape(launch.part)} ({escape(launch.arch)}), grid {grid} of '
            f"{block}; taken from {escape(timed_text.sampled(launch.sampled))}</p>",
            _facts(launch, followed.counted),
            f"<h3>How busy its units are</h3>\n{_busy(launch)}",
            f"<h3>What its waves wait for</h3>\n{_stalls(launch)}",
            f"<h3>Timeline of a compute unit</h3>\n{charts.timeline(launch, max_rects)}",
            f'<h3>Code</h3>\n<p class="soft">Counts are of waves '
            f"{escape(timed_text.sampled_scope(launch.sampled))}.</p>\n{_code(launch)}",
        ]
    )


def _facts(launch: TimedLaunch, counters: Mapping[str, Any] | None) -> str:
    f = launch.figures
    caches = "cold" if f["cold"] else "warm"
    facts = [
        (f"{f['us']:.2f} us", f"{f['low']:.2f} to {f['high']:.2f}; {caches} caches"),
        (f["bound"], f"bound; the launch itself {f['floor_us']:.2f} us"),
        (f"{f['clock_ghz']:.2f} GHz", f"clock that power allows; {f['clocks']:.0f} clk"),
        (
            f"{f['waves_in_flight_per_cu']:.1f} waves",
            f"in flight per CU; room for {f['workgroups_per_cu']} workgroups",
        ),
        *((text, name) for name, text in timed_text.levels(f)),
        (
            f"{f['lds_conflict_cycles']}",
            f"cycles of LDS bank conflicts {timed_text.sampled_scope(f['sampled'])}",
        ),
    ]
    if counters:
        facts.append(
            (
                f"{counters['vgpr']} VGPRs",
                f"{counters['agpr']} AGPRs, {counters['sgpr']} "
                f"SGPRs, {counters['vgpr_spills']} spilled",
            )
        )
    cells = (f"<div><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small in facts)
    return f'<div class="facts">{"".join(cells)}</div>'


def _busy(launch: TimedLaunch) -> str:
    rows = (
        f'<tr><td class="n">{fraction:.1%}</td><td>{escape(name)}</td>'
        f'<td style="width: 70%; {_bar(fraction)}"></td></tr>'
        for name, fraction in launch.busy.items()
    )
    return table(("busy", "unit", ""), rows, 1)


def _bar(fraction: float) -> str:
    stop = f"{100 * min(max(fraction, 0), 1):.2f}%"
    return f"background-image: linear-gradient(to right, var(--bar) {stop}, transparent {stop})"


def _stalls(launch: TimedLaunch) -> str:
    total = sum(launch.stalls.values())
    if not total:
        return "<p>Nothing.</p>"
    by_clk = sorted(launch.stalls.items(), key=lambda item: -item[1])
    stack = "".join(
        f'<i style="width: {100 * clk / total:.2f}%; background: {charts.color(name)}" '
        f'title="{escape(name)} {clk / total:.1%}"></i>'
        for name, clk in by_clk
    )
    barrier_clk = launch.barrier_because
    rows = (
        f'<tr><td class="n">{clk / total:.1%}</td><td class="n">{clk}</td>'
        f'<td class="n">{barrier_clk.get(name, "")}</td>'
        f"<td>{charts.swatch(name)}{escape(name)}</td><td>{escape(MEANING.get(name, ''))}</td></tr>"
        for name, clk in by_clk
    )
    clk_of = f"clk, waves {timed_text.sampled_scope(launch.sampled)}"
    head = ("share", clk_of, "held up a barrier", "reason", "waiting for")
    return f'<div class="stack">{stack}</div>\n{table(head, rows, 3)}'


def _code(launch: TimedLaunch) -> str:
    pcs = launch.pcs
    total = sum(sum(row["stalls"].values()) for row in pcs) or 1
    top = sorted(pcs, key=lambda row: -sum(row["stalls"].values()))[:HOT]
    hot = {row["offset"] for row in top if row["stalls"]}
    rows, source = [], ""
    for row in pcs:
        if row.get("source", source) != source:
            source = row["source"]
            text = escape(timed_text.with_text(timed_text.source_path(source, launch.kernel)))
            rows.append(f'<tr class="source"><td colspan="6">{text}</td></tr>')
        clk = sum(row["stalls"].values())
        reasons = ", ".join(f"{name} {n}" for name, n in timed_text.sorted_stalls(row["stalls"]))
        mark = ' class="hot"' if row["offset"] in hot else ""
        percent = f"{clk / total:.1%}" if clk else ""
        rows.append(
            f'<tr{mark}><td class="n">{row["offset"]:#x}</td><td class="n">{row["issued"]}</td>'
            f'<td class="n">{clk or ""}</td>'
            f'<td class="n" style="{_bar(clk / total)}">{percent}</td>'
            f'<td class="text">{escape(timed_text.readable(row["text"]))}</td>'
            f"<td>{escape(reasons)}</td></tr>"
        )
    head = ("offset", "issued", "clk waited", "share", "instruction", "for")
    return table(head, rows, 4, "code")
