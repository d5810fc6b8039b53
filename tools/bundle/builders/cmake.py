"""Builds a variant with CMake and ninja, with the settings of the official build (kernel-builder).

The scratch directory of a variant holds ``src/`` (the staged tree), ``project/`` (the generated CMake project),
``cmake/`` (ninja's state and the object files, kept so that the next build is incremental) and ``build.log``. What is
generated:

    src/torch-ext/registration.h       macros that let a macro name the extension and the op namespace
    src/torch-ext/<package>/_ops.py    the op namespace for Python
    project/CMakeLists.txt, exports.map, torch_stub.cpp
    cmake/cuda/                        of a CUDA variant: what nvcc compiled (cuda_objects.py)

Why not link libtorch: with its symbols in view the linker binds C++ library functions to it and hides a libstdc++ that
is too new. An empty stub with libtorch_cpu's name gives the same dependency, for any machine, and hides nothing; that
each symbol exists is for the ABI and load checks to say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bundle import compiler, cuda, process, stage
from bundle.builders import cuda_objects
from bundle.buildfile import BuildFile, Section
from bundle.cuda import Arch, Toolkit
from bundle.errors import BuildError, ConfigError, ToolchainError
from bundle.variant import Variant

QUIRKS = Path(__file__).parent / "quirks"
TEMPLATES = Path(__file__).parent / "templates"
EXTENSION_MACRO = "TORCH_EXTENSION_NAME"
CXX_FLAGS = {"g++": ("-fvisibility=hidden", "-fno-gnu-unique"), "clang++": ("-fvisibility=hidden",)}
"""Per compiler family; clang knows no unique symbols, so it has no flag against them."""

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
SANITIZED_FLAGS = (*SANITIZERS, "-fno-omit-frame-pointer", "-g1")
"""The first bad access or undefined operation ends the process and names its line. g++'s way: the run-time library must
be the first one loaded, LD_PRELOAD=$(g++ -print-file-name=libasan.so)."""

SIMDE, SIMDE_PACKAGE = "simde/x86/avx512.h", "libsimde-dev"
EMULATION = Path(__file__).parent / "emulation"
EMULATED_FLAGS = (f"-I{EMULATION}", "-mavx2", "-Wno-psabi", "-fno-tree-sra")
"""In the place of -mavx512*: the intrinsics come from emulation/immintrin.h, so that kernel_avx512.cpp holds AVX2.
Without -fno-tree-sra gcc 12 falls over its own feet (an internal error in that pass)."""

PY_LIMITED_API = "0x03090000"
_NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\]")

OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """One variant to compile. ``id`` is the module's name and the op namespace; ``sanitize``: see SANITIZED_FLAGS;
    ``archs``: what a CUDA variant is compiled for; ``emulate_cuda``: its kernels are compiled for tools/cuda_host;
    ``emulate_avx512``: see EMULATED_FLAGS."""

    build: BuildFile
    variant: Variant
    id: str
    scratch: Path
    sanitize: bool = False
    archs: tuple[Arch, ...] = ()
    emulate_cuda: bool = False
    emulate_avx512: bool = False

    @property
    def sections(self) -> tuple[Section, ...]:
        """What is compiled; an emulated variant takes the place of a CPU one, with the CUDA sources."""
        return self.build.sections("cuda" if self.emulate_cuda else self.variant.backend)

    @property
    def definitions(self) -> tuple[str, ...]:
        """What tells the sources which backend they are compiled for."""
        return ("CUDA_KERNEL", "PADFREE_EMULATED") if self.emulate_cuda else (f"{self.variant.backend.upper()}_KERNEL",)

    @property
    def toolkit(self) -> Toolkit | None:
        """The CUDA toolkit of a CUDA variant."""
        return cuda.find(self.variant, self.build.root) if self.variant.backend == "cuda" else None

    @property
    def source(self) -> Path:
        """The staged tree."""
        return self.scratch / "src"

    @property
    def project(self) -> Path:
        """The generated CMake project."""
        return self.scratch / "project"

    @property
    def binary(self) -> Path:
        """CMake's build directory."""
        return self.scratch / "cmake"

    @property
    def log(self) -> Path:
        """What cmake, the compiler and the linker said."""
        return self.scratch / "build.log"

    @property
    def library_name(self) -> str:
        """The file name of the extension."""
        return f"{self.id}.abi3.so"


