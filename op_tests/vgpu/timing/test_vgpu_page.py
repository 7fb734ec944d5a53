"""The page of --html: what stands in it, and how a real browser shows it."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops.gemm.kernels.mxfp8.mfma import MfmaConfig
from rfops.jit.arch import ARCH_SPECS
from rfops.vgpu import figures, page, report, timed_text, timeline
from rfops.vgpu.page import code
from rfops.vgpu.page import launch as launch_section
from rfops.vgpu.page import timeline as page_timeline
from rfops.vgpu.timed import TimedLaunch
from support.command import good

VOID = {"meta", "br"}
# Without a split: its XCDs read lines of their own, but for x.
NARROW = MfmaConfig(m_tiles=1, n_tiles=1, steps=4, waves=4, split=1)
WIDE = MfmaConfig(m_tiles=1, n_tiles=1, steps=4, waves=12, split=1)
EVIL = "_Kernel<1 & 2>\"'</style><script>"


@functools.cache
def found(m: int = 16, n: int = 512, k: int = 2048) -> report.Report:
    torch.manual_seed(1)
    x, x_scale = rfops.quant_mxfp8(torch.randn(m, k))
    w, w_scale = rfops.quant_mxfp8(torch.randn(n, k))
    with rfops.vgpu.timing("MI355X", events=50_000), rfops.vgpu.profile() as p:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale, config=WIDE if n > 512 else NARROW)
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
    assert not {"link", "img", "iframe", "object"} & {*reader.tags}
    assert not re.search(r"https?:|url\(|@import|\bsrc=|\bon\w+=|=[\"']?//", text())


def test_it_says_what_the_record_says() -> None:
    (launch,) = (item.time for item in found().followed)
    cells = read(text()).cells
    assert f"{launch.us:.2f}" in cells and f"{launch.low:.2f} to {launch.high:.2f}" in cells
    total = sum(launch.stalls.values())
    for name, clk in launch.stalls.items():
        assert name in cells and f"{clk / total:.1%}" in cells and str(clk) in cells
    assert {*launch.stalls} <= {*launch_section.MEANING}
    for name, share in launch.busy.items():
        assert name in cells and f"{share:.1%}" in cells
    for row in launch.pcs:
        assert f"{row['offset']:#x}" in cells
    assert text().count('class="hot"') == code.NUM_HOT


def test_bytes_are_of_the_whole_gpu() -> None:
    """Of a launch whose XCDs are alike, timing mode's bytes are those that counters count."""
    (one,) = found(16, 2304, 6144).followed
    launch, counters = one.time, one.counters
    assert launch.sampled["xcds"] == figures.scale(launch) == ARCH_SPECS["gfx950"].xcds
    distinct = 64 * counters["global_read"]["lines_64B"]
    assert figures.hbm_bytes(launch)[0] == pytest.approx(distinct, rel=0.01)
    by_level = {t.level: t for t in figures.traffic(launch, counters)}
    requests = 64 * sum(counters[f"global_{kind}"]["requests_64B"] for kind in ("read", "write"))
    # A half of an L1 line may be asked for alone.
    assert requests <= 1.01 * by_level["L1"].bytes <= 2.02 * requests
    assert by_level["LDS"].bytes == counters["lds_read_bytes"] + counters["lds_write_bytes"]
    body_us = launch.us - launch.floor_us
    for level in by_level.values():
        assert level.tb_s == pytest.approx(level.bytes / body_us / 1e6)
    html = page.page(found(16, 2304, 6144), "one")
    for shown in (html, timed_text.table(launch)):
        for name in ("L1", "L2", "Infinity Cache", "HBM"):
            assert figures.bytes_text(by_level[name].bytes) in shown, name
            assert figures.rate_text(by_level[name].tb_s) in shown, name
    flops = counters["mfma_flops"] + counters["valu_flops"]
    assert f"<b>{flops / body_us / 1e6:.3g} TFLOPS</b>" in html


def test_what_is_of_one_xcd_says_so() -> None:
    """Stalls and counts are one XCD's, the timeline is of the CU that the trace names."""
    (launch,) = (item.time for item in found().followed)
    position = f"on XCD 0 of {ARCH_SPECS['gfx950'].xcds}"
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


