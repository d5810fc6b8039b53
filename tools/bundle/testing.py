"""``bundle test``: everything this machine can prove: lint, the driver, the bundle on each CPU path, the whole road.

The bundle's tests run once per instruction-set path, each in a process of its own, since the path is chosen when the
library is loaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from bundle import build, buildfile, compiler, cuda, lint, options, parts, process, variant
from bundle.builders import cmake
from bundle.errors import CheckError, ToolchainError, UsageError
from bundle.parts import Outcome, Part

CPU_VARIANTS = "*cpu*"
HOST_VARIANT = "*cpu-x86_64-linux"
ISA_PATHS = ("generic", "avx2", "avx512")
"""Every path a CPU variant may have, narrowest first; a machine has the ones up to its widest."""

EMULATED_TESTS = tuple(
    f"tests/test_{name}.py"
    for name in (
        "attention", "attention_bfloat16_dot", "attention_decode", "attention_determinism", "attention_forward",
        "attention_fuzz", "attention_kvcache", "attention_mask", "attention_options", "attention_packed",
        "attention_properties",
        "causal_conv1d", "gated_delta_rule", "selective_scan", "selective_state_update", "state_space",
    )
)  # fmt: skip
"""What the emulated AVX-512 path is tested with: what runs kernels. Compiling and layers are the same on any path."""

SUITES = ("lint", "driver", "bundle", "emulated", "asan", "cuda", "e2e")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument("--no-build", action="store_true", help="test what lies in --out as it is")
    parser.add_argument(
        "--examples", type=int, metavar="N", help="examples of each property of the bundle (its tests have a default)"
    )
    parser.add_argument(
        "--suite",
        action="append",
        choices=(*SUITES, "avx512"),
        help="only this one; may be repeated; avx512, emulated, is run only when named",
    )
    parser.add_argument("pytest", nargs="*", metavar="-- PYTEST", help="words handed to every pytest, after --")


def run(args: argparse.Namespace) -> int:
    """Run the suites and print what each part cost."""
    wanted = args.suite or SUITES
    outcomes: list[Outcome] = []
    if "lint" in wanted:
        outcomes += map(parts.run, lint.linters(args.root))
    if "driver" in wanted:
        outcomes.append(
            parts.run(_driver_tests("driver tests", args, "tests", "--ignore=tests/e2e", "--ignore=tests/emulator"))
        )
    if "bundle" in wanted:
        outcomes += bundle_suite(args)
    if "emulated" in wanted:
        outcomes += cuda_emulation_suite(args)
    if "asan" in wanted:
        outcomes += sanitized_suite(args)
    if "avx512" in wanted:
        outcomes += emulated_suite(args)
    if "cuda" in wanted:
        outcomes += cuda_suite(args)
    if "e2e" in wanted:
        outcomes.append(parts.run(_driver_tests("end to end", args, "tests/e2e")))
    parts.conclude("test", outcomes)
    return 0


def bundle_suite(args: argparse.Namespace) -> Iterator[Outcome]:
    """Build and check the CPU variant, then its tests on each path; stops where a step the next one needs fails.

    A second build, of the same sources under another name, lets the tests load two side by side.
    """
    out, scratch = options.places(args)
    only = [word for glob in args.only or [CPU_VARIANTS] for word in ("--only", glob)]
    own = ("--root", str(args.root), "--scratch", str(scratch), *only)
    second = scratch / "second"
    steps = {
        "build": ("build", *own, "--out", str(out)),
        "check": ("check", *own, "--out", str(out)),
        "second build": ("build", *own, "--out", str(second), "--uid", "second"),
    }
    for name, words in () if args.no_build else steps.items():
        outcome = parts.run(Part(name, (sys.executable, "-m", "bundle", *words), args.root))
        yield outcome
        if outcome.code != 0:
            return
    local = local_kernels(buildfile.read(args.root).repository, out)
    widest = widest_path(local)
    for isa in ISA_PATHS:
        name = f"bundle tests, {isa}"
        if ISA_PATHS.index(isa) > ISA_PATHS.index(widest):
            yield Outcome(name, skipped=f"the widest path of this build on this machine is {widest}")
            continue
        environment = {"LOCAL_KERNELS": local, "PADFREE_ISA": isa}
        if not args.no_build:
            environment["PADFREE_SECOND_BUILD"] = str(second)
        if args.examples is not None:
            environment["PADFREE_EXAMPLES"] = str(args.examples)
        command = (sys.executable, "-m", "pytest", "tests", "-m", "kernels_ci", "-q", *args.pytest)
        yield parts.run(Part(name, command, args.root, environment))


def cuda_emulation_suite(args: argparse.Namespace) -> Iterator[Outcome]:
    """The CUDA kernels without a GPU: the emulator's own tests, a build of the kernels for it, its tests of the ops."""
    if platform.machine() != "x86_64":
        yield Outcome("CUDA emulation", skipped=NO_EMULATOR)
        return
    yield parts.run(_driver_tests("emulator tests", args, "tests/emulator"))
    out, scratch = options.places(args)
    beside = {"PADFREE_SECOND_BUILD": str(out)} if any(out.glob(HOST_VARIANT)) else {}
    yield from _emulated_tests(args, "CUDA emulated", scratch / "build-emulated-cuda", beside)
    command = ("bash", "tools/gpu_check.sh", "--emulated", "--root", str(args.root), "--scratch", str(scratch))
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(_hiding(scratch / "hidden"))}
    yield parts.run(Part("GPU check, dry run", command, args.root, environment))