def build(job: Job, on_step: OnStep | None = None) -> Path:
    """Compile and link; the path of the unstripped library."""
    if job.variant.backend not in ("cpu", "cuda"):
        raise ToolchainError(f"{job.variant}: only cpu and cuda variants are compiled here")
    found = compiler.find(job.variant.system or compiler.host_system())
    if job.sanitize and found.family != "g++":
        raise ToolchainError(f"{job.variant}: g++ wanted for --sanitize, got {found}", hint="Set CXX=g++.")
    if job.emulate_avx512 and not compiler.has_header(found, SIMDE):
        hint = f"apt-get install {SIMDE_PACKAGE} (Debian, Ubuntu)."
        raise ToolchainError(f"{job.variant}: <{SIMDE}> wanted for --emulate-avx512", hint=hint)
    write_generated(job, found.family)
    cmake, ninja = compiler.tool("cmake"), compiler.tool("ninja")
    toolkit = job.toolkit
    process.say(f"{job.variant}: {found}" + (f", {toolkit} for {' '.join(map(str, job.archs))}" if toolkit else ""))
    job.log.write_text("", encoding="utf-8")
    configure = [
        cmake, "-G", "Ninja", "-S", str(job.project), "-B", str(job.binary),
        f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Release",
    ]  # fmt: skip
    env = {**os.environ, "CXX": shlex.join(found.command), "CCACHE_BASEDIR": str(job.scratch)}
    _forget_other_tools(
        job, cmake=cmake, ninja=ninja, compiler=str(found), torch=compiler.torch().release, toolkit=str(toolkit)
    )
    if not (job.binary / "build.ninja").is_file():  # from then on ninja itself runs cmake when CMakeLists.txt changes
        process.run(configure, what="cmake", log=job.log, env=env)
    _compile(job, [ninja, "-C", str(job.binary), *_jobs()], env, on_step)
    library = job.binary / job.library_name
    for old in job.binary.glob("*.abi3.so"):
        if old != library:  # of an earlier id: its object files are gone, so nothing can be checked about it
            old.unlink()
    return library


def _compile(job: Job, command: list[str], env: dict[str, str], on_step: OnStep | None) -> None:
    try:
        process.run(command, what="the compiler", log=job.log, env=env, on_line=_step_reader(on_step))
    except BuildError as error:
        header = stage.unlisted_header(job.build, job.log.read_text(encoding="utf-8"))
        if header is not None:
            error.hint = f"build.toml does not list {header}: add it to the src of the section that includes it."
        raise


def write_generated(job: Job, family: str) -> None:
    """The staged tree, kernel-builder's generated files and the CMake project, each rewritten only when it differs."""
    stage.write(job.build, job.source)
    registration = (TEMPLATES / "registration.h").read_bytes()
    stage.write_if_changed(job.source / "torch-ext" / "registration.h", registration)
    ops = job.source / job.build.package / "_ops.py"
    stage.write_if_changed(ops, _filled("_ops.py.in", id=job.id).encode())
    stage.write_if_changed(job.project / "exports.map", f"{{ global: PyInit_{job.id}; local: *; }};\n".encode())
    stage.write_if_changed(job.project / "torch_stub.cpp", b"// libtorch_cpu by name only; see builders/cmake.py\n")
    stage.write_if_changed(job.project / "CMakeLists.txt", "".join(_cmake_lists(job, family)).encode())


