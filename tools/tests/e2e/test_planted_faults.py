"""Each check finds the fault it is for: tiny libraries that break one rule each, compiled for the purpose."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import kernels_data
import pytest

from bundle import build, buildfile, checks, compiler, stage
from bundle.checks import Check, Skipped, Subject, abi, api, binutils, isa, layout, load, sources
from bundle.errors import CheckError, ToolchainError

pytestmark = pytest.mark.e2e

VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
ID = "_tiny_kernel_cpu_test"
AVX2 = ("-mavx2", "-mfma")
BASE = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")

PYTHON_MODULE = f"""
#include <Python.h>
PyMODINIT_FUNC PyInit_{ID}() {{
  static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{ID}", nullptr, 0, nullptr}};
  return PyModule_Create(&module);
}}
"""

Make = Callable[..., Subject]


def compile_object(path: Path, text: str, flags: tuple[str, ...]) -> Path:
    source = path.with_suffix("")
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    command = [*compiler.find(compiler.host_system()).command, *BASE, *flags, "-DPy_LIMITED_API=0x03090000"]
    command += [f"-I{compiler.python_include()}", "-c", str(source), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Compile ``{name: text}`` (kernel_avx2* with AVX2 flags), link it as the extension, put a variant around it."""

    def made(files: dict[str, str] | None = None, *link: str, hidden: bool = True) -> Subject:
        scratch = tmp_path / "scratch" / VARIANT
        tree = scratch / "cmake" / "CMakeFiles" / "extension.dir"
        wanted = {"binding.cpp": PYTHON_MODULE, **(files or {})}
        objects = [
            compile_object(tree / f"{name}.o", text, AVX2 if "kernel_avx2" in name else ())
            for name, text in wanted.items()
        ]
        library = scratch / "cmake" / f"{ID}.abi3.so"
        exports = tmp_path / "exports.map"
        exports.write_text(f"{{ global: PyInit_{ID}; local: *; }};")
        script = [f"-Wl,--version-script={exports}"] if hidden else []
        command = [*compiler.find(compiler.host_system()).command, "-shared", *map(str, objects), "-o", str(library)]
        subprocess.run([*command, *script, *link], check=True)
        return finish(tmp_path, library, scratch)

    return made


def finish(tmp_path: Path, library: Path, scratch: Path) -> Subject:
    directory = tmp_path / "build" / VARIANT
    directory.mkdir(parents=True)
    shutil.copy(library, directory)
    (directory / "__init__.py").write_text("from ._ops import ops\n__all__ = ['ops']\n")
    (directory / "_ops.py").write_text(f"import torch\nfrom . import {ID}\nops = torch.ops.{ID}\n")
    write_metadata(directory)
    return dataclasses.replace(checks.subject(directory), scratch=scratch)


def write_metadata(directory: Path, **changes: object) -> None:
    (directory / "metadata.json").unlink(missing_ok=True)
    digest = kernels_data.Digest.hash_variant(kernels_data.DigestAlgorithm.SHA256, directory)
    table = {
        "name": "tiny-kernel",
        "id": ID,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
        "digest": {"algorithm": "sha256", "files": digest.files},
        **changes,
    }
    (directory / "metadata.json").write_text(json.dumps(table))


def found(check: Check, target: Subject) -> list[str]:
    return list(check(target))


def only(check: Check, target: Subject) -> str:
    """The one violation that ``check`` finds."""
    violations = found(check, target)
    assert len(violations) == 1, violations
    return violations[0]


# --- a sound one, so that the faults below are the faults' doing ---------------------------------------------------

KERNELS = {
    "kernel_avx2.cpp": """
        namespace padfree { namespace {
        template <class T> __attribute__((noinline)) void body(T* x, long n) { for (long i = 0; i < n; ++i) x[i] *= 2; }
        } }
        namespace padfree::scale::avx2 {
        void run(float* x, long n) {
          auto in_lambda = [&](long m) { body(x, m); };
          in_lambda(n);
          body(reinterpret_cast<double*>(x), n / 2);
        }
        }""",
    "kernel_generic.cpp": """
        namespace padfree::scale::generic { void run(float* x, long n) { for (long i = 0; i < n; ++i) x[i] *= 2; } }""",
}


