"""Calls in forked processes: what comes back, what fails and how, and that none outlives the one that waits.

Each script is a process of its own: what pytest runs in may have threads, which a fork must not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.options import REPOSITORY

FORKS = """
import functools, os, signal, threading
from bundle import forked
from bundle.errors import BundleError, CheckError, UsageError
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
"""


def started(script: str, *words: str) -> subprocess.Popen[str]:
    command = (sys.executable, "-c", FORKS + script, *words)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output(script: str) -> str:
    """What a script prints; it must end well."""
    process = started(script)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    return text


def test_the_result_comes_back_and_nothing_else() -> None:
    script = """
kept = [1]
def change():
    kept.append(2)
    return kept, os.getpid()
(seen, child), again = forked.call(change, "a"), forked.call(change, "b")[0]
print(seen, again, kept, child != os.getpid())
"""
    assert output(script) == "[1, 2] [1, 2] [1] True\n"


@pytest.mark.parametrize(
    ("body", "caught", "pattern"),
    [
        ("raise UsageError('wanted x', hint='see y')", "UsageError", r"wanted x see y\n"),
        ("[][1]", "CheckError", r"(?s)Traceback .* in fails\n.*IndexError: list index out of range None\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "CheckError", r"the row was killed by SIGKILL None\n"),
        ("os._exit(3)", "CheckError", r"the row failed with exit code 3 None\n"),
    ],
)
def test_a_failure_is_raised_here(body: str, caught: str, pattern: str) -> None:
    script = f"""
def fails():
    {body}
try:
    forked.call(fails, "the row")
except {caught} as error:
    print(error.message, error.hint)
print(forked.call(lambda: "goes on", "the next"))
"""
    assert re.fullmatch(f"{pattern}goes on\n", output(script))


def test_a_process_with_other_threads_is_refused() -> None:
    script = """
forked.check_alone()
stop = threading.Event()
threading.Thread(target=stop.wait).start()
try:
    forked.check_alone()
except CheckError as error:
    print(error.message)
stop.set()
"""
    assert output(script) == "this process must have one thread when it forks, got 2\n"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_none_outlives_the_process_that_waits(tmp_path: Path, sent: signal.Signals) -> None:
    file = tmp_path / "pid"
    script = """
import sys, time
def waits():
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(600)
forked.call(waits, "a long one")
"""
    process = started(script, str(file))
    try:
        wait_until(file.exists)
        process.send_signal(sent)
        process.communicate(timeout=30)
        wait_until(lambda: not lives(int(file.read_text(encoding="utf-8"))))
    finally:
        process.kill()
    assert process.returncode == -sent


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie, which nobody may be left to collect."""
    with contextlib.suppress(FileNotFoundError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return False
