"""Toolkits, architectures and the resource table, without a compiler: ptxas's words are quoted, nvcc is a script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write_cuda_checkout

from bundle import __main__ as cli
from bundle import buildfile, cuda, matrix, options, process, ptxas, toolchain, variant
from bundle.cuda import Arch
from bundle.errors import CheckError, ConfigError, ToolchainError, UsageError

CU130 = variant.parse("torch-stable-abi211-cu130-x86_64-linux")

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN1a1kILi2EEEvPfPFviE' for 'sm_80'
ptxas info    : Function properties for _ZN1a1kILi2EEEvPfPFviE
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 4096 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 250.0 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'plain' for 'sm_121'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compile time = 2.5 ms
"""
ROWS = (
    ptxas.Row("a::k<2>", "sm_80", 40, 4096, 16, 8, 12),
    ptxas.Row("plain", "sm_121", 10, 0, 0, 0, 0),
)


def write_toolkit(root: Path, release: str) -> Path:
    """A toolkit whose nvcc only says its version."""
    nvcc = root / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    short = ".".join(release.split(".")[:2])
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {short}, V{release}'\n", encoding="utf-8")
    nvcc.chmod(0o755)
    (root / "lib").mkdir()
    (root / "lib" / f"libcudart.so.{release.split('.')[0]}").touch()
    return root


@pytest.fixture(autouse=True)
def _no_toolkit_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(process, "capture", _without_path_nvcc(process.capture))


def _without_path_nvcc(capture: Callable[..., str | None]) -> Callable[..., str | None]:
    return lambda command, *words, **options: None if command[0] == "nvcc" else capture(command, *words, **options)


@pytest.mark.parametrize(
    ("text", "arch", "sm", "flags"),
    [
        ("8.0", Arch(8, 0), "sm_80", "-gencode arch=compute_80,code=sm_80"),
        (
            "12.1+PTX",
            Arch(12, 1, True),
            "sm_121",
            "-gencode arch=compute_121,code=sm_121 -gencode arch=compute_121,code=compute_121",
        ),
    ],
)
def test_architectures(text: str, arch: Arch, sm: str, flags: str) -> None:
    assert cuda.parse_arch(text) == arch
    assert (str(arch), arch.sm, " ".join(arch.flags)) == (text, sm, flags)


