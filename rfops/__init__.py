"""rfops: an op library for AMD Instinct gfx942 and gfx950 in which every kernel is a JIT module.

Importing it starts no process, opens no GPU and imports no op: one is imported when its name is
first asked for here, all of them when torch.ops.rfops is. The first call of an op builds or finds
its kernel.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

try:
    from rfops.jit import (
        BindError,
        BuildError,
        ConfigError,
        HipError,
        JitDisabled,
        LockTimeout,
        RfopsError,
        ToolchainNotFound,
        UnsupportedArch,
        freeze,
    )
except ModuleNotFoundError as error:
    if error.name != "rfops.jit":
        raise
    # jit/, csrc/ and configs/ lie beside this folder in a checkout; installing puts them inside.
    message = "rfops is a checkout that is not installed: run pip install -e . in its folder"
    raise ModuleNotFoundError(message, name=error.name) from None

from rfops import public
from rfops.jit.forks import importing
from rfops.later import TorchOps, when_imported

if TYPE_CHECKING:
    from rfops.public import *  # noqa: F403 # rfops/public.py has the list


def __getattr__(name: str) -> Any:
    for module, names in public.MODULES.items():
        if name in names or name == module:
            with importing:
                found = importlib.import_module(f"rfops.{module}")
            here = {known: getattr(found, known) for known in names}
            globals().update(here or {module: found})
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


when_imported("torch", TorchOps)

__all__ = [
    "BindError",
    "BuildError",
    "ConfigError",
    "HipError",
    "JitDisabled",
    "LockTimeout",
    "RfopsError",
    "ToolchainNotFound",
    "UnsupportedArch",
    "__version__",
    "freeze",
]
__all__ += public.__all__
