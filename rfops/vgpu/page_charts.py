"""Drawings of the page: a roofline of launches, and the timeline of a compute unit. SVG, made of
lines, rectangles and texts; a rectangle's title says what it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from rfops.jit.arch import ARCH_SPECS, PART_CUS
from rfops.vgpu import timeline as trace
from rfops.vgpu.report import Followed, readable
from rfops.vgpu.timed import TimedLaunch

COLORS = {
    "vmcnt": "#d1495b",
    "lgkmcnt": "#e0a030",
    "mfma_dependency": "#9b6bd3",
    "barrier": "#4a7fa5",
    "dependency": "#5b8ff9",
    "valu_unit": "#2a9d8f",
    "mfma_unit": "#7a4fb0",
    "lds_unit": "#f08a4b",
    "salu_unit": "#84a94a",
    "vmem_queue": "#b5379e",
    "sleep": "#a0a7b4",
    "branch": "#3fa57b",
    "instruction_cache": "#9c6644",
    "issue": "#8390a6",
    "valu": "#2a9d8f",
    "mfma": "#7a4fb0",
    "lds": "#f08a4b",
    "vmem": "#b5379e",
    "salu": "#84a94a",
    "smem": "#e0a030",
}
UNITS = ("valu", "mfma", "lds", "vmem", "salu", "smem", "branch", "other")
MOST, LEAST, ALL = 6000, 1500, 40_000  # rectangles of a timeline; of a page
_LEFT, _WIDTH, _ROW = 150, 1500, 13  # of a timeline, in pixels


def color(name: str) -> str:
    return COLORS.get(name, "#8390a6")


def swatch(name: str) -> str:
    return f'<span class="swatch" style="background: {color(name)}"></span>'


# ---------------------------------------------------------------------------------- roofline

_X, _Y, _W, _H = 60, 16, 800, 380  # where the plot is, its size
_AI = (0.01, 1e4)  # flops a byte


def roofline(launches: Sequence[Followed]) -> str:
    """Of all launches that have flops; what memory the others reach, as text."""
    known = [(at, one) for at, one in enumerate(launches, 1) if one.counted]
    points = [
        (at, one, flops, bytes_)
        for at, one in known
        for flops, bytes_ in [_work(one)]
        if flops and bytes_
    ]
    lines = []
    for at, one in known:
        flops, bytes_ = _work(one)
        body = one.time.us - one.time.floor_us
        rate = bytes_ / body / 1e6 if body > 0 else 0.0
        tflops = f"{flops / body / 1e6:.2f} TFLOPS, " if flops and body > 0 else ""
        lines.append(
            f"<li>{at}. {escape(readable(one.time.kernel))}: {tflops}{rate:.2f} TB/s of "
            "lines read and written once, the launch itself left out</li>"
        )
    if not lines:
        return ""
    plots = "".join(
        _plot(part, [p for p in points if p[1].time.part == part])
        for part in dict.fromkeys(p[1].time.part for p in points)
    )
    return f"<h2>Roofline</h2>\n{plots}<ul>{''.join(lines)}</ul>"


def _work(one: Followed) -> tuple[float, float]:
    """Flops, and bytes of the distinct lines."""
    f = one.counted or {}
    lines = f["global_read"]["lines_64B"] + f["global_write"]["lines_64B"]
    return float(f["mfma_flops"] + f["valu_flops"]), 64.0 * lines


def _plot(part: str, points: Sequence[tuple[int, Followed, float, float]]) -> str:
    arch = points[0][1].time.arch
    row = ARCH_SPECS[arch]
    scale = PART_CUS[part] / row.cus
    # A lane of a SIMD's 16 makes a fused multiply-add a clock, two where they are packed.
    vector = row.cus * row.simds * 16 * 2 * 2 * row.ghz / 1e3
    roofs = {f"{name} matrix": tf * scale for name, tf in row.matrix_tflops.items()}
    roofs["f32 vector"] = vector * scale
    top = max(roofs.values()) * 2
    bottom = min(0.01, *(flops / one.time.us / 2e6 for _, one, flops, _ in points))

    def x(ai: float) -> float:
        share = math.log(min(max(ai, _AI[0]), _AI[1]) / _AI[0]) / math.log(_AI[1] / _AI[0])
        return _X + _W * share

    def y(tflops: float) -> float:
        share = math.log(min(max(tflops, bottom), top) / bottom) / math.log(top / bottom)
        return _Y + _H * (1 - share)

    drawn = [*_grid(x, y, bottom, top)]
    for name, peak in roofs.items():
        knee = min(max(peak / row.hbm_peak_tb_s, _AI[0]), _AI[1])
        drawn.append(f'<path class="roof" d="M{x(knee):.1f} {y(peak):.1f}H{_X + _W}"/>')
        drawn.append(
            f'<text x="{_X + _W - 4}" y="{y(peak) - 4:.1f}" text-anchor="end">{name} '
            f"{peak:.0f} TFLOPS</text>"
        )
    knee = max(roofs.values()) / row.hbm_peak_tb_s
    for tb_s, kind in ((row.hbm_peak_tb_s, "roof"), (row.hbm_tb_s, "roof dash")):
        at = max(_AI[0], bottom / tb_s)
        drawn.append(
            f'<path class="{kind}" d="M{x(at):.1f} {y(at * tb_s):.1f}'
            f'L{x(knee):.1f} {y(knee * tb_s):.1f}"/>'
        )
    middle = math.sqrt(max(_AI[0], bottom / row.hbm_peak_tb_s) * knee)
    drawn.append(
        f'<text x="{x(middle) - 8:.1f}" y="{y(middle * row.hbm_peak_tb_s) - 10:.1f}" '
        f'text-anchor="end">HBM {row.hbm_peak_tb_s:g} TB/s (dashed: {row.hbm_tb_s:g}, '
        "reached)</text>"
    )
    for number, one, flops, bytes_ in points:
        drawn += _point(number, one, x(flops / bytes_), y, flops)
    return (
        f"<p>{escape(part)}: the vendor's peaks, of {row.chip} by compute units; launches by "
        "number, with the launch itself (ring) and without it (dot).</p>"
        f'<div class="scroll"><svg viewBox="0 0 {_X + _W + 20} {_Y + _H + 46}" '
        f'width="{_X + _W + 20}" role="img" aria-label="Roofline of {escape(part)}">'
        f"{''.join(drawn)}</svg></div>"
    )


def _point(number: int, one: Followed, at: float, y: Any, flops: float) -> Iterator[str]:
    launch = one.time
    body = max(launch.us - launch.floor_us, 1e-6)
    whole, own = (y(flops / us / 1e6) for us in (launch.us, body))
    title = f"<title>{number}. {escape(readable(launch.kernel))}: {launch.us:.2f} us</title>"
    yield f'<path class="grid" d="M{at:.1f} {whole:.1f}V{own:.1f}"/>'
    yield (
        f'<circle cx="{at:.1f}" cy="{whole:.1f}" r="5" fill="none" stroke="{color("vmcnt")}" '
        f'stroke-width="2">{title}</circle>'
    )
    yield f'<circle cx="{at:.1f}" cy="{own:.1f}" r="5" fill="{color("vmcnt")}">{title}</circle>'
    yield f'<text x="{at + 9:.1f}" y="{own + 4:.1f}">{number}</text>'


def _grid(x: Any, y: Any, bottom: float, top: float) -> Iterator[str]:
    for power in range(math.ceil(math.log10(_AI[0])), math.floor(math.log10(_AI[1])) + 1):
        at = x(10.0**power)
        yield f'<path class="grid" d="M{at:.1f} {_Y}V{_Y + _H}"/>'
        yield f'<text x="{at:.1f}" y="{_Y + _H + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        at = y(10.0**power)
        yield f'<path class="grid" d="M{_X} {at:.1f}H{_X + _W}"/>'
        yield f'<text x="{_X - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
    yield f'<rect class="axis" x="{_X}" y="{_Y}" width="{_W}" height="{_H}"/>'
    yield (
        f'<text x="{_X + _W / 2}" y="{_Y + _H + 36}" text-anchor="middle">'
        "flops a byte of memory</text>"
    )
    yield f'<text x="{_X + 6}" y="{_Y + 14}">TFLOPS</text>'


# ---------------------------------------------------------------------------------- timeline


def timeline(launch: TimedLaunch, most: int = MOST) -> str:
    """What the CU of XCD 0 that is done last does: a row a slot of a SIMD, a row a unit."""
    if not launch.figures.get("events"):
        return "<p>Not followed: another launch like it was.</p>"
    events = trace.trace([launch])["traceEvents"]
    names = {
        (e["pid"], e.get("tid")): e["args"]["name"]
        for e in events
        if e["name"] in ("process_name", "thread_name")
    }
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "launch"]
    end, left_out = _end(slices, most)
    slices = [e for e in slices if e["ts"] < end]
    rows = sorted({(e["pid"], e["tid"]) for e in slices}, key=lambda at: (at[0] % 10 == 1, at))
    places = {at: 24 + _ROW * i + 6 * _simds_before(rows, i) for i, at in enumerate(rows)}
    height = max(places.values(), default=24) + _ROW + 6
    start = launch.floor_us
    per_us = _WIDTH / max(end - start, 1e-9)
    drawn = [*_ticks(end - start, per_us, height)]
    for at, top in places.items():
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">'
            f"{escape(_row_name(names, at))}</text>"
        )
    for e in slices:
        drawn.append(_slice(e, places[e["pid"], e["tid"]], start, per_us, end))
    whole = launch.us - launch.floor_us
    shown = f"{end - start:.2f} us from the first issue on, of {whole:.2f}"
    note = f"; {left_out} more slices are left out" if left_out else ""
    return (
        f'<p class="soft">CU {launch.events_cu} of XCD 0: {shown}{note}. A row per wave slot: '
        "what is issued, by unit, between what it waits for, paler. Point at a piece to read "
        "it.</p>"
        f'<p class="key">{_key(launch)}</p><div class="scroll">'
        f'<svg width="{_LEFT + _WIDTH + 10}" height="{height}" role="img" '
        f'aria-label="Timeline">{"".join(drawn)}</svg></div>'
    )


def _end(slices: Sequence[dict[str, Any]], most: int) -> tuple[float, int]:
    """Up to when all fit, and how many begin later."""
    last = max((e["ts"] + e["dur"] for e in slices), default=0.0)
    if len(slices) <= most:
        return last, 0
    end = sorted(e["ts"] for e in slices)[most]
    return end, len(slices) - sum(e["ts"] < end for e in slices)


def _simds_before(rows: Sequence[tuple[int, int]], index: int) -> int:
    return len({pid for pid, _ in rows[: index + 1]})


def _row_name(names: dict[tuple[int, int | None], str], at: tuple[int, int]) -> str:
    thread = names[at]
    if at[0] % 10 == 1:
        return thread
    return f"{names[at[0], None].rpartition(': ')[2]} {thread}"


def _slice(e: dict[str, Any], top: float, start: float, per_us: float, end: float) -> str:
    at = _LEFT + (e["ts"] - start) * per_us
    width = max((min(e["ts"] + e["dur"], end) - e["ts"]) * per_us, 0.4)
    place = f'x="{at:.2f}" y="{top}" width="{width:.2f}" height="{_ROW - 2}"'
    if e["cat"] == "wave":
        return f'<rect class="wave" {place}><title>{escape(e["name"])}</title></rect>'
    if e["cat"] == "stall":
        before = e["args"]["before"]
        title = f"waits for {e['name']} before {before['offset']} {before['instruction']}"
        fill = f'fill="{color(e["name"])}" fill-opacity="0.45"'
    elif e["cat"] == "issue":
        args = e["args"]
        title = f"{args['issued']} issued from {args['offset']} {args['instruction']}"
        fill = f'fill="{color(args["unit"])}"'
    else:
        title = f"{e['name']}, {e['args']['instructions']} instructions"
        fill = f'fill="{color(e["name"])}"'
    return f"<rect {place} {fill}><title>{escape(title)}: {1e3 * e['dur']:.1f} ns</title></rect>"


def _ticks(us: float, per_us: float, height: float) -> Iterator[str]:
    """About ten, at round times."""
    step = 10 ** math.floor(math.log10(max(us, 1e-6) / 5))
    step *= next(n for n in (1, 2, 5, 10) if us / (n * step) <= 12)
    for i in range(int(us / step) + 1):
        at = _LEFT + i * step * per_us
        yield f'<path class="grid" d="M{at:.1f} 18V{height}"/>'
        yield f'<text class="soft" x="{at:.1f}" y="12" text-anchor="middle">{i * step:g} us</text>'


def _key(launch: TimedLaunch) -> str:
    units = [u for u in UNITS if any(row["unit"] == u for row in launch.pcs)]
    waits = sorted(launch.stalls, key=lambda name: -launch.stalls[name])
    issued = "".join(f"<span>{swatch(name)}{name}</span>" for name in units)
    waited = "".join(f"<span>{swatch(name)}{name}</span>" for name in waits[:8])
    return f"Issued: {issued}<br>Waited for: {waited}"
