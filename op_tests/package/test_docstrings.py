"""Docstrings of public functions: shapes, dtypes, errors and the method's source."""

import inspect
import re

import pytest

import rfops
from rfops import public

SAYS = {
    "a shape, as [M, K]": r"\[[A-Za-z.*\d][^\]]*\]",
    "a dtype": r"dtype|float(16|32|64)|int32|uint8|e8m0|bfloat16",
    "Raises": r"Raises",
    "Source:": r"^Source: \S",
}
FUNCTIONS = [name for name in public.__all__ if inspect.isfunction(getattr(rfops, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_docstring(name: str) -> None:
    text = inspect.getdoc(getattr(rfops, name)) or ""
    missing = [what for what, pattern in SAYS.items() if not re.search(pattern, text, re.M)]
    assert not missing, f"rfops.{name}: the docstring must say {', '.join(missing)}"


def test_public_functions_are_found() -> None:
    assert {"gemm_mxfp8", "gemm_mxfp8_ref", "mla_decode", "shuffle_scale"} <= set(FUNCTIONS)
