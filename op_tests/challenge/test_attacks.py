"""Entries that attack the evaluator: each fails by name or meets a wall, the rest is judged.

All payloads are harmless. An attack is the body of `custom_kernel`, which the case's m chooses, so
that one process serves many of them; `right(data)` is what torch computes.
"""

from __future__ import annotations

import os
import socket
import textwrap
from pathlib import Path

import pytest
import torch

from rfops.challenge.channel import Launch, Record
from rfops.challenge.retime import Claim, NotTimed, check_least, replay
from rfops.challenge.verdict import Limits, Verdict
from rfops.jit.cache.files import cache_root
from support.attacks import CHANNEL, COPY, HEAD, MEMORISED, SPY
from support.entries import CASE, GOOD, TRITON, is_walled, judged_cases, marked, processes_of

FIRST_M = 65


def attacked(
    folder: Path, attacks: list[str], head: str = "", limits: Limits | None = None
) -> list[Verdict]:
    """A verdict for each attack, and a last one for an entry that is right."""
    code = HEAD + CHANNEL + GOOD.replace("def custom_kernel", "def right") + textwrap.dedent(head)
    bodies = [*attacks, "return right(data)"]
    for number, body in enumerate(bodies):
        code += f"def attack_{number}(data):\n"
        code += textwrap.indent(f"a, b, sa, sb, c = data\n{textwrap.dedent(body).strip()}", "    ")
        code += "\n\n"
    code += f"def custom_kernel(data):\n    number = data[4].shape[0] - {FIRST_M}\n"
    code += "    return globals()[f'attack_{number}'](data)\n"
    cases = [f"m: {FIRST_M + i}; n: 64; k: 128; seed: {i}" for i in range(len(bodies))]
    *verdicts, last = judged_cases(folder, code, cases, limits=limits)
    assert last.passes, last
    return verdicts


def check(verdict: Verdict, body: str, says: str, passes: bool = False) -> None:
    """One of the words, between bars, is said of the attack, and it has not passed unseen."""
    said = f"{verdict.error} {verdict.official} {verdict.untimed} {verdict.named}"
    assert verdict.passes == passes, f"{body}: {said}"
    assert any(word in said for word in says.split("|")), f"{body}: {said}"


# ---------------------------------------------------------------- results that are none

RESULTS = [
    ("return torch.zeros(1, device='cuda').expand(1 << 40)", "a tensor of 4398046511104 bytes"),
    ("return torch.empty(64, 64, device='meta')", "on meta"),
    ("return c.to_sparse()", "layout torch.sparse_coo"),
    ("return [1, 'two', None]", "returned no tensor"),
    ("return torch.empty(0, 64)", "shape (0, 64), expected (69, 64)"),
    ("return right(data).view(torch.float8_e4m3fn)", "shape (70, 128), expected (70, 64)"),
    ("return (right(data),) * 300", "expected 1 tensors, got 300"),
    ("raise ValueError('\\x1b[2J\\x1b[H\\npass  m: 64')", "ValueError: ?[2J?[H"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
]


# ---------------------------------------------------------------- times

TIMES = [
    ("return copied(right(data))", "torch computed, which has no time here"),
    ("return copied(hidden(data))", "what it launched does not compute the result"),
    ("copied(c); return hidden(data)", "what it launched does not compute the result"),
    (
        "library = ctypes.CDLL('libamdhip64.so')\n"
        "library.rfops_vgpu_observe_launches(None)\nreturn copied(hidden(data))",
        "no kernel was launched",
    ),
]


@pytest.mark.sweep
def test_a_clock_that_the_entry_sets(tmp_path: Path) -> None:
    """Its own process's clock, model and options say nothing of the time."""
    case = "m: 64; n: 64; k: 128; seed: 3"
    (plain,) = judged_cases(tmp_path, TRITON, [case])
    patch = """
    import ctypes, os, sys, time
    library = ctypes.CDLL("libamdhip64.so")
    library.rfops_vgpu_timing(b"part=MI325X kind=graph cold=0")
    os.environ["RFOPS_VGPU_TIMING_SET"] = "floor_profiler=0"
    time.monotonic = time.perf_counter = time.time = lambda: 0.0
    vgpu = sys.modules["rfops.vgpu"]
    vgpu.modelled_ms = lambda: 0.0
    """
    (patched,) = judged_cases(tmp_path, textwrap.dedent(patch) + TRITON, [case])
    assert plain.passes and patched.passes
    assert patched.us[0] == pytest.approx(plain.us[0], rel=0.02)  # which pages memory lies in


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ((1 << 47) - 4096, "no process has its addresses free"),
        (1 << 44, "do not run without its process: "),
    ],
)
def test_records_that_cannot_be_replayed(address: int, says: str) -> None:
    """Memory where no process may have any, and a code object that is none."""
    launch = Launch(0, "kernel", (1, 1, 1), (64, 1, 1), 0, b"")
    claim = Claim(Record([launch], [4], [address], []), [bytearray(b"code")], [], "tensor")
    with pytest.raises(NotTimed, match=says):
        replay(claim, [memoryview(bytearray(64))], "gfx942", 1 << 30, 60.0, is_walled())


