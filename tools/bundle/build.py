"""``bundle build``: compile the selected variants into ``build/<variant>/``.

The result replaces the previous one in one step and only when everything succeeded, so a failed or killed build leaves
what was there. Two builds of one variant at a time wait for each other. Without the package `kernels_data`, as on a
machine that only has a GPU to try the kernels on (``bundle gpu``), a variant gets no digest.
"""

from __future__ import annotations

import argparse
import errno
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bundle import buildfile, cuda, matrix, options, process, progress, provenance, ptxas, stage
from bundle.builders import cmake, nix
from bundle.buildfile import BuildFile
from bundle.cuda import Arch
from bundle.errors import BuildError, UsageError
from bundle.provenance import Provenance
from bundle.variant import Variant

try:
    import kernels_data
except ModuleNotFoundError:
    kernels_data = None  # type: ignore[assignment]

NEEDED_BYTES = 300 << 20
"""Free space a build starts with: objects, ccache entries and two copies of the variant."""

STRIP = ("strip", "--strip-debug", "--keep-file-symbols")
"""The symbol table stays: kernel-abi-check and the ISA check read it, the latter with the names of source files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument(
        "--builder",
        choices=("cmake", "nix"),
        default="cmake",
        help="cmake: with this machine's compiler (default); nix: the official build, from the network",
    )
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="with address and undefined-behaviour checks, for `soak`: never published, lies in .bundle/build-asan",
    )
    parser.add_argument(
        "--emulate-cuda",
        action="store_true",
        help="CUDA kernels for tools/cuda_host, on CPU tensors: never published, lies in .bundle/build-emulated-cuda",
    )
    parser.add_argument(
        "--emulate-avx512",
        action="store_true",
        help="the AVX-512 path in AVX2 instructions, to test it on a CPU without: never published, lies in "
        ".bundle/build-emulated",
    )
    parser.add_argument(
        "--archs",
        nargs="+",
        default=[],
        metavar="CAPABILITY",
        help="compile CUDA variants for these alone, as in 8.0 12.1+PTX (default: all that build.toml lists)",
    )
    parser.add_argument("--uid", help="name the build yourself, so that two copies can be loaded side by side")


def run(args: argparse.Namespace) -> int:
    """Build every selected variant."""
    build = buildfile.read(args.root)
    for flag in ("sanitize", "emulate_cuda", "emulate_avx512"):
        if getattr(args, flag) and args.builder != "cmake":
            raise UsageError(f"--{flag.replace('_', '-')} must come with --builder cmake, got {args.builder}")
    chosen = {flag: getattr(args, flag) for flag in ("sanitize", "emulate_cuda", "emulate_avx512")}
    if any(chosen.values()):
        args.out, args.scratch = local_places(args, **chosen)
    out, scratch = options.places(args)
    for name in matrix.select(build, args.only):
        if args.builder == "nix":
            build_with_nix(build, name, out=out, scratch=scratch)
        else:
            archs = cuda.all_archs(build, args.archs) if name.backend == "cuda" else ()
            build_variant(
                build,
                name,
                out=out,
                scratch=scratch,
                uid=args.uid,
                sanitize=args.sanitize,
                archs=archs,
                emulate_cuda=args.emulate_cuda,
                emulate_avx512=args.emulate_avx512,
            )
    return 0


def local_places(
    args: argparse.Namespace, *, sanitize: bool = False, emulate_cuda: bool = False, emulate_avx512: bool = False
) -> tuple[Path, Path]:
    """``--out`` and ``--scratch`` of builds for tests alone: their own, so that none is taken for a real one."""
    _, scratch = options.places(args)
    kind = "-".join(("asan",) * sanitize + ("emulated-cuda",) * emulate_cuda + ("emulated",) * emulate_avx512)
    return args.out or scratch / f"build-{kind}", scratch / kind


def build_variant(
    build: BuildFile,
    name: Variant,
    *,
    out: Path,
    scratch: Path,
    uid: str | None = None,
    sanitize: bool = False,
    archs: tuple[Arch, ...] = (),
    emulate_cuda: bool = False,
    emulate_avx512: bool = False,
) -> Path:
    """Compile one variant; the path of its directory, ``out/<variant>``."""
    started = time.monotonic()
    with _workplace(name, out, scratch) as work:
        origin = provenance.of(build, uid)
        identity = f"_{build.python_name}_{'emulated' if emulate_cuda else name.backend}_{origin.uid}"
        identity += "_avx512" * emulate_avx512
        job = cmake.Job(build, name, identity, work, sanitize, archs, emulate_cuda, emulate_avx512)
        with progress.shown() as show:
            library = cmake.build(job, lambda done, of: show(f"compiling {name}", done, of))
        result = _assemble(job, library, origin, out)
        for line in costs(job, library):
            process.say(line)
            print(line, file=job.log.open("a", encoding="utf-8"))
    process.say(f"{name}: built in {time.monotonic() - started:.1f} s as {identity}", style="green")
    return result


def build_with_nix(build: BuildFile, name: Variant, *, out: Path, scratch: Path) -> Path:
    """Take one variant from the official build; the path of its directory."""
    with _workplace(name, out, scratch) as work:
        partial = _fresh(out / f".{name}.partial")
        shutil.copytree(nix.build(build, name, work), partial)
        for path in (partial, *partial.rglob("*")):  # the nix store is read-only
            path.chmod(path.stat().st_mode | 0o200)
        target = out / str(name)
        stage.replace_tree(partial, target)
    process.say(f"{name}: built by nix", style="green")
    return target


@contextmanager
def _workplace(name: Variant, out: Path, scratch: Path) -> Iterator[Path]:
    """The variant's scratch directory, ours alone, on disks with room; a disk that fills up is named."""
    work = scratch / str(name)
    with _disk_full_is_named(str(name), work), process.exclusive(scratch / f"{name}.lock", f"another build of {name}"):
        for directory in (work, out):
            directory.mkdir(parents=True, exist_ok=True)
            _check_space(directory)
        yield work


