"""Which cases run by default: `quick.jsonl`, and the script that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from choose_quick import chosen, chosen_of_all, read_costs

from support import quick


@pytest.mark.parametrize(
    ("costs", "kept"),
    [
        ({"a": 0.5, "b": 0.5}, ["a", "b"]),  # together they cost no more than one second
        ({"": 1.9}, [""]),  # one is kept
        ({"": 2.1}, []),  # if it costs no more than two seconds
        ({"a": 3.0, "b": 1.5, "c": 9.0}, ["b"]),
        ({"a": 0.9, "b": 0.1, "c": 0.2}, ["b", "c"]),
        # One of each architecture before a second one of the first.
        ({"x-gfx942": 0.1, "y-gfx942": 0.2, "gfx950": 0.8}, ["x-gfx942", "gfx950"]),
        ({"x-gfx942": 0.3, "y-gfx942": 0.2, "gfx950": 0.9}, ["x-gfx942", "y-gfx942"]),
    ],
)
def test_the_cheapest_are_kept(costs: dict[str, float], kept: list[str]) -> None:
    assert chosen(costs, seconds=1.0, most=2.0) == kept


def test_a_file_keeps_one_case() -> None:
    costs = {"f.py::a": {"": 5.0}, "f.py::b": {"x": 4.0, "y": 3.0}, "g.py::a": {"": 1.0}}
    kept = chosen_of_all({**costs, "g.py::b": {"": 3.0}}, seconds=1.0, most=2.0)
    assert kept == {"f.py::a": [], "f.py::b": ["y"], "g.py::a": [""], "g.py::b": []}


def test_a_case_pays_for_what_it_once_built(tmp_path: Path) -> None:
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    files[0].write_text('["f.py::a[x]", 3.0]\n["f.py::b", 0.1]\n')
    files[1].write_text('["f.py::a[x]", 0.2]\n["f.py::b", 0.3]\n["f.py::a[y]", 0.1]\n')
    assert read_costs(files) == {"f.py::a": {"x": 3.0, "y": 0.1}, "f.py::b": {"": 0.3}}


class _Item:
    """As much of a pytest item as `thin` asks for."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, [m.mark for m in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((m for m in self.marks if m.name == name), None)

    def add_marker(self, decorator: pytest.MarkDecorator) -> None:
        self.marks.append(decorator.mark)


def _default(names: dict[str, list[str]], *items: _Item, whole: bool = True) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick, "quick_cases", lambda: names)
        quick.thin(items, whole)  # type: ignore[arg-type]
    return [item.nodeid for item in items if item.get_closest_marker("sweep") is None]


def test_what_runs_by_default() -> None:
    sweep, third = pytest.mark.sweep, pytest.mark.thin(3)
    cases = [_Item("f::a[0]", sweep), *(_Item(f"f::a[{i}]", third) for i in range(1, 6))]
    assert _default({}, *cases) == ["f::a[1]", "f::a[4]"]
    cases = [_Item(f"f::a[{i}]", third) for i in range(3)]
    assert _default({"f::a": ["1", "2"]}, *cases, _Item("f::b")) == ["f::a[1]", "f::a[2]", "f::b"]
    assert _default({"f::b": []}, _Item("f::b"), _Item("f::bc")) == ["f::bc"]


def test_a_function_whose_line_is_out_of_date_runs_whole() -> None:
    cases = [_Item("f::a[0]"), _Item("f::a[1]")]
    with pytest.warns(pytest.PytestWarning, match="^f::a has no case '2', which quick.jsonl names"):
        assert _default({"f::a": ["0", "2"]}, *cases) == ["f::a[0]", "f::a[1]"]
    assert _default({"f::a": ["0", "2"]}, *cases, whole=False) == ["f::a[0]"]
