"""A call in a process of its own, forked from this one: it finds here what was imported, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from bundle import process
from bundle.errors import BundleError, CheckError

T = TypeVar("T")

_context = multiprocessing.get_context("fork")


def check_alone() -> None:
    """CheckError where this process has other threads: a fork has none of them, but waits for them all the same (the
    thread pool of OpenMP, for one, whose first parallel region in the fork would never end)."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise CheckError(
            f"this process must have one thread when it forks, got {threads}", hint="Something imported starts some."
        )


def call(function: Callable[[], T], what: str) -> T:
    """What ``function`` returns in a fork of this process, which ends with us however we end.

    A BundleError in there is raised here; CheckError with the traceback for any other exception, and where ``what``
    ends without an answer.
    """
    receiver, sender = _context.Pipe(duplex=False)
    child = _context.Process(target=_answer, args=(function, sender), daemon=True)
    child.start()
    sender.close()
    try:
        answer, error = receiver.recv()
    except EOFError:
        child.join()
        raise CheckError(f"{what} {process.ended(child.exitcode or 0)}") from None
    except BaseException:
        child.kill()
        raise
    finally:
        child.join()
        receiver.close()
    if error is not None:
        raise error
    found: T = answer
    return found


def _answer(function: Callable[[], T], sender: Connection) -> None:
    """Runs in the fork. An interrupt at the terminal reaches both processes; the one that waits ends the other."""
    process.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer, error = None, None
    try:
        answer = function()
    except BundleError as raised:
        error = raised
    except Exception:
        error = CheckError(traceback.format_exc().rstrip())
    sender.send((answer, error))
