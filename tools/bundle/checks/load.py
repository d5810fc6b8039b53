"""Loads the variant with ``kernels.get_local_kernel`` in a process of its own and looks at what it registered."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bundle import compiler
from bundle.checks import Skipped, Subject
from bundle.errors import CheckError

_PROBE = """
import json, pathlib, sys
import torch
from kernels import get_local_kernel

directory, backend, namespace = sys.argv[1:]
dispatch_key = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU"}[backend]
module = get_local_kernel(pathlib.Path(directory), backend=backend)
names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(namespace + "::")]
has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
public = {name: hasattr(module, name) for name in module.__all__}
for part in list(public):
    inner = getattr(module, part, None)
    public.update((f"{part}.{name}", hasattr(inner, name)) for name in getattr(inner, "__all__", ()))
report = {
    "file": module.__file__,
    "all": sorted(public),
    "absent": [name for name, present in public.items() if not present],
    "ops": {name: has_kernel(name, dispatch_key) for name in sorted(names)},
}
print("\\n" + json.dumps(report))
"""


_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)
"""The line of a traceback that says what was raised; notes may follow it."""


@dataclass(frozen=True)
class Loaded:
    """What the loaded package said: its file, its public names, those that are not there, each op: has it a kernel?

    A public name is one in ``__all__``, or ``module.name`` for one in the ``__all__`` of a module that is.
    """

    file: str
    all: tuple[str, ...]
    absent: tuple[str, ...]
    ops: tuple[tuple[str, bool], ...]


def load(target: Subject) -> Iterator[str]:
    """The variant loads, every name of ``__all__`` exists, and on the CPU each op has a kernel (on CUDA some)."""
    try:
        loaded = report(target)
    except CheckError as error:
        yield error.message
        return
    if Path(loaded.file).parent.resolve() != target.directory.resolve():
        yield f"the loader took {loaded.file} instead"
    for name in loaded.absent:
        yield f"__all__ names {name}, which the package has not"
    if not loaded.ops:
        yield f"no op is registered in torch.ops.{target.id}"
    backend, present = target.variant.backend, [has_kernel for _, has_kernel in loaded.ops]
    if loaded.ops and backend != "cpu" and not any(present):
        yield f"no op has a {backend} implementation"
    for name, has_kernel in loaded.ops if backend == "cpu" else ():  # CUDA has some; the others are refused by name
        if not has_kernel:
            yield f"{name} has a schema but no {backend} implementation"


def report(target: Subject) -> Loaded:
    """The loaded package's own words; Skipped on a machine it is not for, CheckError when it does not load."""
    if target.variant.system not in (None, compiler.host_system()):
        raise Skipped(f"runs on {target.variant.system}, this is {compiler.host_system()}")
    return _probe(target.directory, target.variant.backend, target.id, target.site)


@functools.lru_cache(maxsize=8)
def _probe(directory: Path, backend: str, identity: str, site: Path | None) -> Loaded:
    """One process a variant, whoever asks. It computes nothing, so a CUDA variant needs no GPU to load."""
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_KERNELS"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    if not _torch_has(backend, environment):
        raise Skipped(f"the installed torch is built without {backend}")
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _PROBE, str(directory), backend, identity]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raised = _RAISED.findall(result.stderr) or result.stderr.splitlines() or [f"exit code {result.returncode}"]
        raise CheckError(f"does not load: {raised[-1]}")
    data = json.loads(result.stdout.splitlines()[-1])
    return Loaded(data["file"], tuple(data["all"]), tuple(data["absent"]), tuple(data["ops"].items()))


def _torch_has(backend: str, environment: dict[str, str]) -> bool:
    if backend == "cpu":
        return True
    code = f"import torch, sys; sys.exit(getattr(torch.version, {backend!r}, None) is None)"
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
