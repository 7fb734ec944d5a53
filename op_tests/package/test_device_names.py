"""Names that device code declares: they say what a value is, and a type's name is unique."""

from __future__ import annotations

import device_names
import pytest

LARGEST_SHARE = 0.01


@pytest.mark.parametrize("directory", device_names.DONE)
def test_names_say_what_they_are(directory: str) -> None:
    lines, count = device_names.poor_names(directory)
    assert count > 50 and len(lines) <= LARGEST_SHARE * count, "\n".join(lines)


def test_a_type_has_one_home() -> None:
    """Two headers with types of one name cannot be included together."""
    assert device_names.types_declared_twice() == []


def test_declarations_are_found() -> None:
    """The check can fail: each kind of declaration is seen, uses and comments are not."""
    text = """
    // const u32 comment = 1;
    template <class Param, u32 kOwn> struct Held { u32 at_, row[4]; };
    using Turned = Held;
    __device__ inline u32 most(const u32* from, Fragment (&frags)[kOwn]) {
      const auto [here, there] = swap(used.member, other_use());
      for (u32 i = 0, left = 3; i < left; ++i) call(i);
      return from[0];
    }
    """
    names = set(device_names.declared(text))
    assert names == {
        "Param",
        "kOwn",
        "Held",
        "at_",
        "row",
        "Turned",
        "most",
        "from",
        "frags",
        "here",
        "there",
        "i",
        "left",
    }
    poor = {name for name in names if device_names.is_poor(name)}
    assert poor == {"kOwn", "Held", "at_", "Turned", "most", "from", "here", "there", "left"}
    assert not any(map(device_names.is_poor, ("row_max", "lds_dst", "kRowsPerLoad", "in_bounds")))