NO_EMULATOR = "tools/cuda_host switches stacks in x86-64 assembly"

HIDDEN = ("kernels", "kernels_data", "kernel_abi_check")
"""What a machine that is only there for its GPU lacks, and the dry run of its check does without."""


def _hiding(folder: Path) -> Path:
    """A folder for PYTHONPATH in which the packages of HIDDEN are not to be had."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in HIDDEN:
        text = f"raise ModuleNotFoundError('hidden from the dry run', name={name!r})\n"
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def sanitized_suite(args: argparse.Namespace) -> Iterator[Outcome]:
    """The same tests of the ops on CUDA kernels that the address sanitizer watches instead of the emulator's hooks."""
    name = "CUDA emulated, asan"
    if platform.machine() != "x86_64":
        yield Outcome(name, skipped=NO_EMULATOR)
        return
    try:
        environment = preload()
    except ToolchainError as reason:
        yield Outcome(name, skipped=reason.message)
        return
    out = options.places(args)[1] / "build-asan-emulated-cuda"
    yield from _emulated_tests(args, name, out, environment, "--sanitize")


def _emulated_tests(
    args: argparse.Namespace, name: str, out: Path, environment: Mapping[str, str], *flags: str
) -> Iterator[Outcome]:
    """Build the CUDA kernels for the emulator into ``out``, and run the ops' tests on them."""
    _, scratch = options.places(args)
    own = ("--root", str(args.root), "--scratch", str(scratch), "--out", str(out), "--only", HOST_VARIANT)
    if not args.no_build:
        command = (sys.executable, "-m", "bundle", "build", "--emulate-cuda", *flags, *own)
        built = parts.run(Part(f"build, {name}", command, args.root))
        yield built
        if built.code != 0:
            return
    local = local_kernels(buildfile.read(args.root).repository, out)
    command = (sys.executable, "-m", "pytest", "tests", "-m", "kernels_ci", "-q", *args.pytest)
    own_environment = {"LOCAL_KERNELS": local, "PADFREE_TEST_DEVICE": "emulated", **environment}
    yield parts.run(Part(f"bundle tests, {name}", command, args.root, own_environment))


