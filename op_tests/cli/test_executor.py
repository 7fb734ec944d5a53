"""`--executor local|ray`: tasks handed out, workers that die and hang, tables that are the same."""

from __future__ import annotations

import csv
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rfops import cli
from rfops.cli import build as cli_build
from rfops.cli.executor import cluster
from rfops.cli.executor.driver import ATTEMPTS, DEATHS, Died, Outcome, Run, Task
from rfops.cli.executor.local import LocalPool, outcome_of, split_cores

pytestmark = pytest.mark.requires_gfx950
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="no Ray: pip install 'rfops[ray]'; the same driver: test_local_workers",
)
TASKS = "support.executor_tasks"


def task(name: str, *args: Any, cost: float = 1.0) -> Task:
    return Task(f"{name}{args}", f"{TASKS}:{name}", args, cost)


class Noted:
    """A run, and what it said."""

    def __init__(self, pool: Any, tasks: Sequence[Task], limit: float = 60) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.order: list[int] = []
        self.progress: list[str] = []
        self.said: list[str] = []
        Run(pool, tasks, self.done, limit, self.said.append)()

    def done(self, number: int, outcome: Outcome, progress: str) -> None:
        assert number not in self.outcomes, "a task came twice"
        self.outcomes[number] = outcome
        self.order.append(number)
        self.progress.append(progress)


# ---------------------------------------------------------------- the driver alone


class Scripted:
    """Workers of this process. `script` says of a worker and a task whether it dies."""

    def __init__(self, count: int, dies: Callable[[int, Task], bool]) -> None:
        self.names = [f"w{i}" for i in range(count)]
        self.dies, self.running, self.closed, self.begun = (
            dies,
            dict[int, Task](),
            False,
            [1] * count,
        )

    def start(self, worker: int, task: Task) -> None:
        self.running[worker] = task

    def wait(self, seconds: float) -> list[tuple[int, Outcome | None]]:
        results: list[tuple[int, Outcome | None]] = []
        for worker, one in self.running.items():
            results.append((worker, None if self.dies(worker, one) else outcome_of(one)))
        self.running = {}
        return results

    def restart(self, worker: int) -> None:
        self.begun[worker] += 1

    def close(self) -> None:
        self.closed = True


def test_longest_first_and_each_once() -> None:
    pool = Scripted(1, lambda *_: False)
    result = Noted(pool, [task("echo", i, cost=i + 1) for i in range(5)])
    assert result.order == [4, 3, 2, 1, 0] and pool.closed
    assert [result.outcomes[i].result for i in range(5)] == list(range(5))
    assert result.progress[-1].startswith("[5/5, ") and result.progress[-1].endswith("0 s left]")


def test_a_task_whose_workers_die_is_given_up() -> None:
    pool = Scripted(2, lambda _, one: one.args == (1,))
    result = Noted(pool, [task("echo", i) for i in range(6)])
    assert result.outcomes[1].error == f"its worker died {ATTEMPTS} times"
    assert [result.outcomes[i].result for i in (0, 2, 3, 4, 5)] == [0, 2, 3, 4, 5]
    assert sum(line.endswith("died at echo(1,)") for line in result.said) == ATTEMPTS


def test_a_worker_that_only_dies_is_left_out() -> None:
    pool = Scripted(2, lambda worker, _: worker == 0)
    result = Noted(pool, [task("echo", i) for i in range(8)])
    assert [result.outcomes[i].result for i in range(8)] == list(range(8))
    assert result.said[-1] == "w0 is left out" and pool.begun == [DEATHS, 1]


def test_no_worker_is_left() -> None:
    result = Noted(Scripted(1, lambda *_: True), [task("echo", i) for i in range(4)])
    assert {o.error for o in result.outcomes.values()} == {"no worker is left"}
    assert len(result.outcomes) == 4


