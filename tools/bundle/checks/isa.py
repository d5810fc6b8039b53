"""The ISA rule (docs/architecture.md): wide instructions stay in the files, and the functions, that ask the CPU first.

A weak symbol in a file built with AVX flags is the danger: the linker keeps one copy of an inline function, and when it
is the AVX copy, generic code dies with SIGILL on an older CPU. Looked at from three sides: which files get the flags,
what the object files define, and where the linked library holds wide instructions. The last two read the symbol table,
which shipped libraries keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bundle.buildfile import Section
from bundle.checks import Skipped, Subject, binutils
from bundle.checks.binutils import Function

ISAS = ("avx2", "avx512", "avx512bf16")
"""Each has the instructions of those before it."""
_ISA_FILE = re.compile(rf"kernel_({'|'.join(ISAS)})(?:_\w+)?\.cpp")

_BASELINE_V = re.compile(r"ver[rw]|vm(?:call|clear|launch|resume|ptr\w+|read|write|xoff|xon|func|mcall|run|load|save)")
_WIDE = re.compile(
    r"v\w+|k(?:mov|and|andn|or|xnor|xor|not|test|ortest|shiftl|shiftr|unpck\w\w|add)[bwdq]"
    r"|andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx"
)
_WIDE_REGISTER = re.compile(r"%ymm\d")
_BFLOAT16 = re.compile(r"vdpbf16ps|vcvtne2?ps2bf16[xy]?")
_AVX512_REGISTER = re.compile(r"%zmm\d|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b")

# The exception tables refer to it through a weak pointer that the compiler puts into each object; it holds no code.
_HARMLESS_WEAK = frozenset({"DW.ref.__gxx_personality_v0"})


def isa_of(name: str) -> str | None:
    """The instruction set that a file's name claims, as in kernel_avx2.cpp; None for a baseline file."""
    match = _ISA_FILE.fullmatch(Path(name).name)
    return match[1] if match else None


def files(target: Subject) -> Iterator[str]:
    """Only kernel_<isa>.cpp files are compiled with instruction-set flags."""
    build = target.checkout()
    for section in build.sections(target.variant.backend):
        yield from _section_files(section)


def _section_files(section: Section) -> Iterator[str]:
    flags = section.isa_flags
    for source in section.sources:
        isa = isa_of(source.name)
        if flags and isa is None:
            yield f"{source} gets {' '.join(flags)} from [kernel.{section.name}] but is not named kernel_<isa>.cpp"
        elif isa is not None and not flags:
            yield f"{source} gets no instruction-set flag from [kernel.{section.name}]"


def objects(target: Subject) -> Iterator[str]:
    """kernel_<isa> objects define nothing weak and export only padfree::<op>::<isa>; other objects hold no AVX."""
    _x86_only(target)
    found = sorted(target.objects().rglob("*.cpp.o"))
    for path in found:
        source = path.name.removesuffix(".o")
        isa = isa_of(source)
        name = f"{path.parent.parent.parent.name}/{source}" if path.parent.name == "cpu" else source
        yield from _isa_object(path, name, isa) if isa else _baseline_object(path, name)


def _isa_object(path: Path, name: str, isa: str) -> Iterator[str]:
    defined = [symbol for symbol in binutils.symbols(path) if not symbol.undefined]
    readable = binutils.demangle(tuple(symbol.name for symbol in defined))
    for symbol in defined:
        if symbol.weak_definition and symbol.name not in _HARMLESS_WEAK:
            yield f"{name} defines {readable[symbol.name]} weakly: baseline code may get this {isa} copy"
        elif symbol.kind in "TDBR" and not in_isa_namespace(symbol.name, isa):
            yield f"{name} exports {readable[symbol.name]}, which is not in padfree::<op>::{isa}"
    for function, needed, text in _first_wide(path):
        if ISAS.index(needed) > ISAS.index(isa):
            yield f"{name}: {_readable(function.name)} holds `{text}`, which {isa} has not"


def _baseline_object(path: Path, name: str) -> Iterator[str]:
    seen: set[Function] = set()
    for function, _, text in _first_wide(path):
        if function not in seen:
            seen.add(function)
            yield f"{name}: {_readable(function.name)} holds `{text}` but is built for every CPU"


def library(target: Subject) -> Iterator[str]:
    """In the library, AVX occurs only in functions of padfree::<op>::<isa> and in local ones of kernel_<isa>.cpp;
    what only some sets have, only in theirs."""
    _x86_only(target)
    for function, needed, text in _first_wide(target.library):
        own = isa_of(function.file or "") or next((isa for isa in ISAS if in_isa_namespace(function.name, isa)), None)
        if own is None or ISAS.index(needed) > ISAS.index(own):
            place = "<isa>" if own is None else needed
            yield f"{_readable(function.name)} holds `{text}` outside padfree::<op>::{place}"


def _readable(mangled: str) -> str:
    return binutils.demangle((mangled,))[mangled]


def _x86_only(target: Subject) -> None:
    if target.variant.platform != "x86_64":
        raise Skipped(f"{target.variant.platform} has one instruction set here")


def _first_wide(path: Path) -> Iterator[tuple[Function, str, str]]:
    """The first instruction of each function that needs each of ISAS: function, ISA, text."""
    seen: set[tuple[Function, str]] = set()
    for function, text in binutils.instructions(path):
        needed = isa_needed(text)
        if needed is not None and (function, needed) not in seen:
            seen.add((function, needed))
            yield function, needed, " ".join(text.split("#")[0].split())


def isa_needed(instruction: str) -> str | None:
    """What of ISAS an AT&T-syntax instruction needs: avx512 with its registers, avx2 where VEX coded; None: none."""
    words = instruction.split()
    mnemonic = next((word for word in words if word not in _PREFIXES), "")
    if _BFLOAT16.fullmatch(mnemonic):
        return "avx512bf16"
    if _AVX512_REGISTER.search(instruction):
        return "avx512"
    wide = _WIDE_REGISTER.search(instruction) or (_WIDE.fullmatch(mnemonic) and not _BASELINE_V.fullmatch(mnemonic))
    return "avx2" if wide else None


_PREFIXES = frozenset({"lock", "rep", "repz", "repnz", "data16", "cs", "ds", "es", "fs", "gs", "ss", "bnd", "notrack"})


def in_isa_namespace(mangled: str, isa: str) -> bool:
    """Whether a mangled name lies in ``padfree::<op>::<isa>`` (its unnamed namespaces and local lambdas included)."""
    match = re.match(r"_Z(?:GV|TV|TI|TS|GR)?Z*N[KVrRO]*7padfree(?=\d)", mangled)
    if match is None:
        return False
    op = re.match(r"\d+", mangled[match.end() :])
    rest = mangled[match.end() + len(op[0]) + int(op[0]) :] if op else ""
    return rest.startswith(f"{len(isa)}{isa}")
