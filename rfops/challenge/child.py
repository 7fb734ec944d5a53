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
from rfops.challenge.data import into, tensors_of, to_device
from rfops.challenge.folder import HARNESS, problem_of
from rfops.challenge.problem import Problem
from rfops.jit import settings

_PR_SET_PDEATHSIG = 1
_REPEATS = 20
_FLUSHED = 1 << 30  # bytes, four times what MI300X's last cache holds


def main(job: Path, replies: int) -> None:
    """Run the calls of a job file and write one reply per step to `replies`."""
    job_ = json.loads(job.read_text(encoding="utf-8"))
    _end_with(job_["evaluator"])
    root = job_["root"]
    if root is None:
        problem_ = problem(job_["problem"])
        _put_harness(problem_)
    else:
        problem_ = problem_of(Path(root), settings.text("RFOPS_VGPU_ARCH"))
    channel = os.fdopen(replies, "w", encoding="utf-8")
    os.set_inheritable(replies, False)

    def reply(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")
        channel.flush()

    start = time.monotonic()
    try:
        if not job_["on_gpu"]:
            inline.activate()
        kernel = _entry(Path(job_["submission"]))
    except BaseException as error:  # SystemExit too: an entry may call exit()
        reply(step="import", error=_error_text(error))
        return
    reply(step="import", seconds=time.monotonic() - start)
    for call in job_["calls"]:
        _run_call(problem_, kernel, call, job_, reply)
    reply(step="done")


def _end_with(evaluator: int) -> None:
    """Have the kernel end this process when the evaluator's has ended, however that came about."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != evaluator:  # before this
        os._exit(1)


def _put_harness(problem_: Problem) -> None:
    """The harness's modules, for an entry to import."""
    for name in HARNESS:
        module = types.ModuleType(name)
        vars(module).update(_harness(problem_))
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
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    return modules


def _harness(problem_: Problem) -> dict[str, Any]:
    """What entries import of task, utils and reference: types for annotations, classes of data."""
    definitions = vars(sys.modules[problem_.generate.__module__])
    classes = {n: v for n, v in definitions.items() if isinstance(v, type) and n[0].isupper()}

    def seed(seed: int = 42) -> None:
        torch.manual_seed(seed)

    def refuse_comparison(*_: Any, **__: Any) -> Any:
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
        "make_match_reference": lambda *_, **__: refuse_comparison,
        "match_reference": refuse_comparison,
        "verbose_allclose": refuse_comparison,
        "generate_input": generated,
        "ref_kernel": problem_.reference,
    }


def _run_call(
    problem_: Problem, kernel: Any, call: dict[str, Any], job: dict[str, Any], reply: Any
) -> None:
    """One case: a call, and a second on the same tensors with other values in them."""
    data = None
    for input_idx, input_spec in enumerate(call["inputs"]):
        fresh_input = _input(problem_, input_spec)
        try:
            if data is None:
                data = to_device(fresh_input, "cuda") if job["on_gpu"] else fresh_input
            else:
                into(data, fresh_input)
            us, result = _estimated(kernel, data) if not job["on_gpu"] else (0.0, kernel(data))
            results = [t.detach().cpu().contiguous() for t in tensors_of(result)]
            kind = "tensor" if isinstance(result, torch.Tensor) else type(result).__name__
            if job["on_gpu"] and "probe" not in input_spec:
                us = _measured(kernel, data, fresh_input, problem_.cold)
        except BaseException as error:
            reply(step="call", at=call["at"], turn=input_idx, error=_error_text(error))
            return
        torch.save(results, Path(job["folder"]) / f"{call['at']}-{input_idx}.pt")
        reply(step="call", at=call["at"], turn=input_idx, us=us, kind=kind)


def _input(problem_: Problem, input_spec: dict[str, Any]) -> Any:
    if "probe" in input_spec:
        return problem_.probes(input_spec["case"])[input_spec["probe"]].data
    return problem_.generate(input_spec["case"])


def _estimated(kernel: Any, data: Any) -> tuple[float, Any]:
    """The modelled time of what the call launches, in us, and its result. Each first touch of a
    call's tensors is cold on the model."""
    from rfops.vgpu import modelled_ms

    ms_before = modelled_ms()
    result = kernel(data)
    return 1e3 * (modelled_ms() - ms_before), result


def _measured(kernel: Any, data: Any, fresh_input: Any, cold: bool) -> float:
    """Return the median time in us of calls on a GPU, each with the values of `fresh_input`. An
    earlier call has done what the entry builds or tunes once."""
    times: list[float] = []
    for _ in range(_REPEATS):
        into(data, fresh_input)
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


def _error_text(error: BaseException) -> str:
    frames = traceback.format_exception(error)
    return f"{type(error).__name__}: {error}\n{''.join(frames[-4:])}"[:4000]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
