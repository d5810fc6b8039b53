"""``bundle torch VERSION``: run the bundle's tests with another torch than the one it was built with.

The promise of the stable ABI, one binary for every torch from 2.11 on, is only as good as the last time it was tried.
The wheel is unpacked beside the environment, without its dependencies. Most registries only have CUDA builds: these
want gigabytes of CUDA libraries merely to be imported, so empty ones are made in their place, whose every function
answers "no device". torch then computes on the CPU as usual.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bundle import buildfile, checks, compiler, matrix, options, parts, process, testing
from bundle.buildfile import BuildFile
from bundle.checks import Subject, load
from bundle.errors import CheckError, ToolchainError, UsageError
from bundle.parts import Part

_CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)[^/]*\.so[.\d]*")
_NEEDED = re.compile(r"\(NEEDED\).*\[(?P<name>[^]]+)\]")
_SYSTEM_TAG = re.compile(r"GLIBC|GCC|CXXABI|G?OMP")
_CUDA_SYMBOL = re.compile(r"(cu[A-Z]|cuda|cublas|cusparse|cudnn|cufft|curand|cusolver|nccl|nvrtc|nv|cupti|__cuda)")
_C_NAME = re.compile(r"[A-Za-z_]\w*")
_NO_DEVICE = 100  # cudaErrorNoDevice, and CUDA_ERROR_NO_DEVICE
_STUB = "libcudastub.so"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument("version", help="the torch to try, as in 2.11.0")
    parser.add_argument("pytest", nargs="*", metavar="-- PYTEST", help="words handed to pytest, after --")


def run(args: argparse.Namespace) -> int:
    """Fetch that torch once, then run the tests of the built CPU variant on it (transformers' own are left out: it
    supports what it supports). With ``--only``, CUDA variants are loaded, and their ops looked up; each once more
    beside the CPU variant, where one is built, and on a pretended GPU that it has no code for."""
    out, scratch = options.places(args)
    build = buildfile.read(args.root)
    site = unpack(args.version, scratch)
    cuda = [name for name in matrix.select(build, args.only) if name.backend == "cuda"] if args.only else []
    for variant in cuda:
        target = replace(checks.subject(out / str(variant), root=args.root), site=site)
        _load(target, imported_version(site))
        for spoken in _tried(target, out / _cpu_variant(build)):
            process.say(f"{target.variant}: {spoken}", style="green")
    if cuda:
        return 0
    environment = {"PYTHONPATH": str(site), "LOCAL_KERNELS": testing.local_kernels(build.repository, out)}
    words = ("-m", "kernels_ci", "-q", "-k", "not transformers", *args.pytest)
    command = (sys.executable, "-m", "pytest", "tests", *words)
    name = f"bundle tests, torch {imported_version(site)}"
    parts.conclude("torch", [parts.run(Part(name, command, args.root, environment))])
    return 0


def _load(target: Subject, release: str) -> None:
    """Load a CUDA variant; CheckError when a rule of the load check is broken."""
    try:
        if broken := list(load.load(target)):
            raise CheckError(f"{target.variant} on torch {release}: {'; '.join(broken)}")
    except checks.Skipped as reason:
        raise CheckError(f"{target.variant} on torch {release}: {reason}") from None
    ops = load.report(target).ops
    built = sum(has_kernel for _, has_kernel in ops)
    process.say(
        f"{target.variant}: loads on torch {release}, {built} of {len(ops)} ops have a CUDA kernel", style="green"
    )


_BESIDE = """
import pathlib, sys
import torch
from kernels import get_local_kernel

cuda = get_local_kernel(pathlib.Path(sys.argv[1]), backend="cuda")
cpu = get_local_kernel(pathlib.Path(sys.argv[2]), backend="cpu")
x, weight = torch.ones(1, 5, 7), torch.ones(5, 4)
assert cpu.causal_conv1d_fn(x, weight).sum() == 5 * (1 + 2 + 3 + 4 * 4)
try:
    cuda.causal_conv1d_fn(x, weight)
except NotImplementedError as error:
    print(error)
"""
"""Both variants of one version in one process: each keeps its ops, and the one for CUDA names the other."""

_NO_CODE = """
import pathlib, sys
import torch
from kernels import get_local_kernel

torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda.get_device_capability = lambda index=0: (7, 5)
try:
    get_local_kernel(pathlib.Path(sys.argv[1]), backend="cuda")
except RuntimeError as error:
    print(error)
