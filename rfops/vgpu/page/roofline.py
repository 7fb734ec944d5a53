"""The roofline of launches: flops over bytes at HBM, L2 and LDS, under the roofs of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from rfops.jit.arch import ARCH_SPECS, PART_CUS
from rfops.vgpu import figures
from rfops.vgpu.page.elements import color
from rfops.vgpu.report import Followed, readable

_X, _Y, _W, _H = 60, 16, 800, 380  # where the plot is, its size
_AI = (0.01, 1e4)  # flops a byte
_COLORS = {"HBM": color("vmcnt"), "L2": color("mfma"), "LDS": color("lds")}


class Point(NamedTuple):
    """A launch with flops."""

    number: int
    followed: Followed
    flops: float
    bytes: dict[str, float]  # by level: HBM (distinct lines), L2, LDS

    @property
    def title(self) -> str:
        launch = self.followed.time
        return (
            f"<title>{self.number}. {escape(readable(launch.kernel))}: {launch.us:.2f} us</title>"
        )


class Axes(NamedTuple):
    """Logarithmic: flops a byte, TFLOPS."""

    bottom: float
    top: float

    def x(self, ai: float) -> float:
        clamped = min(max(ai, _AI[0]), _AI[1])
        return _X + _W * math.log(clamped / _AI[0]) / math.log(_AI[1] / _AI[0])

    def y(self, tflops: float) -> float:
        clamped = min(max(tflops, self.bottom), self.top)
        return _Y + _H * (1 - math.log(clamped / self.bottom) / math.log(self.top / self.bottom))


def roofline(launches: Sequence[Followed]) -> str:
    """Of all launches that have flops; what memory the others reach, as text."""
    numbered = [(number, one) for number, one in enumerate(launches, 1) if one.counters]
    if not numbered:
        return ""
    points = [p for number, one in numbered if (p := _point_of(number, one)) is not None]
    plots = "".join(
        _plot(gpu_model, [p for p in points if p.followed.time.part == gpu_model])
        for gpu_model in dict.fromkeys(p.followed.time.part for p in points)
    )
    lines = "".join(_rate(number, one) for number, one in numbered)
    return f'<h3 id="roofline">Roofline</h3>\n{plots}<ul>{lines}</ul>'


def _point_of(number: int, followed: Followed) -> Point | None:
    counters = followed.counters or {}
    flops = figures.flops(counters)
    levels = {t.level: t.bytes for t in figures.traffic(followed.time, counters)}
    moved = {"HBM": figures.counted_bytes(counters)}
    moved |= {name: levels[name] for name in ("L2", "LDS") if levels.get(name)}
    return Point(number, followed, flops, moved) if flops and moved["HBM"] else None


def _rate(number: int, followed: Followed) -> str:
    counters = followed.counters or {}
    us = figures.body_us(followed.time)
    flops = figures.flops(counters)
    tflops = f"{flops / us / 1e6:.2f} TFLOPS, " if flops else ""
    rate = figures.rate_text(figures.counted_bytes(counters) / us / 1e6)
    return (
        f"<li>{number}. {escape(readable(followed.time.kernel))}: {tflops}{rate} of lines read and "
        "written once, the launch itself left out</li>"
    )


def _plot(gpu_model: str, points: Sequence[Point]) -> str:
    launch = points[0].followed.time
    chip = ARCH_SPECS[launch.arch]
    scale = PART_CUS[gpu_model] / chip.cus
    # A lane of a SIMD's 16 makes a fused multiply-add a clock, two where they are packed.
    vector = chip.cus * chip.simds * 16 * 2 * 2 * chip.ghz / 1e3
    flat = {f"{name} matrix": tf * scale for name, tf in chip.matrix_tflops.items()}
    flat["f32 vector"] = vector * scale
    slowest = min(p.flops / p.followed.time.us / 2e6 for p in points)
    axes = Axes(min(0.01, slowest), 2 * max(flat.values()))
    drawn = [*_grid(axes), *_flat_roofs(axes, flat, figures.lds_tb_s(launch))]
    for name, tb_s, kind in (
        ("HBM", chip.hbm_peak_tb_s, "roof"),
        ("", chip.hbm_tb_s, "roof dash"),
        ("L2", launch.rates["l2"], "roof"),
        ("LDS", figures.lds_tb_s(launch), "roof"),
    ):
        drawn += _memory_roof(axes, name, tb_s, kind, max(flat.values()))
    for point in points:
        drawn += _drawn(axes, point)
    return (
        f"<p>{escape(gpu_model)}: the vendor's peaks, of {chip.chip} by compute units; HBM dashed: "
        f"{chip.hbm_tb_s:g} TB/s, that kernels reach. Launches by number, with the launch itself "
        "(ring) and without it (dot); squares: their flops over the bytes of L2 and LDS.</p>"
        f'<div class="scroll"><svg viewBox="0 0 {_X + _W + 20} {_Y + _H + 46}" '
        f'style="min-width: 40rem" role="img" aria-label="Roofline of {escape(gpu_model)}">'
        f"{''.join(drawn)}</svg></div>"
    )


def _flat_roofs(axes: Axes, roofs: dict[str, float], steepest: float) -> Iterator[str]:
    for name, peak in roofs.items():
        y = axes.y(peak)
        yield f'<path class="roof" d="M{axes.x(peak / steepest):.1f} {y:.1f}H{_X + _W}"/>'
        yield (
            f'<text x="{_X + _W - 4}" y="{y - 4:.1f}" text-anchor="end">{name} {peak:.0f} '
            "TFLOPS</text>"
        )


def _memory_roof(axes: Axes, name: str, tb_s: float, kind: str, peak: float) -> Iterator[str]:
    ai_begin, ai_end = max(_AI[0], axes.bottom / tb_s), min(peak / tb_s, _AI[1])
    yield (
        f'<path class="{kind}" d="M{axes.x(ai_begin):.1f} {axes.y(ai_begin * tb_s):.1f}'
        f'L{axes.x(ai_end):.1f} {axes.y(ai_end * tb_s):.1f}"/>'
    )
    if not name:
        return
    ai = ai_begin * (ai_end / ai_begin) ** 0.35
    x, y = axes.x(ai), axes.y(ai * tb_s)
    slope = math.degrees(
        math.atan2(
            axes.y(ai_end * tb_s) - axes.y(ai_begin * tb_s),
            axes.x(ai_end) - axes.x(ai_begin),
        )
    )
    yield (
        f'<text x="{x:.1f}" y="{y - 5:.1f}" transform="rotate({slope:.1f} {x:.1f} {y:.1f})">{name} '
        f"{tb_s:.3g} TB/s</text>"
    )


def _drawn(axes: Axes, point: Point) -> Iterator[str]:
    launch = point.followed.time
    tflops = (point.flops / us / 1e6 for us in (launch.us, figures.body_us(launch)))
    y_total, y_body = (axes.y(value) for value in tflops)
    x = axes.x(point.flops / point.bytes["HBM"])
    yield f'<path class="grid" d="M{x:.1f} {y_total:.1f}V{y_body:.1f}"/>'
    yield (
        f'<circle cx="{x:.1f}" cy="{y_total:.1f}" r="5" fill="none" stroke="{_COLORS["HBM"]}" '
        f'stroke-width="2">{point.title}</circle>'
    )
    yield (
        f'<circle cx="{x:.1f}" cy="{y_body:.1f}" r="5" fill="{_COLORS["HBM"]}">'
        f"{point.title}</circle>"
    )
    for level, moved in point.bytes.items():
        if level != "HBM":
            x_level = axes.x(point.flops / moved)
            yield (
                f'<path d="M{x_level - 4:.1f} {y_body - 4:.1f}h8v8h-8z" fill="{_COLORS[level]}">'
                f"<title>{point.number}. at {level}</title></path>"
            )
    yield f'<text x="{x + 9:.1f}" y="{y_body + 4:.1f}">{point.number}</text>'


def _grid(axes: Axes) -> Iterator[str]:
    for power in range(math.ceil(math.log10(_AI[0])), math.floor(math.log10(_AI[1])) + 1):
        x = axes.x(10.0**power)
        yield f'<path class="grid" d="M{x:.1f} {_Y}V{_Y + _H}"/>'
        yield f'<text x="{x:.1f}" y="{_Y + _H + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(math.ceil(math.log10(axes.bottom)), math.floor(math.log10(axes.top)) + 1):
        y = axes.y(10.0**power)
        yield f'<path class="grid" d="M{_X} {y:.1f}H{_X + _W}"/>'
        yield f'<text x="{_X - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
    yield f'<rect class="axis" x="{_X}" y="{_Y}" width="{_W}" height="{_H}"/>'
    yield (f'<text x="{_X + _W / 2}" y="{_Y + _H + 36}" text-anchor="middle">flops a byte</text>')
    yield f'<text x="{_X + 6}" y="{_Y + 14}">TFLOPS</text>'