def _fresh(directory: Path) -> Path:
    """``directory`` with nothing there: what an earlier, killed build left is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def _assemble(job: cmake.Job, library: Path, origin: Provenance, out: Path) -> Path:
    """Put the variant together beside its place, then swap it in."""
    partial = _fresh(out / f".{job.variant}.partial")
    shutil.copytree(job.source / job.build.package, partial, ignore=shutil.ignore_patterns("__pycache__"))
    shipped = partial / job.library_name
    shutil.copy2(library, shipped)
    if not job.sanitize:  # its reports name lines
        process.run([*STRIP, str(shipped)], what="strip", log=job.log)
    table = metadata(job, origin)
    if kernels_data is not None:
        digest = kernels_data.Digest.hash_variant(kernels_data.DigestAlgorithm.SHA256, partial)
        table["digest"] = {"algorithm": str(digest.algorithm), "files": dict(sorted(digest.files.items()))}
    text = json.dumps(table, indent=2, sort_keys=True) + "\n"
    if kernels_data is not None:
        kernels_data.Metadata.from_bytes(text.encode())  # refuses what the loader would refuse
    (partial / "metadata.json").write_text(text, encoding="utf-8")
    target = out / str(job.variant)
    stage.replace_tree(partial, target)
    return target


def costs(job: cmake.Job, library: Path) -> Iterator[str]:
    """A line for each architecture of a CUDA variant: what it took to compile, what it adds to the library."""
    if not job.archs:
        return
    seconds = ptxas.seconds(job.binary / cuda.OBJECTS)
    sizes = cuda.cubin_bytes(library, job.build.root)
    for arch in job.archs:
        time, size = seconds.get(arch.sm, 0), sizes[arch.sm] >> 10
        yield f"{job.variant}: {arch.sm}: {time:.1f} s in ptxas, {size} KiB of cubins"
    yield f"{job.variant}: {library.name}: {library.stat().st_size >> 10} KiB"


def metadata(job: cmake.Job, origin: Provenance) -> dict[str, Any]:
    """What metadata.json of a variant says, but for the digest. Architectures are sorted as texts, as kernel-builder
    sorts them."""
    build, backend = job.build, job.variant.backend
    return {
        "name": build.name,
        "id": job.id,
        "version": build.version,
        "license": build.license,
        "python-depends": list(build.python_depends),
        "backend": {"type": backend, **({"archs": sorted(map(str, job.archs))} if job.archs else {})},
        "provenance": origin.table(),
    }


def _check_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise BuildError(
            f"{directory}: {free >> 20} MiB free on its disk, {NEEDED_BYTES >> 20} MiB wanted",
            hint="Free some space, or build elsewhere with --scratch DIR and --out DIR.",
        )


@contextmanager
def _disk_full_is_named(what: str, directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise process.no_space(what, directory) from None
        raise
