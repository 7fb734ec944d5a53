"""`rfops selftest [OPS]`: what works on this machine, a line each, and what to send where it fails.

The runtime first, then each kernel of each op against its reference, the engines' callees, and
times: measured on a GPU beside estimated and published ones. A worker process runs each, so that
one that faults or hangs is named and the rest goes on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rfops.cli.common import loaded, op_names, with_ops
from rfops.jit import settings

if TYPE_CHECKING:
    from rfops.cli.executor.driver import Task
    from rfops.cli.selftest.report import Line, Report
    from rfops.dispatch.op import Op

_TASKS = "rfops.cli.selftest.tasks"
_SHAPES_TIMED = 4  # of an op, evenly over its shapes by work


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    parser = commands.add_parser(
        "selftest", help="what works on this GPU, or on the virtual one: runtime, ops, times"
    )
    add_ = parser.add_argument
    add_("ops", nargs="*", metavar="OP", help="default: all")
    add_("--gpu", type=int, metavar="N", help="which GPU; default: the first")
    add_("--device", choices=("cuda", "cpu"), help="default: the GPU, or the virtual one if none")
    add_("--all", action="store_true", help="real shapes and times on the virtual GPU too: hours")
    add_("--no-times", action="store_true", help="results only")
    add_(
        "--report",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=".json, .html, .csv of measured times, or text",
    )
    add_(
        "--limit", type=float, default=300, metavar="SECONDS", help="of a case; default %(default)g"
    )
    add_("--workers", type=int, help="processes; default: one on a GPU, one a core if virtual")
    add_("--tuned", type=Path, metavar="FOLDER", help="then `rfops tune` each op's table there")
    add_("--model", action="store_true", help="with --tuned: fit the ops' time models too")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Exit status 0 if nothing failed. Raises ValueError for options that do not go together."""
    available = op_names()
    unknown = [name for name in options.ops if name not in available]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such op; there are {', '.join(available)}")
    if options.model and not options.tuned:
        raise ValueError("--model: pass --tuned FOLDER, where the fitted constants go")
    for file in options.report:
        if not file.absolute().parent.is_dir():
            raise ValueError(f"--report {file}: no folder {file.absolute().parent}")
    if options.gpu is not None:
        os.environ["HIP_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"] = str(options.gpu)
    with_ops()
    return _Selftest(options)()