def test_a_worker_that_cannot_begin() -> None:
    class Pool(Scripted):
        def start(self, worker: int, task: Task) -> None:
            if worker == 0:
                raise Died
            super().start(worker, task)

        def restart(self, worker: int) -> None:
            raise Died

    result = Noted(Pool(2, lambda *_: False), [task("echo", i) for i in range(4)])
    assert [result.outcomes[i].result for i in range(4)] == list(range(4))
    assert "w0 is left out" in result.said


# ---------------------------------------------------------------- processes


def test_local_workers(tmp_path: Path) -> None:
    tasks = [
        *(task("echo", i) for i in range(6)),
        task("fail", "no\nsecond line"),
        task("die", 2, str(tmp_path)),
        task("hang", 0, cost=9),
        task("threads", 0),
    ]
    begin = time.monotonic()
    result = Noted(LocalPool(2, False), tasks, limit=4)
    assert time.monotonic() - begin < 60
    assert [result.outcomes[i].result for i in range(6)] == list(range(6))
    assert result.outcomes[6].error == "ValueError: no"
    assert result.outcomes[7].result == 3  # killed twice
    assert result.outcomes[8].error == "took more than 4 s"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert result.outcomes[9].result[0] == str(share)


def test_what_a_worker_has_begun_ends_with_it() -> None:
    result = Noted(LocalPool(1, False), [task("beget", "")])
    child = Path(f"/proc/{result.outcomes[0].result}/stat")
    wait_for(lambda: not child.is_file() or child.read_text().split()[2] == "Z", 10)


def test_a_process_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    pool = LocalPool(None, True)
    assert pool.names == ["GPU 0", "GPU 1"]
    result = Noted(pool, [task("threads", i) for i in range(12)])
    seen = {outcome.result[1:] for outcome in result.outcomes.values()}
    assert seen <= {("5", "5"), ("7", "7")} and seen


def test_shares_of_the_cores() -> None:
    """All of them, each once, in equal parts; where workers are more, a core each."""
    assert split_cores([0, 1, 2, 3, 6, 7, 8], 2) == [[0, 1, 2], [3, 6, 7, 8]]
    assert split_cores([4, 5], 5) == [[4], [5], [4], [5], [4]]
    assert split_cores([3], 1) == [[3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tune gemm_mxfp8 --executor local --workers 0", "--workers 0: expected 1 or more"),
        ("tune gemm_mxfp8 --executor local --defaults triton", "--defaults: the table is filled"),
        ("bench gemm_mxfp8 --executor ray", "--executor ray needs Ray: pip install 'rfops[ray]'"),
    ],
)
def test_refusals(
    text: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "ray", None)
    more = ["--out", str(tmp_path)] if text.startswith("tune") else []
    assert cli.main([*text.split(), "--shape", "2", "16", "64", *more]) == 1
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- the commands

SHAPES = [(m, n, k) for m in (1, 3) for n, k in ((16, 64), (32, 128))]


def words_of(shapes: Sequence[tuple[int, ...]], out: Path, *more: str) -> list[str]:
    given = [word for shape in shapes for word in ("--shape", *map(str, shape))]
    return ["tune", "gemm_mxfp8", *given, "--device", "cpu", "--top", "1", "--out", str(out), *more]


def table(folder: Path) -> bytes:
    return (folder / "gemm_mxfp8.csv").read_bytes()


def test_tune_by_local_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words_of(SHAPES, tmp_path / "one")) == 0
    assert cli.main(words_of(SHAPES, tmp_path / "two", "--executor", "local")) == 0
    assert table(tmp_path / "one") == table(tmp_path / "two")
    capsys.readouterr()
    assert cli.main(words_of(SHAPES, tmp_path / "two", "--executor", "local")) == 0
    assert "4 of 4 shapes were done before" in capsys.readouterr().out


def test_bench_by_local_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = [word for shape in SHAPES[:2] for word in ("--shape", *map(str, shape))]
    rows = []
    for more in ([], ["--executor", "local", "--workers", "1"]):
        file = tmp_path / f"{len(more)}.csv"
        words = ["bench", "gemm_mxfp8", *shapes, "--device", "cpu", "--csv", str(file), *more]
        assert cli.main(words) == 0
        rows.append(file.read_text())
    assert rows[0] == rows[1] and "geometric mean" in capsys.readouterr().out


