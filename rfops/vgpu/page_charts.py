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
MAX_RECTS, MIN_RECTS, MAX_PAGE_RECTS = 6000, 1500, 40_000  # rectangles of a timeline; of a page
_LEFT_PX, _WIDTH, _ROW = 150, 1500, 13  # of a timeline, in pixels


def color(name: str) -> str:
    return COLORS.get(name, "#8390a6")


def swatch(name: str) -> str:
    return f'<span class="swatch" style="background: {color(name)}"></span>'


# ---------------------------------------------------------------------------------- roofline

_X, _Y, _W, _H = 60, 16, 800, 380  # where the plot is, its size
_AI = (0.01, 1e4)  # flops a byte


def roofline(launches: Sequence[Followed]) -> str:
    """Of all launches that have flops; what memory the others reach, as text."""
    counted_launches = [
        (number, followed) for number, followed in enumerate(launches, 1) if followed.counted
    ]
    points = [
        (number, followed, flops, bytes_)
        for number, followed in counted_launches
        for flops, bytes_ in [_work(followed)]
        if flops and bytes_
    ]
    lines = []
    for number, followed in counted_launches:
        flops, bytes_ = _work(followed)
        body = followed.time.us - followed.time.floor_us
        rate = bytes_ / body / 1e6 if body > 0 else 0.0
        tflops = f"{flops / body / 1e6:.2f} TFLOPS, " if flops and body > 0 else ""
        lines.append(
            f"<li>{number}. {escape(readable(followed.time.kernel))}: {tflops}{rate:.2f} TB/s of "
            "lines read and written once, the launch itself left out</li>"
        )
    if not lines:
        return ""
    plots = "".join(
        _plot(gpu_model, [p for p in points if p[1].time.part == gpu_model])
        for gpu_model in dict.fromkeys(p[1].time.part for p in points)
    )
    return f"<h2>Roofline</h2>\n{plots}<ul>{''.join(lines)}</ul>"


def _work(followed: Followed) -> tuple[float, float]:
    """Flops, and bytes of the distinct lines."""
    f = followed.counted or {}
    lines = f["global_read"]["lines_64B"] + f["global_write"]["lines_64B"]
    return float(f["mfma_flops"] + f["valu_flops"]), 64.0 * lines


def _plot(gpu_model: str, points: Sequence[tuple[int, Followed, float, float]]) -> str:
    arch = points[0][1].time.arch
    row = ARCH_SPECS[arch]
    scale = PART_CUS[gpu_model] / row.cus
    # A lane of a SIMD's 16 makes a fused multiply-add a clock, two where they are packed.
    vector = row.cus * row.simds * 16 * 2 * 2 * row.ghz / 1e3
    roofs = {f"{name} matrix": tf * scale for name, tf in row.matrix_tflops.items()}
    roofs["f32 vector"] = vector * scale
    top = max(roofs.values()) * 2
    bottom = min(0.01, *(flops / followed.time.us / 2e6 for _, followed, flops, _ in points))

    def x(ai: float) -> float:
        fraction = math.log(min(max(ai, _AI[0]), _AI[1]) / _AI[0]) / math.log(_AI[1] / _AI[0])
        return _X + _W * fraction

    def y(tflops: float) -> float:
        fraction = math.log(min(max(tflops, bottom), top) / bottom) / math.log(top / bottom)
        return _Y + _H * (1 - fraction)

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
        knee_ai = max(_AI[0], bottom / tb_s)
        drawn.append(
            f'<path class="{kind}" d="M{x(knee_ai):.1f} {y(knee_ai * tb_s):.1f}'
            f'L{x(knee):.1f} {y(knee * tb_s):.1f}"/>'
        )
    middle = math.sqrt(max(_AI[0], bottom / row.hbm_peak_tb_s) * knee)
    drawn.append(
        f'<text x="{x(middle) - 8:.1f}" y="{y(middle * row.hbm_peak_tb_s) - 10:.1f}" '
        f'text-anchor="end">HBM {row.hbm_peak_tb_s:g} TB/s (dashed: {row.hbm_tb_s:g}, '
        "reached)</text>"
    )
    for number, followed, flops, bytes_ in points:
        drawn += _point(number, followed, x(flops / bytes_), y, flops)
    return (
        f"<p>{escape(gpu_model)}: the vendor's peaks, of {row.chip} by compute units; launches by "
        "number, with the launch itself (ring) and without it (dot).</p>"
        f'<div class="scroll"><svg viewBox="0 0 {_X + _W + 20} {_Y + _H + 46}" '
        f'width="{_X + _W + 20}" role="img" aria-label="Roofline of {escape(gpu_model)}">'
        f"{''.join(drawn)}</svg></div>"
    )


def _point(number: int, followed: Followed, x: float, y: Any, flops: float) -> Iterator[str]:
    launch = followed.time
    body = max(launch.us - launch.floor_us, 1e-6)
    y_total, y_body = (y(flops / us / 1e6) for us in (launch.us, body))
    title = f"<title>{number}. {escape(readable(launch.kernel))}: {launch.us:.2f} us</title>"
    yield f'<path class="grid" d="M{x:.1f} {y_total:.1f}V{y_body:.1f}"/>'
    yield (
        f'<circle cx="{x:.1f}" cy="{y_total:.1f}" r="5" fill="none" stroke="{color("vmcnt")}" '
        f'stroke-width="2">{title}</circle>'
    )
    yield f'<circle cx="{x:.1f}" cy="{y_body:.1f}" r="5" fill="{color("vmcnt")}">{title}</circle>'
    yield f'<text x="{x + 9:.1f}" y="{y_body + 4:.1f}">{number}</text>'


