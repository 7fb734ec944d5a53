"""The page of --html: what stands in it, and how a real browser shows it."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import rfops
from rfops.jit.arch import ARCH_SPECS
from rfops.vgpu import page, page_charts, report, timed_text, timeline
from rfops.vgpu.timed import TimedLaunch
from support.command import good

VOID = {"meta", "br"}
EVIL = "_Kernel<1 & 2>\"'</style><script>"


@functools.cache
def found(m: int = 16, n: int = 512, k: int = 2048) -> report.Report:
    torch.manual_seed(1)
    x, x_scale = rfops.quant_mxfp8(torch.randn(m, k))
    w, w_scale = rfops.quant_mxfp8(torch.randn(n, k))
    with rfops.vgpu.timing("MI355X", events=50_000), rfops.vgpu.profile() as p:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    return report.from_launches(p.launches)


@functools.cache
def text() -> str:
    return page.page(found(), "gemm_mxfp8 M=16")


class Reader(HTMLParser):
    """Elements and their texts; asserts that each ends where it should."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "h1", "h2"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if {"td", "h1", "h2"} & {*self.open}:
            self.cells[-1] += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(item) for item in re.findall(r"<svg.*?</svg>", html, re.S)]


def test_a_page_is_whole_and_alone() -> None:
    reader = read(text())
    assert text().startswith("<!DOCTYPE html>") and "estimated" in text().lower()
    assert not {"script", "link", "img", "iframe", "object"} & {*reader.tags}
    assert not re.search(r"https?:|//|url\(|@import|\bsrc=|\bon\w+=", re.sub(r"/\w+/", "", text()))


def test_it_says_what_the_record_says() -> None:
    (launch,) = (item.time for item in found().followed)
    cells = read(text()).cells
    assert f"{launch.us:.2f}" in cells and f"{launch.low:.2f} to {launch.high:.2f}" in cells
    total = sum(launch.stalls.values())
    for name, clk in launch.stalls.items():
        assert name in cells and f"{clk / total:.1%}" in cells and str(clk) in cells
    assert {*launch.stalls} <= {*page.MEANING}
    for name, share in launch.busy.items():
        assert name in cells and f"{share:.1%}" in cells
    for row in launch.pcs:
        assert f"{row['offset']:#x}" in cells
    assert text().count('class="hot"') == page.HOT


def test_each_figure_says_what_part_of_the_gpu_it_is_of() -> None:
    """Bytes and stalls are one XCD's, the timeline is of the CU that the trace names."""
    (launch,) = (item.time for item in found().followed)
    position = f"on XCD 0 of {ARCH_SPECS['gfx950'].xcds}"
    read, written = (launch.memory[name] for name in ("hbm_read_bytes", "written_bytes"))
    for shown in (text(), timed_text.table(launch)):
        assert f"{read} B read; {written} B written {position}" in shown
        bytes_shown = re.findall(r"\d+ B (?:written )?(?!read)(.{0,20})", shown)
        assert bytes_shown and all(after.startswith(position) for after in bytes_shown)
        assert f"cycles of LDS bank conflicts {position}" in shown or f"cycles {position}" in shown
    assert f"added up over waves {position}" in timed_text.table(launch)
    assert position in timed_text.annotate(launch).splitlines()[0]
    assert f"clk, waves {position}" in text() and f"Counts are of waves {position}." in text()
    (named,) = (
        e["args"]["name"]
        for e in timeline.trace([launch])["traceEvents"]
        if e["name"] == "process_name" and "mxfp8" in e["args"]["name"]
    )
    assert named.endswith(f"CU {launch.events_cu}")
    assert f"CU {launch.events_cu} of XCD 0: " in text()


def test_names_are_no_markup() -> None:
    (one,) = found().followed
    evil = TimedLaunch({**one.time.figures, "kernel": EVIL})
    result = report.Report([""], followed=[report.Followed(evil, one.counted)], failed=[EVIL])
    result.kernel(EVIL, "MI355X").add_time(evil)
    reader = read(page.page(result, EVIL))
    assert "script" not in reader.tags
    assert [cell for cell in reader.cells if EVIL in cell] == [EVIL, EVIL, f"1. {EVIL}"]


def test_nothing_launched() -> None:
    assert "0 launches" in page.page(report.Report(), "nothing")
    read(page.page(report.Report(failed=["a crash"]), "nothing"))


def test_roofline() -> None:
    """Where the points are, against the axes' ticks."""
    (one,) = found().followed
    svg = svgs(text())[0]
    ticks = [t for t in svg.iter("text") if re.fullmatch(r"[\d.e+]+", t.text or "")]
    across = {float(t.text): float(t.get("x")) for t in ticks if t.get("text-anchor") == "middle"}
    up = {float(t.text): float(t.get("y")) - 4 for t in ticks if t.get("text-anchor") == "end"}
    flops = one.counted["mfma_flops"] + one.counted["valu_flops"]
    lines = one.counted["global_read"]["lines_64B"] + one.counted["global_write"]["lines_64B"]

    def at(positions: dict[float, float], value: float) -> float:
        """As the logarithm says, from two ticks."""
        low, high = 1.0, 100.0
        share = torch.log10(torch.tensor(value / low)).item() / 2
        return positions[low] + share * (positions[high] - positions[low])

    circles = [*svg.iter("circle")]
    whole, body = (one.time.us, one.time.us - one.time.floor_us)
    for circle, us in zip(circles, (whole, body), strict=True):
        assert float(circle.get("cx")) == pytest.approx(at(across, flops / lines / 64), abs=0.2)
        assert float(circle.get("cy")) == pytest.approx(at(up, flops / us / 1e6), abs=0.2)
    peak = ARCH_SPECS["gfx950"].matrix_tflops["fp8"]
    assert f"fp8 matrix {peak:.0f} TFLOPS" in {t.text for t in svg.iter("text")}


