"""The section of one launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from rfops.jit.arch import MAX_WAVES
from rfops.vgpu import advice, figures, timed_text
from rfops.vgpu.page import code, timeline
from rfops.vgpu.page.elements import Column, bar, color, meter, swatch, table
from rfops.vgpu.report import Followed, readable
from rfops.vgpu.timed import TimedLaunch

NUM_LINES = 5  # hottest lines of the summary
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
    "flag": "a flag that another workgroup sets",
}


def section(number: int, followed: Followed, max_slices: int, *, is_open: bool) -> str:
    """All about a launch, folded unless `is_open`."""
    launch, counters = followed.time, followed.counters
    grid, block = ("x".join(map(str, launch.figures[name])) for name in ("grid", "block"))
    elements = [
        f"<summary><h2>{number}. {escape(readable(launch.kernel))}</h2></summary>",
        f'<p class="soft">{escape(launch.part)} ({escape(launch.arch)}), grid {grid} of {block}; '
        f"taken from {escape(timed_text.sampled(launch.sampled))}</p>",
        _facts(launch, counters),
        _advice(number, launch, counters),
        _hottest_lines(number, launch),
        f"<h3>Memory, of the whole launch</h3>\n{_memory(launch, counters)}",
        f"<h3>How busy its units are</h3>\n{_busy(launch)}",
        f"<h3>What it executes</h3>\n{_instructions(counters)}" if counters else "",
        f"<h3>What its waves wait for</h3>\n{_stalls(launch)}",
        f"<h3>Timeline of a compute unit</h3>\n{timeline.timeline(launch, max_slices)}",
        f'<h3>Code</h3>\n<p class="soft">Counts are of waves '
        f"{escape(timed_text.sampled_scope(launch.sampled))}. A source line marks its "
        f"instructions, an instruction its line.</p>\n{code.panes(number, launch)}",
    ]
    opened = " open" if is_open else ""
    return (
        f'<details class="launch" id="launch{number}"{opened}>\n'
        + "\n".join(element for element in elements if element)
        + "\n</details>"
    )


# ---------------------------------------------------------------- summary


def _facts(launch: TimedLaunch, counters: Mapping[str, Any] | None) -> str:
    cells = (
        f"<div><b>{escape(big)}</b><span>{escape(small)}</span></div>"
        for big, small in _facts_of(launch, counters)
    )
    return f'<div class="facts">{"".join(cells)}</div>'


def _facts_of(launch: TimedLaunch, counters: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    f = launch.figures
    caches = "cold" if f["cold"] else "warm"
    yield f"{f['us']:.2f} us", f"{f['low']:.2f} to {f['high']:.2f} us; {caches} caches"
    busiest = max(f["busy"], key=lambda unit: f["busy"][unit])
    yield (
        f"bound: {f['bound']}",
        f"busiest: {busiest} {f['busy'][busiest]:.0%}; the launch itself {f['floor_us']:.2f} us",
    )
    read, written = figures.hbm_bytes(launch)
    if counters:  # replayed are whole lines of each XCD
        written = figures.LINE_BYTES * counters["global_write"]["lines_64B"]
    hbm = figures.traffic(launch)[-1]
    yield (
        f"HBM {figures.rate_text(hbm.tb_s)}",
        f"{hbm.peak_share:.0%} of what it delivers; {figures.bytes_text(read)} read, "
        f"{figures.bytes_text(written)} written",
    )
    yield f"{f['clock_ghz']:.2f} GHz", f"clock that power allows; {f['clocks']:.0f} clk"
    if counters:
        if flops := figures.flops(counters):
            tflops = flops / figures.body_us(launch) / 1e6
            yield f"{tflops:.3g} TFLOPS", "without the launch itself"
        yield (
            f"{counters['waves_per_simd']:g} of {MAX_WAVES} waves a SIMD",
            f"occupancy, limited by {figures.occupancy_limit(counters)}; "
            f"{f['waves_in_flight_per_cu']:.1f} in flight a CU",
        )
        yield (
            f"{counters['vgpr']} VGPRs",
            f"{counters['agpr']} AGPRs, {counters['sgpr']} SGPRs, "
            f"{counters['vgpr_spills']} spilled; {counters['lds_bytes_per_workgroup']} B of LDS a "
            "workgroup",
        )
    else:
        yield (
            f"{f['waves_in_flight_per_cu']:.1f} waves",
            f"in flight a CU; room for {f['workgroups_per_cu']} workgroups",
        )


def _advice(number: int, launch: TimedLaunch, counters: Mapping[str, Any] | None) -> str:
    items = []
    for item in advice.advise(launch, counters):
        text = code.with_code(escape(item.text))
        if item.offset is not None:
            text += f' <a href="#{code.row_id(number, item.offset)}">To the instruction.</a>'
        items.append(f"<li><b>{escape(item.rule)}</b>: {text}</li>")
    if not items:
        return ""
    return f'<h3>What to change</h3>\n<ul class="advice">{"".join(items)}</ul>'


def _hottest_lines(number: int, launch: TimedLaunch) -> str:
    sites = code.hottest_sites(launch, NUM_LINES)
    if not sites:
        return ""
    total = sum(launch.stalls.values()) or 1
    ids = code.line_ids(number, code.lines_of(launch))
    items = (
        f"<li>{site.clk / total:.0%} "
        f'<a href="#{ids[site.outer.file, site.outer.number]}">{escape(site.location)}</a> '
        f"<code>{escape(site.outer.text.strip())}</code></li>"
        for site in sites
    )
    return f"<h3>Where its waves wait</h3>\n<ul>{''.join(items)}</ul>"


# ---------------------------------------------------------------- memory, units


def _memory(launch: TimedLaunch, counters: Mapping[str, Any] | None) -> str:
    """CU, L1, L2, Infinity Cache and HBM side by side; what goes from each to the one before."""
    levels = {t.level: t for t in figures.traffic(launch, counters)}
    busy = launch.busy
    units = {"L1": "vmem", "L2": "l2", "Infinity Cache": "fabric", "HBM": "hbm"}
    lds = levels.get("LDS")
    lds_box = ""
    if lds is not None:
        fraction = lds.peak_share
        conflicts = launch.lds_conflict_cycles * figures.scale(launch)
        lds_box = (
            f'<div class="lds"><b>LDS</b><span>{figures.bytes_text(lds.bytes)}, '
            f"{figures.rate_text(lds.tb_s)}</span><span>{fraction:.0%} of the peak; "
            f"{conflicts:.0f} cycles of bank conflicts</span>{meter(fraction)}</div>"
        )
    drawn = [
        '<div class="level"><b>Compute units</b>'
        f"<span>{launch.waves_in_flight_per_cu:.1f} waves in flight each</span>"
        f"<span>vector {busy['valu']:.0%}, matrix {busy['mfma']:.0%} busy</span>{lds_box}</div>"
    ]
    for name, unit in units.items():
        level = levels.get(name)
        moved, rate = (level.bytes, level.tb_s) if level else (0.0, 0.0)
        drawn.append(
            f'<div class="flow">{figures.bytes_text(moved)}<br>{figures.rate_text(rate)}</div>'
        )
        drawn.append(_level(name, level, busy[unit]))
    scope = timed_text.sampled_scope(launch.sampled)
    note = (
        f"Bytes of the workgroups {escape(scope)}, times {figures.scale(launch):.3g}: all XCDs are "
        "taken to be alike. Lines of 128 B; the rate is over the body of the launch."
    )
    return f'<div class="memory">{"".join(drawn)}</div>\n<p class="soft">{note}</p>'


def _level(name: str, level: figures.Traffic | None, busy: float) -> str:
    lines = []
    if level is not None and level.hit_rate is not None:
        lines.append(f"{level.hit_rate:.1%} hits")
    if level is not None and level.peak_share is not None:
        lines.append(f"{level.peak_share:.0%} of {figures.rate_text(level.peak_tb_s or 0)}")
    lines.append(f"{busy:.0%} busy")
    spans = "".join(f"<span>{line}</span>" for line in lines)
    return f'<div class="level"><b>{name}</b>{spans}{meter(busy)}</div>'


def _busy(launch: TimedLaunch) -> str:
    rows = [
        (f"{fraction:.1%}", escape(name), f'<td style="width:70%;{bar(fraction)}"></td>')
        for name, fraction in launch.busy.items()
    ]
    columns = (Column("busy", is_number=True), Column("unit"), Column("", is_sortable=False))
    return table(columns, rows)


def _instructions(counters: Mapping[str, Any]) -> str:
    """Instructions by class, and the ten most frequent."""
    total = counters["wave_instructions"] or 1
    classes = sorted(counters["classes"].items(), key=lambda item: -item[1])
    key = "".join(
        f"<span>{swatch(name)}{escape(name)} {n / total:.1%}</span>" for name, n in classes
    )
    top = sorted(counters["instructions"].items(), key=lambda item: -item[1])[:10]
    rows = [
        (str(n), f"{n / total:.1%}", f'<td style="{bar(n / total)}">{escape(name)}</td>')
        for name, n in top
    ]
    columns = (
        Column("by waves", is_number=True),
        Column("share", is_number=True),
        Column("instruction"),
    )
    return f'{_stack(dict(classes))}<p class="key">{key}</p>\n{table(columns, rows)}'


def _stalls(launch: TimedLaunch) -> str:
    total = sum(launch.stalls.values())
    if not total:
        return "<p>Nothing.</p>"
    barrier_clk = launch.barrier_because
    rows = [
        (
            f"{clk / total:.1%}",
            str(clk),
            str(barrier_clk.get(name, "")),
            f"{swatch(name)}{escape(name)}",
            escape(MEANING.get(name, "")),
        )
        for name, clk in timed_text.sorted_stalls(launch.stalls)
    ]
    columns = (
        Column("share", is_number=True),
        Column(f"clk, waves {timed_text.sampled_scope(launch.sampled)}", is_number=True),
        Column("held up a barrier", is_number=True),
        Column("reason"),
        Column("waiting for"),
    )
    return f"{_stack(launch.stalls)}\n{table(columns, rows)}"


def _stack(counts: Mapping[str, int]) -> str:
    total = sum(counts.values()) or 1
    pieces = "".join(
        f'<i style="width: {100 * n / total:.2f}%; background: {color(name)}" '
        f'title="{escape(name)} {n / total:.1%}"></i>'
        for name, n in sorted(counts.items(), key=lambda item: -item[1])
    )
    return f'<div class="stack">{pieces}</div>'
