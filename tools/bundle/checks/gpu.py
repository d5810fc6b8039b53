"""CUDA variants: the architectures really inside the library, and what each kernel takes of a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bundle import cuda, process, ptxas
from bundle.checks import Subject
from bundle.errors import ToolchainError
from bundle.options import REPOSITORY

_CUBIN = re.compile(r"\.sm_(\d+)(\d)[a-z]?\.cubin$", re.MULTILINE)
_PTX = re.compile(r"\.sm_(\d+)(\d)[a-z]?\.ptx$", re.MULTILINE)


def archs(target: Subject) -> Iterator[str]:
    """The cubins and the PTX in the library are those that metadata.json lists."""
    listed = {cuda.parse_arch(text) for text in target.metadata.backend.archs or ()}
    wanted = {(arch.major, arch.minor) for arch in listed}
    wanted_ptx = {(arch.major, arch.minor) for arch in listed if arch.ptx}
    for found, expected, what in (
        (_listed(target, "-lelf", _CUBIN), wanted, "a cubin"),
        (_listed(target, "-lptx", _PTX), wanted_ptx, "PTX"),
    ):
        for major, minor in sorted(expected - found):
            yield f"metadata.json lists {major}.{minor}, the library has not {what} for it"
        for major, minor in sorted(found - expected):
            yield f"the library has {what} for {major}.{minor}, which metadata.json does not list"


def _listed(target: Subject, option: str, pattern: re.Pattern[str]) -> set[tuple[int, int]]:
    tool = cuda.tool("cuobjdump", target.build.root if target.build else REPOSITORY)
    answer = process.capture([str(tool), option, str(target.library)])
    if answer is None:
        raise ToolchainError(f"{tool} cannot read {target.library}")
    return {(int(major), int(minor)) for major, minor in pattern.findall(answer)}


def kernels(target: Subject) -> Iterator[str]:
    """No kernel spills, and each takes what the committed table of this nvcc says."""
    objects = target.objects().parent / cuda.OBJECTS
    built = ptxas.read(objects)
    for row in built:
        if row.spill_stores or row.spill_loads:
            yield f"{row.kernel} spills on {row.arch}: {row.spill_stores} bytes stored, {row.spill_loads} loaded"
    path = ptxas.table_of(cuda.find(target.variant, target.checkout().root).release)
    archs_built = {row.arch for row in built}
    table = {row for row in ptxas.committed(path) if row.arch in archs_built}
    again = f"run `bundle resources --write --only {target.variant}` and look at the difference"
    for row in sorted(set(built) - table):
        yield (
            f"{row.kernel} on {row.arch} takes {row.registers} registers, {row.shared} bytes shared, {row.stack} of "
            + (f"stack, which {path.name} does not say; {again}")
        )
    for row in sorted(table - set(built)):
        if all((row.kernel, row.arch) != (other.kernel, other.arch) for other in built):
            yield f"{path.name} lists {row.kernel} on {row.arch}, which was not built; {again}"
