"""The commands of the prompt. Each is a function whose docstring is its help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from rfops.cli.debug import breakpoints, show
from rfops.cli.debug.breakpoints import STORED_TYPES
from rfops.cli.debug.expression import evaluate, number
from rfops.cli.debug.launch import LDS_BASE, Launch, is_file
from rfops.cli.debug.session import Session
from rfops.cli.debug.values import CommandError, Element, element

Command = Callable[[Session, str], None]
COMMANDS: dict[str, Command] = {}
INFO: dict[str, Command] = {}
# What gdb's users type; every other unique beginning of a name works too.
ALIASES = {
    "b": "break", "c": "continue", "d": "delete", "f": "where", "frame": "where", "bt": "where",
    "backtrace": "where", "fin": "finish", "h": "help", "i": "info", "inspect": "print",
    "k": "kill", "l": "list", "n": "next", "ni": "stepi", "nexti": "stepi", "p": "print",
    "q": "quit", "exit": "quit", "r": "run", "s": "step", "si": "stepi", "tb": "tbreak",
    "u": "until", "advance": "until", "w": "wave", "thread": "wave", "disas": "disassemble",
}  # fmt: skip
INFO_ALIASES = {"b": "breakpoints", "r": "registers", "threads": "waves", "launch": "kernel"}
_DEFAULT_LDS = 64  # bytes of `info lds`
_LISTING = (4, 10)  # instructions before the current one, and in all
_MAX_COUNT = 1 << 16


class Quit(Exception):
    """The user leaves."""


def command(function: Command) -> Command:
    COMMANDS[function.__name__.strip("_")] = function
    return function


def info_command(function: Command) -> Command:
    INFO[function.__name__.strip("_").removeprefix("info_")] = function
    return function


def run_line(session: Session, line: str) -> None:
    """Do what a line says. Raises CommandError, Quit."""
    line = line.split("#", 1)[0].strip()
    if not line:
        return
    match = re.match(r"([A-Za-z]\w*)(.*)", line, re.S)
    if match is None:
        raise CommandError(f"{line!r} is no command; `help` lists them")
    command = lookup(match[1], COMMANDS, ALIASES, "command")
    command(session, match[2].strip())


def lookup(word: str, table: dict[str, Command], aliases: dict[str, str], kind: str) -> Command:
    """The command of a name, an alias or the beginning of a name. Raises CommandError."""
    names = [aliases.get(word, word)]
    if names[0] not in table:
        names = [name for name in table if name.startswith(word)]
    if len(names) == 1:
        return table[names[0]]
    known = ", ".join(names or table)
    raise CommandError(f"{'ambiguous' if names else 'no'} {kind} {word!r}: {known}")


def _count(text: str, default: int = 1) -> int:
    if not text:
        return default
    if not text.isdigit() or not 0 < int(text) <= _MAX_COUNT:
        raise CommandError(f"expected a count of 1 to {_MAX_COUNT}, got {text!r}")
    return int(text)


def _repeat(session: Session, goal: str, text: str) -> None:
    """Go to the goal as often as asked; a stop for another reason ends it."""
    for _ in range(_count(text)):
        stop, wave = session.stopped(), session.wave
        session.go(f"{goal} {wave}")
        reached = session.stop and session.stop.event.get("reached") and session.wave == wave
        if not reached or session.stop is None or session.stop.launch is not stop.launch:
            break


# ---------------------------------------------------------------- running


@command
def run(session: Session, text: str) -> None:
    """run: start the program (again) and go on to the first stop"""
    session.run()


@command
def start(session: Session, text: str) -> None:
    """start: start the program and stop at its first kernel"""
    session.run(to_first_kernel=True)


@command
def continue_(session: Session, text: str) -> None:
    """continue [N]: go on to the next stop; N: to the N-th"""
    if session.program is None:
        raise CommandError("no program runs; `run` or `start` it")
    for _ in range(_count(text)):
        if session.program is not None:
            session.go("continue")


@command
def stepi(session: Session, text: str) -> None:
    """stepi [N]: go on by N instructions of this wave (also: si, nexti); other waves run too"""
    session.stopped()
    session.go(f"inst {session.wave} {_count(text)}")


@command
def step(session: Session, text: str) -> None:
    """step [N]: go on to the next source line of this wave, N times; inlined code too"""
    _repeat(session, "step", text)


@command
def next_(session: Session, text: str) -> None:
    """next [N]: as step, by lines of the kernel itself: past what is inlined in one"""
    _repeat(session, "next", text)


@command
def until(session: Session, text: str) -> None:
    """until barrier | PLACE: go on to this wave's next s_barrier (or its end), or to a place"""
    stop = session.stopped()
    if text == "barrier":
        session.go(f"barrier {session.wave}")
        return
    if not text:
        raise CommandError("until: expected `barrier`, or a place as for `break`")
    group = " ".join(map(str, stop.workgroup))
    _add(session, f"{text} workgroup {group} wave {session.wave}", is_temporary=True, quiet=True)
    breakpoint_ = session.breakpoints[-1]
    session.go("continue")
    if breakpoint_ in session.breakpoints:  # it stopped elsewhere
        session.breakpoints.remove(breakpoint_)
        session.configure()


