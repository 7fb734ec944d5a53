"""The model's constants of high confidence, each by a kernel that runs under the model: within 10 %
of what was published for hardware, or the case says why not (`rfops bench timing --micro`)."""

from __future__ import annotations

import pytest

from rfops.cli.timing import micro_cases
from rfops.cli.timing.micro_cases import CASES, TOLERANCE, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_constant(case: Case) -> None:
    assert bool(case.note) == (case.tolerance > TOLERANCE), "why not within 10 %"
    assert micro_cases.measured(case) == pytest.approx(case.published, rel=case.tolerance)