def _grid(x: Any, y: Any, bottom: float, top: float) -> Iterator[str]:
    for power in range(math.ceil(math.log10(_AI[0])), math.floor(math.log10(_AI[1])) + 1):
        x_px = x(10.0**power)
        yield f'<path class="grid" d="M{x_px:.1f} {_Y}V{_Y + _H}"/>'
        yield f'<text x="{x_px:.1f}" y="{_Y + _H + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        position = y(10.0**power)
        yield f'<path class="grid" d="M{_X} {position:.1f}H{_X + _W}"/>'
        yield f'<text x="{_X - 6}" y="{position + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
    yield f'<rect class="axis" x="{_X}" y="{_Y}" width="{_W}" height="{_H}"/>'
    yield (
        f'<text x="{_X + _W / 2}" y="{_Y + _H + 36}" text-anchor="middle">'
        "flops a byte of memory</text>"
    )
    yield f'<text x="{_X + 6}" y="{_Y + 14}">TFLOPS</text>'


# ---------------------------------------------------------------------------------- timeline


def timeline(launch: TimedLaunch, max_rects: int = MAX_RECTS) -> str:
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
    end, left_out = _end(slices, max_rects)
    slices = [e for e in slices if e["ts"] < end]
    rows = sorted(
        {(e["pid"], e["tid"]) for e in slices}, key=lambda thread: (thread[0] % 10 == 1, thread)
    )
    tops = {thread: 24 + _ROW * i + 6 * _simds_before(rows, i) for i, thread in enumerate(rows)}
    height = max(tops.values(), default=24) + _ROW + 6
    start = launch.floor_us
    per_us = _WIDTH / max(end - start, 1e-9)
    drawn = [*_ticks(end - start, per_us, height)]
    for thread, top in tops.items():
        drawn.append(
            f'<text x="{_LEFT_PX - 6}" y="{top + 10}" text-anchor="end">'
            f"{escape(_row_name(names, thread))}</text>"
        )
    for e in slices:
        drawn.append(_slice(e, tops[e["pid"], e["tid"]], start, per_us, end))
    total_us = launch.us - launch.floor_us
    extent = f"{end - start:.2f} us from the first issue on, of {total_us:.2f}"
    note = f"; {left_out} more slices are left out" if left_out else ""
    return (
        f'<p class="soft">CU {launch.events_cu} of XCD 0: {extent}{note}. A row per wave slot: '
        "what is issued, by unit, between what it waits for, paler. Point at a piece to read "
        "it.</p>"
        f'<p class="key">{_key(launch)}</p><div class="scroll">'
        f'<svg width="{_LEFT_PX + _WIDTH + 10}" height="{height}" role="img" '
        f'aria-label="Timeline">{"".join(drawn)}</svg></div>'
    )


def _end(slices: Sequence[dict[str, Any]], max_rects: int) -> tuple[float, int]:
    """Up to when all fit, and how many begin later."""
    last_end = max((e["ts"] + e["dur"] for e in slices), default=0.0)
    if len(slices) <= max_rects:
        return last_end, 0
    end = sorted(e["ts"] for e in slices)[max_rects]
    return end, len(slices) - sum(e["ts"] < end for e in slices)


def _simds_before(rows: Sequence[tuple[int, int]], index: int) -> int:
    return len({pid for pid, _ in rows[: index + 1]})


def _row_name(names: dict[tuple[int, int | None], str], thread_key: tuple[int, int]) -> str:
    thread = names[thread_key]
    if thread_key[0] % 10 == 1:
        return thread
    return f"{names[thread_key[0], None].rpartition(': ')[2]} {thread}"


def _slice(e: dict[str, Any], top: float, start: float, per_us: float, end: float) -> str:
    left_px = _LEFT_PX + (e["ts"] - start) * per_us
    width = max((min(e["ts"] + e["dur"], end) - e["ts"]) * per_us, 0.4)
    geometry = f'x="{left_px:.2f}" y="{top}" width="{width:.2f}" height="{_ROW - 2}"'
    if e["cat"] == "wave":
        return f'<rect class="wave" {geometry}><title>{escape(e["name"])}</title></rect>'
    if e["cat"] == "stall":
        op = e["args"]["before"]
        title = f"waits for {e['name']} before {op['offset']} {op['instruction']}"
        fill = f'fill="{color(e["name"])}" fill-opacity="0.45"'
    elif e["cat"] == "issue":
        args = e["args"]
        title = f"{args['issued']} issued from {args['offset']} {args['instruction']}"
        fill = f'fill="{color(args["unit"])}"'
    else:
        title = f"{e['name']}, {e['args']['instructions']} instructions"
        fill = f'fill="{color(e["name"])}"'
    return f"<rect {geometry} {fill}><title>{escape(title)}: {1e3 * e['dur']:.1f} ns</title></rect>"


def _ticks(us: float, per_us: float, height: float) -> Iterator[str]:
    """About ten, at round times."""
    step = 10 ** math.floor(math.log10(max(us, 1e-6) / 5))
    step *= next(n for n in (1, 2, 5, 10) if us / (n * step) <= 12)
    for i in range(int(us / step) + 1):
        x = _LEFT_PX + i * step * per_us
        yield f'<path class="grid" d="M{x:.1f} 18V{height}"/>'
        yield f'<text class="soft" x="{x:.1f}" y="12" text-anchor="middle">{i * step:g} us</text>'


def _key(launch: TimedLaunch) -> str:
    units = [u for u in UNITS if any(row["unit"] == u for row in launch.pcs)]
    waits = sorted(launch.stalls, key=lambda name: -launch.stalls[name])
    issued = "".join(f"<span>{swatch(name)}{name}</span>" for name in units)
    waits_legend = "".join(f"<span>{swatch(name)}{name}</span>" for name in waits[:8])
    return f"Issued: {issued}<br>Waited for: {waits_legend}"
