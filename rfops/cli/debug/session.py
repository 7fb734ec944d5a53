"""What is known while a program is debugged: its breakpoints, the launch that has stopped, the
wave at the prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rfops.cli.debug import show
from rfops.cli.debug.breakpoints import Breakpoint
from rfops.cli.debug.expression import Vector, evaluate
from rfops.cli.debug.launch import Launch
from rfops.cli.debug.program import Connection, Exit, Program
from rfops.cli.debug.values import CommandError


@dataclass
class Stop:
    """Where a launch has stopped."""

    launch: Launch
    event: Mapping[str, Any]

    @property
    def workgroup(self) -> tuple[int, ...]:
        return tuple(self.event["workgroup"])


@dataclass
class Session:
    """`start` makes the program, with the checks on if it is told to. `output` prints a line."""

    start: Callable[[bool], Program]
    output: Callable[[str], None]
    program: Program | None = None
    breakpoints: list[Breakpoint] = field(default_factory=list)
    stop: Stop | None = None
    wave: int = 0  # the one at the prompt
    last_id: int = 0
    _waiting: Connection | None = None  # the thread that may go on
    _steps: bool = False  # goes on to a goal, and stops at the launch's end
    _starts: bool = False  # stop at the next kernel, whatever its name
    _interrupts: bool = False

    # ------------------------------------------------------------------------ what has stopped

    def stopped(self) -> Stop:
        """Raises CommandError if no kernel has stopped."""
        if self.stop is None:
            text = "no kernel has stopped; `continue` goes on" if self.program else "no program"
            raise CommandError(text if self.program else f"{text} runs; `run` or `start` it")
        return self.stop

    def offset(self, wave: int | None = None) -> int:
        """Where a wave of the stopped workgroup is; default: the one at the prompt."""
        stop = self.stopped()
        wave = self.wave if wave is None else wave
        if wave == stop.event["wave"]:
            return int(stop.event["offset"])
        return int(stop.launch.waves()[wave]["offset"])

    # ------------------------------------------------------------------------ running

    def run(self, *, to_first_kernel: bool = False) -> None:
        """Start the program and go on to the first stop."""
        if self.program is not None:
            self.program.kill()
            self._forget_program()
            self.output("the program is started again")
        self.program = self.start(any(b.event == "finding" for b in self.breakpoints))
        self._starts, self._steps = to_first_kernel, False
        self._wait()

    def go(self, goal: str) -> None:
        """Let the launch go on, up to a goal (csrc/vgpu/debug/stops.h), and wait for a stop."""
        if self.program is None:
            raise CommandError("no program runs; `run` or `start` it")
        self._steps = goal != "continue"
        if self._waiting is not None:
            self._waiting.send(f"go {goal}")
            self._waiting = self.stop = None
        self._wait()

    def configure(self) -> None:
        """Tell the engine of changed breakpoints."""
        if self._waiting is not None and self._waiting.launch is not None:
            self._configure(self._waiting.launch)

    def kill(self) -> None:
        if self.program is not None:
            self.program.kill()
            self._forget_program()

    def _forget_program(self) -> None:
        self.program = self._waiting = self.stop = None
        self._starts = self._interrupts = False

    def _configure(self, launch: Launch) -> None:
        launch.connection.ask("clear")
        launch.connection.ask("nan off")
        for breakpoint in self.breakpoints:
            request = breakpoint.request(launch)
            if request is not None:
                launch.connection.ask(request)

    def _wait(self) -> None:
        """Handle events until one stops at the prompt."""
        assert self.program is not None
        while True:
            try:
                event = self.program.wait()
            except KeyboardInterrupt:
                if not self._interrupts:
                    self._interrupt()
                    continue
                event = self.program.kill()
            if isinstance(event, Exit):
                self._forget_program()
                self.output(f"[{event}]")
                return
            if self._handle(*event):
                return

    def _interrupt(self) -> None:
        """Ctrl-C: once, stop at the next instruction of a kernel; twice, end the program."""
        assert self.program is not None
        self._interrupts = True
        self.program.interrupt()
        self.output("\n[stops at the next instruction of a kernel; Ctrl-C again ends the program]")

    def _handle(self, connection: Connection, event: dict[str, Any]) -> bool:
        """Whether the event is one to stop at."""
        self._waiting = connection
        if event["event"] == "launch":
            connection.launch = Launch(connection, event)
            return self._handle_launch(connection.launch)
        if event["event"] == "end":
            return self._handle_end(connection, event["error"])
        return self._handle_stop(connection.launch, event)

    def _handle_launch(self, launch: Launch) -> bool:
        self._configure(launch)
        at_entry = [
            b for b in self.breakpoints if b.is_of_launch and b.offset_in(launch) is not None
        ]
        stops = at_entry or self._starts or self._interrupts
        launch.connection.send("go anywhere" if stops else "go continue")
        launch.entry_breakpoints = at_entry
        self._waiting = None
        return False

    def _handle_end(self, connection: Connection, error: str) -> bool:
        launch, connection.launch = connection.launch, None
        if error or self._steps:
            self.output(f"[{launch.name} {'has failed' if error else 'has ended'}]")
        if self._steps:
            self.stop = None
            return True
        connection.send("go continue")
        self._waiting = None
        return False

    def _handle_stop(self, launch: Launch, event: dict[str, Any]) -> bool:
        self.stop, self.wave = Stop(launch, event), event["wave"]
        hits = self._hits(launch, event)
        if not hits and not self._is_wanted(event):
            self.stop = None
            launch.connection.send("go continue" if event.get("reached") else "go on")
            self._waiting = None
            return False
        self._starts = self._interrupts = False
        for breakpoint in hits:
            breakpoint.hits += 1
            if breakpoint.is_temporary:
                self.breakpoints.remove(breakpoint)
        if any(breakpoint.is_temporary for breakpoint in hits):
            self.configure()
        self.output(show.stop(self.stop.launch, event, hits))
        return True

    def _hits(self, launch: Launch, event: dict[str, Any]) -> list[Breakpoint]:
        """The breakpoints that stopped it."""
        if event["reason"] in ("nan", "finding"):
            return [b for b in self.breakpoints if b.event == event["reason"]][:1]
        hits = [b for b in self.breakpoints if b.id in event.get("ids", ())]
        hits, launch.entry_breakpoints = [*hits, *launch.entry_breakpoints], []
        return [b for b in hits if self._holds(b, launch)]

    def _is_wanted(self, event: dict[str, Any]) -> bool:
        """Whether a stop without a breakpoint is one for the prompt."""
        if event.get("reached"):
            return self._steps or self._starts or self._interrupts
        return event["reason"] in ("interrupt", "fault")

    def _holds(self, breakpoint: Breakpoint, launch: Launch) -> bool:
        """Whether its condition is true; one that cannot be computed stops too, and says why."""
        if not breakpoint.condition:
            return True
        try:
            value = evaluate(breakpoint.condition, launch, self.wave)
        except CommandError as error:
            self.output(f"condition of breakpoint {breakpoint.id}: {error}")
            return True
        return any(value.lanes) if isinstance(value, Vector) else bool(value.value)