@pytest.mark.parametrize(
    "check",
    [
        layout.layout,
        layout.digest,
        layout.paths,
        abi.manylinux,
        abi.python_abi,
        abi.linking,
        abi.stable_abi,
        isa.objects,
        isa.library,
    ],
)
def test_a_sound_library_passes(make: Make, check: Check) -> None:
    assert not found(check, make(KERNELS))


# --- layout and digest --------------------------------------------------------------------------------------------


def test_a_missing_file(make: Make) -> None:
    target = make()
    (target.directory / "_ops.py").unlink()
    assert only(layout.layout, target) == "_ops.py is missing"


@pytest.mark.parametrize("name", ["kernel.o", "CMakeCache.txt", "second.abi3.so"])
def test_a_stray_file(make: Make, name: str) -> None:
    target = make()
    (target.directory / name).write_text("")
    assert only(layout.layout, target) == f"{name} does not belong in a variant"


def test_a_link_and_a_cache(make: Make, checkout: Path) -> None:
    target = dataclasses.replace(make(), build=buildfile.read(checkout))
    (target.directory / "more.py").symlink_to("/etc/hostname")
    (target.directory / "__pycache__").mkdir()
    (target.directory / "__pycache__" / "x.cpython-311.pyc").write_text("")
    assert "more.py is a link" in found(layout.layout, target)
    assert not any("pycache" in violation for violation in found(layout.layout, target))


def test_the_wrong_backend_and_id(make: Make) -> None:
    target = make()
    write_metadata(target.directory, backend={"type": "cuda"}, id="_other")
    violations = found(layout.layout, checks.subject(target.directory))
    assert "metadata.json says backend cuda, the directory cpu" in violations
    assert "id must start with _tiny_kernel_cpu_, got _other" in violations


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("match 1:\n    case _: pass\n", "extra.py:2: not Python 3.9: Pattern matching is only supported in"),
        ("import transformers\n", "extra.py:1: imports transformers when loaded"),
        ("import numpy.linalg as la\n", "extra.py:1: imports numpy.linalg when loaded"),
        (
            "class A:\n    try:\n        from einops import rearrange\n    except ImportError: pass\n",
            "extra.py:3: imports",
        ),
    ],
)
def test_python_that_does_not_load_everywhere(make: Make, text: str, violation: str) -> None:
    target = make()
    (target.directory / "extra.py").write_text(text)
    assert only(layout.layout, target).startswith(violation)


def test_python_that_does(make: Make) -> None:
    target = make()
    lazily = "import os, torch.nn\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers\n"
    (target.directory / "extra.py").write_text(lazily + "def enable():\n    import transformers\n")
    assert not found(layout.layout, target)


def test_an_altered_file(make: Make) -> None:
    target = make()
    with target.library.open("ab") as library:
        library.write(b"\0")
    (target.directory / "late.py").write_text("")
    violations = found(layout.digest, target)
    assert len(violations) == 2
    assert any(target.library.name in violation for violation in violations)
    assert any("late.py" in violation for violation in violations)


def test_a_path_of_the_building_machine(make: Make, tmp_path: Path) -> None:
    target = make({"use.cpp": "const char* where() { return __FILE__; }"})
    assert str(tmp_path) in only(layout.paths, target)


def test_no_digest(make: Make) -> None:
    target = make()
    write_metadata(target.directory, digest=None)
    with pytest.raises(Skipped, match="records no digest"):
        found(layout.digest, checks.subject(target.directory))


# --- ABI ----------------------------------------------------------------------------------------------------------


def test_a_glibc_that_is_too_new(make: Make) -> None:
    use = 'extern "C" char __libc_single_threaded; char single() { return __libc_single_threaded; }'
    assert "__libc_single_threaded needs GLIBC 2.32" in only(abi.manylinux, make({"use.cpp": use}))


def test_a_stripped_library_is_not_believed(make: Make) -> None:
    target = make()
    subprocess.run(["strip", "--strip-all", str(target.linked)], check=True)
    with pytest.raises(CheckError, match="has no symbol table"):
        found(abi.manylinux, target)


@pytest.mark.parametrize(
    ("call", "violation"),
    [
        ("PyUnicode_AsUTF8AndSize", "PyUnicode_AsUTF8AndSize came into Python's stable ABI with 3.10"),
        ("_PyObject_GetDictPtr", "_PyObject_GetDictPtr is not in Python's stable ABI"),
    ],
)
def test_python_functions_that_are_too_new(make: Make, call: str, violation: str) -> None:
    target = make({"use.cpp": f'extern "C" void {call}(); void use() {{ {call}(); }}'})
    assert only(abi.python_abi, target).startswith(violation)