def emulated_suite(args: argparse.Namespace) -> Iterator[Outcome]:
    """The AVX-512 path on a CPU that ends at AVX2: a build that emulates it, and the tests of each op."""
    name = "bundle tests, avx512 emulated"
    if not compiler.has_header(compiler.find(compiler.host_system()), cmake.SIMDE):
        yield Outcome(name, skipped=f"<{cmake.SIMDE}> is not installed ({cmake.SIMDE_PACKAGE})")
        return
    _, scratch = options.places(args)
    only = [word for glob in args.only or [CPU_VARIANTS] for word in ("--only", glob)]
    if not args.no_build:
        words = ("build", "--emulate-avx512", "--root", str(args.root), "--scratch", str(scratch), *only)
        outcome = parts.run(Part("build, avx512 emulated", (sys.executable, "-m", "bundle", *words), args.root))
        yield outcome
        if outcome.code != 0:
            return
    emulated, _ = build.local_places(argparse.Namespace(**{**vars(args), "out": None}), emulate_avx512=True)
    local = local_kernels(buildfile.read(args.root).repository, emulated)
    command = (sys.executable, "-m", "pytest", *EMULATED_TESTS, "-m", "kernels_ci", "-q", *args.pytest)
    yield parts.run(Part(name, command, args.root, {"LOCAL_KERNELS": local, "PADFREE_ISA": "avx512"}))


CUDA_VARIANT = "torch-stable-abi211-cu130-x86_64-linux"
CUDA_ARCHS = ("8.0", "12.1+PTX")
"""The oldest and the newest: all of them take too long for each test."""


def cuda_suite(args: argparse.Namespace) -> Iterator[Outcome]:
    """Compile a CUDA variant for two architectures and check it; no GPU is needed, nvcc is."""
    out, scratch = options.places(args)
    name, reason = "CUDA build", cuda.reason_against(variant.parse(CUDA_VARIANT), args.root)
    if reason is not None:
        yield Outcome(name, skipped=reason)
        return
    own = ("--root", str(args.root), "--scratch", str(scratch), "--out", str(out), "--only", CUDA_VARIANT)
    steps = {name: ("build", *own, "--archs", *CUDA_ARCHS), "CUDA check": ("check", *own)}
    for step, words in () if args.no_build else steps.items():
        outcome = parts.run(Part(step, (sys.executable, "-m", "bundle", *words), args.root))
        yield outcome
        if outcome.code != 0:
            return


def _driver_tests(name: str, args: argparse.Namespace, *words: str) -> Part:
    return Part(name, (sys.executable, "-m", "pytest", "-q", *words, *args.pytest), args.root / "tools")


def local_kernels(repository: str, out: Path) -> str:
    """LOCAL_KERNELS that makes ``kernels`` load ``repository`` from ``out``. It parts its entries at colons."""
    if ":" in str(out):
        raise UsageError(f"--out must be a path without a colon (LOCAL_KERNELS cannot hold one), got {out}")
    return f"{repository}={out}"


PRELOADED = ("libasan.so", "libstdc++.so")
"""In this order, before Python: the first sees every allocation, and stands before functions of the second."""

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python's own; too large is an error to be raised
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def preload() -> dict[str, str]:
    """The environment in which a process can load a sanitized library."""
    found = []
    for library in PRELOADED:
        path = process.capture(["g++", f"-print-file-name={library}"])
        if path is None or not Path(path).is_absolute():  # what it does not have, it prints as it was asked
            raise ToolchainError(f"g++ with {library} wanted", hint="Install the sanitizers of g++ (libasan).")
        found.append(path)
    return {"LD_PRELOAD": " ".join(found), **SANITIZER_OPTIONS}


def widest_path(local: str, needed: Mapping[str, str] | None = None) -> str:
    """The path that the build takes on this machine when nothing forces one; ``needed``: environment to load it in."""
    repository = local.partition("=")[0]
    code = f"import kernels; print(kernels.get_kernel({repository!r}, version=1, backend='cpu').isa())"
    environment = {**os.environ, **(needed or {}), "LOCAL_KERNELS": local}
    environment.pop("PADFREE_ISA", None)
    asked = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    path = asked.stdout.strip()
    if path not in ISA_PATHS:
        raise CheckError(f"the build did not name its instruction-set path: {path} {asked.stderr.strip()}")
    return path
