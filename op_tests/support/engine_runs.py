"""Engines under `rfops run --engine`: their greedy tokens of tiny models (engine_models.py) against
the fp32 model's, and what computed them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from . import engine_models
from .command import COMMAND, rfops

TOKENS = 32  # of each prompt
MLA, EXPERTS, FP8 = "MLA decode", "experts", "FP8 linears"
LINEARS = dict.fromkeys(("proj", "experts", "proj_with_mqa"), "fp8")  # of DeepSeek in FP8
FP8_CACHE = {"kv_b_proj": "fp8"}  # by its input, which is what the cache has


@dataclass(frozen=True)
class Case:
    """A model on an architecture with the engine's options; what rfops is to compute of it, and the
    layers by name whose inputs are in a narrow format (engine_models.misses)."""

    kind: str
    arch: str
    families: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    narrow: Mapping[str, str] = field(default_factory=dict)


def run(engine: str, arch: str, *command: Any, **env: str) -> Any:
    """What the command printed, run to its end without any network."""
    words = ("run", "--arch", arch, "--engine", engine, "--", sys.executable, *command)
    completed = rfops(*map(str, words), **{"HF_HUB_OFFLINE": "1", **env})
    print(completed.stderr)
    return completed


def check_tokens(engine: str, case: Case, models: Path, **env: str) -> None:
    """Each token is the fp32 model's, or one that roundings explain; >= 95 % of the calls of each
    family are rfops'."""
    folder = engine_models.make(case.kind, models / case.kind)
    request = {"prompts": engine_models.prompts(), "tokens": TOKENS, "options": case.options}
    program = Path(__file__).with_name(f"{engine}_program.py")  # which imports the engine
    completed = run(engine, case.arch, program, folder, json.dumps(request), **env)
    assert completed.returncode == 0, completed.stderr
    tokens = json.loads(completed.stdout.splitlines()[-1])
    assert [len(row) for row in tokens] == [TOKENS] * 3
    misses, of_torch = engine_models.misses(folder, request["prompts"], tokens, case.narrow)
    print(f"{3 * TOKENS - len(misses)} of {3 * TOKENS} tokens agree;")
    print(f"of torch in the same arithmetic {3 * TOKENS - len(of_torch)}")
    print(*misses, "torch's:", *of_torch, sep="\n")
    assert all(miss.gap <= miss.bound for miss in misses)
    assert len(misses) <= 4 + 2 * len(of_torch), "more than roundings explain"
    for family in case.families:
        match = re.search(rf"by rfops:.*{family} (\d+) of (\d+) calls", completed.stderr)
        assert match, f"{family} is not in the summary"
        num_own, num_all = map(int, match.groups())
        assert num_own >= 0.95 * num_all and num_own >= TOKENS, (
            f"{family}: {num_own} of {num_all} by rfops"
        )


def check_release(engine: str, release: str, folder: Path) -> None:
    """Another release is refused before anything of it runs; --engine-any-release tries it."""
    (folder / engine).mkdir()
    (folder / engine / "__init__.py").touch()
    (folder / f"{engine}-0.1.0.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {engine}\nVersion: 0.1.0\n"
    (folder / f"{engine}-0.1.0.dist-info" / "METADATA").write_text(metadata)
    words = ("run", "--engine", engine)
    command = ("--", sys.executable, "-c", f"import {engine}")
    completed = rfops(*words, *command, PYTHONPATH=str(folder))
    assert completed.returncode == 1
    assert f"--engine {engine} knows release {release}, found 0.1.0" in completed.stderr
    completed = rfops(*words, "--engine-any-release", *command, PYTHONPATH=str(folder))
    assert completed.returncode == 0, completed.stderr


def check_server(
    engine: str, command: Sequence[Any], path: str, request: dict[str, Any], **env: str
) -> tuple[Any, str]:
    """Serve by the command on a free port of the loopback, send one request, press Ctrl-C; return
    the answer and the report. No process of it is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = (*COMMAND, "run", "--timing", "--arch", "gfx950", "--engine", engine)
    words += ("--", *map(str, command))
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **env},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while not _ask(f"http://127.0.0.1:{port}/health"):
                assert process.poll() is None, _text(log)
                time.sleep(1)
            answer = _ask(f"http://127.0.0.1:{port}{path}", request)
            assert answer is not None, _text(log)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
            assert process.wait(timeout=120) in (0, 128 + signal.SIGINT), _text(log)
            deadline = time.monotonic() + 60  # trackers of shared memory end behind their parents
            while survivors := _living(process.pid):
                assert time.monotonic() < deadline, f"{survivors} are left\n{_text(log)}"
                time.sleep(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return json.loads(answer), _text(log)


def _living(group: int) -> list[str]:
    """The processes of a group by name, but for those that only wait to be reaped."""
    names = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            name, _, fields = file.read_text().partition("(")[2].rpartition(")")
            state, _parent, of_group, *_ = fields.split()
            if int(of_group) == group and state not in "ZX":
                names.append(name)
    return names


def _ask(url: str, request: dict[str, Any] | None = None) -> bytes | None:
    """The answer, None if there is no server yet or it refuses."""
    body = None if request is None else json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return bytes(answer.read()) or b"{}"
    except OSError:
        return None


def _text(log: IO[str]) -> str:
    log.seek(0)
    return log.read()