"""


def _tried(target: Subject, cpu: Path) -> Iterator[str]:
    """What a CUDA variant says to a GPU it has no code for, and to a tensor of the CPU beside the CPU variant."""
    yield _said(target, _NO_CODE, "load: a GPU must be of a compute capability this variant is compiled for (", cpu)
    if cpu.is_dir():
        text = "causal_conv1d: x must be on a cuda device, which this variant is for, got cpu"
        yield _said(target, _BESIDE, text, cpu)


def _said(target: Subject, code: str, wanted: str, cpu: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(target.site), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, str(target.directory), str(cpu)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not ended.stdout.startswith(wanted):
        last = (ended.stdout + ended.stderr).strip().splitlines()[-1:] or ["nothing"]
        raise CheckError(f"{target.variant}: {wanted!r} wanted, got {last[0]}")
    return ended.stdout.strip()


def _cpu_variant(build: BuildFile) -> str:
    """The one that holds the CPU's kernels for this machine."""
    (name,) = matrix.select(build, [testing.HOST_VARIANT])
    return str(name)


def unpack(version: str, scratch: Path) -> Path:
    """A directory that holds only that torch, importable on a machine without CUDA. Whole, or not there."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise UsageError(f"a torch version like 2.11.0 is wanted, got {version}")
    site, partial = scratch / f"torch-{version}", scratch / f".torch-{version}.partial"
    if site.is_dir():
        return site
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    log = scratch / f"torch-{version}.log"
    log.write_text("", encoding="utf-8")
    process.say(f"fetching torch {version}: half a gigabyte where only a CUDA build is to be had")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--target", str(partial))
    process.run((*pip, f"torch=={version}"), what="pip", log=log)
    add_stubs(partial, log)
    partial.rename(site)
    return site


def add_stubs(site: Path, log: Path) -> None:
    """Empty libraries in the place of the CUDA ones that ``site``'s torch links to; none for a CPU build."""
    libraries = sorted((site / "torch" / "lib").glob("*.so*"))
    wanted = sorted(name for name in _needed(libraries) if _CUDA_LIBRARY.fullmatch(name))
    if not wanted:
        return
    folder = site / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    source = folder / "stub.c"
    functions = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in _missing(libraries))
    source.write_text(functions, encoding="utf-8")
    cc = (*compiler.find(compiler.host_system()).command, "-x", "c", "-w", "-fno-builtin", "-shared", "-fPIC")
    process.run((*cc, str(source), "-o", str(folder / _STUB), f"-Wl,-soname,{_STUB}"), what="the compiler", log=log)
    link = ("-x", "none", "-Wl,--no-as-needed", f"-L{folder}", f"-l:{_STUB}", "-Wl,-rpath,$ORIGIN")
    for name in wanted:
        own = ("/dev/null", "-o", str(folder / name), f"-Wl,-soname,{name}")
        process.run((*cc, *own, *link), what="the compiler", log=log)


def _needed(libraries: list[Path]) -> set[str]:
    return {match["name"] for library in libraries for match in _NEEDED.finditer(_ask("readelf", "-d", str(library)))}


def _missing(libraries: list[Path]) -> list[str]:
    """Functions of CUDA's libraries that ``libraries`` use: undefined in all of them, by name or by a version tag."""
    undefined: set[str] = set()
    defined: set[str] = set()
    for library in libraries:
        for line in _ask("nm", "-D", str(library)).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, tag = symbol.partition("@")
            if kind not in "Uvw":
                defined.add(name)
            elif _C_NAME.fullmatch(name) and _of_cuda(name, tag.lstrip("@")):
                undefined.add(name)
    return sorted(undefined - defined)


def _of_cuda(name: str, tag: str) -> bool:
    """Whether a C function belongs to CUDA: by its version tag where it has one, else by its prefix."""
    return not _SYSTEM_TAG.match(tag) if tag else bool(_CUDA_SYMBOL.match(name))


def imported_version(site: Path) -> str:
    """What the unpacked torch calls itself; ToolchainError when it cannot be imported."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = (sys.executable, "-c", "import torch; print(torch.__version__)")
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        last = asked.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ToolchainError(f"the torch in {site} cannot be imported: {last[0]}")
    return asked.stdout.strip()


def _ask(*command: str) -> str:
    answer = process.capture(command)
    if answer is None:
        raise ToolchainError(f"{command[0]} is wanted and failed", hint="Install binutils.")
    return answer