class _Template(string.Template):
    """Fields are ``@{name}``: neither CMake, C++ nor Python means anything by that."""

    delimiter = "@"


def _filled(template: str, **fields: str) -> str:
    return _Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(fields)


def _cmake_lists(job: Job, family: str) -> Iterator[str]:
    torch = compiler.torch()
    abi = job.build.stable_abi.get(job.variant.backend)
    if abi is None or not job.variant.stable_abi or abi != job.variant.torch:
        raise ConfigError(f"{job.variant}: build.toml asks for stable ABI {abi} on {job.variant.backend}")
    if torch.version < abi:
        raise ToolchainError(f"{job.variant}: torch {abi[0]}.{abi[1]} or newer headers wanted, got {torch.version}")
    sections = job.sections
    sources = [_quote(job.source / path) for section in sections for path in section.sources if path.suffix != ".cu"]
    toolkit = job.toolkit
    headers = (*torch.includes, compiler.python_include(), *((toolkit.include,) if toolkit else ()))
    includes = [_quote(path) for path in headers]
    definitions = [
        *job.definitions,
        *(("USE_CUDA=1",) if toolkit else ()),
        f"Py_LIMITED_API={PY_LIMITED_API}",
        f"TORCH_TARGET_VERSION={compiler.target_version(*abi)}",
    ]
    everywhere = _names_extension(job)
    if everywhere:
        definitions.append(f"{EXTENSION_MACRO}={job.id}")
    yield _filled(
        "CMakeLists.txt.in",
        name=job.build.python_name,
        id=job.id,
        quirks=str(QUIRKS),
        sources="\n  ".join(sources),
        includes=" ".join(includes),
        definitions=" ".join(definitions),
        flags=" ".join((*CXX_FLAGS[family], *(SANITIZED_FLAGS if job.sanitize else ()))),
        link_flags=" ".join(SANITIZERS if job.sanitize else ()),
        prefix_maps=" ".join(_prefix_maps(job, torch)),
        project=str(job.project),
        launcher=f'set(CMAKE_CXX_COMPILER_LAUNCHER "{ccache}")' if (ccache := shutil.which("ccache")) else "",
    )
    for section in sections:
        yield _section(job, section, define=section.backend is None and not everywhere)
    if job.emulate_cuda:
        yield _emulated_cuda(job)
    if toolkit:
        yield _filled("cuda.cmake.in", stub=cuda_objects.STUB, runtime=str(toolkit.runtime))
        yield from _cuda_objects(job, toolkit, definitions)


def _emulated_cuda(job: Job) -> str:
    """The emulator, and the .cu files as C++ for it; each access they make is a call of the emulator's hooks."""
    host = job.build.root / "tools" / "cuda_host"
    kernels = [path for section in job.sections for path in section.sources if path.suffix == ".cu"]
    return _filled(
        "emulated_cuda.cmake.in",
        tools=str(host.parent),
        host=str(host),
        include=str(job.source / "kernel-src"),
        sources=" ".join(_quote(path) for path in sorted(host.glob("*.cpp"))),
        kernels=" ".join(_quote(job.source / path) for path in kernels),
        optimise="-O1" if job.sanitize else "-O2",
        # the address sanitizer checks accesses itself, and the two exclude each other
        hooks="" if job.sanitize else ";-fsanitize=thread;--param=tsan-instrument-func-entry-exit=0",
    )


def _cuda_objects(job: Job, toolkit: Toolkit, definitions: list[str]) -> Iterator[str]:
    """One command for each .cu file."""
    launcher = [ccache] if (ccache := shutil.which("ccache")) else []
    host = " ".join(compiler.find(compiler.host_system()).command)
    for section in cuda.cuda_sections(job.build):
        archs = cuda.archs(section, job.archs)
        flags = (
            *section.cuda_flags, "-ccbin", host, *(f"-D{definition}" for definition in definitions),
            *(f"-I{job.source / path}" for path in section.include),
            "-Xcompiler", f"-ffile-prefix-map={job.source}/=./",
        )  # fmt: skip
        for listed in section.sources:
            if listed.suffix == ".cu" and archs:
                words = cuda_objects.command(
                    toolkit, job.source / listed, "@OBJECT@", archs=archs, flags=flags, launcher=launcher
                )
                yield from cuda_objects.cmake(job.source / listed, listed, words)