def test_build_by_local_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path))
    words = ["build", "moe_align_block_size", "--arch", "gfx950", "--executor", "local"]
    assert cli.main(words) == 0
    assert cli.main([*words, "--workers", "1"]) == 0
    assert "cached" in capsys.readouterr().out


def test_builds_of_far_workers_come_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry, *_) = cli_build.variants(cli_build.module_spec("moe_align_block_size"), ["gfx950"], ())
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path / "far"))
    state, error, data = cli_build.build_task(entry, True)
    assert (state, error) == ("built", "") and data
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path / "home"))
    cli_build._import_archive(data)
    assert cli_build.build_task(entry, False) == ("cached", "", b"")


# ---------------------------------------------------------------- Ray

MANY = [(m, n, k) for m in (1, 2, 3, 4) for n in (16, 32, 48, 64, 80) for k in (64, 128)]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two nodes on this machine, of a core each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    both = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    both.add_node(num_cpus=1)
    yield both.address
    ray.shutdown()
    both.shutdown()


def actors() -> list[int]:
    result = subprocess.run(["pgrep", "-f", "^ray::_Actor"], capture_output=True, text=True)
    return [int(word) for word in result.stdout.split()]


def begin(shapes: Sequence[tuple[int, ...]], out: Path, address: str) -> subprocess.Popen[str]:
    words = words_of(shapes, out, "--executor", "ray", "--address", address)
    return subprocess.Popen(
        [sys.executable, "-m", "rfops.cli", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def rows_in(folder: Path) -> int:
    file = folder / "gemm_mxfp8.csv"
    if not file.is_file():
        return 0
    with file.open() as stream:
        return len(list(csv.DictReader(stream)))


def wait_for(done: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.1)


@needs_ray
@pytest.mark.sweep
def test_a_cluster(
    nodes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty shapes on two nodes; a worker is killed twice, and the driver once. Then build and
    bench, here as no other test may have actors that could be killed for these."""
    first = begin(MANY, tmp_path / "far", nodes)
    wait_for(lambda: rows_in(tmp_path / "far") >= 3)
    first.kill()
    first.communicate()
    had = rows_in(tmp_path / "far")
    wait_for(lambda: not actors())
    second = begin(MANY, tmp_path / "far", nodes)
    for more in (2, 4):
        wait_for(functools.partial(lambda n: rows_in(tmp_path / "far") >= n, had + more))
        os.kill(actors()[0], signal.SIGKILL)
    said, _ = second.communicate(timeout=400)
    assert second.returncode == 0, said
    assert f"{had} of 40 shapes were done before" in said
    assert said.count(" died at ") == 2 and "lost" not in said
    assert rows_in(tmp_path / "far") == 40
    assert cli.main(words_of(MANY, tmp_path / "near", "--executor", "local")) == 0
    assert table(tmp_path / "far") == table(tmp_path / "near")
    capsys.readouterr()
    far = ["--executor", "ray", "--address", nodes]
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path))
    assert cli.main(["build", "moe_align_block_size", "--arch", "gfx950", *far]) == 0
    assert cli.main(["build", "moe_align_block_size", "--arch", "gfx950"]) == 0
    assert "cached" in capsys.readouterr().out
    assert cli.main(["bench", "gemm_mxfp8", "--shape", "2", "16", "64", *far]) == 0


def test_what_a_node_gets_is_a_package() -> None:
    import io
    import tarfile

    data = cluster.sources()
    names = set(tarfile.open(fileobj=io.BytesIO(data)).getnames())
    assert {"rfops/__init__.py", "rfops/jit/__init__.py", "rfops/csrc/gemm/mxfp8_gemv.hip"} <= names
    assert {"rfops/configs/gemm_mxfp8.csv", "rfops/jit/compiler_config.json"} <= names
    assert not any("__pycache__" in n for n in names)
