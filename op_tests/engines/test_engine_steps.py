"""Steps of an engine: which launches are whose, and their table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rfops.engines import steps, tally


class Runner:
    def step(self, batch: list[int], times: int = 1) -> int:
        return times * sum(batch)


def test_a_step_is_counted_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "_steps", [])
    monkeypatch.setattr("rfops.vgpu.modelled_ms", iter([0.5, 2.0]).__next__)
    runner_class = type("Counted", (Runner,), {})
    tally.count_steps(runner_class, "step", len)
    assert runner_class().step([1, 2, 3]) == 6
    assert runner_class().step([4], times=2) == 8
    assert tally._steps == [(3, 500.0), (1, 2000.0)]
    assert Runner.step is not runner_class.step


def _leave(folder: Path, pid: int, begun: list[tuple[int, float]], launches: str) -> None:
    (folder / f"engine-{pid}.json").write_text(json.dumps({"steps": begun}))
    lines = [{"process": pid, "command": "python"}]
    clock = 0.0
    for word in launches.split():
        kernel, us = word.split(":")
        lines += [{"started": {"kernel": kernel}}, {"timed": {"kernel": kernel, "us": float(us)}}]
        clock += float(us)
    (folder / f"{pid}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_launches_by_step(tmp_path: Path) -> None:
    """From where a step began to where the next did: of two steps with nothing between the second
    has the launches, and those before the first are of none."""
    _leave(tmp_path, 7, [(39, 10.0), (3, 15.0), (3, 15.0), (3, 18.5)], "warm:10 a:2 b:3 a:3.5 b:1")
    _leave(tmp_path, 8, [], "a:100")
    (tmp_path / "engine-9.json").write_text(json.dumps({"steps": [[1, 0.0]]}))  # launched nothing
    found = steps.read(tmp_path)
    assert [step.tokens for step in found] == [39, 3, 3, 3]
    assert [dict(step.us) for step in found] == [{"a": 2, "b": 3}, {}, {"a": 3.5}, {"b": 1}]
    rows = [line.split() for line in steps.text(found).splitlines()[1:]]
    assert rows == [
        ["39", "x", "1", "3", "x", "3", "kernel"],
        ["3.00", "0.33", "b"],
        ["2.00", "1.17", "a"],
        ["5.00", "1.50", "all"],
    ]


def test_no_steps() -> None:
    assert steps.text([]) == ""


def test_many_kernels_and_sizes_are_cut() -> None:
    many = [steps.Step(tokens) for tokens in (*range(20), 5)]
    for step in many:
        step.us.update({f"k{i}": 1.0 for i in range(30)})
    lines = steps.text(many).splitlines()
    assert len(lines) == 3 + steps.MOST_KERNELS and "5 x 2" in lines[1]
    assert lines[-1].split() == [*["30.00"] * steps.MOST_SIZES, "all"]