def test_exports_beyond_the_init_function(make: Make) -> None:
    shared = '__attribute__((visibility("default"))) int padfree_shared() { return 1; }'
    assert "padfree_shared" in only(abi.linking, make({"use.cpp": shared}, hidden=False))


def test_no_init_function(make: Make) -> None:
    target = make({"binding.cpp": "int nothing;"})
    assert only(abi.linking, target) == f"PyInit_{ID} is not exported, so Python cannot import the library"


def test_a_strange_dependency_and_an_rpath(make: Make) -> None:
    target = make(None, "-Wl,--no-as-needed", "-l:libz.so.1", "-Wl,-rpath,/somewhere")
    assert found(abi.linking, target) == [
        "needs libz.so.1, which is neither torch's nor the system's",
        "has RUNPATH /somewhere",
    ]


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("namespace c10 { void warn(int); } void use() { c10::warn(1); }", "c10::warn(int) is torch's C++"),
        (
            "namespace at { struct Tensor { Tensor(); }; } void use() { at::Tensor t; }",
            "at::Tensor::Tensor() is torch's",
        ),
        (
            'extern "C" int aoti_torch_of_tomorrow(); int use() { return aoti_torch_of_tomorrow(); }',
            "is no entry point",
        ),
        ('extern "C" int nobody_has_this(); int use() { return nobody_has_this(); }', "nobody_has_this is undefined"),
    ],
)
def test_symbols_outside_the_stable_abi(make: Make, text: str, violation: str) -> None:
    assert violation in only(abi.stable_abi, make({"use.cpp": text}))


def test_the_shim_grows_with_the_target_version() -> None:
    older, target = abi.shim_entry_points(2, 9), abi.shim_entry_points(2, 11)
    assert "torch_call_dispatcher" in target - older
    assert "aoti_torch_library_init_def" in older & target
    assert "aoti_torch_get_current_cuda_stream" in target


# --- ISA ----------------------------------------------------------------------------------------------------------


def test_a_weak_symbol_in_an_isa_file(make: Make) -> None:
    inline = """
        inline __attribute__((noinline)) float total(float* x, long n) {
          float s = 0;
          for (long i = 0; i < n; ++i) s += 2 * x[i];
          return s;
        }
        namespace padfree::scale::avx2 { float run(float* x, long n) { return total(x, n); } }"""
    violation = found(isa.objects, make({"kernel_avx2.cpp": inline}))[0]
    assert violation == "kernel_avx2.cpp defines total(float*, long) weakly: baseline code may get this avx2 copy"


def test_a_std_container_in_an_isa_file(make: Make) -> None:
    text = """
        #include <map>
        namespace padfree::scale::avx2 {
        void run(float* x, long n) {
          std::map<int, float> seen;
          for (long i = 0; i < n; ++i) seen[int(x[i])] = x[i];
          x[0] = seen.begin()->second;
        }
        }"""
    violations = found(isa.objects, make({"kernel_avx2.cpp": text}))
    assert violations
    assert all("std::_Rb_tree" in violation and "weakly" in violation for violation in violations)


def test_an_isa_file_that_exports_elsewhere(make: Make) -> None:
    text = KERNELS["kernel_generic.cpp"]  # built with AVX flags because of the name it gets
    target = make({"kernel_avx2.cpp": text})
    assert only(isa.objects, target).endswith("run(float*, long), which is not in padfree::<op>::avx2")
    assert only(isa.library, target).endswith("outside padfree::<op>::<isa>")


def test_wide_instructions_in_a_baseline_file(make: Make) -> None:
    text = """
        #include <immintrin.h>
        namespace padfree::scale::generic {
        __attribute__((target("avx2"))) void run(float* x) { _mm256_storeu_ps(x, _mm256_setzero_ps()); }
        }"""
    target = make({"kernel_generic.cpp": text})
    assert only(isa.objects, target).startswith("kernel_generic.cpp: padfree::scale::generic::run(float*) holds `v")
    assert only(isa.library, target).startswith("padfree::scale::generic::run(float*) holds `v")


