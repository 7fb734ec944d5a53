"""The timeline of a compute unit: slices as data, which the page's script draws on a canvas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from rfops.vgpu import timeline as trace
from rfops.vgpu.page.elements import color, swatch
from rfops.vgpu.timed import TimedLaunch

MAX_SLICES = 20_000
UNITS = ("valu", "mfma", "lds", "vmem", "salu", "smem", "branch", "other")
_STALL_OPACITY = 0.45


def timeline(launch: TimedLaunch, max_slices: int = MAX_SLICES) -> str:
    """What the CU of XCD 0 that is done last does: a row a slot of a SIMD, a row a unit."""
    if not launch.figures.get("events"):
        return "<p>Not followed: another launch like it was.</p>"
    content = data(launch, min(max_slices, MAX_SLICES))
    total_us = launch.us - launch.floor_us
    left_out = f"; {content['left_out']} more slices are left out" if content["left_out"] else ""
    return (
        f'<p class="soft">CU {launch.events_cu} of XCD 0: {content["end"] / 1e3:.2f} us from the '
        f"first issue on, of {total_us:.2f}{left_out}. A row per wave slot: what is issued, by "
        "unit, and what it waits for, paler. Wheel or + and - zoom, dragging moves, a double click "
        "shows all; point at a piece to read it.</p>"
        f'<p class="key">{_key(launch)}</p><div class="timeline">'
        '<canvas tabindex="0" role="img" aria-label="Timeline"></canvas><output></output>'
        f'<script type="application/json">{_json(content)}</script></div>'
    )


def data(launch: TimedLaunch, max_slices: int) -> dict[str, Any]:
    """`rows`: names; `kinds`: color and opacity; `texts`; `slices`: row, start and length in ns,
    kind, text, in the order in which they are drawn; `end` in ns; `left_out`: later slices."""
    events = trace.trace([launch])["traceEvents"]
    names = {
        (e["pid"], e.get("tid")): e["args"]["name"]
        for e in events
        if e["name"] in ("process_name", "thread_name")
    }
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "launch"]
    end, left_out = _end(slices, max_slices)
    slices = [e for e in slices if e["ts"] < end]
    threads = sorted(
        {(e["pid"], e["tid"]) for e in slices}, key=lambda thread: (thread[0] % 10 == 1, thread)
    )
    rows = {thread: index for index, thread in enumerate(threads)}
    kinds: dict[tuple[str, float], int] = {("", 1.0): 0}  # the wave itself, behind all
    texts: dict[str, int] = {}
    packed = []
    for e in slices:
        kind = kinds.setdefault(_kind(e), len(kinds))
        text = texts.setdefault(_text(e), len(texts))
        start, length = (round(1e3 * us) for us in (e["ts"] - launch.floor_us, e["dur"]))
        packed.append([rows[e["pid"], e["tid"]], start, length, kind, text])
    packed.sort(key=lambda item: item[3] != 0)
    return {
        "rows": [_row_name(names, thread) for thread in threads],
        "kinds": list(kinds),
        "texts": list(texts),
        "slices": packed,
        "end": max(1, round(1e3 * (end - launch.floor_us))),
        "left_out": left_out,
    }


def _end(slices: Sequence[dict[str, Any]], max_slices: int) -> tuple[float, int]:
    """Up to when all fit, and how many begin later."""
    last_end = max((e["ts"] + e["dur"] for e in slices), default=0.0)
    if len(slices) <= max_slices:
        return last_end, 0
    end = sorted(e["ts"] for e in slices)[max_slices]
    return end, len(slices) - sum(e["ts"] < end for e in slices)


def _kind(e: dict[str, Any]) -> tuple[str, float]:
    if e["cat"] == "wave":
        return "", 1.0
    if e["cat"] == "stall":
        return color(e["name"]), _STALL_OPACITY
    return color(e["args"]["unit"] if e["cat"] == "issue" else e["name"]), 1.0


def _text(e: dict[str, Any]) -> str:
    if e["cat"] == "stall":
        op = e["args"]["before"]
        return f"waits for {e['name']} before {op['offset']} {op['instruction']}"
    if e["cat"] == "issue":
        args = e["args"]
        return f"{args['issued']} issued from {args['offset']} {args['instruction']}"
    return e["name"] if e["cat"] == "wave" else f"{e['name']} busy"


def _row_name(names: dict[tuple[int, int | None], str], thread_key: tuple[int, int]) -> str:
    thread = names[thread_key]
    if thread_key[0] % 10 == 1:
        return thread
    return f"{names[thread_key[0], None].rpartition(': ')[2]} {thread}"


def _key(launch: TimedLaunch) -> str:
    units = [u for u in UNITS if any(row["unit"] == u for row in launch.pcs)]
    waits = sorted(launch.stalls, key=lambda name: -launch.stalls[name])
    issued = "".join(f"<span>{swatch(name)}{name}</span>" for name in units)
    waits_legend = "".join(f"<span>{swatch(name)}{escape(name)}</span>" for name in waits[:8])
    return f"Issued: {issued}<br>Waited for: {waits_legend}"


def _json(value: Any) -> str:
    """In a script element: no text of it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