@command
def finish(session: Session, text: str) -> None:
    """finish: go on to the s_endpgm of this wave"""
    session.stopped()
    session.go(f"end {session.wave}")


@command
def workgroup(session: Session, text: str) -> None:
    """workgroup [X Y Z]: go on until that workgroup begins; without numbers, say which it is

    The workgroups of a launch run one after the other, in the order of their numbers.
    """
    stop = session.stopped()
    if not text:
        session.output(f"workgroup {show.group_text(stop.workgroup)}")
        return
    workgroup_id, grid = breakpoints.workgroup(text), stop.launch.event["grid"]
    if any(x >= size for x, size in zip(workgroup_id, grid, strict=True)):
        raise CommandError(
            f"the grid is {show.group_text(grid)}, got {show.group_text(workgroup_id)}"
        )
    if workgroup_id == stop.workgroup:
        raise CommandError(f"workgroup {show.group_text(workgroup_id)} is the one that has stopped")
    if workgroup_id[::-1] < stop.workgroup[::-1]:
        raise CommandError(
            f"workgroup {show.group_text(workgroup_id)} has run; "
            "`break workgroup X Y Z`, then `run`"
        )
    session.go(f"group {' '.join(map(str, workgroup_id))}")


@command
def wave(session: Session, text: str) -> None:
    """wave [N]: show, step and inspect wave N of the workgroup (also: thread)"""
    stop = session.stopped()
    if text:
        count = len(stop.launch.waves())
        if not text.isdigit() or int(text) >= count:
            raise CommandError(f"the workgroup has waves 0 to {count - 1}, got {text!r}")
        session.wave = int(text)
    where(session, "")


@command
def kill(session: Session, text: str) -> None:
    """kill: end the program"""
    if session.program is None:
        raise CommandError("no program runs")
    session.kill()
    session.output("[killed]")


@command
def quit_(session: Session, text: str) -> None:
    """quit: end the program and leave"""
    raise Quit


# ---------------------------------------------------------------- breakpoints


def _add(session: Session, text: str, *, is_temporary: bool = False, quiet: bool = False) -> None:
    launch = session.stop.launch if session.stop else None
    offset = session.offset() if session.stop else None
    breakpoint_ = breakpoints.parse(session.last_id + 1, text, launch, offset)
    breakpoint_.is_temporary = is_temporary
    stop_offset = breakpoint_.offset_in(launch) if launch else None
    if launch is not None and stop_offset is None:
        _check_place(breakpoint_, launch)
    session.last_id = breakpoint_.id
    session.breakpoints.append(breakpoint_)
    session.configure()
    if not quiet:
        location = (
            show.location_of(launch, stop_offset)
            if launch and stop_offset is not None
            else "pending"
        )
        session.output(f"Breakpoint {breakpoint_.id}: {breakpoint_.text or 'here'}, {location}")


def _check_place(breakpoint_: breakpoints.Breakpoint, launch: Launch) -> None:
    """A place that no kernel can have, as far as the stopped one tells. Raises CommandError."""
    if breakpoint_.offset is not None and (
        breakpoint_.kernel is None or launch.is_named(breakpoint_.kernel)
    ):
        base = launch.event["entry"] if breakpoint_.kernel else 0
        address = launch.in_text(breakpoint_.offset + base)
        raise CommandError(
            f"{address:#x} is no instruction of {launch.name}; one begins at "
            f"{launch.listing.boundary(address):#x}"
        )
    if breakpoint_.file is not None and any(
        name for name in launch.listing.files if is_file(name, breakpoint_.file)
    ):
        raise CommandError(f"{breakpoint_.file}:{breakpoint_.line}: no code at or after this line")


@command
def break_(session: Session, text: str) -> None:
    """break PLACE [workgroup X Y Z] [wave N] [if EXPR]: stop before a place

    KERNEL             a name or a pattern with * and ?: once a launch, at its first wave
    FILE:LINE, LINE    the first instruction of a source line, in each wave
    *OFFSET            an offset in the text or an address, as listings have it
    KERNEL+OFFSET      from the kernel's first instruction on
    nothing            here; with workgroup or wave: at their first instruction
    """
    _add(session, text)


