"""A forked process of the tests (support/process.py) is what `python -c` is."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.process import python, run

CODES = {
    "place": "import os, sys; print(os.getcwd(), sys.argv, sys.path, __name__, sys.stdin.read())",
    "main": "import __main__; x = 5; print(__main__.x, hasattr(__main__, '__file__'))",
    "environment": "import os; print(sorted(os.environ.items()), os.popen('echo $NEW').read())",
    "streams": "import os; os.system('echo out; echo err >&2'); print(os.isatty(1))",
    "c_streams": "import ctypes; ctypes.CDLL(None).printf(b'kept until the end')",
    "at_exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('waited for'))).start()",
    "status": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('why')",
    "error": "def f():\n    return 1 / 0\nf()",
    "syntax": "a b",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "signals": "from signal import *; print(getsignal(SIGINT), getsignal(SIGCHLD))",
    "files": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "temporary": "import tempfile; print(tempfile.gettempdir())",
}


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_it_is_what_a_new_process_is(code: str, tmp_path: Path) -> None:
    variables = {"NEW": "5", "TMPDIR": str(tmp_path)}
    actual = python(code, "a", 1, cwd=tmp_path, **variables)
    want = subprocess.run(
        [sys.executable, "-c", code, "a", "1"],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert actual.returncode == want.returncode
    assert actual.stdout == want.stdout
    assert actual.stderr == want.stderr


def test_a_script_has_its_file_and_folder(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    code = "import sys; print(__file__, sys.path[0], sys.argv)"
    completed = run(code, [str(file), "a"], dict(os.environ))
    assert completed.stdout == f"{file} {tmp_path} {[str(file), 'a']}\n", completed.stderr


def test_it_has_torch_and_nothing_of_ours() -> None:
    completed = python("import sys; print('torch' in sys.modules, 'rfops' in sys.modules)")
    assert completed.stdout == "True False\n"


def test_what_is_read_at_a_start_gets_one() -> None:
    completed = python(
        "import sys; print('torch' in sys.modules, sys.dont_write_bytecode)",
        PYTHONDONTWRITEBYTECODE="1",
    )
    want = "PYTHONDONTWRITEBYTECODE" in os.environ
    assert completed.stdout == f"{want} True\n"


def test_a_process_that_does_not_end() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        python("import time; print(1); time.sleep(1000)", timeout=0.3)
    with pytest.raises(subprocess.CalledProcessError):
        python("1 / 0", check=True)


def test_requests_of_several_threads() -> None:
    """Longer than the socket's buffer, so that each is sent in several parts."""
    code = "import sys; print(sys.argv[1])" + "#" * (1 << 20)
    with ThreadPoolExecutor(4) as pool:
        outputs = [run.stdout for run in pool.map(lambda n: python(code, n), range(12))]
    assert outputs == [f"{n}\n" for n in range(12)]