def test_source_lines_of_a_kernel() -> None:
    """HIP kernels of the engine have them; each instruction names its line, which is shown."""
    (one,) = found().followed
    lines = code.lines_of(one.time)
    assert lines and all(Path(line.file).is_file() and line.text.strip() for line in lines)
    assert any(line.file.endswith("mxfp8_gemv.hip") for line in lines) or any(
        line.file.endswith("mxfp8_mfma.hip") for line in lines
    )
    clk = sum(sum(row["stalls"].values()) for row in one.time.pcs if "source" in row)
    assert sum(line.clk for line in lines) == clk
    kernel = [line for line in lines if line.file.endswith(".hip")]
    assert max(line.inclusive_clk for line in kernel) > 0.3 * clk > sum(line.clk for line in kernel)
    assert all(line.inclusive_clk >= line.clk for line in lines)
    by_line = code.line_ids(1, lines)
    ids = {*by_line.values()}
    assert len(ids) == len(lines) and ids <= {*re.findall(r'<tr id="(s[^"]+)"', text())}
    used = {name for names in re.findall(r'data-line="(s[^"]+)"', text()) for name in names.split()}
    assert used == ids
    site = code.hottest_sites(one.time, 1)[0]
    assert site.outer.file.endswith(".hip") and site.location in text()
    assert f'href="#{by_line[site.outer.file, site.outer.number]}"' in text()


def test_links_lead_somewhere() -> None:
    ids = {*re.findall(r'\bid="([^"]+)"', text())}
    links = re.findall(r'href="#([^"]+)"', text())
    assert len(links) > 3 and {*links} <= ids


def test_names_are_no_markup() -> None:
    (one,) = found().followed
    evil = TimedLaunch({**one.time.figures, "kernel": EVIL})
    result = report.Report([""], followed=[report.Followed(evil, one.counters)], failed=[EVIL])
    result.kernel(EVIL, "MI355X").add_time(evil)
    html = page.page(result, EVIL)
    reader = read(html)
    assert reader.tags.count("script") == read(text()).tags.count("script")
    assert [cell for cell in reader.cells if EVIL in cell] == [EVIL, EVIL, f"1. {EVIL}"]


def test_a_page_of_several_kernels_begins_with_an_index() -> None:
    """The worst first, each a link to its section; only the first is unfolded."""
    (short,), (long,) = found().followed, found(16, 2304, 6144).followed
    both = report.Report([""], followed=[short, long])
    other = TimedLaunch({**short.time.figures, "kernel": "short_one"})
    both.followed[0] = report.Followed(other, short.counters)
    for one in both.followed:
        both.kernel(one.time.kernel, one.time.part).add_time(one.time)
    html = page.page(both, "two")
    index = re.findall(r'<td><a href="#(launch\d)">(\w+)</a>', html)
    assert index == [("launch1", long.time.kernel), ("launch2", "short_one")]
    assert re.findall(r'<details class="launch" id="launch(\d)"( open)?>', html) == [
        ("1", " open"),
        ("2", ""),
    ]


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
    flops = one.counters["mfma_flops"] + one.counters["valu_flops"]
    lines = one.counters["global_read"]["lines_64B"] + one.counters["global_write"]["lines_64B"]

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


def timeline_data(html: str) -> dict[str, Any]:
    (shown,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.S)
    return json.loads(shown)