@command
def tbreak(session: Session, text: str) -> None:
    """tbreak PLACE ...: as break, for one stop"""
    _add(session, text, is_temporary=True)


@command
def catch(session: Session, text: str) -> None:
    """catch finding | nan [TYPE] [ARG]: stop at a finding of the checks, or at a NaN or Inf stored

    finding  as `rfops run --check` finds them, each kind once an instruction; from the next launch
             on. Where torch's tensors end is known if this is said before `run`
    nan      global memory that a store or an atomic leaves not finite, read as TYPE (f16, bf16,
             f32, f64; default: that of ARG, else f32); ARG: only memory of this argument
    """
    words = text.split()
    kind = words.pop(0) if words else ""
    if kind not in ("finding", "nan") or len(words) > (2 if kind == "nan" else 0):
        raise CommandError("catch: expected `finding`, or `nan [TYPE] [ARG]`")
    breakpoint_ = breakpoints.Breakpoint(session.last_id + 1, text, event=kind)
    launch = session.stop.launch if session.stop else None
    if words and words[0] in STORED_TYPES:
        breakpoint_.type = words.pop(0)
    if words:
        breakpoint_.arg = words[0]
        if launch is not None and launch.arg(breakpoint_.arg) is None:
            raise CommandError(_no_argument(breakpoint_.arg, launch))
    if kind == "nan":
        session.breakpoints = [b for b in session.breakpoints if b.event != "nan"]
    session.last_id = breakpoint_.id
    session.breakpoints.append(breakpoint_)
    session.configure()
    session.output(f"Catchpoint {breakpoint_.id}: {text}")


def _no_argument(name: str, launch: Launch) -> str:
    names = ", ".join(a.name for a in launch.args) or "no arguments"
    return f"{name} is neither a type ({', '.join(STORED_TYPES)}) nor an argument ({names})"


@command
def delete(session: Session, text: str) -> None:
    """delete [N ...]: remove breakpoints and catchpoints; without numbers, all"""
    numbers = {int(word) for word in text.split() if word.isdigit()}
    known = {b.id for b in session.breakpoints}
    wrong = [word for word in text.split() if not word.isdigit() or int(word) not in known]
    if wrong:
        known_ids = ", ".join(map(str, sorted(known))) or "none"
        raise CommandError(f"no breakpoint {', '.join(wrong)}; there are: {known_ids}")
    session.breakpoints = [b for b in session.breakpoints if text and b.id not in numbers]
    session.configure()


# ---------------------------------------------------------------- looking


@command
def where(session: Session, text: str) -> None:
    """where: which kernel, workgroup, wave and instruction this is (also: frame, backtrace)"""
    stop = session.stopped()
    offset = session.offset()
    session.output(
        f"{stop.launch.name}, workgroup {show.group_text(stop.workgroup)} wave {session.wave}, "
        f"{show.location_of(stop.launch, offset)}"
    )
    for line in show.code(stop.launch, offset):
        session.output(line)


@command
def list_(session: Session, text: str) -> None:
    """list [LINE]: ten lines of source around this one"""
    session.output(
        show.source(session.stopped().launch, session.offset(), _count(text) if text else None)
    )


@command
def disassemble(session: Session, text: str) -> None:
    """disassemble [OFFSET [COUNT]]: instructions with their source lines; default: around this"""
    launch, offset = session.stopped().launch, session.offset()
    words = text.split()
    num_before, count = (0, _LISTING[1]) if words else _LISTING
    begin = launch.in_text(number(words[0], launch, session.wave)) if words else offset
    count = _count(words[1]) if len(words) > 1 else count
    instructions = launch.listing.instructions_around(begin, num_before, count)
    session.output(show.disassembly(launch, instructions, offset))


@command
def print_(session: Session, text: str) -> None:
    """print[/TYPE] EXPR: a register, argument or expression, as p/f32 v3, p s4 + 1, p/x exec

    s0 s[4:5] v3 v3[LANE] v[4:7] a2 vcc exec scc m0 mode pc lds, arguments by name or as arg0, + - *
    / % << >> & | ^ ~ == < &&, f32(v3[0]). A vector register is a table of its lanes, those that
    EXEC masks off in parentheses. TYPE: hex u32 i32 f32 f16x2 bf16x2 fp8x4 bf8x4 f64 u64 ..., or
    gdb's x d u f with b h w g.
    """
    launch = session.stopped().launch
    kind, text = _split_type(text)
    if not text:
        raise CommandError("print: expected an expression, as `p/f32 v3`")
    if kind:
        element(kind, launch.arch)
    for name in text.split(",") if re.fullmatch(r"[\w$:\[\], ]+", text) else [text]:
        result = evaluate(name, launch, session.wave)
        mask = launch.waves()[session.wave]["exec"]
        session.output(show.value(name.strip(), result, launch, kind, mask))


