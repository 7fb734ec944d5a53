"""Engines that serve models, on the virtual GPU: what `rfops run --engine NAME -- COMMAND` puts
into each Python process of the command once the engine is imported.

An engine keeps its own worker, scheduler, cache and Triton kernels. What a machine without a GPU
lacks is put in its place by a stand-in, which has a name and a reason. Stand-ins know the inside of
one release: another one is refused, unless --engine-any-release asks to try. vllm.py and
vllm_ops.py have those of vLLM, sglang.py and sglang_ops.py those of SGLang, standins.py the means,
tally.py which calls were computed by what, steps.py the time of each step.
"""

from __future__ import annotations

import importlib
import importlib.metadata

from rfops.jit import ConfigError

# The release whose inside the stand-ins know, and the module that has them.
RELEASES = {"sglang": "0.5.23", "vllm": "0.33.0"}


def activate(engine: str, any_release: bool) -> None:
    """Put the stand-ins of an engine in place, before any of its code runs. Raises ConfigError for
    a release that they do not know."""
    from . import tally

    known = RELEASES[engine]
    try:
        found = importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        found = "unknown"
    if found.partition("+")[0] != known and not any_release:
        raise ConfigError(
            f"rfops run: --engine {engine} knows release {known}, found {found}: pip install "
            f"{engine}=={known}, or try this one with --engine-any-release"
        )
    tally.start(engine, found)
    importlib.import_module(f"rfops.engines.{engine}").activate()
