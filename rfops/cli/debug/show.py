"""What the prompt prints of a stopped launch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from rfops.cli.debug.arguments import Argument
from rfops.cli.debug.breakpoints import Breakpoint
from rfops.cli.debug.expression import Scalar, Value, Vector
from rfops.cli.debug.launch import Instruction, Launch
from rfops.cli.debug.values import (
    CommandError,
    Element,
    element,
    elements,
    lane_mask,
    lane_table,
    text_of,
)
from rfops.vgpu.timed_text import readable

ROW_BYTES = 32  # of memory
_LISTED = 10  # lines of `list`


def group_text(group: Sequence[int]) -> str:
    return ",".join(map(str, group))


def stop(launch: Launch, event: Mapping[str, Any], hits: Sequence[Breakpoint]) -> str:
    """Why and where a launch has stopped."""
    lines = [_reason(launch, event, hits)]
    wave = f"{launch.name}, workgroup {group_text(event['workgroup'])} wave {event['wave']}"
    lines.append(f"{wave}, {location_of(launch, event['offset'])}")
    lines += code(launch, event["offset"])
    return "\n".join(filter(None, lines))


def _reason(launch: Launch, event: Mapping[str, Any], hits: Sequence[Breakpoint]) -> str:
    reason, ids = event["reason"], ", ".join(str(b.id) for b in hits)
    if reason == "nan":
        kind = element(hits[0].stored_type(launch), launch.arch)
        bits = f"0x{event['value']:0{kind.bits // 4}x}"
        return (
            f"Catchpoint {ids}: lane {event['lane']} stored {kind.text(event['value'])} "
            f"({kind.name} {bits}) to {launch.symbol(event['address'])}"
        )
    if reason == "finding":
        lane = f", lane {event['lane']}" if "lane" in event else ""
        address = f", address {event['address']:#x}" if "address" in event else ""
        return f"Catchpoint {ids}: {event['detail']}{lane}{address}"
    if hits:
        return f"Breakpoint {ids}"
    texts = {
        "fault": f"The launch fails: {event.get('detail')}",
        "interrupt": "Interrupted",
        "wave ended": "[the wave has ended]",
    }
    return texts.get(reason, "")


def location_of(launch: Launch, offset: int) -> str:
    inst = launch.listing.instruction_at(offset)
    if inst is None or not inst.lines:
        return f"{offset:#x}"
    inlined = f" in {inst.lines[-1]}" if inst.lines[1:] else ""
    return f"{offset:#x} at {inst.line}{inlined}"


def code(launch: Launch, offset: int) -> list[str]:
    """The source line and the instruction of an offset."""
    inst = launch.listing.instruction_at(offset)
    if inst is None:
        return []
    lines = []
    if inst.line is not None and inst.line.text():
        lines.append(f"{inst.line.number}\t{inst.line.text()}")
    return [*lines, instruction(inst, offset)]


def instruction(inst: Instruction, current_offset: int) -> str:
    mark = "=>" if inst.offset == current_offset else "  "
    return f"{mark} {inst.offset:#x}\t{readable(inst.text)}"


def disassembly(launch: Launch, instructions: Sequence[Instruction], current_offset: int) -> str:
    """Instructions with the source lines that they begin."""
    lines, line = [], None
    for inst in instructions:
        if inst.line is not None and inst.line != line:
            line = inst.line
            lines.append(f"; {line}  {line.text().strip()}".rstrip())
        lines.append(instruction(inst, current_offset))
    return "\n".join(lines)


def source(launch: Launch, offset: int, line: int | None) -> str:
    """Source lines around one; default: that of the instruction."""
    inst = launch.listing.instruction_at(offset)
    if inst is None or inst.line is None:
        raise CommandError(f"{location_of(launch, offset)} has no source line")
    center = line or inst.line.number
    begin = max(1, center - _LISTED // 2)
    rows = [(n, type(inst.line)(inst.line.file, n).text()) for n in range(begin, begin + _LISTED)]
    if not any(text for _, text in rows):
        raise CommandError(f"cannot read line {center} of {inst.line.file}")
    return "\n".join(
        f"{'>' if n == inst.line.number else ' '} {n}\t{text}".rstrip() for n, text in rows
    )


# ---------------------------------------------------------------- values


def value(text: str, result: Value, launch: Launch, kind: str, exec_mask: int) -> str:
    """`p`: a number, or the lanes of a vector register."""
    if isinstance(result, Vector):
        name = kind or ("hex" if result.bits == 32 else "hex64" if result.bits == 64 else "hex32")
        shown = element(name, launch.arch)
        if shown.bits > result.bits:
            raise CommandError(f"{shown.name} takes two registers, as v[4:5]; {text} is one")
        cells = [text_of(bits, result.bits, shown) for bits in result.lanes]
        return "\n".join([f"{text} = {shown.name}", *lane_table(cells, exec_mask)])
    return f"{text} = {scalar(result, launch, kind)}" + (
        f"  {lane_mask(int(result.value))}" if text.lstrip("$") in ("exec", "vcc") else ""
    )


def scalar(result: Scalar, launch: Launch, kind: str) -> str:
    number = result.value
    if isinstance(number, float):
        return f"{number:.9g}"
    kind = kind or result.type
    if not kind:
        return f"0x{number:0{result.bits // 4}x}" if result.bits > 64 else str(int(number))
    shown = element(kind, launch.arch)
    total = result.bits or max(32, shown.bits)
    return text_of(number & ((1 << max(total, shown.bits)) - 1), total, shown)


def scalars(words: Sequence[int], count: int) -> str:
    """SGPRs in rows of eight."""
    rows = []
    for begin in range(0, count, 8):
        cells = " ".join(f"{word:08x}" for word in words[begin : min(begin + 8, count)])
        rows.append(f"{f's{begin}':5}{cells}")
    return "\n".join(rows)


def memory(launch: Launch, address: int, data: bytes, kind: Element) -> str:
    """Rows of elements, by address."""
    size = kind.bits // 8
    per_row = max(1, min(ROW_BYTES // size, 8))
    lines = []
    for begin in range(0, len(data), per_row * size):
        chunk = data[begin : begin + per_row * size]
        cells = [
            kind.text(int.from_bytes(chunk[i : i + size], "little"))
            for i in range(0, len(chunk), size)
        ]
        cells_text = "".join(f" {cell:>{kind.width}}" for cell in cells)
        lines.append(f"{launch.symbol(address + begin)}:{cells_text}")
    return "\n".join(lines)


# ---------------------------------------------------------------- tables


def kernel(launch: Launch, group: Sequence[int]) -> str:
    event = launch.event
    grid, block = ("x".join(map(str, event[name])) for name in ("grid", "block"))
    agprs = f", {event['agprs']} AGPRs" if event["agprs"] else ""
    rows = [
        ("kernel", event["demangled"]),
        ("launch", f"{event['number']} of the program, on {launch.arch}"),
        ("grid", f"{grid} workgroups of {block} lanes; at workgroup {group_text(group)}"),
        ("registers", f"{event['sgprs']} SGPRs, {event['vgprs']} VGPRs{agprs}"),
        ("LDS", f"{event['lds_bytes']} bytes a workgroup"),
        ("code", f"from {event['entry']:#x}, at address {event['address']:#x}"),
        ("sources", ", ".join(launch.listing.files) or "no line table"),
    ]
    return "\n".join(f"{name:10}{text}" for name, text in rows)


def argument(launch: Launch, arg: Argument) -> str:
    if arg.value is None:
        return f"{arg.name}, {arg.size} bytes"
    if arg.is_pointer:
        block = launch.allocation(arg.value)
        room = f", {block[0] + block[1] - arg.value} bytes" if block else ""
        return f"{arg.name} = {arg.value:#x}, pointer{f' to {arg.type}' if arg.type else ''}{room}"
    shown = Scalar(arg.value, arg.size * 8, arg.type)
    of_type = f" ({arg.type})" if arg.type else ""
    as_float = f", as f32 {_f32(arg.value)}" if not arg.type and arg.size == 4 else ""
    return f"{arg.name} = {scalar(shown, launch, '')}{of_type}{as_float}"


def _f32(bits: int) -> str:
    return f"{struct.unpack('<f', struct.pack('<I', bits))[0]:.7g}"


def waves(launch: Launch, rows: Sequence[Mapping[str, Any]], wave: int) -> str:
    width = max(len(location_of(launch, row["offset"])) for row in rows)
    lines = [f"  wave  state       {'at':{width}}  exec"]
    for row in rows:
        mark = "*" if row["wave"] == wave else " "
        location = "-" if row["state"] == "ended" else location_of(launch, row["offset"])
        mask = "-" if row["state"] == "ended" else lane_mask(row["exec"])
        loads = ", loads in flight" if row["loads_in_flight"] else ""
        lines.append(
            f"{mark} {row['wave']:4}  {row['state']:10}  {location:{width}}  {mask}{loads}"
        )
    return "\n".join(lines)


def breakpoints(points: Sequence[Breakpoint]) -> str:
    if not points:
        return "no breakpoints or catchpoints"
    lines = ["num  kind        hits  where"]
    for b in points:
        kind = "catchpoint" if b.event else "temporary" if b.is_temporary else "breakpoint"
        lines.append(f"{b.id:<5}{kind:12}{b.hits:<6}{b.text}")
    return "\n".join(lines)


def types(arch: str) -> str:
    return ", ".join(elements(arch))
