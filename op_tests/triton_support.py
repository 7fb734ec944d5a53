"""What the tests with Triton share: its version, and what of it older versions lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

triton = pytest.importorskip("triton", reason="without Triton there is nothing of it to test")

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

# What an older Triton compiles to something else than asked for, read in its assembly; those cases
# are left out there, and the newest Triton runs all.
MIXED_FP8 = VERSION >= (3, 7)  # 3.6 swaps the operands of a product, but not their formats
OTHER_FP8 = VERSION >= (3, 8)  # 3.6 and 3.7 read FNUZ fp8 as OCP fp8 on gfx950


@contextmanager
def compiled_by_triton() -> Iterator[None]:
    """Skips where a Triton before 3.9 gives up compiling; the virtual GPU has then seen nothing."""
    try:
        yield
    except RuntimeError as error:
        gave_up = re.search(r"PassManager::run failed|failed to translate module", str(error))
        if gave_up and VERSION < (3, 9):
            pytest.skip(f"Triton {triton.__version__} does not compile this")
        raise
