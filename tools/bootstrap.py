"""Creates .venv with the pinned dependencies, then runs one driver verb in it.

    python3 tools/bootstrap.py [VERB [ARGUMENT ...]]

VERB is demo, test, bench, lint or another: once .venv is there, `--help` lists them all.

Standard library only, and syntax that an old python3 can still read, so that it can say what is missing. A stamp inside
.venv is written last: a second run finds it and starts at once, and a run that was killed leaves none, so the next one
builds the environment anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "padfree-stamp.json"
LOG = ROOT / ".bundle" / "bootstrap.log"
REQUIREMENTS = ROOT / "tools" / "requirements"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MIN_PYTHON = (3, 11)
NEWER_PYTHONS = ("python3.13", "python3.12", "python3.11")
DEV_VERBS = ("test", "lint")
COMPILING_VERBS = ("demo", "test", "bench", "build")
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "Network is unreachable",
    "Max retries exceeded",
)
TAIL_LINES = 15


class Stop(Exception):
    """The environment cannot be made. ``next_step`` is what the person does about it."""

    exit_code = 5  # the driver's code for a missing tool

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


class PipError(Exception):
    """pip ended with an error; ``output`` is all it said."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


class Phase:
    """One line on the terminal for one step: what is being done, then how long it took.

    On a terminal the line also shows, while the step runs, the seconds so far and the last line pip wrote.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.detail = ""
        self._done = threading.Event()
        self._live = sys.stderr.isatty()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Phase:
        self._start = time.monotonic()
        if self._live:
            self._ticker.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._done.set()
        if self._live:
            self._ticker.join()
            sys.stderr.write("\r\x1b[K")
        end = "failed after" if kind else "took"
        print(f"bootstrap: {self.title} {end} {time.monotonic() - self._start:.1f} s", file=sys.stderr, flush=True)

    def _tick(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        while not self._done.wait(0.25):
            line = f"bootstrap: {self.title} {time.monotonic() - self._start:3.0f} s  {self.detail}"
            sys.stderr.write("\r\x1b[K" + line[:width])
            sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Make the environment, then become the driver; without a verb only make the environment."""
    verb = arguments[0] if arguments else ""
    if verb in ("-h", "--help") and not read_stamp():  # nothing to install for a question
        print(__doc__, end="")
        return 0
    try:
        use_new_python()
        if verb in COMPILING_VERBS:
            need_compiler()
        ensure(["runtime", "dev"] if verb in DEV_VERBS else ["runtime"])
    except Stop as stop:
        print(f"bootstrap: {stop}\n  next: {stop.next_step}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("\nbootstrap: interrupted; run the same command again", file=sys.stderr)
        return 130
    if arguments:
        become_driver(arguments)
    return 0


def become_driver(arguments: list[str]) -> NoReturn:
    """Replace this process by ``python -m bundle`` in .venv."""
    environment = clean_environment()
    environment["VIRTUAL_ENV"] = str(VENV)
    environment["PATH"] = os.pathsep.join([str(VENV / "bin"), environment.get("PATH", os.defpath)])
    os.execve(venv_python(), [venv_python(), "-P", "-m", "bundle", *arguments], environment)


def use_new_python() -> None:
    """Go on in a Python of at least MIN_PYTHON: this one, else the newest on PATH, else stop."""
    if sys.platform != "linux":
        raise Stop(f"needs Linux, this is {sys.platform}", "use a Linux machine, a container or WSL.")
    if Path(sys.prefix).resolve() == VENV:  # activated: the Python it was made from can make it anew
        base = os.path.realpath(sys.executable)
        os.execv(base, [base, __file__, *sys.argv[1:]])
    if sys.version_info[:2] >= MIN_PYTHON:
        return
    for name in NEWER_PYTHONS:
        path = shutil.which(name)
        # A name on PATH may be a version manager's stub for a Python that is not installed: ask it.
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            os.execv(path, [path, __file__, *sys.argv[1:]])
    raise Stop(
        "needs Python 3.11 or newer, found {}.{}.{} at {}".format(*sys.version_info[:3], sys.executable),
        "install python3.11 (Debian, Ubuntu: apt-get install python3.11 python3.11-venv), or name one: "
        "make demo PYTHON=/path/to/python3.11",
    )


def need_compiler() -> None:
    """Stop before anything is downloaded when the build could not work afterwards."""
    compiler = os.environ.get("CXX", "").split()
    if not any(shutil.which(name) for name in (compiler[:1] or ["c++", "g++", "clang++"])):
        raise Stop(
            "no C++ compiler found" + (f" under the name in CXX ({compiler[0]})" if compiler else ""),
            "install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or set CXX.",
        )
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        version = "{}.{}".format(*sys.version_info[:2])
        raise Stop(
            f"the headers of {sys.executable} (Python.h) are missing",
            f"install them (Debian, Ubuntu: apt-get install python{version}-dev; Fedora: dnf install python3-devel).",
        )


def ensure(sets: list[str]) -> None:
    """Bring .venv to the pinned state of the requirement files ``sets``; nothing to do when the stamp says so."""
    LOG.parent.mkdir(exist_ok=True)
    with (LOG.parent / "bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        have, want = read_stamp(), wanted_stamp(sets)
        if all(have.get(key) == value for key, value in want.items()):
            return
        fresh = any(have.get(key) != want[key] for key in ("python", "root", "runtime"))
        STAMP.unlink(missing_ok=True)
        LOG.unlink(missing_ok=True)
        if fresh:
            create_venv()
            install_torch()
        for name in (name for name in sets if fresh or have.get(name) != want[name]):
            with Phase(f"installing tools/requirements/{name}.txt") as phase:
                pip_or_stop(["install", "-r", str(REQUIREMENTS / f"{name}.txt")], phase)
        with Phase("checking the environment") as phase:
            pip_or_stop(["check"], phase)
        write_stamp(want if fresh else {**have, **want})


def wanted_stamp(sets: list[str]) -> dict[str, str]:
    """What the stamp says of a finished environment; a moved checkout or another Python is another environment."""
    digests = {name: hashlib.sha256((REQUIREMENTS / f"{name}.txt").read_bytes()).hexdigest() for name in sets}
    return {"python": f"{sys.version} {sys.base_prefix}", "root": str(ROOT), **digests}


def read_stamp() -> dict[str, str]:
    """The stamp of the environment, empty when there is none that can be used."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    usable = isinstance(stamp, dict) and os.path.exists(venv_python())
    return stamp if usable else {}


def write_stamp(stamp: dict[str, str]) -> None:
    """Write the stamp whole or not at all."""
    part = STAMP.with_suffix(".part")
    part.write_text(json.dumps(stamp, indent=1) + "\n")
    part.replace(STAMP)


def create_venv() -> None:
    """A new .venv from the running Python, which can import the driver from tools/."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = "{}.{}".format(*sys.version_info[:2])
        raise Stop(
            f"{sys.executable} cannot make virtual environments (no venv or ensurepip module)",
            f"install it (Debian, Ubuntu: apt-get install python{version}-venv).",
        )
    with Phase(f"creating .venv with Python {sys.version.split()[0]}"):
        shutil.rmtree(VENV, ignore_errors=True)
        made = subprocess.run(
            [sys.executable, "-m", "venv", str(VENV)],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise Stop(
                f"python -m venv failed: {(made.stderr or made.stdout).strip()}", "mend that, then run it again."
            )
        purelib = sysconfig.get_path("purelib", "venv", {"base": str(VENV)})
        Path(purelib, "padfree-bundle.pth").write_text(f"{ROOT / 'tools'}\n")


def install_torch() -> None:
    """torch as a CPU wheel: from pip's own indexes and find-links, else from PyTorch's CPU index, else stop.

    PyPI's x86_64 wheel is a CUDA build of gigabytes; it is taken only where ALLOW_CUDA_TORCH=1 asks for it.
    """
    version = pinned("torch")
    sources = [
        ("pip's own indexes", [f"torch=={version}+cpu"]),
        ("PyTorch's CPU index", [f"torch=={version}+cpu", "--index-url", CPU_INDEX]),
    ]
    if os.environ.get("ALLOW_CUDA_TORCH") == "1":
        sources.append(("pip's own indexes, CUDA build", [f"torch=={version}"]))
    for source, words in sources:
        try:
            with Phase(f"installing torch {version} from {source}") as phase:
                # Its dependencies are pinned in runtime.txt and come with it.
                run_pip(["install", "--no-deps", "--retries", "2", *words], phase)
        except PipError as error:
            if "No matching distribution" not in error.output:
                raise explain(error) from error
        else:
            return
    raise Stop(
        f"no CPU build of torch {version} for Python {sys.version.split()[0]}: neither pip's own indexes nor "
        f"{CPU_INDEX} have torch=={version}+cpu (what pip said: {LOG})",
        "connect this machine to the network, or put the wheel in a folder and set PIP_FIND_LINKS=/that/folder, "
        "or set ALLOW_CUDA_TORCH=1 to take PyPI's CUDA build (gigabytes).",
    )


def pinned(name: str) -> str:
    """The version that runtime.txt pins ``name`` to."""
    for line in (REQUIREMENTS / "runtime.txt").read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.split("#")[0].strip().partition("==")[2]
    raise Stop(f"tools/requirements/runtime.txt must pin {name}, and does not", "restore that file from git.")


def pip_or_stop(words: list[str], phase: Phase) -> None:
    """pip, with its failure explained."""
    try:
        run_pip(words, phase)
    except PipError as error:
        raise explain(error) from error


def run_pip(words: list[str], phase: Phase) -> None:
    """Run pip in .venv: its output goes to the log, its last line to the phase; PipError when it fails."""
    command = [venv_python(), "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    said: list[str] = []
    with LOG.open("a") as log:
        print("+", " ".join(command), file=log, flush=True)
        child = subprocess.Popen(
            command,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            for line in child.stdout or ():
                log.write(line)
                said.append(line)
                phase.detail = line.strip()
            code = child.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            child.wait()
            raise
    if code != 0:
        raise PipError("".join(said))


def explain(error: PipError) -> Stop:
    """What a failed pip means for the person who waits."""
    if "No space left on device" in error.output:
        return Stop(f"the disk that holds {VENV} (or TMPDIR) is full", "free 3 GB, then run it again.")
    if any(sign in error.output for sign in NO_NETWORK):
        return Stop(
            f"the package index cannot be reached (what pip said: {LOG})",
            "connect this machine, or set PIP_INDEX_URL to a mirror or PIP_FIND_LINKS to a folder of wheels.",
        )
    tail = "\n".join(error.output.splitlines()[-TAIL_LINES:])
    return Stop(f"pip failed:\n{tail}", f"the whole output is in {LOG}.")


def clean_environment() -> dict[str, str]:
    """The environment without what would make another Python's packages visible in .venv."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}


def venv_python() -> str:
    """The interpreter inside .venv."""
    return str(VENV / "bin" / "python")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