@pytest.mark.parametrize("us", [[1.0], [2.5, 0.5], [float("nan")], [float("inf")], [-5.0]])
def test_times_that_no_kernel_has(us: list[float]) -> None:
    """Were a kernel to break out of the simulator."""
    check_least([2.5] * len(us), torch.zeros(8))
    with pytest.raises(NotTimed, match="the least is"):
        check_least(us, torch.zeros(8))


@pytest.mark.sweep
def test_a_kernel_that_knows_the_inputs(tmp_path: Path) -> None:
    """Its time with others counts."""
    (verdict,) = judged_cases(tmp_path, MEMORISED, ["m: 64; n: 64; k: 2048; seed: 1"])
    (named,) = verdict.named
    assert "us on the case's own inputs" in named and named.endswith(" on others, which count")
    assert len(verdict.us) == 1 and verdict.us[0] > 1.1 * float(named.split()[0]), verdict


# ---------------------------------------------------------------- the protocol

REPLIES = [
    ("forge(type='Reply', nonce=nonce(), us=-5.0); return c", "wrote over|two processes|no tensor"),
    ("forge(type='Reply', nonce=nonce(), us='fast')", "wrote over"),
    ("forge(type='Reply', nonce=-1)", "two processes answered"),
    ("forge(type='Ready')", "Ready instead of Reply"),
    ("channel().sendall(START + b'{}' * 100)", "a message of"),
    ("channel().sendall(struct.pack('<8sQ', START, 4) + b'NaN!')", "wrote over"),
    (
        "forge(type='Reply', nonce=nonce(), kind='tensor', results=[dict(dtype='bfloat16', "
        "shape=[1 << 30, 64], stride=[64, 1], address=0)])",
        "a result of shape",
    ),
    (
        "forge(type='Reply', nonce=nonce(), results=[dict(dtype='Tensor', shape=[1], stride=[1], "
        "address=0)])",
        "a tensor of 'Tensor'",
    ),
    (
        "forge(type='Reply', nonce=nonce(), results=[dict(dtype='uint8', shape=[0, 1 << 62], "
        "stride=[1, 1], address=0)])",
        "wrote over",
    ),
    (
        "forge(type='Reply', nonce=nonce(), record=dict(launches=[], codes=[1 << 46], inputs=[], "
        "writes=[]))",
        "a record of",
    ),
    ("channel().shutdown(socket.SHUT_RDWR); time.sleep(60)", "before it answered"),
    ("os.closerange(3, 4096); time.sleep(60)", "before it answered"),
    ("end = channel()\nwhile True: end.sendall(b'\\0' * 65536)", "wrote over|hangs"),
    (
        "end = channel(); end.sendall(START)\nwhile True: end.sendall(b'\\1'); time.sleep(.1)",
        "a message of 7234",
    ),
    ("channel().sendall(b'x\\n'); return c", "no message begins there"),
    (
        "end = channel(); end.sendall(struct.pack('<8sQ', START, 1 << 20))\n"
        "while True: end.sendall(b'[' * 64); time.sleep(.1)",
        "no answer within 20 s",
    ),
    ("os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)", "no answer within 20 s"),
    ("os.execv('/bin/sleep', ['sleep', '60'])", "no answer within 20 s|before it answered"),
]


@pytest.mark.sweep
def test_forged_replies(tmp_path: Path) -> None:
    verdicts = attacked(tmp_path, [body for body, _ in REPLIES], limits=Limits(seconds=20))
    for verdict, row in zip(verdicts, REPLIES, strict=True):
        check(verdict, *row)


# ---------------------------------------------------------------- the walls

DELETE = """
for name in os.listdir():
    shutil.rmtree(name, ignore_errors=True)
shutil.rmtree("/", ignore_errors=True)
return right(data)
"""


