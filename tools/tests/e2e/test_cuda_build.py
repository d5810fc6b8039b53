"""CUDA variants of the tiny project, with a real nvcc where there is one: what comes out, and what the checks find."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import git, write_cuda_checkout

from bundle import __main__ as cli
from bundle import checks, cuda, ptxas, variant
from bundle.options import REPOSITORY

NAME = "torch-stable-abi211-cu130-x86_64-linux"
CU130 = variant.parse(NAME)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(cuda.reason_against(CU130, REPOSITORY) is not None, reason="needs nvcc 13.0"),
]

SPILLING = """\
__global__ void __launch_bounds__(1024) spilling(float* x) {
  float held[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) held[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[(95 - i) * 1024 + threadIdx.x] = held[i] * held[(i + 7) % 96];
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_cuda_checkout(tmp_path_factory.mktemp("cuda") / "checkout")
    assert cli.main(["build", "--root", str(root), "--only", NAME, "--archs", "8.0", "12.1+PTX"]) == 0
    return root


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ptxas, "DIRECTORY", tmp_path)
    return tmp_path / "nvcc-13.0.tsv"


def findings(root: Path) -> dict[str, tuple[str, ...]]:
    target = checks.subject(root / "build" / NAME, root=root, scratch=root / ".bundle")
    return {finding.check: finding.violations for finding in checks.run_all(target)}


def test_the_library_holds_what_metadata_lists(built: Path, tables: Path) -> None:
    assert cli.main(["resources", "--root", str(built), "--only", NAME, "--write"]) == 0
    rows = ptxas.committed(tables)
    assert {(row.kernel, row.arch) for row in rows} == {
        ("padfree::scale::cuda::kernel<2>", arch) for arch in ("sm_80", "sm_121")
    }
    assert all(0 < row.registers < 64 for row in rows)
    target = checks.subject(built / "build" / NAME)
    assert target.metadata.backend.archs == ["12.1+PTX", "8.0"]
    assert not any(findings(built).values())
    log = (built / ".bundle" / NAME / "build.log").read_text(encoding="utf-8")
    assert f"{NAME}: sm_121: " in log


def test_a_table_that_is_stale_fails(built: Path, tables: Path) -> None:
    cli.main(["resources", "--root", str(built), "--only", NAME, "--write"])
    text = tables.read_text(encoding="utf-8")
    tables.write_text(text.replace("kernel<2>", "kernel<4>"), encoding="utf-8")
    found = "\n".join(findings(built)["gpu kernels"])
    assert "kernel<2> on sm_80 takes" in found
    assert "lists padfree::scale::cuda::kernel<4> on sm_121, which was not built" in found


def test_an_architecture_that_is_not_there_fails(built: Path, tables: Path) -> None:
    path = built / "build" / NAME / "metadata.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"8.0"', '"9.0+PTX"'), encoding="utf-8")
    try:
        assert findings(built)["gpu archs"] == (
            "metadata.json lists 9.0, the library has not a cubin for it",
            "the library has a cubin for 8.0, which metadata.json does not list",
            "metadata.json lists 9.0, the library has not PTX for it",
        )
    finally:
        path.write_text(text, encoding="utf-8")


def test_a_kernel_that_spills_fails(tmp_path: Path, tables: Path) -> None:
    root = write_cuda_checkout(tmp_path / "checkout")
    kernel = root / "kernel-src/scale/cuda/kernel.cu"
    kernel.write_text(kernel.read_text(encoding="utf-8") + SPILLING, encoding="utf-8")
    git(root, "commit", "--quiet", "-am", "spills")
    assert cli.main(["build", "--root", str(root), "--only", NAME, "--archs", "8.0"]) == 0
    cli.main(["resources", "--root", str(root), "--only", NAME, "--write"])  # the table does not excuse it
    found = findings(root)["gpu kernels"]
    assert len(found) == 1
    assert found[0].startswith("spilling spills on sm_80: ")


LAUNCHING = """\
#include <cstdio>

#include "common/cuda/launch.h"

struct Params {};
__global__ void nothing(const __grid_constant__ Params) {}

int main() {
  try {
    padfree::launch(nothing, {.op = "planted", .kernel = "nothing", .shape = "3 rows", .blocks = 2, .threads = 2048,
                              .shared_bytes = 64, .stream = nullptr}, Params{});
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
}
"""


def test_a_launch_that_cuda_refuses_names_op_and_shape_and_cudas_words(tmp_path: Path) -> None:
    """Everywhere: without a GPU there is no device, with one no block of 2048 threads."""
    toolkit, program = cuda.find(CU130, REPOSITORY), tmp_path / "launching"
    source = program.with_suffix(".cu")
    source.write_text(LAUNCHING, encoding="utf-8")
    command = [str(toolkit.nvcc), "-std=c++20", f"-I{REPOSITORY / 'kernel-src'}", "-cudart", "none", str(source)]
    subprocess.run([*command, "-o", str(program), "-Xlinker", str(toolkit.runtime)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(toolkit.runtime.parent)}
    said = subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout.strip()
    where = "planted: nothing on 3 rows, 2 blocks of 2048 threads with 64 bytes of shared memory each: "
    assert said.startswith(where)
    assert said.removeprefix(where)


def test_an_error_of_nvcc_is_shown_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_cuda_checkout(tmp_path / "checkout")
    (root / "kernel-src/scale/cuda/kernel.cu").write_text("__global__ void broken( {}\n", encoding="utf-8")
    assert cli.main(["build", "--root", str(root), "--only", NAME, "--archs", "8.0"]) != 0
    assert "kernel.cu(1): error" in capsys.readouterr().err
    assert not (root / "build" / NAME).exists()