AVX512 = """
        #include <immintrin.h>
        namespace padfree::scale::{isa} {{
        __attribute__((target("avx512f"))) void run(float* x) {{ _mm512_storeu_ps(x, _mm512_setzero_ps()); }}
        }}"""


def test_avx512_in_an_avx2_file(make: Make) -> None:
    target = make({"kernel_avx2.cpp": AVX512.format(isa="avx2")})
    assert only(isa.objects, target).endswith("`, which avx2 has not")
    assert only(isa.library, target).endswith("` outside padfree::<op>::avx512")


def test_avx512_in_its_own_file(make: Make) -> None:
    target = make({"kernel_avx512.cpp": AVX512.format(isa="avx512")})
    assert [*found(isa.objects, target), *found(isa.library, target)] == []


BFLOAT16 = """
        #include <immintrin.h>
        namespace padfree::scale::{isa} {{
        __attribute__((target("avx512f,avx512bf16"))) void run(float* x) {{
          const __m512 sum = _mm512_loadu_ps(x);
          __m512bh pairs;
          __builtin_memcpy(&pairs, x, sizeof pairs);
          _mm512_storeu_ps(x, _mm512_dpbf16_ps(sum, pairs, pairs));
        }}
        }}"""


def test_the_bfloat16_dot_product_in_an_avx512_file(make: Make) -> None:
    target = make({"kernel_avx512.cpp": BFLOAT16.format(isa="avx512")})
    assert only(isa.objects, target).endswith("`, which avx512 has not")
    assert only(isa.library, target).endswith("` outside padfree::<op>::avx512bf16")


def test_the_bfloat16_dot_product_in_its_own_file(make: Make) -> None:
    target = make({"kernel_avx512bf16.cpp": BFLOAT16.format(isa="avx512bf16")})
    assert [*found(isa.objects, target), *found(isa.library, target)] == []


@pytest.mark.parametrize(
    ("instruction", "isa_needed"),
    [
        ("vdpbf16ps %zmm1,%zmm2,%zmm5", "avx512bf16"),
        ("vdpbf16ps (%rax){1to4},%xmm2,%xmm5", "avx512bf16"),
        ("vcvtne2ps2bf16 %ymm1,%ymm2,%ymm3", "avx512bf16"),
        ("vmovups %zmm16,(%rax)", "avx512"),
        ("vaddps %xmm16,%xmm1,%xmm2", "avx512"),
        ("vmovdqu16 %ymm3,(%rsi){%k1}", "avx512"),
        ("kmovw %eax,%k1", "avx512"),
        ("vaddps %ymm15,%ymm1,%ymm2", "avx2"),
        ("rep stos %al,%es:(%rdi)", None),
        ("addps %xmm15,%xmm1", None),
    ],
)
def test_what_an_instruction_needs(instruction: str, isa_needed: str | None) -> None:
    assert isa.isa_needed(instruction) == isa_needed


def test_strip_keeps_what_the_isa_check_reads(make: Make) -> None:
    target = make(KERNELS)
    before = binutils.symbols(target.library)
    subprocess.run([*build.STRIP, str(target.library)], check=True)
    assert binutils.symbols(target.library) == before
    assert not found(isa.library, target)
    subprocess.run(["strip", "-g", str(target.library)], check=True)  # drops the names of the source files
    assert found(isa.library, target)


def test_isa_objects_of_a_downloaded_variant(make: Make) -> None:
    target = make(KERNELS)
    with pytest.raises(Skipped, match="object files"):
        found(isa.objects, dataclasses.replace(target, scratch=None))
    assert not found(isa.library, dataclasses.replace(target, scratch=None))


