"""Where a program is to stop: places in kernels, findings of the checks, NaN and Inf."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rfops.cli.debug.launch import Launch
from rfops.cli.debug.values import CommandError

STORED_TYPES = ("f16", "bf16", "f32", "f64")  # as csrc/vgpu/debug/stops.cpp
_FILTER = re.compile(r"\s(workgroup|wave|if)\s+")
_MAX_ADDRESS = 1 << 63


@dataclass
class Breakpoint:
    """A place or a kind of event. None: any workgroup, any wave, any place."""

    id: int
    text: str  # as the user gave it
    kernel: str | None = None  # a name or pattern
    file: str | None = None
    line: int = 0
    offset: int | None = None  # in the text; with a kernel, from its first instruction on
    workgroup: tuple[int, ...] | None = None
    wave: int | None = None
    condition: str = ""
    event: str = ""  # "nan" or "finding" instead of a place
    type: str = ""  # of what is stored; empty: that of the argument, else f32
    arg: str = ""  # only its memory is watched; empty: all memory
    is_temporary: bool = False
    hits: int = 0

    @property
    def is_of_launch(self) -> bool:
        """Whether it stops a launch once, at its first wave, and not every wave there."""
        is_at_entry = self.kernel is not None and self.offset is None
        return is_at_entry and self.workgroup is None and self.wave is None

    def offset_in(self, launch: Launch) -> int | None:
        """The instruction of a launch's kernel that it stands at."""
        if self.event or (self.kernel is not None and not launch.is_named(self.kernel)):
            return None
        entry: int = launch.event["entry"]
        if self.file is not None:
            code_line = launch.listing.find_line(self.file, self.line)
            return code_line.offset if code_line else None
        if self.offset is None:
            return entry
        offset = launch.in_text(self.offset + (entry if self.kernel is not None else 0))
        return None if launch.listing.index(offset) is None else offset

    def request(self, launch: Launch) -> str | None:
        """What the engine is told for a launch; None: nothing."""
        if self.event == "finding":
            return "check"
        if self.event == "nan":
            begin, end = self._watched(launch)
            return f"nan {self.stored_type(launch)} {begin} {end}" if end else None
        offset = None if self.is_of_launch else self.offset_in(launch)
        if offset is None:
            return None
        wave = -1 if self.wave is None else self.wave
        group = self.workgroup or (-1, -1, -1)
        return f"break {self.id} {offset} {wave} {' '.join(map(str, group))}"

    def stored_type(self, launch: Launch) -> str:
        """The type as which a launch's stores are read."""
        arg = launch.arg(self.arg) if self.arg else None
        type_of_arg = arg.type if arg is not None and arg.type in STORED_TYPES else "f32"
        return self.type or type_of_arg

    def _watched(self, launch: Launch) -> tuple[int, int]:
        if not self.arg:
            return 0, _MAX_ADDRESS
        arg = launch.arg(self.arg)
        if arg is None or not arg.value:
            return 0, 0
        # Without a block of hipMalloc the end is unknown: up to the next argument's memory.
        block = launch.allocation(arg.value)
        if block:
            return arg.value, sum(block)
        next_ptrs = [
            a.value for a in launch.args if a.is_pointer and a.value and a.value > arg.value
        ]
        return arg.value, min(next_ptrs, default=_MAX_ADDRESS)


def parse(number: int, text: str, launch: Launch | None, offset: int | None) -> Breakpoint:
    """The breakpoint of `break TEXT`. `launch` and `offset`: where the program has stopped. Raises
    CommandError."""
    location, *filters = _FILTER.split(f" {text.strip()} ".replace("  ", " "))
    breakpoint = Breakpoint(number, text.strip())
    _set_place(breakpoint, location.strip(), launch, offset)
    for kind, value in zip(filters[::2], filters[1::2], strict=True):
        if kind == "if":
            breakpoint.condition = value.strip()
        elif kind == "wave":
            breakpoint.wave = int(_match(r"\d+", value, "wave N")[0])
        else:
            breakpoint.workgroup = workgroup(value)
    return breakpoint


def workgroup(text: str) -> tuple[int, ...]:
    """`X Y Z` or `X,Y,Z`; what is missing is 0. Raises CommandError."""
    _match(r"\d+([ ,]+\d+){0,2}", text, "workgroup X Y Z")
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return tuple([*numbers, 0, 0][:3])


def _match(pattern: str, text: str, form: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text.strip())
    if match is None:
        raise CommandError(f"expected {form}, got {text.strip()!r}")
    return match


def _set_place(
    breakpoint: Breakpoint, location: str, launch: Launch | None, offset: int | None
) -> None:
    if not location:
        if breakpoint.text and launch is None:
            breakpoint.kernel = "*"  # of any kernel: `break workgroup 3`
            return
        if launch is None or offset is None:
            raise CommandError("break: expected KERNEL, FILE:LINE, LINE, *OFFSET or KERNEL+OFFSET")
        breakpoint.offset = launch.event["entry"] if breakpoint.text else offset
        return
    if match := re.fullmatch(r"\*\s*(0x[\da-fA-F]+|\d+)", location):
        breakpoint.offset = int(match[1], 0)
    elif match := re.fullmatch(r"(.+):(\d+)", location):
        breakpoint.file, breakpoint.line = match[1], int(match[2])
    elif location.isdigit():
        breakpoint.file, breakpoint.line = _current_file(launch, offset), int(location)
    elif match := re.fullmatch(r"(\S+?)\+(0x[\da-fA-F]+|\d+)", location):
        breakpoint.kernel, breakpoint.offset = match[1], int(match[2], 0)
    elif re.fullmatch(r"[\w*?\[\]<>:~$.,&() ]+", location):
        breakpoint.kernel = location
    else:
        raise CommandError(f"break: cannot read the place {location!r}")


def _current_file(launch: Launch | None, offset: int | None) -> str:
    if launch is None or offset is None:
        raise CommandError("break LINE: no kernel has stopped; say FILE:LINE")
    inst = launch.listing.instruction_at(offset)
    if inst is not None and inst.line is not None:
        return inst.line.file
    if launch.listing.files:
        return launch.listing.files[0]
    raise CommandError(f"break LINE: {launch.name} has no line table; break *OFFSET instead")
