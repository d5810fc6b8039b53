"""The part of the generated CMake project that nvcc compiles: one command an object file.

CMake's own CUDA language would link a test program with a static runtime that registry toolkits do not have, and owns
the architecture flags; a plain command has neither trouble. Beside each object lie ``.d``, what it depends on, and
``.ptxas``, what ptxas said about its kernels (resources.py reads it).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from bundle.cuda import OBJECTS, Arch, Toolkit

KEEP_WORDS = Path(__file__).with_name("keep_words.py")
FLAGS = ("-std=c++20", "-O3", "-Xptxas", "-v", "-Xcompiler", "-fPIC,-fvisibility=hidden")
STUB = "torch_cuda"
"""Where the CUDA stream comes from: another library that is linked by name only (builders/cmake.py says why)."""


def object_path(source: PurePosixPath) -> PurePosixPath:
    """Where the object of a source lies, below CMake's build directory."""
    return PurePosixPath(OBJECTS, f"{source.as_posix().replace('/', '.')}.o")


def command(
    toolkit: Toolkit, source: Path, target: str, *, archs: Sequence[Arch], flags: Iterable[str], launcher: Sequence[str]
) -> tuple[str, ...]:
    """The words that compile ``source`` into ``target``."""
    keep = (sys.executable, str(KEEP_WORDS), f"{target}.ptxas")
    gencode = (flag for arch in archs for flag in arch.flags)
    out = ("-MD", "-MF", f"{target}.d", "-MT", target, "-c", str(source), "-o", target)
    return (*keep, *launcher, str(toolkit.nvcc), *FLAGS, *gencode, *flags, *out)


def cmake(source: Path, listed: PurePosixPath, words: Sequence[str]) -> Iterator[str]:
    """CMake's lines for one object; ``words`` is what :func:`command` made for ``@OBJECT@``."""
    yield f'\nset(object "${{CMAKE_BINARY_DIR}}/{object_path(listed)}")\n'
    quoted = " ".join(f'"{word}"'.replace("@OBJECT@", "${object}") for word in words)
    yield f'add_custom_command(OUTPUT "${{object}}" DEPENDS "{source}" "{KEEP_WORDS}" DEPFILE "${{object}}.d"\n'
    yield f'  COMMENT "nvcc {listed}" VERBATIM\n  COMMAND {quoted})\n'
    yield 'set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)\n'
    yield 'target_sources(extension PRIVATE "${object}")\n'