def test_a_machine_without_tools(make: Make, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make(KERNELS)
    monkeypatch.setenv("PATH", "")
    outcomes = {finding.check: finding for finding in checks.run_all(target)}
    assert outcomes["linking"].skipped == "nm not found"
    assert outcomes["digest"].skipped is None
    with pytest.raises(ToolchainError, match="nm not found"):
        checks.run_all(dataclasses.replace(target, build=buildfile.read(checkout)))


# --- sources ------------------------------------------------------------------------------------------------------


@pytest.fixture
def staged(make: Make, checkout: Path) -> tuple[Subject, Path]:
    target = make()
    build = buildfile.read(checkout)
    assert target.scratch is not None
    stage.write(build, target.scratch / "src")
    assert not found(sources.sources, dataclasses.replace(target, build=build))
    return dataclasses.replace(target, build=build), checkout


def test_a_source_that_nobody_lists(staged: tuple[Subject, Path]) -> None:
    target, root = staged
    (root / "kernel-src" / "scale" / "forgotten.cuh").write_text("")
    assert only(sources.sources, target) == "kernel-src/scale/forgotten.cuh is not listed in build.toml"


def test_a_source_that_changed_since(staged: tuple[Subject, Path]) -> None:
    target, root = staged
    (root / "kernel-src" / "scale" / "scale.h").write_text("// other\n")
    assert only(sources.sources, target) == "kernel-src/scale/scale.h changed since the build; build again"


def test_a_staged_file_that_should_not_be(staged: tuple[Subject, Path]) -> None:
    target, _ = staged
    assert target.scratch is not None
    (target.scratch / "src" / "kernel-src" / "sneaked.h").write_text("")
    assert only(sources.sources, target) == "kernel-src/sneaked.h was staged but is not listed; build again"


@pytest.mark.parametrize("name", ["setup.py", "cmake/utils.cmake", "torch-ext/registration.h"])
def test_a_generated_file_that_is_tracked(staged: tuple[Subject, Path], name: str) -> None:
    target, root = staged
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("")
    subprocess.run(["git", "-C", str(root), "add", name], check=True)
    assert only(sources.sources, target) == f"{name} is generated by kernel-builder and must not be committed"


def test_instruction_set_flags_on_the_wrong_file(staged: tuple[Subject, Path]) -> None:
    target, root = staged
    assert not found(isa.files, target)
    text = (root / "build.toml").read_text().replace("-mavx2", "-O3").replace("-mfma", "-g0")
    text = text.replace('name = "scale_cpu"', "").replace(
        "[kernel.scale_cpu]", '[kernel.scale_cpu]\ncxx-flags = ["-mavx"]'
    )
    (root / "build.toml").write_text(text)
    violations = found(isa.files, dataclasses.replace(target, build=buildfile.read(root)))
    assert violations == [
        "kernel-src/scale/cpu/kernel_generic.cpp gets -mavx from [kernel.scale_cpu] but is not named kernel_<isa>.cpp",
        "kernel-src/scale/cpu/kernel_avx2.cpp gets no instruction-set flag from [kernel.scale_cpu_avx2]",
    ]


# --- load and API -------------------------------------------------------------------------------------------------


def test_a_variant_that_registers_nothing(make: Make) -> None:
    assert only(load.load, make()) == f"no op is registered in torch.ops.{ID}"


def test_a_variant_that_does_not_load(make: Make) -> None:
    target = make()
    (target.directory / "__init__.py").write_text("raise RuntimeError('no luck')\n")
    assert only(load.load, target) == "does not load: RuntimeError: no luck"


def test_a_name_that_is_not_there(make: Make) -> None:
    target = make()
    (target.directory / "__init__.py").write_text("from ._ops import ops\n__all__ = ['ops', 'absent']\n")
    assert "__all__ names absent, which the package has not" in found(load.load, target)


def test_an_op_without_implementation(make: Make) -> None:
    target = make()
    define = f"import torch\nlib = torch.library.Library('{ID}', 'DEF')\nlib.define('hollow(Tensor x) -> Tensor')\n"
    (target.directory / "__init__.py").write_text(define + "__all__ = []\n")
    assert only(load.load, target) == f"{ID}::hollow has a schema but no cpu implementation"


def test_a_variant_for_another_machine(make: Make) -> None:
    target = make()
    other = dataclasses.replace(target.variant, platform="riscv64")
    with pytest.raises(Skipped, match="runs on riscv64-linux, this is"):
        found(load.load, dataclasses.replace(target, variant=other))


def test_the_api_guard(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make()
    monkeypatch.setattr(api, "DIRECTORY", tmp_path)
    assert only(api.api, target).startswith("api_v1.txt is missing")
    (tmp_path / "api_v1.txt").write_text("# names\nops\n")
    assert not found(api.api, target)
    (tmp_path / "api_v1.txt").write_text("older\n")
    new, gone = found(api.api, target)
    assert new.startswith("ops is new in __all__: bump version in build.toml (to 2)")
    assert gone == "older is gone from __all__: bump version in build.toml (to 2) or put it back"