def test_timeline() -> None:
    """Each slice of the trace, in its row, inside."""
    (one,) = found().followed
    drawn = timeline_data(text())
    events = timeline.trace([one.time])["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "launch"]
    assert len(drawn["slices"]) == len(slices) > 100 and drawn["left_out"] == 0
    assert len(drawn["rows"]) == len({(e["pid"], e["tid"]) for e in slices})
    for row, start, length, kind, message in drawn["slices"]:
        assert 0 <= row < len(drawn["rows"]) and 0 <= kind < len(drawn["kinds"])
        assert start >= 0 and length >= 0 and start + length <= drawn["end"] + 1
        assert drawn["texts"][message]
    assert {"SIMD 0 slot 0", "SIMD 3 slot 0", "mfma of SIMD 0", "vmem issues"} <= {*drawn["rows"]}
    total_ns = 1e3 * (one.time.us - one.time.floor_us)
    assert drawn["end"] <= total_ns + 1


def test_a_long_timeline_says_what_is_left_out() -> None:
    (one,) = found().followed
    html = page_timeline.timeline(one.time, max_slices=100)
    assert len(timeline_data(html)["slices"]) <= 100
    assert re.search(r"; \d{3,} more slices are left out", html)
    alone = dataclasses.replace(one.time, figures={**one.time.figures, "events": []})
    assert "Not followed" in page_timeline.timeline(alone)


def test_size_of_a_large_kernels_page() -> None:
    """3,000 instructions, a full timeline: the bar is 1.5 MB."""
    (one,) = found().followed
    pcs = one.time.pcs
    many = [{**pcs[i % len(pcs)], "offset": 4 * i} for i in range(3000)]
    events = [
        (16 * i, 4 * (i % 3000), i % 4, i % 12, 12, "vmcnt") for i in range(timeline.MOST_ISSUES)
    ]
    large = TimedLaunch({**one.time.figures, "pcs": many, "events": events})
    result = report.Report([""], followed=[report.Followed(large, one.counters)])
    result.kernel(large.kernel, large.part).add_time(large)
    html = page.page(result, "large")
    assert html.count('<tr id="i1-') == 3000
    assert len(html.encode()) <= 1.5e6


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
    light, _, night = page.style().partition("@media")
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
    assert "<h1>gemm_mxfp8" in html and len(svgs(html)) == 1
    assert timeline_data(html)["slices"]
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
// Timers run in order: after the page's own, which draws the timelines.
addEventListener("load", () => setTimeout(() => {
  const boxes = selector =>
    [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect());
  const total = selector => boxes(selector).reduce((sum, b) => sum + b.width, 0);
  const seen = "h1, h2, h3, table, svg, canvas, .stack, .facts div, .level";
  const style = getComputedStyle(document.body);
  const canvas = document.querySelector(".timeline canvas");
  const drawn = () => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return new Set(new Uint32Array(pixels.buffer)).size;
  };
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const whole = drawn(), before = canvas.toDataURL();
  press("+"); press("+");
  const zoomed = canvas.toDataURL() !== before;
  press("0");
  const share = document.querySelectorAll(".panes .code")[1].querySelectorAll("th")[2];
  share.click();
  const waits = [...share.closest("table").tBodies[0].rows].map(r => +r.cells[2].textContent || 0);
  const line = document.querySelector(".source tr[id]");
  line.click();
  const told = {
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    empty: boxes(seen).filter(b => !b.width || !b.height).length,
    order: boxes("h1, h2, h3").every((b, i, all) => !i || b.top > all[i - 1].bottom),
    facts: boxes(".facts div").every((b, i, all) =>
      all.every((o, j) => i == j || b.right <= o.left || o.right <= b.left || b.bottom <= o.top ||
                o.bottom <= b.top)),
    stack: total(".stack i") / total(".stack"),
    cut: [...document.querySelectorAll(".facts b, .facts span, h2")]
      .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).length,
    requests: performance.getEntriesByType("resource").length,
    colors: whole > 5, zoomed, all: canvas.toDataURL() === before,
    sorted: waits.every((clk, i) => !i || clk <= waits[i - 1]) && waits[0] > 0,
    marked: document.querySelectorAll(".code tr.of").length > 1,
    back: style.backgroundColor, text: style.color,
  };
  document.body.insertAdjacentHTML("beforeend", `<pre id="told">${JSON.stringify(told)}</pre>`);
}));
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
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(browser: str, tmp_path: Path, dark: bool, width: int) -> None:
    """Nothing overlaps, is empty or wider than the window; no request; light and dark."""
    html = text().replace("(prefers-color-scheme: dark)", "all" if dark else "not all")
    plain, file = tmp_path / "plain.html", tmp_path / "page.html"
    plain.write_text(html, encoding="utf-8")
    file.write_text(html.replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    size = f"--window-size={width},1600"
    dom = chromium(browser, tmp_path, size, "--dump-dom", file.as_uri())
    # The script that writes it comes first.
    message = json.loads(re.findall(r'<pre id="told">(.*?)</pre>', dom, re.S)[-1])
    light, _, night = page.style().partition("@media")
    v = variables(night if dark else light)

    def rgb(color: str) -> str:
        return "rgb({}, {}, {})".format(*(int(color[i : i + 2], 16) for i in (1, 3, 5)))

    assert (message.pop("back"), message.pop("text")) == (rgb(v["back"]), rgb(v["text"]))
    assert message.pop("stack") == pytest.approx(1, abs=0.02)
    assert message.pop("wide") <= 0
    assert message == {
        "empty": 0,
        "order": True,
        "facts": True,
        "cut": 0,
        "requests": 0,
        "colors": True,
        "zoomed": True,
        "all": True,
        "sorted": True,
        "marked": True,
    }
    picture = tmp_path / "page.png"
    chromium(browser, tmp_path, size, f"--screenshot={picture}", plain.as_uri())
    assert picture.stat().st_size > 20_000, "not one colour"
