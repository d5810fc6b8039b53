"""Running other programs: the command is printed, then run; its output goes to a log whose tail explains a failure."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from bundle.errors import BuildError

console = Console(stderr=True, highlight=False, soft_wrap=True)
"""Where the driver speaks. Standard output is kept for what another program reads (``plan --json``)."""

TAIL_LINES = 40
FULL_BYTES = 1 << 20
"""A failed command on a disk with less left than this failed for want of space."""

_NO_SPACE = os.strerror(errno.ENOSPC)


def say(text: str, style: str | None = None) -> None:
    """One line to the person watching; brackets in ``text`` are text."""
    console.print(text, style=style, markup=False)


def capture(command: Sequence[str], cwd: Path | None = None, *, both: bool = False) -> str | None:
    """Standard output (with ``both``, standard error too) of a question to a tool, stripped; None when the tool is
    absent or says no."""
    stderr = subprocess.STDOUT if both else subprocess.PIPE
    try:
        result = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def run(
    command: Sequence[str],
    *,
    what: str,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Print ``command``, run it, append its output to ``log``; BuildError with the log's tail when it fails.

    ``on_line`` sees each output line as it comes (for a progress bar). The command ends with us, however we end: asked
    to, so that ninja can end its compilers, which it runs in process groups of their own.
    """
    line = shlex.join(command)
    say(f"+ {line}", style="dim")
    tail: list[str] = []
    with log.open("a", encoding="utf-8") as sink:
        print(f"+ {line}", file=sink, flush=True)
        child = start(command, cwd=cwd, env=env)
        try:
            for output in child.stdout or ():
                sink.write(output)
                tail = [*tail[-(TAIL_LINES * 5) :], output.rstrip("\n")]
                if on_line is not None:
                    on_line(output)
            code = child.wait()
        except BaseException:
            _end(child)
            raise
    if code != 0:
        raise failure(what, code, tail, log)


def start(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A process group of its own, with output and errors in one pipe, that ends with us however we end."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env) if env is not None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


_prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec only what needs no lock may run
_SET_PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """Runs in the child: the kernel sends it SIGTERM when this process dies, a kill -9 included."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def failure(what: str, code: int, tail: Sequence[str], log: Path) -> BuildError:
    """The error for a program that ended with ``code``: a full disk is named as such, anything else shows its tail."""
    full = shutil.disk_usage(log.parent).free < FULL_BYTES  # cmake, for one, fails on a full disk without saying so
    if full or any(_NO_SPACE in line for line in tail):
        return no_space(what, log.parent)
    shown = "\n".join(tail[-TAIL_LINES:])
    return BuildError(f"{what} {ended(code)}:\n{shown}", hint=f"The whole output is in {log}.")


def ended(code: int) -> str:
    """How a program that ended with ``code`` failed."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"


def no_space(what: str, directory: Path) -> BuildError:
    """The error for a full disk."""
    return BuildError(
        f"{what}: no space left on the disk that holds {directory}",
        hint="Free some space, or build elsewhere with --scratch DIR and --out DIR.",
    )


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; a second holder says that it waits, then waits. A killed holder leaves no lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            say(f"waiting for {what} in process {handle.read().strip() or 'unknown'}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield
