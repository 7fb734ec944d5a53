"""What the tests with Triton share: its version, and what of it older versions lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import triton

VERSION = tuple(int(number) for number in triton.__version__.split(".")[:2])

# Where an older Triton compiles something else than what was asked for, as its assembly shows.
# Those cases are left out there; 3.9 runs all.
FP8_DOTS = VERSION >= (3, 7)  # 3.6 mixes up the formats of mixed fp8, and FNUZ with OCP on gfx950
FNUZ_CASTS = VERSION >= (3, 9)  # before, those of gfx950 take NaN for -0, or FNUZ for OCP


@contextmanager
def compiled_by_triton() -> Iterator[None]:
    """Skips where a Triton before 3.9 gives up compiling; the virtual GPU has then seen nothing."""
    try:
        yield
    except RuntimeError as error:
        gave_up = re.search(r"PassManager::run failed|failed to translate module", str(error))
        if gave_up and VERSION < (3, 9):
            pytest.skip(f"Triton {triton.__version__} fails on this; .ci/run has the newest")
        raise