class _Selftest:
    """One run: `add_line` prints each line as it comes."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from rfops.cli.bench import describe
        from rfops.cli.doctor import examine
        from rfops.cli.selftest.report import Report
        from rfops.dispatch import cost, routing
        from rfops.dispatch.op import ops

        self.options = options
        self.device = torch.device(options.device) if options.device else cost.default_device()
        self.is_virtual = self.device.type == "cpu"
        self.arch, _ = routing.chip(self.device)
        self.ops: list[Op] = [ops()[name] for name in options.ops or sorted(ops())]
        self.report: Report = Report(describe(self.device), examine())

    def __call__(self) -> int:
        begin = time.monotonic()
        print(f"# {self.report.device}")
        if self.is_virtual:
            print("# the virtual GPU runs the kernels; times are estimates of its model")
        try:
            self._runtime()
            self._cases()
            self._engines()
            self._times()
            self._tune()
        except KeyboardInterrupt:
            self.report.unfinished = "interrupted"
        self.report.seconds = time.monotonic() - begin
        print("\n".join(self.report.conclusion()))
        for file in self.options.report:
            self.report.write(file)
        if self.options.report:
            names = " and ".join(map(str, self.options.report))
            print(f"{names}: versions, device and all of the above; attach it to a report")
        return 130 if self.report.unfinished else 1 if self.report.failed else 0

    def add_line(self, line: Line) -> None:
        self.report.lines.append(line)
        print(line, flush=True)

    # ------------------------------------------------------------ sections

    def _runtime(self) -> None:
        from rfops.cli.executor.driver import Task
        from rfops.cli.selftest.runtime import CHECKS

        entry_point = "rfops.cli.selftest.runtime:run"
        tasks = [Task(name, entry_point, (name, str(self.device))) for name in CHECKS]
        log = settings.raw("RFOPS_LOG")
        with settings.put("RFOPS_LOG", "error" if log == "info" else log):  # some are refused
            self._work("runtime", tasks)

    def _cases(self) -> None:
        from rfops.cli.executor.driver import Task
        from rfops.cli.selftest.cases import cases
        from rfops.cli.selftest.report import NOT_HERE, Line

        tasks = []
        for op in self.ops:
            for case in cases(op, self.arch, self.is_virtual and not self.options.all):
                name = f"{op.name} {case.kernel or 'by its route'}"
                if case.why_not:
                    self.add_line(Line("op", name, NOT_HERE, case.why_not))
                else:
                    args = case, str(self.device), loaded()
                    tasks.append(Task(f"{name} {case.text}", f"{_TASKS}:run_case", args))
        self._work("op", tasks)

    def _engines(self) -> None:
        from rfops.cli.selftest.report import FAIL, NOT_HERE, PASS, Line

        for name, engine in self.report.doctor["engines"].items():
            if not engine["version"] or not engine["wraps"]:
                self.add_line(Line("engine", name, NOT_HERE, engine["why"]))
            elif engine["missing"]:
                self.add_line(Line("engine", name, FAIL, "; ".join(engine["missing"])))
            else:
                text = (
                    f"{engine['version']} has the {len(engine['wraps'])} callees that are wrapped"
                )
                self.add_line(Line("engine", name, PASS, text))

    def _times(self) -> None:
        if self.options.no_times or (self.is_virtual and not self.options.all):
            return
        tasks = list(self._timed(str(self.device)))
        self._work("time", tasks)
        if not self.is_virtual and self.arch.startswith("gfx"):
            with settings.put("RFOPS_VGPU_ARCH", self.arch):
                self._work("time", list(self._timed("cpu")), on_gpus=False)

    def _timed(self, device: str) -> Iterator[Task]:
        from rfops.cli.bench import label
        from rfops.cli.executor.driver import Task
        from rfops.cli.selftest.cases import shapes_timed

        for op in self.ops:
            for shape in shapes_timed(op, self.arch, _SHAPES_TIMED):
                args = op.name, shape, device, loaded()
                yield Task(f"{op.name} {label(op, shape)}", f"{_TASKS}:run_time", args)

    def _tune(self) -> None:
        if not self.options.tuned:
            return
        for op in self.ops:
            if op.table:
                self._tuned(op)
            if self.options.model and op.time_model:
                self._tuned(op, "--model")

    def _tuned(self, op: Op, *words: str) -> None:
        """A process of its own: what faults there ends nothing here."""
        from rfops.cli.selftest.report import FAIL, PASS, Line

        files = [word for file in loaded() for word in ("--ops", str(file))]
        command = [sys.executable, "-m", "rfops.cli", *files, "tune", op.name, *words]
        command += ["--out", str(self.options.tuned), "--device", self.device.type]
        begin = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        state = FAIL if status else PASS
        text = f"exit status {status}" if status else f"written to {self.options.tuned}"
        name = " ".join([op.name, *words])
        self.add_line(Line("tuned", name, state, text, time.monotonic() - begin))

    # ------------------------------------------------------------ workers

    def _work(self, section: str, tasks: list[Task], on_gpus: bool | None = None) -> None:
        """Lines of tasks as their workers end them."""
        from rfops.cli.executor.driver import Outcome, Run
        from rfops.cli.executor.local import LocalPool
        from rfops.cli.selftest.report import FAIL, NOT_HERE, PASS, Line

        if not tasks:
            return
        on_gpus = not self.is_virtual if on_gpus is None else on_gpus
        workers = self.options.workers or (1 if on_gpus else None)

        def on_outcome(number: int, outcome: Outcome, _progress: str) -> None:
            line = Line(section, tasks[number].label, PASS, "", outcome.seconds)
            if outcome.error:
                kind, _, text = outcome.error.partition(": ")
                line.state = NOT_HERE if kind.endswith("NotHere") else FAIL
                line.detail = (
                    text if kind.endswith(("NotHere", "AssertionError")) else outcome.error
                )
            elif isinstance(outcome.result, dict):
                line.row = outcome.result
                line.detail = _time_text(line.row)
            else:
                line.detail = str(outcome.result)
            self.add_line(line)

        Run(
            LocalPool(workers, on_gpus), tasks, on_outcome, self.options.limit, _ignored, attempts=1
        )()


def _time_text(row: dict[str, Any]) -> str:
    if not row.get("us"):
        return "right; nothing was launched"
    text = f"{row['us']:.3g} us {row['kind']} by {row['kernel']}"
    return text + (f", published {row['published us']:g}" if row.get("published us") else "")


def _ignored(_text: str) -> None:
    """A worker's death is a line of its task."""
