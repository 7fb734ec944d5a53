"""In the entry's process: make the inputs, call `custom_kernel`, write what it returned.

The parent judges: nothing that an entry changes here makes a wrong result right. Run as
`python -m rfops.challenge.child JOB REPLIES`: a file of JSON, and a pipe for a line of JSON a call.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import signal
import statistics
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

import torch

from rfops.challenge import inline, problem
from rfops.challenge.data import into, moved, tensors_of
from rfops.challenge.folder import HARNESS, problem_of
from rfops.challenge.problem import Problem
from rfops.jit import settings

_PR_SET_PDEATHSIG = 1
_REPEATS = 20
_FLUSHED = 1 << 30  # bytes, four times what MI300X's last cache holds


def main(job: Path, replies: int) -> None:
    given = json.loads(job.read_text(encoding="utf-8"))
    _end_with(given["evaluator"])
    root = given["root"]
    if root is None:
        found = problem(given["problem"])
        _put_harness(found)
    else:
        found = problem_of(Path(root), settings.text("RFOPS_VGPU_ARCH"))
    channel = os.fdopen(replies, "w", encoding="utf-8")
    os.set_inheritable(replies, False)

    def reply(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")
        channel.flush()

    start = time.monotonic()
    try:
        if not given["on_gpu"]:
            inline.activate()
        kernel = _entry(Path(given["submission"]))
    except BaseException as error:  # SystemExit too: an entry may call exit()
        reply(step="import", error=_said(error))
        return
    reply(step="import", seconds=time.monotonic() - start)
    for call in given["calls"]:
        _one(found, kernel, call, given, reply)
    reply(step="done")


def _end_with(evaluator: int) -> None:
    """Have the kernel end this process when the evaluator's has ended, however that came about."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != evaluator:  # before this
        os._exit(1)


def _put_harness(of: Problem) -> None:
    """The harness's modules, for an entry to import."""
    for name in HARNESS:
        module = types.ModuleType(name)
        vars(module).update(_harness(of))
        sys.modules[name] = module


def _entry(file: Path) -> Any:
    """The entry's custom_kernel."""
    sys.path.insert(0, str(file.parent))
    module = types.ModuleType("submission")
    module.__file__ = str(file)
    sys.modules["submission"] = module
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text, str(file))
    if "rfops" in _imported(tree):
        raise ImportError(f"{file.name} imports rfops, which the competition's machine has not")
    exec(compile(tree, str(file), "exec"), vars(module))
    if not callable(getattr(module, "custom_kernel", None)):
        raise ValueError(f"{file.name}: expected a function custom_kernel(data)")
    return module.__dict__["custom_kernel"]


def _imported(tree: ast.AST) -> set[str]:
    """The packages that it names in its import statements."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def _harness(of: Problem) -> dict[str, Any]:
    """What entries import of task, utils and reference: types for annotations, classes of data."""
    definitions = vars(sys.modules[of.generate.__module__])
    classes = {n: v for n, v in definitions.items() if isinstance(v, type) and n[0].isupper()}

    def seed(seed: int = 42) -> None:
        torch.manual_seed(seed)

    def compared(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the evaluator compares: not part of an entry")

    def generated(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "generate_input: an entry that makes a case's inputs itself has its "
            "results before it is called"
        )

    return {
        **classes,
        "input_t": Any,
        "output_t": Any,
        "TestSpec": dict,
        "set_seed": seed,
        "make_match_reference": lambda *_, **__: compared,
        "match_reference": compared,
        "verbose_allclose": compared,
        "generate_input": generated,
        "ref_kernel": of.reference,
    }


def _one(of: Problem, kernel: Any, call: dict[str, Any], job: dict[str, Any], reply: Any) -> None:
    """One case: a call, and a second on the same tensors with other values in them."""
    data = None
    for turn, given in enumerate(call["inputs"]):
        fresh = _input(of, given)
        try:
            if data is None:
                data = moved(fresh, "cuda") if job["on_gpu"] else fresh
            else:
                into(data, fresh)
            us, result = _estimated(kernel, data) if not job["on_gpu"] else (0.0, kernel(data))
            kept = [t.detach().cpu().contiguous() for t in tensors_of(result)]
            kind = "tensor" if isinstance(result, torch.Tensor) else type(result).__name__
            if job["on_gpu"] and "probe" not in given:
                us = _measured(kernel, data, fresh, of.cold)
        except BaseException as error:
            reply(step="call", at=call["at"], turn=turn, error=_said(error))
            return
        torch.save(kept, Path(job["folder"]) / f"{call['at']}-{turn}.pt")
        reply(step="call", at=call["at"], turn=turn, us=us, kind=kind)


def _input(of: Problem, given: dict[str, Any]) -> Any:
    if "probe" in given:
        return of.probes(given["case"])[given["probe"]].data
    return of.generate(given["case"])


def _estimated(kernel: Any, data: Any) -> tuple[float, Any]:
    """The modelled time of what the call launches, in us, and its result. Each first touch of a
    call's tensors is cold on the model."""
    from rfops.vgpu import modelled_ms

    before = modelled_ms()
    result = kernel(data)
    return 1e3 * (modelled_ms() - before), result


def _measured(kernel: Any, data: Any, fresh: Any, cold: bool) -> float:
    """The median time in us of calls on a GPU, each with the values of `fresh`; what the entry
    builds or tunes on its first call, and keeps, is done."""
    times: list[float] = []
    for _ in range(_REPEATS):
        into(data, fresh)
        if cold:
            torch.empty(_FLUSHED, dtype=torch.uint8, device="cuda").zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        kernel(data)
        stop.record()
        stop.synchronize()
        times.append(1e3 * start.elapsed_time(stop))
    return statistics.median(times)


def _said(error: BaseException) -> str:
    frames = traceback.format_exception(error)
    return f"{type(error).__name__}: {error}\n{''.join(frames[-4:])}"[:4000]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
