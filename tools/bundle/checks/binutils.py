"""What nm, objdump and readelf say about a library or an object file."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import CheckError, ToolchainError

_NM = re.compile(r"(?:[0-9a-f]+)?\s+(?P<kind>[A-Za-z?-]) (?P<name>[^@\s]+)(?:@@?(?P<version>\S+))?")
_LABEL = re.compile(r"(?P<address>[0-9a-f]+) <(?P<name>.+)>:")
_INSTRUCTION = re.compile(r"\s*[0-9a-f]+:\t(?P<text>.+)")


@dataclass(frozen=True)
class Symbol:
    """One line of nm: ``kind`` is its letter, ``version`` what follows the @ in a dynamic symbol."""

    name: str
    kind: str
    version: str | None

    @property
    def undefined(self) -> bool:
        """Somebody else has to provide it (lower case w, v: or nobody)."""
        return self.kind in "Uwv"

    @property
    def weak_definition(self) -> bool:
        """The linker may keep this copy or another file's (W and V: weak, u: unique)."""
        return self.kind in "WVu"


def _found(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise ToolchainError(f"{tool} not found", hint="apt-get install binutils (it comes with every C++ compiler).")
    return path


def _lines(tool: str, *words: str | Path) -> Iterator[str]:
    result = subprocess.run(
        [_found(tool), *map(str, words)], capture_output=True, text=True, errors="replace", check=False
    )
    if result.returncode != 0:
        raise CheckError(f"{tool} cannot read {words[-1]}: {result.stderr.strip()}")
    yield from result.stdout.splitlines()


def symbols(path: Path) -> tuple[Symbol, ...]:
    """The symbol table (what the linker saw); empty when the file is stripped."""
    return tuple(_parse(_lines("nm", path)))


def dynamic_symbols(path: Path) -> tuple[Symbol, ...]:
    """The dynamic symbol table (what the loader sees)."""
    return tuple(_parse(_lines("nm", "-D", path)))


def _parse(lines: Iterator[str]) -> Iterator[Symbol]:
    for line in lines:
        if match := _NM.fullmatch(line.rstrip()):
            yield Symbol(match["name"], match["kind"], match["version"])


def demangle(names: tuple[str, ...]) -> dict[str, str]:
    """Mangled to readable C++ names."""
    if not names:
        return {}
    text = subprocess.run(
        [_found("c++filt")], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    return dict(zip(names, text.splitlines(), strict=True))


def dynamic_entries(path: Path, tag: str) -> tuple[str, ...]:
    """The values of a dynamic section tag: NEEDED, RPATH, RUNPATH."""
    pattern = re.compile(rf"\({tag}\).*\[(.*)\]")
    return tuple(match[1] for line in _lines("readelf", "-dW", path) if (match := pattern.search(line)))


def machine(path: Path) -> str:
    """The machine an ELF file is for, in readelf's words."""
    return next(line.split(":", 1)[1].strip() for line in _lines("readelf", "-hW", path) if "Machine:" in line)


@dataclass(frozen=True)
class Function:
    """Code under one label. ``file`` is the source whose local symbol it is; None for a symbol of the whole library."""

    name: str
    file: str | None


def instructions(path: Path) -> Iterator[tuple[Function, str]]:
    """The function and the text of every instruction."""
    files = _local_symbol_files(path)
    function = Function("", None)
    for line in _lines("objdump", "-dw", "--no-show-raw-insn", path):
        if match := _INSTRUCTION.match(line):
            yield function, match["text"]
        elif match := _LABEL.match(line):
            name = match["name"]
            function = Function(name, files.get((int(match["address"], 16), name)))


def _local_symbol_files(path: Path) -> dict[tuple[int, str], str]:
    """(address, name) of each local symbol to its source file: the symbol table lists them below a FILE entry.

    A hidden global symbol is local in a linked library too, but stands below an entry without a name.
    """
    files: dict[tuple[int, str], str] = {}
    current = ""
    for line in _lines("readelf", "-sW", path):
        words = line.split()
        if line.startswith("Symbol table"):
            current = ""
        elif len(words) >= 7 and words[3] == "FILE":
            current = words[7] if len(words) > 7 else ""
        elif current and len(words) == 8 and words[4] == "LOCAL":
            files[int(words[1], 16), words[7]] = current
    return files
