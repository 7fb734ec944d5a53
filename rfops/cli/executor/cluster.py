"""Actors of Ray, a GPU or a core each. Placement, restarts and transport are Ray's.

An actor gets rfops' own files, whatever its node has, and the builds that the driver's
cache has of the modules at hand, as `rfops cache export` writes them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from rfops.jit import paths, settings, vgpu_library
from rfops.jit.cache import transfer
from rfops.jit.cache.files import cache_roots

from .driver import Died, Outcome, Task

ray: Any = None
with contextlib.suppress(ImportError):
    ray = importlib.import_module("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

MOST_BUILDS = 256  # that an actor gets
# Of a checkout, as a wheel lays them out.
PARTS = {"rfops": "rfops", "jit": "rfops/jit", "csrc": "rfops/csrc", "configs": "rfops/configs"}


class RayPool:
    """Workers on a Ray cluster, one actor per GPU or CPU; implements `driver.Pool`. Raises
    ValueError without Ray or without such a resource."""

    def __init__(
        self, address: str, workers: int | None, on_gpus: bool, modules: tuple[str, ...]
    ) -> None:
        if ray is None:
            raise ValueError("--executor ray needs Ray: pip install 'rfops[ray]'")
        self.owns_ray = not ray.is_initialized()
        if self.owns_ray:
            ray.init(address=address or None, log_to_driver=False, logging_level="warning")
        resource = "GPU" if on_gpus else "CPU"
        available = int(ray.cluster_resources().get(resource, 0))
        if not available:
            raise ValueError(f"--executor ray: the cluster has no {resource}")
        count = min(workers or available, available)
        self.kind = {"num_gpus": 1, "num_cpus": 1} if on_gpus else {"num_cpus": 1}
        self.names = [f"actor {i}" for i in range(count)]
        self.object_refs = ray.put(sources()), ray.put(builds(modules))
        self.actors: list[Any] = [self._actor() for _ in range(count)]
        self.workers_by_ref: dict[Any, int] = {}

    def _actor(self) -> Any:
        actor: Any = ray.remote(max_restarts=0, **self.kind)(_Actor)
        env = {} if "num_gpus" in self.kind else {"RFOPS_VGPU_THREADS": "1", "OMP_NUM_THREADS": "1"}
        forwarded = [s.name for s in settings.SETTINGS if s.kind not in ("path", "paths")]
        env |= {
            name: os.environ[name] for name in forwarded if name in os.environ and name not in env
        }
        return actor.options(runtime_env={"env_vars": env}).remote(*self.object_refs)

    def start(self, worker: int, task: Task) -> None:
        """Start a task on a worker that is idle."""
        self.workers_by_ref[self.actors[worker].run.remote(task)] = worker

    def wait(self, seconds: float) -> list[tuple[int, Outcome | None]]:
        """Return (worker, outcome) of the tasks that end within `seconds`; at most one."""
        done_refs, _ = ray.wait(list(self.workers_by_ref), num_returns=1, timeout=seconds)
        return [(self.workers_by_ref.pop(ref), self._outcome(ref)) for ref in done_refs]

    def _outcome(self, ref: Any) -> Outcome | None:
        try:
            outcome: Outcome = ray.get(ref)
        except ray.exceptions.RayActorError:
            return None
        except ray.exceptions.RayError as error:
            return Outcome(error=str(error).splitlines()[-1][:400])
        return outcome

    def restart(self, worker: int) -> None:
        """Kill a worker and start a new one in its place."""
        self.workers_by_ref = {
            ref: index for ref, index in self.workers_by_ref.items() if index != worker
        }
        ray.kill(self.actors[worker])
        try:
            self.actors[worker] = self._actor()
        except ray.exceptions.RayError as error:
            raise Died from error

    def close(self) -> None:
        """End all workers, and Ray if this pool started it."""
        for actor in self.actors:
            ray.kill(actor)
        if self.owns_ray:
            ray.shutdown()


class _Actor:
    """Sent by value, as the node may have no rfops."""

    def __init__(self, code: bytes, cache: bytes) -> None:
        import io
        import sys
        import tarfile
        import tempfile
        from pathlib import Path

        folder = Path(tempfile.mkdtemp(prefix="rfops-"))  # of this user alone
        with tarfile.open(fileobj=io.BytesIO(code)) as tar:
            tar.extractall(folder, filter="data")
        sys.path.insert(0, str(folder))
        file = folder / "builds"
        file.write_bytes(cache)
        from rfops.jit.cache import transfer

        transfer.import_(file)

    def run(self, task: Any) -> Any:
        from rfops.cli.executor.local import outcome_of

        return outcome_of(task)


def sources() -> bytes:
    """rfops as a wheel lays it out."""
    archive_ = io.BytesIO()
    with tarfile.open(fileobj=archive_, mode="w") as tar:
        for source_folder, member_folder in (
            PARTS.items() if (paths.ROOT / "rfops").is_dir() else [("", "rfops")]
        ):
            root = paths.ROOT / source_folder
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    member = tarfile.TarInfo(f"{member_folder}/{file.relative_to(root)}")
                    data = file.read_bytes()
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return archive_.getvalue()


def builds(modules: tuple[str, ...]) -> bytes:
    """The virtual GPU, and what was last built here of these modules."""
    keys = [vgpu_library().parent.name]
    for root in cache_roots():
        metas = [meta for name in modules for meta in root.glob(f"gfx*/{name}/*/meta.json")]
        metas.sort(key=lambda meta: meta.stat().st_mtime, reverse=True)
        keys += [meta.parent.name for meta in metas[:MOST_BUILDS]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "builds"
        transfer.export(file, modules=("vgpu", *modules), keys=keys)
        return file.read_bytes()