@pytest.mark.parametrize("text", ["80", "8", "sm_80", "8.0+ptx", ""])
def test_other_words_are_no_architecture(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a compute capability like 8\.0"):
        cuda.parse_arch(text)


def test_archs_of_a_build(tmp_path: Path) -> None:
    build = buildfile.read(write_cuda_checkout(tmp_path / "checkout"))
    assert [str(arch) for arch in cuda.all_archs(build)] == ["8.0", "9.0", "12.1+PTX"]
    assert [str(arch) for arch in cuda.all_archs(build, ["12.1+PTX", "8.0"])] == ["8.0", "12.1+PTX"]
    with pytest.raises(UsageError, match=r"\(8\.0 9\.0 12\.1\+PTX\), got 8\.6"):
        cuda.all_archs(build, ["8.6"])


def test_a_section_with_cuda_files_lists_its_archs(tmp_path: Path) -> None:
    toml = write_cuda_checkout(tmp_path / "checkout") / "build.toml"
    text = toml.read_text(encoding="utf-8")
    toml.write_text("".join(line for line in text.splitlines(True) if "cuda-cap" not in line), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[kernel\.scale_cuda\] has \.cu files and no cuda-capabilities"):
        cuda.all_archs(buildfile.read(toml.parent))


def test_the_toolkit_of_the_variants_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write_toolkit(tmp_path / "home", "12.8.93")
    fetched = write_toolkit(cuda.toolchain_directory("cu130", tmp_path) / "nvidia" / "cu13", "13.0.88")
    monkeypatch.setenv("CUDA_HOME", str(home))
    found = cuda.find(CU130, tmp_path)
    assert (found.root, found.version, found.release) == (fetched, (13, 0), "13.0.88")
    assert found.runtime == fetched / "lib" / "libcudart.so.13"


def test_a_missing_toolkit_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match=r"cu130-x86_64-linux: nvcc 13\.0 wanted, found no nvcc") as raised:
        cuda.find(CU130, tmp_path)
    assert "bundle toolchain cu130" in str(raised.value.hint)
    monkeypatch.setenv("CUDA_HOME", str(write_toolkit(tmp_path / "home", "13.2.86")))
    assert cuda.reason_against(CU130, tmp_path) == "nvcc 13.0 wanted, found nvcc 13.2.86"


def test_the_plan_names_the_missing_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = buildfile.read(write_cuda_checkout(tmp_path / "checkout"))
    cells = {str(cell.variant): cell.left_out for cell in matrix.plan(build)}
    assert cells[str(CU130)] == "nvcc 13.0 wanted, found no nvcc"
    monkeypatch.setenv("CUDA_HOME", str(write_toolkit(tmp_path / "home", "13.0.88")))
    cells = {str(cell.variant): cell.left_out for cell in matrix.plan(build)}
    assert cells[str(CU130)] is None
    assert cells["torch-stable-abi211-cu132-x86_64-linux"] == "nvcc 13.2 wanted, found nvcc 13.0.88"


def test_toolchains_of_the_registry_are_pinned() -> None:
    assert toolchain.known() == ("cu130", "cu132")
    for name in toolchain.known():
        lines = (toolchain.REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert len(pins) == 6
        assert all("==" in pin and " --hash=sha256:" in pin for pin in pins)


def test_a_toolchain_the_registry_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["toolchain", "cu126"]) == UsageError.exit_code
    assert "a toolchain of the registry (cu130, cu132) is wanted, got cu126" in capsys.readouterr().err


def test_ptxas_is_read() -> None:
    assert tuple(ptxas.parse(PTXAS)) == ROWS


def test_ptxas_in_other_words_is_an_error() -> None:
    with pytest.raises(CheckError, match="ptxas said something else"):
        list(ptxas.parse(PTXAS.replace("Used 40 registers", "Took 40 registers")))


def test_ptxas_times_are_summed(tmp_path: Path) -> None:
    for name in ("a.o.ptxas", "b.o.ptxas"):
        (tmp_path / name).write_text(PTXAS, encoding="utf-8")
    assert ptxas.seconds(tmp_path) == pytest.approx({"sm_80": 0.5, "sm_121": 0.005})


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z12scale_kernelPKfPflf", "scale_kernel"),
        ("_ZN1a1kILi2EEEvPfPFviE", "a::k<2>"),
        ("plain", "plain"),
    ],
)
def test_kernel_names_are_readable(mangled: str, name: str) -> None:
    assert ptxas.readable(mangled) == name


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(ptxas.rendered(reversed(ROWS)), encoding="utf-8")
    assert ptxas.committed(path) == tuple(sorted(ROWS))
    assert ptxas.committed(tmp_path / "none.tsv") == ()


def test_the_committed_tables_have_no_spills() -> None:
    for path in ptxas.DIRECTORY.glob("*.tsv"):
        spilling = [row for row in ptxas.committed(path) if row.spill_stores or row.spill_loads]
        assert not spilling, f"{path.name}: {spilling}"


def test_the_committed_tables_hold_every_architecture() -> None:
    """What `build` compiles by default must not fail `check` for want of rows."""
    wanted = {arch.sm for arch in cuda.all_archs(buildfile.read(options.REPOSITORY))}
    for path in ptxas.DIRECTORY.glob("*.tsv"):
        assert {row.arch for row in ptxas.committed(path)} == wanted, path.name


def test_a_report_needs_a_build(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="holds no ptxas report"):
        ptxas.read(tmp_path)


def test_the_requirements_are_the_drivers() -> None:
    assert toolchain.REQUIREMENTS == options.REPOSITORY / "tools" / "requirements"
