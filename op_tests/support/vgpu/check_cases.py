"""Pieces of assembly with one planted defect each, and clean ones, for test_vgpu_check.py.

They lie in vgpu/check/sources, a file a kind of finding, and in check_hazards.py. A piece starts
with s[4:5]: output, s[6:7]: input, v0: number in the block, v1: 4 * v0, s16: the wave. v3 and v5 to
v7 are 0, v4 is 1, s[8:11] and m0 are 0. Lines `//:` say what the finding must have:

    //: case <name>
    //: says <words of its text>
    //: at wave <w>, lane <l>, address <number, or input+number>
    //: run <n> waves, fresh input, faults
    //: fix <instruction in the place of the line `<fix>`, which makes it clean>
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from support import OP_TESTS
from support.vgpu import check_hazards as hazards
from support.vgpu.asm import source_of

BYTES = 4000  # of each buffer: less than a page, so that what lies behind is mapped
MARKER = "// here"
FOLDER = OP_TESTS / "vgpu/check/sources"
KINDS = {
    "memory": "out of bounds",
    "waits": "missing wait",
    "races": "LDS race",
    "undefined": "uninitialised",
    "barriers": "barrier divergence",
}

HEAD = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 2, v0
  v_lshrrev_b32 v2, 6, v0
  v_readfirstlane_b32 s16, v2
  v_mov_b32 v3, 0
  v_mov_b32 v4, 1
  v_mov_b32 v5, 0
  v_mov_b32 v6, 0
  v_mov_b32 v7, 0
  s_mov_b64 s[8:9], 0
  s_mov_b64 s[10:11], 0
  s_mov_b32 m0, 0
  s_waitcnt lgkmcnt(0)
"""


@dataclass
class Case:
    kind: str
    body: str = ""
    fix: str = ""
    words: list[str] = field(default_factory=list)  # in the finding's text
    at: dict[str, str] = field(default_factory=dict)  # wave, lane, address
    waves: int = 1
    is_new: bool = False  # the input buffer is new: nobody has written it
    faults: bool = False

    def place(self, base: int) -> dict[str, int]:
        """Where it is found, with the input buffer at `base`."""
        split = {key: value.rpartition("+") for key, value in self.at.items()}
        return {
            key: base * bool(has_base) + int(number) for key, (has_base, _, number) in split.items()
        }

    def set(self, key: str, value: str) -> None:
        """A line `//: key value`."""
        if key == "says":
            self.words.append(value)
        elif key == "fix":
            self.fix += f"  {value}\n"
        elif key == "at":
            self.at = dict(item.split(" ") for item in value.split(", "))
        else:
            assert key == "run", key
            self.is_new, self.faults = "fresh input" in value, "faults" in value
            if match := re.search(r"(\d+) waves", value):
                self.waves = int(match[1])


def read(name: str, kind: str = "") -> dict[str, Case]:
    """The cases of vgpu/check/sources/<name>.s."""
    results: dict[str, Case] = {}
    case = Case(kind)  # of the lines in front of the first one
    for line in (FOLDER / f"{name}.s").read_text().splitlines():
        key, _, value = line.removeprefix("//: ").partition(" ")
        if not line.startswith("//: "):
            case.body += line + "\n"
        elif key == "case":
            case = results[value] = Case(kind)
        else:
            case.set(key, value)
    return results


def hazard(row: hazards.Hazard, distance: int) -> Case:
    """One wait state short; the fix is that wait state."""
    body = hazards.SETUP + f"  {row.first}" + hazards.wait_states(distance - 1)
    body += f"\n<fix>\n  {row.second}  {MARKER}\n"
    needs = f"after {distance - 1} wait states, it needs {distance}"
    short = needs if row.kind == "MFMA hazard" else "1 wait states too early"
    return Case(row.kind, body, "  s_nop 0", [row.words, short])


COMMON = {name: case for file, kind in KINDS.items() for name, case in read(file, kind).items()}
CLEAN = read("clean") | {"chains": Case("", hazards.SETUP + hazards.CLEAN)}


def cases(arch: str) -> dict[str, Case]:
    """All planted defects of an architecture."""
    distances = {name: getattr(row, arch) for name, row in hazards.HAZARDS.items()}
    return COMMON | {
        f"hazard_{name}": hazard(hazards.HAZARDS[name], distance)
        for name, distance in distances.items()
        if distance is not None
    }


def source(arch: str) -> str:
    """Both kernels of every case: `name` with the defect, `name_fixed`; and the clean ones."""
    kernels = {name: case.body for name, case in CLEAN.items()}
    for name, case in cases(arch).items():
        kernels[name] = case.body.replace("<fix>", "")
        kernels[name + "_fixed"] = case.body.replace("<fix>", case.fix)
    sources = {name: f"{HEAD}{body}\n  s_endpgm\n" for name, body in kernels.items()}
    return source_of(sources, arch, most=256, denormals=0)