def test_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are none, times of kernels that compute nothing, a forged reply, and, where
    there are walls, what an entry may not reach: one process serves all but the forger, in the
    folder of which the user has started the evaluator."""
    checkout, token = tmp_path / "checkout", marked(monkeypatch)
    checkout.mkdir()
    (checkout / "work.py").write_text("a day's work")
    (tmp_path / ".ssh").mkdir()
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(cache_root().parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "secret")
    name = f"rfops-test-{os.getpid()}"
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as named:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        named.bind(f"\0{name}")
        named.listen()
        port = listener.getsockname()[1]
        spy = f"spied({port}, {str(tmp_path)!r}, {name!r}); return right(data)"
        rows = [*RESULTS, *TIMES, *((spy, ""), (DELETE, "")) * is_walled(), REPLIES[6]]
        verdicts = attacked(tmp_path, [body for body, _ in rows], SPY + COPY)
    for verdict, row in zip(verdicts, rows, strict=True):
        check(verdict, *row, passes=row not in (*RESULTS, *REPLIES))
        assert not verdict.us
    assert (checkout / "work.py").read_text() == "a day's work"
    assert not processes_of(token)


MEMORY = [
    (
        "for name in 'xy':\n    fd = os.memfd_create(name)\n"
        "    for _ in range(600): os.write(fd, bytes(1 << 20))\ntime.sleep(5); return c",
        "MiB of memory, limit 1024 MiB",
    ),
    (
        "for n in range(60): Path(f'/dev/shm/{n}').write_bytes(bytes(20 << 20))\n"
        "time.sleep(5); return c",
        "MiB of memory, limit 1024 MiB",
    ),
    ("x = torch.ones(1 << 29); time.sleep(9); return c", "MiB of memory, limit 1024 MiB"),
    (
        "for n in range(60): Path(f'/tmp/{n}').write_bytes(bytes(20 << 20))\n"
        "time.sleep(5); return c",
        "MiB of memory, limit 1024 MiB",
    ),
    ("[os.fork() for _ in range(9)]; time.sleep(60)", "at most 64 are let run|MiB of memory"),
    (
        "def wait(): time.sleep(60)\nthreading.stack_size(65536)\n"
        "for _ in range(5000): threading.Thread(target=wait, daemon=True).start()\ntime.sleep(9)",
        "threads, at most 4096|can't start new thread",
    ),
    ("Path('/dev/shm/x').write_bytes(bytes(5 << 20)); os._exit(3)", "left 5 MiB in /dev/shm"),
    (
        "subprocess.Popen(['/bin/sleep', '60'], start_new_session=True); os._exit(0)",
        "left 1 processes running",
    ),
]


@pytest.mark.sweep
def test_memory_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_walled():
        pytest.skip("without walls files in memory are nobody's")
    token = marked(monkeypatch)
    shared = set(Path("/dev/shm").iterdir())
    verdicts = attacked(tmp_path, [body for body, _ in MEMORY], limits=Limits(memory=1 << 30))
    for verdict, row in zip(verdicts, MEMORY, strict=True):
        check(verdict, *row)
    assert not processes_of(token)
    assert not [file for file in Path("/dev/shm").glob("[0-9]*") if file not in shared]


@pytest.mark.sweep
def test_a_hanging_import(tmp_path: Path) -> None:
    limits = Limits(seconds=60, import_seconds=8)
    (verdict,) = judged_cases(tmp_path, "import time\ntime.sleep(600)\n", [CASE], limits=limits)
    assert verdict.error == "at import: no answer within 8 s: it hangs"


IMPORTED = """
import importlib, torch
def inputs():
    challenge = importlib.import_module("rfops" + ".challenge")
    return challenge.problem("fp8-mm")
PROBLEM = inputs()
KEPT = {}
for m, seed in ((64, 1), (64, 14)):
    data = PROBLEM.generate(dict(m=m, n=64, k=128, seed=seed))
    KEPT[bytes(data[0].view(torch.uint8).flatten()[:64].tolist())] = PROBLEM.reference(data)

def custom_kernel(data):
    return KEPT.get(bytes(data[0].view(torch.uint8).flatten()[:64].tolist()), data[4])
"""


@pytest.mark.sweep
def test_results_computed_at_import(tmp_path: Path) -> None:
    """Of seeds that it can know: the second call's is none of them."""
    (verdict,) = judged_cases(tmp_path, IMPORTED, [CASE])
    assert "beyond rtol" in verdict.official and not verdict.us