def _split_type(text: str) -> tuple[str, str]:
    match = re.match(r"/(\S*)\s*(.*)", text, re.S)
    return (match[1], match[2].strip()) if match else ("", text.strip())


@command
def x(session: Session, text: str) -> None:
    """x/NFU ADDRESS: memory, as x/8f32 out+16, x/4xw 0x7f0012340000, x/16f lds+64, x/5i pc

    N: how many; FU: a type (see print) or gdb's letters, i for instructions. ADDRESS: an argument,
    lds or a number, plus bytes. Without a type: that of the argument, where it is known.
    """
    launch = session.stopped().launch
    kind, address_text = _split_type(text)
    match = re.match(r"\d*", kind)
    digits = match[0] if match else ""
    count, kind = _count(digits), kind[len(digits) :]
    if not address_text:
        raise CommandError("x: expected an address, as `x/8f32 out+16`")
    if kind == "i":
        begin = launch.in_text(number(address_text, launch, session.wave))
        instructions = launch.listing.instructions_around(begin, 0, count)
        session.output(show.disassembly(launch, instructions, session.offset()))
        return
    _show_memory(session, number(address_text, launch, session.wave), count, kind)


def _show_memory(session: Session, address: int, count: int, kind: str) -> None:
    launch = session.stopped().launch
    if not kind:
        pointer = launch.symbol(address).partition("+")[0]
        arg = launch.arg(pointer)
        kind = arg.type if arg is not None and arg.type else "hex32"
    shown: Element = element(kind, launch.arch)
    data = launch.memory(address, count * shown.bits // 8)
    session.output(show.memory(launch, address, data, shown))


# ---------------------------------------------------------------- info


@command
def info(session: Session, text: str) -> None:
    """info breakpoints | waves | registers [NAME ...] | kernel | args | lds [BEGIN [BYTES [TYPE]]]
    | types
    """
    word, _, argument = text.partition(" ")
    if not word:
        raise CommandError(f"info: expected one of {', '.join(INFO)}")
    lookup(word, INFO, INFO_ALIASES, "info")(session, argument.strip())


@info_command
def info_breakpoints(session: Session, text: str) -> None:
    session.output(show.breakpoints(session.breakpoints))


@info_command
def info_waves(session: Session, text: str) -> None:
    launch = session.stopped().launch
    session.output(show.waves(launch, launch.waves(), session.wave))


@info_command
def info_registers(session: Session, text: str) -> None:
    launch = session.stopped().launch
    if text:
        print_(session, ",".join(text.replace(",", " ").split()))
        return
    words, _ = launch.scalars(session.wave)
    session.output(show.scalars(words, max(1, launch.event["sgprs"])))
    print_(session, "vcc, exec, scc, m0, mode, pc")
    session.output(f"v0 to v{launch.event['vgprs'] - 1}: `p v0`")


@info_command
def info_kernel(session: Session, text: str) -> None:
    stop = session.stopped()
    session.output(show.kernel(stop.launch, stop.workgroup))


@info_command
def info_args(session: Session, text: str) -> None:
    launch = session.stopped().launch
    for arg in launch.args:
        session.output(f"{arg.index}  {show.argument(launch, arg)}")
    if not launch.args:
        session.output("no arguments, as far as the code object tells")


@info_command
def info_lds(session: Session, text: str) -> None:
    launch = session.stopped().launch
    size = launch.event["lds_bytes"]
    if not size:
        session.output("the kernel has no LDS")
        return
    words = text.split()
    begin = number(words[0], launch, session.wave) if words else 0
    if not 0 <= begin < size:
        raise CommandError(f"the workgroup has {size} bytes of LDS, got an offset of {begin}")
    room = min(_DEFAULT_LDS, size - begin)
    count = number(words[1], launch, session.wave) if len(words) > 1 else room
    kind = element(words[2] if len(words) > 2 else "hex32", launch.arch)
    session.output(f"{size} bytes of LDS")
    _show_memory(session, LDS_BASE + begin, max(1, count * 8 // kind.bits), kind.name)


@info_command
def info_types(session: Session, text: str) -> None:
    launch = session.stopped().launch
    session.output(show.types(launch.arch))


# ---------------------------------------------------------------- help


@command
def help_(session: Session, text: str) -> None:
    """help [COMMAND]: the commands, or one of them"""
    if text:
        topic = lookup(text.split()[0], COMMANDS, ALIASES, "command")
        session.output(inspect.cleandoc(topic.__doc__ or ""))
        return
    for function in COMMANDS.values():
        session.output(inspect.cleandoc(function.__doc__ or "").split("\n")[0])
    session.output("The beginning of a name is enough; Enter repeats; # begins a comment.")
