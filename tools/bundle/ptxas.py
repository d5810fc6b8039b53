"""What each CUDA kernel takes on each architecture: registers, shared memory, stack and spills.

The figures are ptxas's own (-Xptxas -v), kept beside every object file. The table of each nvcc version is committed,
gpu_resources/nvcc-<version>.tsv, so that a change that adds registers is seen in review, and ``bundle check`` compares:
a build that does not match its table fails, and a spill fails whatever the table says. ``bundle resources`` writes it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from bundle import process
from bundle.errors import CheckError, ToolchainError

DIRECTORY = Path(__file__).with_name("gpu_resources")

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>sm_\w+)'")
_STACK = re.compile(r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill")
_USED = re.compile(r"Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?")
_TIME = re.compile(r"Compile time = (?P<ms>[\d.]+) ms")


@dataclass(frozen=True, order=True)
class Row:
    """One kernel on one architecture; ``shared`` counts static shared memory alone, all sizes are bytes."""

    kernel: str
    arch: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


def read(objects: Path) -> tuple[Row, ...]:
    """The rows of all object files below ``objects``; CheckError where there are none."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(objects.rglob("*.ptxas"))]
    if not texts:
        raise CheckError(f"{objects} holds no ptxas report", hint="Build the variant here first.")
    return tuple(sorted(row for text in texts for row in parse(text)))


def parse(text: str) -> Iterator[Row]:
    """The rows of what one nvcc call said."""
    for section in _sections(text):
        entry, stack, used = _ENTRY.search(section), _STACK.search(section), _USED.search(section)
        if entry is None or stack is None or used is None:
            raise CheckError(f"ptxas said something else than its resource report: {section[:200]!r}")
        spills = (int(stack["stack"]), int(stack["stores"]), int(stack["loads"]))
        yield Row(readable(entry["name"]), entry["arch"], int(used["registers"]), int(used["shared"] or 0), *spills)


def _sections(text: str) -> list[str]:
    """One piece of ptxas's words a kernel and architecture."""
    return re.split(r"(?=ptxas info\s*: Compiling entry function)", text)[1:]


def readable(mangled: str) -> str:
    """The kernel's C++ name without its return type and its parameters."""
    text = process.capture(["c++filt", mangled])
    if text is None:
        raise ToolchainError("c++filt not found", hint="apt-get install binutils (it comes with every C++ compiler).")
    if text.endswith(")"):
        depth = 0
        for at in reversed(range(len(text))):
            depth += {")": 1, "(": -1}.get(text[at], 0)
            if depth == 0:
                return text[:at].removeprefix("void ")
    return text


def seconds(objects: Path) -> dict[str, float]:
    """What ptxas took for each architecture, in seconds; of a cached object, what it took when it was compiled."""
    total: dict[str, float] = defaultdict(float)
    for path in objects.rglob("*.ptxas"):
        for section in _sections(path.read_text(encoding="utf-8")):
            entry, time = _ENTRY.search(section), _TIME.search(section)
            if entry and time:
                total[entry["arch"]] += float(time["ms"]) / 1000
    return dict(total)


def table_of(release: str) -> Path:
    """The committed table of an nvcc version: the first two numbers of it."""
    return DIRECTORY / f"nvcc-{'.'.join(release.split('.')[:2])}.tsv"


def committed(path: Path) -> tuple[Row, ...]:
    """The rows of a committed table; none when there is no file."""
    if not path.is_file():
        return ()
    lines = csv.reader(path.read_text(encoding="utf-8").splitlines()[1:], delimiter="\t")
    return tuple(Row(kernel, arch, *map(int, numbers)) for kernel, arch, *numbers in lines)


def rendered(rows: Iterable[Row]) -> str:
    """The text of a table."""
    sink = io.StringIO()
    writer = csv.writer(sink, delimiter="\t", lineterminator="\n")
    writer.writerow(field.name for field in fields(Row))
    writer.writerows(astuple(row) for row in sorted(rows))
    return sink.getvalue()
