"""tools/bootstrap.py: a real environment from handmade wheels, and each way it can refuse."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker

import bootstrap

SOURCE = Path(bootstrap.__file__)
PATIENCE = 300


def wheel(folder: Path, name: str, version: str) -> None:
    """A wheel that pip installs and that holds nothing."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with the real bootstrap.py, tiny requirements, and a driver that prints its arguments."""
    root = tmp_path / "checkout"
    (root / "tools/requirements").mkdir(parents=True)
    (root / "tools/bundle").mkdir()
    shutil.copy(SOURCE, root / "tools")
    (root / "tools/requirements/runtime.txt").write_text("torch==9.9.9  # first\ntiny==1.0\n")
    (root / "tools/requirements/dev.txt").write_text("tinytest==1.0\n")
    (root / "tools/bundle/__init__.py").write_text("")
    (root / "tools/bundle/__main__.py").write_text("import sys\nprint('driver', *sys.argv[1:], sys.prefix)\n")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("torch", "9.9.9+cpu"), ("tiny", "1.0"), ("tinytest", "1.0")):
        wheel(wheels, name, version)
    return root


def environment(tree: Path) -> dict[str, str]:
    """pip sees the handmade wheels and nothing else."""
    only = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tree.parent / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    return {**os.environ, **only}


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call bootstrap.py of ``tree`` as make does."""
    command = [sys.executable, str(tree / "tools/bootstrap.py"), *words]
    return subprocess.run(command, env=environment(tree), capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_first_run_installs_second_starts_at_once_and_dev_is_added(tree: Path) -> None:
    first = run(tree, "plan", "--json")
    assert first.returncode == 0, first.stderr
    assert first.stdout.split() == ["driver", "plan", "--json", str(tree / ".venv")]
    assert "installing torch 9.9.9 from pip's own indexes took" in first.stderr
    second = run(tree, "plan")
    assert (second.returncode, second.stderr) == (0, "")
    marker = tree / ".venv/marker"
    marker.touch()
    dev = run(tree, "lint")
    assert dev.returncode == 0, dev.stderr
    assert "dev.txt" in dev.stderr
    assert "creating .venv" not in dev.stderr
    assert marker.exists(), "adding dev.txt must not make the environment anew"
    assert run(tree, "plan").stderr == "", "a verb that needs less than is installed has nothing to do"


def test_help_installs_nothing(tree: Path) -> None:
    asked = run(tree, "--help")
    assert asked.returncode == 0
    assert "python3 tools/bootstrap.py [VERB [ARGUMENT ...]]" in asked.stdout
    assert not (tree / ".venv").exists()
    assert run(tree).returncode == 0
    assert "driver --help" in run(tree, "--help").stdout


def test_killed_run_is_redone(tree: Path) -> None:
    command = [sys.executable, str(tree / "tools/bootstrap.py"), "plan"]
    child = subprocess.Popen(command, env=environment(tree), stderr=subprocess.DEVNULL, start_new_session=True)
    begun = tree / ".venv/bin/python"
    deadline = time.monotonic() + PATIENCE
    while not begun.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert begun.exists()
    assert not (tree / ".venv/padfree-stamp.json").exists()
    (tree / ".venv/half").touch()
    again = run(tree, "plan")
    assert again.returncode == 0, again.stderr
    assert not (tree / ".venv/half").exists(), "what a killed run left must not be used"


def test_without_a_cpu_torch_it_stops_and_names_the_switch(tree: Path) -> None:
    wheels = tree.parent / "wheels"
    (wheels / "torch-9.9.9+cpu-py3-none-any.whl").unlink()
    wheel(wheels, "torch", "9.9.9")  # what PyPI has: the CUDA build
    refused = run(tree, "plan")
    assert refused.returncode == bootstrap.Stop.exit_code
    assert "no CPU build of torch 9.9.9" in refused.stderr
    assert "ALLOW_CUDA_TORCH=1" in refused.stderr
    assert "PIP_FIND_LINKS" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize("allowed", [False, True])
def test_order_of_torch_sources(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    asked: list[list[str]] = []

    def no_such_wheel(words: list[str], phase: bootstrap.Phase) -> None:
        asked.append(words)
        raise bootstrap.PipError("ERROR: No matching distribution found for torch")

    monkeypatch.setattr(bootstrap, "run_pip", no_such_wheel)
    monkeypatch.setenv("ALLOW_CUDA_TORCH", "1" if allowed else "0")
    with pytest.raises(bootstrap.Stop):
        bootstrap.install_torch()
    version = bootstrap.pinned("torch")
    assert all("--no-deps" in words for words in asked)
    assert [words[-1] for words in asked[:2]] == [f"torch=={version}+cpu", bootstrap.CPU_INDEX]
    assert [words[-1] for words in asked[2:]] == ([f"torch=={version}"] if allowed else [])


def test_another_pip_failure_tries_no_other_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(words: list[str], phase: bootstrap.Phase) -> None:
        raise bootstrap.PipError("OSError: [Errno 28] No space left on device")

    monkeypatch.setattr(bootstrap, "run_pip", full)
    with pytest.raises(bootstrap.Stop, match="is full") as stop:
        bootstrap.install_torch()
    assert "free 3 GB" in stop.value.next_step


def test_no_network_is_named() -> None:
    stop = bootstrap.explain(bootstrap.PipError("WARNING: Retrying ... NewConnectionError(...)"))
    assert "cannot be reached" in str(stop)
    assert "PIP_FIND_LINKS" in stop.next_step


def test_unknown_pip_failure_shows_its_end() -> None:
    output = "\n".join(f"line {number}" for number in range(40))
    assert str(bootstrap.explain(bootstrap.PipError(output))).endswith("line 38\nline 39")


def test_no_compiler_stops_before_any_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(bootstrap.Stop, match="no C\\+\\+ compiler found") as stop:
        bootstrap.need_compiler()
    assert "apt-get install g++" in stop.value.next_step


def test_missing_python_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c++").write_text("#!/bin/sh\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(bootstrap.Stop, match=r"Python\.h") as stop:
        bootstrap.need_compiler()
    assert "-dev" in stop.value.next_step


def test_old_python_hands_over_to_a_newer_one_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, code in (("python3.13", 127), ("python3.12", 0)):  # the first is a version manager's empty stub
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    called: list[str] = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.version_info", (3, 9, 2, "final", 0))
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)  # or it would leave the .venv these tests run in
    monkeypatch.setattr("os.execv", lambda path, words: called.append(path))
    with pytest.raises(bootstrap.Stop):  # execv does not come back; the stand-in does
        bootstrap.use_new_python()
    assert called == [str(tmp_path / "python3.12")]


def test_old_python_alone_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.version_info", (3, 9, 2, "final", 0))
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)  # or it would leave the .venv these tests run in
    with pytest.raises(bootstrap.Stop, match=r"needs Python 3\.11 or newer, found 3\.9\.2") as stop:
        bootstrap.use_new_python()
    assert "PYTHON=" in stop.value.next_step


def test_an_old_python_can_read_it() -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 7))


@pytest.mark.parametrize("name", ["runtime", "dev"])
def test_every_requirement_is_pinned_to_what_runs_here(name: str) -> None:
    lines = (SOURCE.parent / "requirements" / f"{name}.txt").read_text().splitlines()
    pins = [line.split("#")[0].strip() for line in lines]
    for pin in filter(None, pins):
        words, _, only_on = pin.partition(";")
        if only_on and not Marker(only_on).evaluate():
            continue
        package, equal, version = words.partition("==")
        assert equal, f"{pin} is not pinned"
        assert importlib.metadata.version(package).split("+")[0] == version