def rectangles(svg: ET.Element) -> Iterator[tuple[float, float, float]]:
    for r in svg.iter("rect"):
        yield float(r.get("x")), float(r.get("width")), float(r.get("y"))


def test_timeline() -> None:
    """Each slice of the trace, in its row, inside."""
    (one,) = found().followed
    svg = svgs(text())[1]
    events = timeline.trace([one.time])["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "launch"]
    boxes = [*rectangles(svg)]
    assert len(boxes) == len(slices) > 100
    width, height = float(svg.get("width")), float(svg.get("height"))
    assert all(0 < x and x + w <= width and 0 <= y < height for x, w, y in boxes)
    assert len({y for _, _, y in boxes}) == len({(e["pid"], e["tid"]) for e in slices})
    words = {t.text for t in svg.iter("text")}
    assert {"SIMD 0 slot 0", "SIMD 3 slot 0", "mfma of SIMD 0", "vmem issues"} <= words


def test_a_long_timeline_says_what_is_left_out() -> None:
    (one,) = found().followed
    html = page_charts.timeline(one.time, max_rects=100)
    assert len([*rectangles(svgs(html)[0])]) <= 100
    assert re.search(r"; \d{3,} more slices are left out", html)
    alone = dataclasses.replace(one.time, figures={**one.time.figures, "events": []})
    assert "Not followed" in page_charts.timeline(alone)


def variables(css: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#\w{6})", css))


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colors_can_be_read(dark: bool) -> None:
    light, _, night = page.STYLE.partition("@media")
    v = variables(night if dark else light)
    assert {*v} == {*variables(light)}
    for back in ("back", "card", "hot", "bar"):
        assert contrast(v["text"], v[back]) >= 4.5, back
    assert contrast(v["soft"], v["back"]) >= 4.5 and contrast(v["soft"], v["source"]) >= 4.5


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    words = ("gemm_mxfp8", "--m", "1", "--n", "512", "--k", "512", "--html", str(file))
    assert "bound" in good("profile", *words)
    html = file.read_text(encoding="utf-8")
    assert "<h1>gemm_mxfp8" in html and len(svgs(html)) == 2
    read(html)


# ---------------------------------------------------------------------------------- a browser

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
)
# Goes into a copy of the page: what a reader would see.
LOOK = """<script>
const boxes = selector =>
  [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect());
const seen = "h1, h2, h3, table, svg, .stack, .facts div";
const style = getComputedStyle(document.body);
const told = {
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  empty: boxes(seen).filter(b => !b.width || !b.height).length,
  order: boxes("h1, h2, h3").every((b, i, all) => !i || b.top > all[i - 1].bottom),
  facts: boxes(".facts div").every((b, i, all) =>
    all.every((o, j) => i == j || b.right <= o.left || o.right <= b.left || b.bottom <= o.top ||
              o.bottom <= b.top)),
  stack: boxes(".stack i").reduce((sum, b) => sum + b.width, 0) / boxes(".stack")[0].width,
  cut: [...document.querySelectorAll(".facts b, .facts span, h2")]
    .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).length,
  requests: performance.getEntriesByType("resource").length,
  back: style.backgroundColor, text: style.color,
};
document.body.insertAdjacentHTML("beforeend", `<pre id="told">${JSON.stringify(told)}</pre>`);
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    paths = [path for path in map(shutil.which, BROWSERS) if path]
    if not paths:
        pytest.skip(f"none of {', '.join(BROWSERS)} is on PATH: on Debian, apt install chromium")
    return paths[0]


def chromium(browser: str, folder: Path, *words: str) -> str:
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--virtual-time-budget=5000",
        f"--user-data-dir={folder / 'profile'}",
    )
    completed = subprocess.run(
        [browser, *flags, *words], capture_output=True, text=True, timeout=120
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.thin(3)
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(browser: str, tmp_path: Path, dark: bool, width: int) -> None:
    """Nothing overlaps, is empty or wider than the window; no request; light and dark."""
    html = text().replace("</body>", f"{LOOK}</body>")
    html = html.replace("(prefers-color-scheme: dark)", "all" if dark else "not all")
    file = tmp_path / "page.html"
    file.write_text(html, encoding="utf-8")
    size = f"--window-size={width},1600"
    dom = chromium(browser, tmp_path, size, "--dump-dom", file.as_uri())
    # The script that writes it comes first.
    message = json.loads(re.findall(r'<pre id="told">(.*?)</pre>', dom, re.S)[-1])
    light, _, night = page.STYLE.partition("@media")
    v = variables(night if dark else light)

    def rgb(color: str) -> str:
        return "rgb({}, {}, {})".format(*(int(color[i : i + 2], 16) for i in (1, 3, 5)))

    assert (message.pop("back"), message.pop("text")) == (rgb(v["back"]), rgb(v["text"]))
    assert message.pop("stack") == pytest.approx(1, abs=0.02)
    assert message.pop("wide") <= 0
    assert message == {"empty": 0, "order": True, "facts": True, "cut": 0, "requests": 0}
    picture = tmp_path / "page.png"
    chromium(browser, tmp_path, size, f"--screenshot={picture}", file.as_uri())
    assert picture.stat().st_size > 20_000, "not one colour"
