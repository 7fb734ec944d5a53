"""The checking mode guards what is the host's: stores of a kernel that would damage it are found,
and do not take place.

All cases run in one process for each level, which has to live on: without the guard its heap is
broken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.vgpu.hip import ILLEGAL_ADDRESS, compile_hip

LEVELS = ["1", "error"]
FLOATS = 102  # 408 bytes: most blocks end there, and malloc's next record follows
# poke: lane i writes i to to[at + i], for i below n. peek reads there.
KERNELS = """
extern "C" __attribute__((global)) void poke(float* to, long at, int n) {
  const int i = __builtin_amdgcn_workitem_id_x();
  if (i < n) to[at + i] = i;
}
extern "C" __attribute__((global)) void peek(float* to, float* from, long at, int n) {
  const int i = __builtin_amdgcn_workitem_id_x();
  if (i < n) to[i] = from[at + i];
}
"""
CHILD = Path(__file__).parent / "sources" / "host_child.py"


@pytest.fixture(scope="module", params=LEVELS)
def said(
    request: pytest.FixtureRequest, vgpu_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict]:
    """What each case of host_child.py has said."""
    folder = tmp_path_factory.mktemp("host")
    image = compile_hip(KERNELS, "gfx950", folder)
    (folder / "kernels.co").write_bytes(image)
    (folder / "pokes.hip").write_text(KERNELS)
    (folder / "config.json").write_text(json.dumps({"pokes": {"srcs": ["pokes.hip"]}}))
    env = {"RFOPS_VGPU_CHECK": request.param, "RFOPS_HIP_LIBRARY": str(vgpu_path)}
    env |= {"RFOPS_VGPU_ARCH": "gfx950", "RFOPS_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder), str(FLOATS)],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cases = dict(json.loads(line) for line in done.stdout.splitlines())
    return {**cases, "level": request.param}


def assert_stopped(case: dict, *words: str) -> None:
    (finding,) = case["found"]
    assert finding["kind"] == "out of bounds" and finding["instruction"].startswith("global_store")
    for word in words:
        assert word in finding["detail"], finding
        assert word in case["error"], case["error"]
    assert "outside the kernel's memory" in case["error"], case["error"]
    assert case["status"] == ILLEGAL_ADDRESS


@pytest.mark.parametrize("more", [1, 2, 25])
def test_behind_a_bare_pointer(said: dict[str, dict], more: int) -> None:
    """Nobody has told of the tensor's end; malloc's record is there."""
    case = said[f"behind_{more}"]
    assert_stopped(case, "0 bytes after the end of the block of 408 bytes")
    assert case["found"][0]["lane"] == 10 and case["rest"] == 0


def test_in_front_of_a_bare_pointer(said: dict[str, dict]) -> None:
    """The record of the block itself."""
    assert_stopped(said["front"], "malloc's data after a block")


def test_a_read_is_found_and_takes_place(said: dict[str, dict]) -> None:
    case = said["read"]
    (finding,) = case["found"]
    assert finding["kind"] == "out of bounds" and "reads 4 bytes" in finding["detail"]
    assert case["wrote"] and bool(case["status"]) == (said["level"] == "error")


def test_freed_memory(said: dict[str, dict]) -> None:
    assert_stopped(said["freed"], "free memory of malloc's heap")


def test_behind_a_mapped_block(said: dict[str, dict]) -> None:
    """Blocks of 40 MB are mappings of their own, and follow one another."""
    assert_stopped(said["mapped"], "malloc's data before a block")
    assert said["mapped"]["found"][0]["lane"] == 10 and said["mapped"]["first"] == 0


@pytest.mark.parametrize(("where", "words"), [("stack", "host's stack"), ("libc", "data of /")])
def test_stack_and_libraries(said: dict[str, dict], where: str, words: str) -> None:
    assert_stopped(said[where], words)


def test_any_block_of_the_heap_may_be_a_kernels(said: dict[str, dict]) -> None:
    """Pointers to the middle of a block, and to others: a pointer may stand in memory."""
    case = said["blocks"]
    assert case["status"] == 0 and not case["found"], case
    assert case["sums"] == [2016, 2016]


def test_a_zero_among_the_arguments_is_no_block(said: dict[str, dict]) -> None:
    """Each word of the arguments may be a pointer to a block, whose size stands in front of it."""
    case = said["zero"]
    assert case["status"] == 0 and not case["found"], case
    assert case["sums"] == [2016]


def test_behind_a_tensor_of_an_op(said: dict[str, dict]) -> None:
    """rfops tells of the tensors of its own launches: their ends are known to the byte. As errors
    nothing is written behind them, be it harmful or not."""
    case = said["tensor"]
    (finding,) = case["found"]
    assert finding["kind"] == "out of bounds" and finding["lane"] == 10
    assert "0 bytes after the end of the registered memory" in finding["detail"]
    if said["level"] == "error":
        assert_stopped(case)
        assert case["wrote"] == 0 and "poke" in case["failed"], case
    else:
        assert case["wrote"] == sum(range(10, 20)) and not case["failed"]


def test_a_tensor_of_an_op_that_ends_where_malloc_goes_on(said: dict[str, dict]) -> None:
    assert_stopped(said["tensor_end"], "after the end of the registered memory")
    assert "outside the kernel's memory" in said["tensor_end"]["failed"]
