"""Programs on rows of variants: what a text says, and the launcher's results beside numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rfops.dispatch.row_program import Program, Rows
from rfops.jit.launch import launcher

TEXT = """
sum = height + add
product = sum * sum - height / 4
remainder = (height - 5) % add
low = minimum(product, limit)
high = maximum(product, limit)
tiles_of = take(tiles, index)
rounds = ceil(tiles_of / height) + floor(low)
same = limit
log = log2(rounds)
excluded = maximum(height - limit, 0)
"""
COLUMNS = {"height": [1.0, 2.5, 3.0, 8.0], "index": [0, 1, 2, 2], "unused": [0, 0, 0, 0]}
NUMBERS, TILES = [1.25, 3.0], [10.0, 20.5, 30.25]
TARGETS = "sum product remainder low high tiles_of rounds same log".split()


def program() -> Program:
    return Program(TEXT, ["add", "limit"], "tiles")


def rows(text: Program, targets: list[str]) -> Rows:
    indices = {name: 2 + index for index, name in enumerate(targets)}
    return Rows(text, indices, 2 + len(targets), COLUMNS.__getitem__, 4, len(TILES))


def expected() -> dict[str, Any]:
    height, (add, limit) = np.array(COLUMNS["height"]), NUMBERS
    product = (height + add) ** 2 - height / 4
    tiles = np.array([10.0, 20.5, 30.25, 30.25])
    rounds = np.ceil(tiles / height) + np.floor(np.minimum(product, limit))
    return {
        "sum": height + add,
        "product": product,
        "remainder": np.array([1.0, 0.0, 0.5, 0.5]),
        "low": np.minimum(product, limit),
        "high": np.maximum(product, limit),
        "tiles_of": tiles,
        "rounds": rounds,
        "same": np.full(4, limit),
        "log": np.log2(rounds),
    }


def native() -> Any:
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    return launcher.native()


def rank_by(made: Rows, codes: Any, numbers: Any, **others: Any) -> Any:
    """The native function, of the first two rows, 1 and 1; both weights are 1."""
    given = {
        "excluded": made.mask_row,
        "first": made.first_number,
        "values": made.values,
        "variants": 4,
        **others,
    }
    sums = np.ones((2, given["variants"])), np.empty((0, 4)), np.empty((0, 4)), given["excluded"]
    sizes = given["variants"], 2, 0.38, (("a", 0),)
    return native().rank(given["values"], *sums, *sizes, codes, numbers, given["first"])


def test_numpy_and_the_launcher_set_the_same_rows() -> None:
    found = []
    for is_native in (False, True):
        made = rows(program(), TARGETS)
        if is_native:
            assert rank_by(made, made.codes, [*NUMBERS, *TILES]) == [(2.0, "a", 0)]
        else:
            made.run([*NUMBERS, *TILES])
        assert (made.values[:2] == 1).all(), "the caller's own rows"
        assert made.mask() is not None and made.mask().tolist() == [False, False, False, True]
        for index, (name, values) in enumerate(expected().items()):
            wrong = np.abs(made.values[2 + index] - values)
            assert wrong.max() < 1e-12, (name, int(wrong.argmax()), made.values[2 + index], values)
        found.append(made.values[: 2 + len(TARGETS)].copy())
    assert (found[0] == found[1]).all()


def test_variants_whose_row_is_not_0_are_excluded() -> None:
    made = rows(program(), [])
    assert rank_by(made, made.codes, [1.0, 2.0, *TILES]) == [(2.0, "a", 0)]
    assert rank_by(made, made.codes, [1.0, 0.5, *TILES]) == [(np.inf, "a", 0)]


def test_only_steps_that_targets_need_are_run() -> None:
    text = Program("a = height + add\nb = a * a\nunread = height / add", ["add"])
    assert [step.target for step in text.steps_for(["b"])] == ["a", "b"]
    made = rows(text, ["b"])
    assert len(made.codes) == 2 and made.mask() is None
    made.run([2.0])
    assert made.values[2].tolist() == [9.0, 20.25, 25.0, 100.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("height", "expected name = expression"),
        ("a.b = height", "expected name = expression"),
        ("a = height ** 2", "expected one of"),
        ("a = sqrt(height)", "expected one of"),
        ("a = ceil(height, add)", "expected one of"),
        ("a = minimum(height)", "expected one of"),
        ("a = height > add", "expected an operation"),
        ("a = 'text'", "expected an operation"),
        ("a = height\na = a + add", "a is set twice"),
        ("add = height", "add is set twice"),
        ("b = a\na = height", "a is read before it is set"),
    ],
)
def test_text_that_is_no_program_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Program(text, ["add"])


def test_an_index_beyond_the_table_is_refused() -> None:
    text = Program("a = take(tiles, column)", [], "tiles")
    for column in ([0, 3, 0, 0], [0, -1, 0, 0]):
        with pytest.raises(ValueError, match="column must be indices below 3"):
            Rows(text, {"a": 0}, 1, {"column": column}.__getitem__, 4, 3)


def test_a_target_that_nothing_sets_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing sets b"):
        rows(Program("a = height", ["add"]), ["a", "b"])


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"codes": np.array([[99, 0, 0, 0]], dtype=np.int32)}, "operations on rows"),
        ({"codes": np.array([[0, -1, 0, 0]], dtype=np.int32)}, "operations on rows"),
        ({"codes": np.array([[0, 0, 0, 999]], dtype=np.int32)}, "operations on rows"),
        ({"codes": np.array([0, 0, 0], dtype=np.int32)}, "operations on rows"),
        ({"codes": np.array([[0, 0, 0, 0]])}, "steps must have elements of 4 bytes, got 8"),
        ({"numbers": [1.0] * 99}, "numbers must be at most"),
        ({"first": 999}, "numbers must be at most 0"),
        ({"excluded": 999}, "excluded must be a row"),
        ({"values": np.ones((1, 4))}, "rows must have at least 8 elements"),
        ({"values": np.ones((9, 4), dtype=np.float32)}, "rows must have elements of 8 bytes"),
    ],
)
def test_rows_and_steps_that_do_not_fit_are_refused(others: dict[str, Any], message: str) -> None:
    made = rows(program(), TARGETS)
    given = {"codes": made.codes, "numbers": [1.0] * made.num_numbers} | others
    if "values" in others:
        given |= {"codes": made.codes[:0], "numbers": [], "excluded": None, "first": 0}
    with pytest.raises(ValueError, match=message):
        rank_by(made, **given)


@pytest.mark.parametrize("numbers", [["a"], 1.0, None])
def test_numbers_that_are_none_are_refused(numbers: Any) -> None:
    made = rows(program(), TARGETS)
    with pytest.raises(TypeError):
        rank_by(made, made.codes, numbers)


def test_rows_that_cannot_be_written_are_refused() -> None:
    made = rows(program(), TARGETS)
    made.values.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        rank_by(made, made.codes, [*NUMBERS, *TILES])