def _prefix_maps(job: Job, torch: compiler.Torch) -> Iterator[str]:
    """Flags that take this machine's paths out of error messages in the library: it comes out the same anywhere."""
    for path, name in ((job.source, "."), (QUIRKS, "quirks"), (torch.include.parent.parent, "")):
        yield f'"-ffile-prefix-map={path}/={name}/"' if name else f'"-ffile-prefix-map={path}/="'


def _section(job: Job, section: Section, *, define: bool) -> str:
    """The flags and include directories that belong to one section's files alone, but for nvcc's."""
    lines = []
    files = " ".join(_quote(job.source / path) for path in section.sources if path.suffix != ".cu")
    if section.include:
        directories = ";".join(str(job.source / path) for path in section.include)
        lines.append(f'set_property(SOURCE {files} APPEND PROPERTY INCLUDE_DIRECTORIES "{directories}")')
    if flags := _flags(job, section):
        lines.append(f'set_property(SOURCE {files} APPEND PROPERTY COMPILE_OPTIONS "{";".join(flags)}")')
    if define:
        lines.append(f"set_property(SOURCE {files} APPEND PROPERTY COMPILE_DEFINITIONS {EXTENSION_MACRO}={job.id})")
    if job.emulate_avx512 and any(path.name == "isa.cpp" for path in section.sources):
        lines.append(f"set_property(SOURCE {files} APPEND PROPERTY COMPILE_DEFINITIONS PADFREE_EMULATE_AVX512)")
    return f"\n# [{section.name}]\n" + "\n".join(lines) + "\n" if files and lines else ""


def _flags(job: Job, section: Section) -> list[str]:
    flags = ["-O1" if flag == "-O3" and job.sanitize else flag for flag in section.cxx_flags]
    kept = [flag for flag in flags if not flag.startswith("-mavx512")]
    if not job.emulate_avx512 or kept == flags:
        return flags
    return [*EMULATED_FLAGS, *("-O2" if flag == "-O3" else flag for flag in kept)]


def _names_extension(job: Job) -> bool:
    """Whether a kernel file names the extension macro. Usually only the binding does, and then a new id (each edit of a
    dirty tree makes one) recompiles the binding alone."""
    macro = EXTENSION_MACRO.encode()
    return any(
        macro in (job.source / path).read_bytes()
        for section in job.sections
        if section.backend is not None
        for path in section.src
    )


def _forget_other_tools(job: Job, **tools: str) -> None:
    """CMake keeps what it first found for ever; other tools, another torch or another place start afresh."""
    stamp = job.binary / "bundle-stamp.json"
    now = json.dumps({**tools, "project": str(job.project)})
    if job.binary.exists() and (not stamp.is_file() or stamp.read_text(encoding="utf-8") != now):
        shutil.rmtree(job.binary)
    job.binary.mkdir(parents=True, exist_ok=True)
    stage.write_if_changed(stamp, now.encode())


def _jobs() -> list[str]:
    jobs = os.environ.get("MAX_JOBS")
    return [f"-j{jobs}"] if jobs else []


def _step_reader(on_step: OnStep | None) -> Callable[[str], None] | None:
    if on_step is None:
        return None

    def read(line: str) -> None:
        if match := _NINJA_STEP.match(line):
            on_step(int(match[1]), int(match[2]))

    return read


def _quote(path: Path) -> str:
    text = str(path)
    if set(text) & set('";$\\\n'):
        raise ConfigError(f'a path without any of " ; $ \\ is wanted for building, got {text}')
    return f'"{text}"'
